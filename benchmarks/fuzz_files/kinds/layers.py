# pyright: basic
"""Layer profiles of pipelines: PipeDream, DAPPLE, Piper, AMP, Aceso and Galvatron."""

from __future__ import annotations

import gzip
import io
import json
import math
import tarfile
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import yaml

from planner import PlanError
from planner.pipeline.published import Host, Machine, Question, ask
from planner.pipeline.published.readers import aceso, galvatron
from planner.pipeline.published.reading import read_profile

from ..damage import damaged
from ..kind import ACCEPTED, EQUAL, Files, Kind, expect
from ..values import as_json, changed

DATA = Path(__file__).parents[3] / "tests" / "planner" / "pipeline" / "published" / "data"
ASKED = 0.1  # share of the profiles that are planned from
MACHINE = Machine((Host(4, 16e9, 2.5e10, 2.5e10),))
ARCHIVE, MODEL = "profile.tar.gz", "gpt_1_3B"


def _text(name: str) -> bytes:
    return gzip.decompress((DATA / name).read_bytes())


@cache
def _graphs() -> tuple[Files, ...]:
    amp = {path.name: path.read_bytes() for path in sorted(DATA.glob("gpt2*"))}
    first = "gpt2_G4_1.npy"
    return (
        {"pipedream_vgg16.txt": _text("pipedream_vgg16.txt.gz")},
        {"dapple_vgg-19-pbs-32.txt": _text("dapple_vgg-19-pbs-32.txt.gz")},
        {"dapple_amoeba-18-pbs-8.txt.gz": (DATA / "dapple_amoeba-18-pbs-8.txt.gz").read_bytes()},
        {"piper.json": _piper()},
        {first: amp.pop(first), **amp},
    )


def _piper() -> bytes:
    """The first layers of a profile."""
    raw = json.loads(_text("piper_bert32a100.json.gz"))
    raw["nodes"] = raw["nodes"][:5]
    names = {node["id"] for node in raw["nodes"]}
    raw["edges"] = [e for e in raw["edges"] if {e["sourceId"], e["destId"]} <= names]
    for node in raw["nodes"]:
        for entries in node["TMPCs"].values():
            for entry in entries:
                for key in ("syncTimeFw", "syncTimeBw"):
                    entry[key] = {k: v for k, v in entry[key].items() if int(k) in names}
    return json.dumps(raw).encode()


def _data(rng: Random, files: Files) -> tuple[str, Files]:
    name = rng.choice([n for n in files if n.endswith((".json", ".yaml"))] or list(files))
    if name.endswith(".json"):
        how, value = changed(rng, json.loads(files[name]))
        return f"data of {name}: {how}", {**files, name: as_json(rng, value)}
    if name.endswith(".yaml"):
        how, value = changed(rng, yaml.safe_load(files[name]))
        return f"data of {name}: {how}", {**files, name: as_json(rng, value)}
    if name.endswith(".txt.gz"):
        how, data = damaged(rng, gzip.decompress(files[name]))
        return f"unpacked: {how}", {**files, name: gzip.compress(data, 1)}
    how, data = damaged(rng, files[name])
    return how, {**files, name: data}


def _use_graph(folder: Path, seed: Files, rng: Random) -> str:
    name = next(iter(seed))
    found = read_profile(folder / name)
    expect(bool(found), "no graph")
    for graph in found.values():
        expect(graph.batch >= 1 and bool(graph.layers) and bool(graph.degrees()), "no layers")
    if rng.random() < ASKED:
        _ask(Question(path=folder / name, machine=MACHINE, batch=32))
    return EQUAL if found == _sound(name, tuple(sorted(seed.items()))) else ACCEPTED


@cache
def _sound(name: str, files: tuple[tuple[str, bytes], ...]) -> object:
    with tempfile.TemporaryDirectory() as folder:
        for other, data in files:
            (Path(folder) / other).write_bytes(data)
        return read_profile(Path(folder) / name)


def _ask(question: Question) -> None:
    """A plan has finite figures."""
    found = ask(question)
    json.dumps(found.data, allow_nan=False)
    expect(found.step_s is None or math.isfinite(found.step_s), f"a step of {found.step_s} s")


# --- folders and archives ----------------------------------------------------------------------


@cache
def _galvatron() -> Files:
    found = {path.name: path.read_bytes() for path in sorted((DATA / "galvatron").iterdir())}
    model = yaml.safe_load(found["llama2-7b.yaml"]) | {"num_layers": 3}
    return found | {"llama2-7b.yaml": yaml.safe_dump(model).encode()}


def _use_galvatron(folder: Path, seed: Files, rng: Random) -> str:
    if not galvatron.is_folder(folder):
        raise PlanError("no folder", kind="bad-profile")
    found = galvatron.read(folder)
    galvatron.layer_graph(found, microbatch=1)
    if rng.random() < ASKED and found.layers < 10:
        _ask(Question(path=folder, machine=Machine((Host(8, 36e9, 1e11, 1e11),)), batch=16))
    return EQUAL if repr(replace(found, name="")) == _sound_galvatron() else ACCEPTED


@cache
def _sound_galvatron() -> str:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in _galvatron().items():
            (Path(folder) / name).write_bytes(data)
        return repr(replace(galvatron.read(Path(folder)), name=""))


@cache
def _members() -> Files:
    """Some of the tables of an archive."""
    found: dict[str, bytes] = {}
    with tarfile.open(DATA / "aceso_gpt.tar.gz") as archive:
        for member in archive:
            name = Path(member.name).name
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None and (name.startswith("p2p") or f"{MODEL}_mbs1_" in name):
                found[name] = file.read()
    return found


def _archive(files: Files) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _member(rng: Random, files: Files) -> tuple[str, Files]:
    members = dict(_members())
    name = rng.choice(list(members))
    how, members[name] = damaged(rng, members[name])
    return f"{name}: {how}", {ARCHIVE: _archive(members)}


def _use_aceso(folder: Path, seed: Files, rng: Random) -> str:
    found = aceso.read(folder / ARCHIVE, model=MODEL)
    for row in found.table.values():
        expect(bool((row >= 0).all()), "a negative time")
    sizes = sorted({batch for batch, _ in found.table})
    aceso.layer_graph(found, microbatch=sizes[0])
    return ACCEPTED


PIPELINE = (
    "pipeline", "{file}", "--devices", "4", "--memory", "16GB", "--bandwidth", "25GB", "--batch",
    "32",
)  # fmt: skip


def kinds(*, quick: bool) -> list[Kind]:
    return [
        Kind("layer profile", _graphs(), _use_graph, (_data,), 3.0, PIPELINE),
        Kind("galvatron folder", (_galvatron(),), _use_galvatron, (_data,), 1.0),
        Kind("aceso archive", ({ARCHIVE: _archive(_members())},), _use_aceso, (_member,), 0.5),
    ]

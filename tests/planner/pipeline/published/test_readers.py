"""Profiles as published are read; damaged ones are refused with place and remedy."""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.common.errors import PlanError
from planner.pipeline.published import Question, ask, flat, read_profile
from planner.pipeline.published.readers import aceso, galvatron

from .helpers import DATA

TEXTS = sorted(path.name for path in DATA.glob("*.txt.gz"))


@pytest.mark.parametrize("name", TEXTS)
def test_text_profiles_keep_their_totals(name: str) -> None:
    graph = read_profile(DATA / name)[""]
    lines = gzip.decompress((DATA / name).read_bytes()).decode().splitlines()
    nodes = [line for line in lines if "forward_compute_time=" in line]
    assert len(graph.layers) == len(nodes)
    assert len(graph.edges) == len([line for line in lines if line.strip()]) - len(nodes)
    seconds = sum(layer.at(1)[0].forward_s for layer in graph.layers)
    wanted = sum(float(line.split("forward_compute_time=")[1].split(",")[0]) for line in nodes)
    assert seconds == pytest.approx(wanted * 1e-3)


def test_piper_profile_is_read_whole() -> None:
    graph = read_profile(DATA / "piper_bert32a100.json.gz")[""]
    top = json.loads(gzip.decompress((DATA / "piper_bert32a100.json.gz").read_bytes()))
    assert len(graph.layers) == len(top["nodes"])
    assert len(graph.edges) == len(top["edges"])
    assert graph.degrees() == (1, 2, 4, 8)
    for degree in graph.degrees():
        mine = sum(v.seconds for layer in graph.layers for v in layer.at(degree))
        theirs = sum(
            c["timePerSample"] for node in top["nodes"] for c in node["TMPCs"][str(degree)]
        )
        assert mine == pytest.approx(theirs)


def test_amp_arrays_are_read_by_kind() -> None:
    graphs = read_profile(DATA / "gpt2_P3_1.npy")
    assert sorted(graphs) == ["G4", "P3"]
    assert graphs["P3"].degrees() == (1, 2, 4)
    assert graphs["G4"].degrees() == (1, 4)
    array = np.load(DATA / "gpt2_G4_4.npy")
    mine = [layer.at(4)[0].forward_s for layer in graphs["G4"].layers]
    np.testing.assert_allclose(mine, array)


def test_aceso_database_is_written_out() -> None:
    database = aceso.read(DATA / "aceso_gpt.tar.gz", model="gpt_2_6B")
    assert len(database.ops) == 1 + 13 * 32 + 2
    assert sorted(database.table) == [(b, t) for b in (1, 2, 4, 8) for t in (1, 2, 4, 8)]
    graph = aceso.layer_graph(database, microbatch=2)
    assert graph.degrees() == (1, 2, 4, 8)
    assert sum(layer.at(2)[0].forward_s for layer in graph.layers) == pytest.approx(
        database.table[2, 2][0].sum()
    )


def test_galvatron_folder_is_read() -> None:
    profile = galvatron.read(DATA / "galvatron")
    assert (profile.layers, profile.hidden, profile.sequence) == (32, 4096, 2048)
    assert profile.devices == 8
    # The line through the measured batches passes near each of them.
    slope, start = profile.layer_ms
    assert slope * 8 + start == pytest.approx(8 * 3.9369729995727534, rel=0.02)


def text_of(name: str) -> str:
    return gzip.decompress((DATA / name).read_bytes()).decode()


VGG = "dapple_vgg-19-pbs-32.txt.gz"
DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "negative": (lambda t: t.replace("forward_compute_time=7.2", "forward_compute_time=-7.2"),
                 "is -7.2"),
    "not a number": (lambda t: t.replace("parameter_size=6835.000", "parameter_size=many"),
                     "'many'"),
    "nan": (lambda t: t.replace("forward_compute_time=7.2", "forward_compute_time=nan"), "nan"),
    "missing node": (lambda t: t + "\tnode26 -- node99\n", "node99"),
    "cycle": (lambda t: t + "\tnode26 -- node2\n", "cycle"),
    "twice": (lambda t: t + "\tnode25 -- node26\n", "twice"),
    "cut in a node": (lambda t: t[: t.index("activation_size", 900)], "expected"),
    "no edges": (lambda t: t[: t.index("\tnode1")], "no edges"),
    "other": (lambda _: "hello\n", "none of the known formats"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(DAMAGE))
def test_damaged_text_is_refused(tmp_path: Path, name: str) -> None:
    damage, expected = DAMAGE[name]
    path = tmp_path / "profile.txt"
    text = damage(text_of(VGG))
    assert text != text_of(VGG)
    path.write_text(text)
    with pytest.raises(PlanError, match=expected) as caught:
        read_profile(path)
    assert caught.value.kind == "bad-profile"
    assert caught.value.where.startswith("profile.txt")
    assert caught.value.remedy


def first_configuration(top: dict[str, Any]) -> dict[str, Any]:
    return top["nodes"][1]["TMPCs"]["1"][0]


BREAK: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "negative": (lambda t: first_configuration(t).update(timePerSample=-1), "-1"),
    "text": (lambda t: first_configuration(t).update(memoryUsageA="much"), "much"),
    "unknown": (lambda t: first_configuration(t).update(id="magic"), "magic"),
    "missing key": (lambda t: t.pop("mbsInBatch"), "mbsInBatch"),
    "missing node": (lambda t: t["nodes"].pop(), "does not describe"),
    "cycle": (
        lambda t: t["edges"].append({"sourceId": 36, "destId": 1, "communicationCost": 1.0}),
        "cycle",
    ),
    "twice": (lambda t: t["nodes"].append(t["nodes"][0]), "twice"),
    "no nodes": (lambda t: t.update(nodes=[], edges=[]), "no layers|none of the known"),
}


@pytest.mark.parametrize("name", sorted(BREAK))
def test_damaged_json_is_refused(tmp_path: Path, name: str) -> None:
    damage, expected = BREAK[name]
    top = json.loads(text_of("piper_bert32a100.json.gz"))
    damage(top)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(top))
    with pytest.raises(PlanError, match=expected) as caught:
        read_profile(path)
    assert caught.value.kind == "bad-profile"


@pytest.mark.parametrize("keep", [0, 1, 100, 4000])
def test_truncated_files_are_refused(tmp_path: Path, keep: int) -> None:
    for name in ("piper_bert32a100.json.gz", "gpt2_P3_1.npy"):
        data = (DATA / name).read_bytes()[:keep]
        if len(data) == (DATA / name).stat().st_size:
            continue
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(PlanError):
            read_profile(path)


def test_arrays_with_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad_P3_1.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(PlanError, match="plain array"):
        read_profile(path)


def test_negative_seconds_in_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad_P3_1.npy"
    np.save(path, np.array([1.0, -1.0]))
    with pytest.raises(PlanError, match="negative"):
        read_profile(path)


def test_databases_name_what_they_lack(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="gpt_13B"):
        aceso.read(DATA / "aceso_gpt.tar.gz", model="gpt_350M")
    folder = tmp_path / "database"
    with tarfile.open(DATA / "aceso_gpt.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    broken = folder / "gpt_1_3B_mbs1_tp1_algo0.csv"
    broken.write_text(broken.read_text()[:-30])
    with pytest.raises(PlanError, match=r"gpt_1_3B_mbs1_tp1_algo0\.csv:17"):
        aceso.read(folder, model="gpt_1_3B")


def test_a_folder_without_a_file_says_which(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    shutil.copytree(DATA / "galvatron", folder)
    (folder / "overlap_coefficient.json").unlink()
    with pytest.raises(PlanError, match="overlap_coefficient"):
        galvatron.read(folder)


def test_galvatron_layers_add_up_to_its_model() -> None:
    profile = galvatron.read(DATA / "galvatron")
    graph = galvatron.layer_graph(profile, microbatch=4)
    assert graph.degrees() == tuple(sorted(profile.activation_mb))
    slope, start = profile.layer_ms
    other_slope, other_start = profile.other_ms
    forward = 32 * (4 * slope + start) + 4 * other_slope + other_start
    mine = sum(layer.at(1)[0].forward_s for layer in graph.layers)
    assert mine == pytest.approx(forward * 1e-3)
    held = sum(layer.at(1)[0].fixed_bytes for layer in graph.layers)
    ends = sum(profile.other_state_mb[key][1] for key in ("first", "last"))
    assert held == pytest.approx((32 * 4 * profile.parameter_mb + ends) * (1 << 20))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param("aceso_gpt.tar.gz", "gpt_1_3B", marks=pytest.mark.exhaustive),
        ("galvatron", None),
    ],
)
def test_profiles_of_planners_that_are_not_ours_are_planned(name: str, model: str | None) -> None:
    machine = flat(4, memory_bytes=80e9, bandwidth_bytes_per_s=1e11)
    found = ask(Question(path=DATA / name, machine=machine, batch=64, model=model))
    assert found.feasible
    assert found.convention == "flush"
    with pytest.raises(PlanError, match="not known"):
        ask(Question(path=DATA / name, machine=machine, batch=64, model=model, convention="aceso"))


def test_amp_shapes_beyond_any_float_are_refused(tmp_path: Path) -> None:
    for file in DATA.glob("gpt2*"):
        shutil.copy(file, tmp_path)
    shapes = json.loads((tmp_path / "gpt2.json").read_text())
    (tmp_path / "gpt2.json").write_text(json.dumps(shapes | {"hidden": 10**200}))
    with pytest.raises(PlanError, match="finite"):
        read_profile(tmp_path / "gpt2_P3_1.npy")

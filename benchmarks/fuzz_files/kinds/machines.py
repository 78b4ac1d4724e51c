# pyright: basic
"""Exported profiles with their tables, the database of profiles, and cluster files."""

from __future__ import annotations

import contextlib
import gzip
import json
import sqlite3
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import yaml

from costmodel import KINDS, Cluster, CollectiveModel, ComputeModel, group_for, parse_cluster
from profiles import (
    Profile,
    Sample,
    check_storable,
    load_profile,
    merge_profiles,
    save_profile,
    store_profile,
    stored_profile,
    stored_profiles,
    stored_samples,
)

from ..damage import damaged
from ..kind import ACCEPTED, EQUAL, Files, Kind, expect
from ..tables import changed as tables_changed
from ..values import as_json, changed

ROWS = 24
TABLE = "table.gemm.csv.gz"
SIZES = np.array([0.0, 1.0, 1e3, 1e6, 1e9])


@cache
def _profile(name: str) -> Profile:
    """A shipped profile with short tables."""
    found = load_profile(name)
    short = {
        key: msgspec.structs.replace(table, rows=table.rows[:: max(1, len(table.rows) // ROWS)])
        for key in ("collectives", "gemm", "ops")
        if (table := getattr(found, key)) is not None
    }
    return msgspec.structs.replace(found, name=f"my-{name}", aliases=(), **short)


@cache
def _exported(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.json"
        save_profile(_profile(name), path)
        return path.read_bytes()


@cache
def _beside() -> Files:
    """A profile whose table lies beside it."""
    raw = json.loads(_exported("h100"))
    rows = raw["gemm"].pop("rows")
    raw["gemm"]["file"] = TABLE
    lines = ["dtype,batch,m,n,k,seconds", *(",".join(map(str, row)) for row in rows)]
    packed = gzip.compress("\n".join(lines).encode(), mtime=0)
    return {"p.json": json.dumps(raw, indent=1).encode(), TABLE: packed}


def _table(rng: Random, files: Files) -> tuple[str, Files]:
    if TABLE not in files:
        return _data(rng, files)
    how, data = damaged(rng, gzip.decompress(files[TABLE]))
    return f"table: {how}", {**files, TABLE: gzip.compress(data, 1)}


def _data(rng: Random, files: Files) -> tuple[str, Files]:
    how, value = changed(rng, json.loads(files["p.json"]))
    return f"data: {how}", {**files, "p.json": as_json(rng, value)}


def _use_profile(folder: Path, seed: Files, rng: Random) -> str:
    found = load_profile(folder / "p.json")
    save_profile(found, folder / "again.json")
    expect(load_profile(folder / "again.json") == found, "a profile is not read as it was written")
    text = f"device: p.json\ndevices: {found.devices_per_host}\n"
    (folder / "c.yaml").write_text(text, encoding="utf-8")
    _price(parse_cluster(folder / "c.yaml"))
    return EQUAL if (folder / "again.json").read_bytes() == _exported_of(seed) else ACCEPTED


@cache
def _again(data: bytes, table: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "p.json").write_bytes(data)
        (path / TABLE).write_bytes(table)
        save_profile(load_profile(path / "p.json"), path / "again.json")
        return (path / "again.json").read_bytes()


def _exported_of(seed: Files) -> bytes:
    return _again(seed["p.json"], seed.get(TABLE, b""))


def _price(cluster: Cluster) -> None:
    """A description of a machine gives every operation a finite price."""
    plain = cluster.to_dict()
    msgspec.json.encode(plain)
    expect(Cluster.from_dict(json.loads(json.dumps(plain))) == cluster, "not read as written")
    if cluster.num_devices > 4096:
        return
    compute, collectives = ComputeModel(cluster), CollectiveModel(cluster)
    group = group_for(cluster, (cluster.num_devices,), (0,))
    seconds = [
        compute.gemm_s(1.0, SIZES, SIZES, SIZES, "bfloat16"), compute.memory_s(SIZES),
        compute.flops_s(SIZES, "float32"),
        *(collectives.seconds(kind, group, SIZES) for kind in KINDS),
    ]  # fmt: skip
    for found in seconds:
        expect(bool(np.isfinite(found).all() and (found >= 0.0).all()), f"a price of {found}")


# --- cluster files -----------------------------------------------------------------------------

SINGLE: dict[str, Any] = {
    "name": "lab", "device": "h100", "devices": 32, "devices_per_host": 8, "domain": 8,
    "memory": "70GB", "network": {"bandwidth_bytes_per_s": 12.5e9, "latency_s": 2e-5},
    "intra_host": {"bandwidth_bytes_per_s": 4.5e11, "shared_by_devices": 1, "date": "2024-01"},
}  # fmt: skip
MIXED: dict[str, Any] = {
    "groups": [{"device": "h100", "devices": 16}, {"device": "a100-40gb", "devices": 8,
               "memory": 30_000_000_000}], "network": {"latency_s": 1e-5},
}  # fmt: skip


def _cluster_data(rng: Random, files: Files) -> tuple[str, Files]:
    (name,) = files
    how, value = changed(rng, yaml.safe_load(files[name]))
    text = as_json(rng, value)
    if name.endswith(".yaml"):
        with contextlib.suppress(yaml.YAMLError, UnicodeEncodeError):
            text = yaml.safe_dump(value, allow_unicode=rng.random() < 0.5).encode()
    return f"data: {how}", {name: text}


def _use_cluster(folder: Path, seed: Files, rng: Random) -> str:
    (name,) = seed
    found = parse_cluster(folder / name)
    _price(found)
    return EQUAL if found.to_dict() == _sound_cluster(name, seed[name]) else ACCEPTED


@cache
def _sound_cluster(name: str, data: bytes) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(data)
        return parse_cluster(Path(folder) / name).to_dict()


# --- the database ------------------------------------------------------------------------------

SAMPLES = tuple(
    Sample(op, "float32", f"{n}x{n}", 1e-3 * n, 0.9e-3 * n, 1.1e-3 * n, 5)
    for op in ("product", "all-reduce")
    for n in (1, 2, 3)
)
STORED = (("host", 4), ("host", 8), ("my-v100-16gb", 1))
BASE = "profiles.sqlite3"


@cache
def _kept() -> tuple[tuple[str, int, Profile], ...]:
    return tuple(
        (name, devices, msgspec.structs.replace(_profile("host"), name=name))
        for name, devices in STORED
    )


@cache
def _database() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / BASE
        for name, devices, profile in _kept():
            store_profile(profile, devices, SAMPLES, path)
            expect(stored_profile(name, devices, path) == profile, "not stored")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("VACUUM")
        return {BASE: path.read_bytes()}


def _cells(rng: Random, files: Files) -> tuple[str, Files]:
    how, data = tables_changed(rng, files[BASE])
    return how, {BASE: data}


def _use_database(folder: Path, seed: Files, rng: Random) -> str:
    """What is read is what was measured, or less; a profile is never another."""
    path, lost = folder / BASE, 0
    sound = {(name, n): profile for name, n, profile in _kept()}
    for (name, devices), profile in sound.items():
        found = stored_profile(name, devices, path)
        expect(found in (None, profile), f"another profile of {name}")
        lost += found is None
        if found is not None:
            samples = stored_samples(name, devices, path)
            expect(not samples or sorted(map(str, samples)) == sorted(map(str, SAMPLES)),
                   "other samples")  # fmt: skip
            lost += not samples
    for name, devices, profile in stored_profiles(path):
        expect(sound.get((name, devices)) == profile, f"a profile of {name} that is none")
    check_storable(path)
    name, devices, profile = rng.choice(_kept())
    merged = store_profile(profile, devices, SAMPLES, path, merge=merge_profiles)
    expect(merged == profile, "a merge with something else")
    expect(stored_profile(name, devices, path) == profile, "not stored")
    return ACCEPTED if lost else EQUAL


def kinds(*, quick: bool) -> list[Kind]:
    profiles = tuple({"p.json": _exported(name)} for name in ("host", "v100-16gb", "h100"))
    clusters = (
        {"c.yaml": yaml.safe_dump(SINGLE).encode()}, {"c.json": json.dumps(SINGLE).encode()},
        {"c.yaml": yaml.safe_dump(MIXED).encode()}, {"c.json": json.dumps(MIXED).encode()},
    )  # fmt: skip
    return [
        Kind(
            "profile",
            (*profiles, _beside()),
            _use_profile,
            (_data, _table),
            2.0,
            ("profile", "--merge", "{file}"),
        ),
        Kind("cluster", clusters, _use_cluster, (_cluster_data,), 2.0),
        Kind("profile database", (_database(),), _use_database, (_cells,), 2.0, ("clusters",)),
    ]

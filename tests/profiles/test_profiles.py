from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import profiles
from profiles import (
    CollectiveRow,
    CollectiveTable,
    Profile,
    ProfileError,
    convert,
    load_profile,
    merge_profiles,
    profile_aliases,
    profile_names,
    save_profile,
)


def plain(name: str = "h100") -> dict[str, Any]:
    return msgspec.to_builtins(load_profile(name)) | {"collectives": None, "gemm": None}


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_loads_and_says_where_it_is_from(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == profile.device.name == name
    for record in (profile.device, profile.intra_host, profile.network):
        assert record.source
        assert record.date
    assert profile.device.peak("float32")


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_survives_a_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "copy.json"
    save_profile(load_profile(name), path)
    assert load_profile(path) == load_profile(name)
    save_profile(load_profile(path), tmp_path / "again.json")
    assert path.read_bytes() == (tmp_path / "again.json").read_bytes()


def test_no_measured_product_beats_the_published_peak() -> None:
    for name in profile_names():
        profile = load_profile(name)
        for row in profile.gemm.rows if profile.gemm else ():
            unit = "tensorfloat32" if row.dtype == "float32" else row.dtype
            peak = profile.device.peak(unit) or profile.device.peak(row.dtype)
            assert peak is not None
            assert 2 * row.batch * row.m * row.n * row.k / row.seconds <= peak, (name, row)


def test_aliases_lead_to_the_same_profile() -> None:
    assert load_profile("h100-80gb") == load_profile("H100")
    assert load_profile("v100") == load_profile("v100-32gb")
    assert {"h100", "b200", "gb200", "gb300", "a100-40gb", "host"} <= set(profile_aliases())


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(ProfileError, match=r"no device is called 'h1000'.*did you mean h100"):
        load_profile("h1000")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("device", "memory_bytes"), -1, r"key `device.memory_bytes`.*found -1"),
        (("device", "memory_bytes"), "80GB", r"Expected `int`, got `str`.*found '80GB'"),
        (("network", "latency_s"), 4.0, r"key `network.latency_s`.*found 4.0"),
        (("network", "bandwidth_bytes_per_s"), 50, r"bandwidth_bytes_per_s`.*found 50"),
        (("network", "speed"), 50, r"unknown field `speed`.*the keys are name, latency_s"),
        (("device", "date"), "yesterday", r"key `device.date`"),
        (("device", "peak_flops"), [["bfloat16", 1e15]], r"must name float32"),
        (("domain",), 12, r"multiple of `devices_per_host` = 8, found 12"),
        (("version",), 2, r"key `version`.*is of version 2, expected 1"),
    ],
)
def test_a_wrong_value_is_named(path: tuple[str, ...], value: object, message: str) -> None:
    raw = plain()
    inner = raw
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ProfileError, match=message) as caught:
        convert(raw, Profile, where="lab.json")
    assert str(caught.value).startswith("lab.json")


@pytest.mark.parametrize(("name", "table"), [("h100", "gemm"), ("h100", "collectives")])
@pytest.mark.parametrize("factor", [1e-5, 1e5])
def test_a_table_in_another_unit_is_named(name: str, table: str, factor: float) -> None:
    profile = load_profile(name)
    raw = msgspec.to_builtins(profile)
    rows = [list(row) for row in raw[table]["rows"]]
    raw[table]["rows"] = [[*row[:-1], min(row[-1] * factor, 3600.0)] for row in rows]
    with pytest.raises(ProfileError, match=rf"`{table}.rows.*another unit"):
        convert(raw, Profile, where="lab.json")


def test_one_absurd_timing_is_named() -> None:
    raw = msgspec.to_builtins(load_profile("h100"))
    rows = [list(row) for row in raw["gemm"]["rows"]]
    rows[7][-1] = 1e-30
    raw["gemm"]["rows"] = rows
    with pytest.raises(ProfileError, match=r"`gemm.rows\[7\]` implies .* more than 100 times"):
        convert(raw, Profile, where="lab.json")


def test_a_missing_key_is_named() -> None:
    raw = plain()
    del raw["network"]
    with pytest.raises(ProfileError, match=r"missing required field `network`.*the keys are"):
        convert(raw, Profile, where="lab.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "Expected `object`"),
        ('{"collectives": {"file": "gone.csv.gz"}}', "cannot be read as .csv.gz"),
    ],
)
def test_a_broken_file_is_one_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "lab.json"
    path.write_text(content)
    with pytest.raises(ProfileError, match=message):
        load_profile(path)


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "headless"])
def test_a_damaged_table_is_one_error(tmp_path: Path, damage: str) -> None:
    data = Path(profiles.__file__).parent / "data"
    for path in data.glob("h100.*"):
        shutil.copy(path, tmp_path / path.name.replace(".json", "-here.json"))
    table = tmp_path / "h100.gemm.csv.gz"
    whole = table.read_bytes()
    damaged = {"cut": whole[:900], "changed": whole[:900] + bytes(9) + whole[909:], "empty": b""}
    table.write_bytes(damaged.get(damage, whole[5:]))
    with pytest.raises(ProfileError, match=r"h100.gemm.csv.gz.*(read as .csv.gz|first line)"):
        load_profile(tmp_path / "h100-here.json")


@pytest.mark.parametrize("table", ["gemm", "collectives"])
def test_a_table_without_timings_is_named(table: str) -> None:
    raw = msgspec.to_builtins(load_profile("h100"))
    raw[table]["rows"] = []
    with pytest.raises(ProfileError, match=rf"key `{table}.rows`.*found none; leave the table out"):
        convert(raw, Profile, where="lab.json")


def test_a_missing_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(tmp_path / "none.json")


def test_merging_keeps_the_newer_timing_of_each_point() -> None:
    def table(*rows: CollectiveRow) -> CollectiveTable:
        return CollectiveTable(name="t", source="test", date="2025", licence="MIT", rows=rows)

    base = msgspec.structs.replace(
        load_profile("a100"),
        collectives=table(
            CollectiveRow("all-gather", 2, 1, 8, 1.0), CollectiveRow("all-gather", 2, 1, 16, 2.0)
        ),
    )
    newer = msgspec.structs.replace(
        base, collectives=table(CollectiveRow("all-gather", 2, 1, 8, 3.0))
    )
    merged = merge_profiles(base, newer).collectives
    assert merged is not None
    assert [row.seconds for row in merged.rows] == [3.0, 2.0]
    with pytest.raises(ProfileError, match="cannot be merged"):
        merge_profiles(base, load_profile("h100"))


def test_the_digest_follows_the_content() -> None:
    one, other = load_profile("h100").gemm, load_profile("b200").gemm
    assert one is not None
    assert other is not None
    assert one.digest != other.digest
    assert one.digest == msgspec.json.decode(msgspec.json.encode(one), type=type(one)).digest


def test_shipped_files_are_what_the_licence_note_lists() -> None:
    data = Path(__file__).parents[2] / "profiles" / "data"
    texts = [path.read_text() for path in sorted(data.glob("*.json"))]
    named = {name for text in texts for name in re.findall(r'"file": *"([^"]+)"', text)}
    assert named == {path.name for path in data.glob("*.csv.gz")}
    note = (data / "LICENSES.md").read_text()
    assert all(f"`{name.partition('.')[0]}" in note for name in named)

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodel import Cluster, Group, group_for, list_clusters, parse_bytes, parse_cluster
from profiles import ProfileError, profile_names


@pytest.mark.parametrize(
    ("text", "devices", "per_host", "island"),
    [
        ("8xh100", 8, 8, 8),
        ("64xh100", 64, 8, 8),
        ("64xv100-16gb:8", 64, 8, 8),
        ("16xh100:4", 16, 4, 4),
        ("72xgb200", 72, 4, 72),
        ("144xgb200", 144, 4, 72),
        ("2xgb200", 2, 2, 2),
        ("h100", 1, 1, 1),
        ("8xhost", 8, 8, 8),
        (" 4xA100-40GB ", 4, 4, 4),
    ],
)
def test_names(text: str, devices: int, per_host: int, island: int) -> None:
    cluster = parse_cluster(text)
    assert (cluster.num_devices, cluster.devices_per_host) == (devices, per_host)
    assert cluster.island == island
    assert cluster.num_hosts == devices // per_host


def test_the_number_of_devices_can_be_replaced(tmp_path: Path) -> None:
    for text, devices, name in (("64xh100:8", 16, "16xh100:8"), ("64xh100:8", 4, "4xh100:4"),
                                ("h100", 4, "4xh100")):  # fmt: skip
        assert parse_cluster(text, devices=devices) == parse_cluster(name)
    path = tmp_path / "lab.yaml"
    path.write_text("{device: h100, devices: 64, devices_per_host: 8}", encoding="utf-8")
    few, many = parse_cluster(path, devices=4), parse_cluster(path, devices=128)
    assert (few.num_devices, few.devices_per_host, few.name) == (4, 4, "lab")
    assert (many.num_devices, many.devices_per_host) == (128, 8)
    path.write_text("groups: [{device: h100, devices: 8}]", encoding="utf-8")
    with pytest.raises(ProfileError, match="several groups"):
        parse_cluster(path, devices=4)


def test_plain_host_takes_the_devices_that_are_there() -> None:
    cluster = parse_cluster("host", host_devices=6)
    assert (cluster.num_devices, cluster.num_hosts) == (6, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8xh10", "did you mean h100"),
        ("8 h100", "does not describe a cluster"),
        ("", "does not describe a cluster"),
        ("12xh100", "12 devices do not fill hosts of 8; write NxDEVICE:PER_HOST"),
        ("0xh100", "at least 1"),
        ("8xh100:0", "at least 1"),
        ("nowhere.yaml", "cannot be read"),
    ],
)
def test_bad_names(text: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        parse_cluster(text)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("70GB", 70 * 10**9),
        ("70GiB", 70 * 2**30),
        ("1.5 tb", 1_500_000_000_000),
        ("16g", 16 * 10**9),
        ("512", 512),
        (4096, 4096),
        ("1KiB", 1024),
    ],
)
def test_bytes(text: str | int, want: int) -> None:
    assert parse_bytes(text) == want


@pytest.mark.parametrize("text", ["", "GB", "70XB", "-1GB", "0", "1e9", "nan"])
def test_bad_bytes(text: str) -> None:
    with pytest.raises(ProfileError, match="70GiB"):
        parse_bytes(text)


def test_memory_override() -> None:
    assert parse_cluster("8xh100").with_memory(70 * 2**30).memory_bytes == 70 * 2**30
    with pytest.raises(ProfileError, match="memory_bytes"):
        parse_cluster("8xh100").with_memory(12)


CLUSTERS = ("8xh100", "72xgb200", "16xv100-pcie", "8xhost", "8xa100")


@pytest.mark.parametrize("name", CLUSTERS)
def test_round_trip_and_digest(name: str) -> None:
    cluster = parse_cluster(name)
    copy = Cluster.from_dict(json.loads(json.dumps(cluster.to_dict())))
    assert copy == cluster
    assert copy.digest == cluster.digest
    assert hash(copy) == hash(cluster)
    assert len(json.dumps(cluster.to_dict())) < 4000


def test_digests_tell_clusters_apart() -> None:
    names = (*CLUSTERS, "8xh100:4", "16xh100")
    digests = {parse_cluster(name).digest for name in names}
    assert len(digests) == len(names)
    assert parse_cluster("8xh100").with_memory(70 * 10**9).digest not in digests


def test_from_dict_is_strict() -> None:
    raw = parse_cluster("8xh100").to_dict()
    with pytest.raises(ProfileError, match="unknown field `speed`"):
        Cluster.from_dict(raw | {"speed": 1})
    with pytest.raises(ProfileError, match="plan again with the installed profiles"):
        Cluster.from_dict(raw | {"gemm": {"shipped": "h100", "digest": "0"}})


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def bomb(level: str) -> str:
    """A short text that names parts which name parts."""
    lines = ["a0: &a0 " + ("{k: 1}" if level == "<<: " else "[1]")]
    for n in range(1, 40):
        many = ", ".join([f"*a{n - 1}"] * 9)
        lines.append(f"a{n}: &a{n} " + (f"{{<<: [{many}], k{n}: 1}}" if level else f"[{many}]"))
    return "device: h100\ndevices: 8\n" + "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [bomb(""), bomb("<<: "), "device: h100\ndevices: 8\nmemory: " + "9" * 400 + "GB",
     "device: h100\ndevices: " + "9" * 5000, "device: h100\ndevices: 8\nname: 2024-13-45",
     'device: h100\ndevices: 8\nname: "\\ud800"', "[" * 5000, "? [a]: b", "&a [*a]", "a: !!set x"],
    ids=["lists", "merges", "memory", "devices", "date", "surrogate", "deep", "key", "itself",
         "set"],
)  # fmt: skip
def test_hostile_yaml_is_one_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProfileError) as found:
        parse_cluster(write(tmp_path / "c.yaml", text))
    assert len(str(found.value)) < 3000


def test_some_aliases_are_read(tmp_path: Path) -> None:
    text = "groups: [&a {device: h100, devices: 8}, *a, *a, {<<: *a, devices: 16}]"
    assert parse_cluster(write(tmp_path / "c.yaml", text)).num_devices == 40


def test_a_yaml_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "lab.yaml",
        "device: h100\ndevices: 16\nmemory: 70GB\nnetwork: {bandwidth_bytes_per_s: 12.5e+9}\n",
    )
    cluster = parse_cluster(path)
    assert (cluster.name, cluster.num_devices, cluster.devices_per_host) == ("lab", 16, 8)
    assert cluster.memory_bytes == 70 * 10**9
    assert cluster.network.bandwidth_bytes_per_s == 12.5e9
    assert cluster.network.latency_s == parse_cluster("h100").network.latency_s
    assert cluster.collectives is not None
    assert Cluster.from_dict(cluster.to_dict()) == cluster


def test_a_replaced_link_has_no_table(tmp_path: Path) -> None:
    text = '{"device": "h100", "devices": 8, "intra_host": {"bandwidth_bytes_per_s": 3e10}}'
    cluster = parse_cluster(write(tmp_path / "slow.json", text))
    assert cluster.collectives is None
    assert cluster.gemm is not None


def test_a_mixed_cluster_goes_at_the_pace_of_the_slowest(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mixed.yaml",
        "groups:\n- {device: h100, devices: 16}\n- {device: a100-40gb, devices: 8}\n",
    )
    cluster = parse_cluster(path)
    assert (cluster.num_devices, cluster.device.name) == (24, "h100+a100-40gb")
    assert cluster.memory_bytes == 40 * 10**9
    assert cluster.device.peak("bfloat16") == 312e12
    assert cluster.device.peak("float8_e4m3fn") is None
    assert cluster.intra_host.name == "nvlink3"
    assert cluster.network.name == "efa"
    of_host = cluster.device.host_link
    assert of_host is not None
    assert (of_host.name, of_host.to_host_bytes_per_s) == ("pcie5+pcie4", 27.5e9)
    assert [part.num_devices for part in cluster.parts] == [16, 8]
    assert Cluster.from_dict(json.loads(json.dumps(cluster.to_dict()))) == cluster


def test_the_memory_of_a_host_is_shared_by_its_devices(tmp_path: Path) -> None:
    text = "device: h100\ndevices: 16\ndevices_per_host: 4\nhost_memory: 1TB\n"
    link = parse_cluster(write(tmp_path / "lab.yaml", text)).device.host_link
    assert link is not None
    assert link.memory_bytes == 250 * 10**9
    text = "groups: [{device: h100, devices: 8, host_memory: 800GB}, {device: a100, devices: 8}]\n"
    link = parse_cluster(write(tmp_path / "mixed.yaml", text)).device.host_link
    assert link is not None
    assert link.memory_bytes == 100 * 10**9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("device: v100\ndevices: 8\nhost_memory: 1TB\n", "nothing is kept on hosts of"),
        ("device: h100\n", "missing required field `devices`"),
        ("device: h100\ndevices: 8\nhosts: 1\n", "unknown field `hosts`.*the keys are"),
        ("device: h100\ndevices: -8\n", "key `devices`.*found -8"),
        ("device: h100\ndevices: 8\nnetwork: {latency_s: -1}\n", "key `network`.*found -1"),
        ("device: h100\ndevices: 8\nmemory: lots\n", "'lots' is not a size"),
        ("device: [\n", "neither YAML nor JSON"),
        ("groups: []\n", "key `groups`"),
        (
            "groups: [{device: h100, devices: 8}, {device: gb200, devices: 8}]\n",
            "devices per host, expected the same",
        ),
        ("just text\n", "Expected `object`"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        parse_cluster(write(tmp_path / "bad.yaml", text))


def test_list_clusters_has_every_profile() -> None:
    rows = list_clusters()
    assert tuple(row.name for row in rows) == profile_names()
    assert all(row.source and row.date and row.evidence for row in rows)
    assert next(row for row in rows if row.name == "host").evidence == "assumed"


@pytest.mark.parametrize(
    ("mesh", "axes", "want"),
    [
        ((64,), (0,), Group(64, 8, 8, 1)),
        ((8, 8), (0,), Group(8, 1, 8, 8, 8)),
        ((8, 8), (1,), Group(8, 8, 1)),
        ((8, 8), (1, 0), Group(64, 8, 8, 1)),
        ((4, 16), (1,), Group(16, 8, 2, 1)),
        ((16, 4), (0,), Group(16, 2, 8, 4, 4)),
        ((16, 4), (1,), Group(4, 4, 1)),
        ((4, 4, 4), (0, 2), Group(16, 4, 4, 2)),
        ((8, 8), (), Group(1, 1, 1)),
        ((64, 1), (1,), Group(1, 1, 1)),
    ],
)
def test_groups(mesh: tuple[int, ...], axes: tuple[int, ...], want: Group) -> None:
    assert group_for(parse_cluster("64xh100"), mesh, axes) == want


def test_a_rack_wide_domain_is_one_island() -> None:
    assert group_for(parse_cluster("72xgb200"), (9, 8), (0,)) == Group(9, 9, 1, stride=8)


def test_uneven_groups_are_priced_as_the_worst() -> None:
    group = group_for(parse_cluster("24xh100"), (4, 6), (1,))
    assert group == Group(6, 2, 3, 2)


def test_bad_groups() -> None:
    cluster = parse_cluster("8xh100")
    with pytest.raises(ValueError, match="does not have the 8 devices"):
        group_for(cluster, (4,), (0,))
    with pytest.raises(ValueError, match="not distinct axes"):
        group_for(cluster, (4, 2), (2,))
    with pytest.raises(ValueError, match=r"per_host \* hosts"):
        Group(8, 3, 2)


def test_subset() -> None:
    cluster = parse_cluster("64xh100")
    assert cluster.subset(4).island == 4
    assert cluster.subset(16).num_hosts == 2
    with pytest.raises(ProfileError, match="do not fill"):
        cluster.subset(12)

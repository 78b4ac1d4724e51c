"""Reads the name or the file of a cluster."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta, structs

from profiles import (
    Device,
    HostLink,
    Link,
    Profile,
    ProfileError,
    convert,
    load_profile,
    profile_aliases,
    profile_names,
    stored_profile,
    stored_profiles,
)

from .cluster import Cluster, Part, Prices
from .plain import load_yaml

_NAME = re.compile(r"(?:(?P<count>\d+)x)?(?P<device>[a-z][a-z0-9-]*)(?::(?P<per_host>\d+))?")
_BYTES = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<prefix>[kmgtp]?)(?P<binary>i?)b?", re.I)
MOST_BYTES = 1e18
_FILES = (".json", ".yaml", ".yml")
_EXAMPLES = "write for example 8xh100, 64xv100-16gb:8, 72xgb200, host, or the path of a .yaml file"

Devices = Annotated[int, Meta(ge=1, le=1_000_000)]


class _LinkFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of a link that replace those of the profile; absent ones stay."""

    latency_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    shared_by_devices: int | None = None
    mesh_devices: int | None = None
    torus_axes: int | None = None
    ring_from: int | None = None
    source: str = "cluster file"
    date: str | None = None


class _PartFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device: str
    devices: Devices
    devices_per_host: Devices | None = None
    domain: Devices | None = None
    memory: str | int | None = None
    host_memory: str | int | None = None
    intra_host: _LinkFile | None = None
    network: _LinkFile | None = None


class _MixedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    groups: Annotated[tuple[_PartFile, ...], Meta(min_length=1)]
    name: str | None = None
    prices: Prices | None = None
    network: _LinkFile | None = None


class _SingleFile(_PartFile, frozen=True, forbid_unknown_fields=True):
    name: str | None = None
    prices: Prices | None = None


_Described = TypeVar("_Described", _MixedFile, _SingleFile)


def parse_bytes(text: str | int) -> int:
    """Bytes of `70GB` (10^9 each), `70GiB` (2^30 each) or a plain number.

    Raises:
        ProfileError: if the text is none of these, or is not positive.
    """
    match = _BYTES.fullmatch(str(text).strip())
    if match is None:
        raise ProfileError(f"{text!r} is not a size", remedy="write for example 70GB or 70GiB")
    power = " kmgtp".index(match["prefix"].lower() or " ")
    base = 1024 if match["binary"] else 1000
    number = float(match["number"]) * base**power
    if number > MOST_BYTES:
        raise ProfileError(f"{text!r} is more than any device has", remedy="write for example 70GB")
    amount = round(number)
    if amount < 1:
        raise ProfileError(f"{text!r} is not above 0", remedy="write for example 70GB or 70GiB")
    return amount


def parse_cluster(
    text: str | Path | Cluster, *, host_devices: int = 1, devices: int | None = None
) -> Cluster:
    """Builds a cluster from a name such as `64xh100:8` or the path of a YAML or JSON file.

    Args:
        text: `[COUNTx]DEVICE[:PER_HOST]`, or a path that ends in .yaml, .yml or .json. A cluster
            is returned unchanged.
        host_devices: how many devices plain `host` stands for.
        devices: number of devices instead of that in the text or file; hosts are no larger.

    Raises:
        ProfileError: if the text or the file does not describe a cluster, or is of several kinds
            of devices and `devices` is given.
    """
    if isinstance(text, Cluster):
        return text
    if Path(text).suffix in _FILES:
        return _from_file(Path(text), devices)
    return _from_name(str(text).strip().lower(), host_devices, devices)


def _from_name(text: str, host_devices: int, devices: int | None) -> Cluster:
    match = _NAME.fullmatch(text)
    if match is None:
        raise ProfileError(f"{text!r} does not describe a cluster", remedy=_EXAMPLES)
    if devices is not None:
        per_host = "" if match["per_host"] is None else f":{min(int(match['per_host']), devices)}"
        return _from_name(f"{devices}x{match['device']}{per_host}", host_devices, None)
    on_host = match["device"] in profile_aliases() and load_profile(match["device"]).name == "host"
    count = int(match["count"] or (host_devices if on_host else 1))
    profile = _profile(match["device"], count, on_host=on_host)
    per_host = int(match["per_host"]) if match["per_host"] else None
    return _uniform(text, profile, count, count if on_host and per_host is None else per_host)


def _profile(device: str, count: int, *, on_host: bool) -> Profile:
    """The figures of a device: shipped, or measured on this machine by `meshwright profile`.

    The CPU of this machine is measured with `count` devices busy, as they share its cores; without
    such a measurement the shipped, assumed figures stand. `device.evidence` says which. Other
    devices are looked up among the measurements only if no profile of that name is shipped.
    """
    if on_host:
        return stored_profile("host", count) or load_profile(device)
    if device not in profile_aliases():
        found = [profile for name, _, profile in stored_profiles() if name == device]
        if found:
            return found[-1]
    return load_profile(device)


def _uniform(name: str, profile: Profile, count: int, per_host: int | None) -> Cluster:
    default = min(profile.devices_per_host, max(count, 1))
    on_host = default if per_host is None else per_host
    # A rack-wide switch stays rack-wide; otherwise fewer devices on a host shrink the domain too.
    wide = profile.domain > profile.devices_per_host
    return Cluster(
        name=name,
        num_devices=count,
        devices_per_host=on_host,
        domain=max(profile.domain, on_host) if wide else on_host,
        device=profile.device,
        intra_host=profile.intra_host,
        network=profile.network,
        profile=profile.name if profile.name in profile_names() else "",
        collectives=profile.collectives,
        gemm=profile.gemm,
        ops=profile.ops,
        attention=profile.attention,
    )


def _from_file(path: Path, devices: int | None) -> Cluster:
    try:
        raw: Any = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise ProfileError(f"is neither YAML nor JSON: {error}", where=str(path)) from error
    if isinstance(raw, dict) and "groups" in raw:
        if devices is not None:
            raise ProfileError(
                "the number of devices of several groups cannot be changed",
                where=f"{path.name}, key `groups`", remedy="describe one kind of device",
            )  # fmt: skip
        mixed = _read(cast("object", raw), _MixedFile, path)
        return replace(_mixed(mixed, path), prices=mixed.prices)
    single = _read(cast("object", raw), _SingleFile, path)
    if devices is not None:
        per_host = single.devices_per_host and min(single.devices_per_host, devices)
        single = structs.replace(single, devices=devices, devices_per_host=per_host)
    return replace(_single(single, single.name or path.stem, path), prices=single.prices)


def _read(raw: object, kind: type[_Described], path: Path) -> _Described:
    found = convert(raw, kind, where=path.name)
    try:
        msgspec.json.encode(found)
    except UnicodeEncodeError as error:
        raise ProfileError(
            f"has text that no plan file can hold: {error}", where=path.name
        ) from error
    return found


def _single(part: _PartFile, name: str, path: Path) -> Cluster:
    beside = path.parent / part.device
    profile = load_profile(beside if beside.suffix == ".json" else part.device)
    cluster = _uniform(name, profile, part.devices, part.devices_per_host)
    changes: dict[str, Any] = {}
    if part.domain is not None:
        changes["domain"] = part.domain
    if part.intra_host is not None:
        where = f"{path.name}, key `intra_host`"
        changes["intra_host"] = _link(cluster.intra_host, part.intra_host, where)
        # The table was measured over the link that this one replaces.
        changes["collectives"] = None
    if part.network is not None:
        changes["network"] = _link(cluster.network, part.network, f"{path.name}, key `network`")
    if part.host_memory is not None:
        changes["device"] = _with_host_memory(cluster, parse_bytes(part.host_memory), path)
    cluster = replace(cluster, **changes)
    return cluster if part.memory is None else cluster.with_memory(parse_bytes(part.memory))


def _with_host_memory(cluster: Cluster, host_bytes: int, path: Path) -> Device:
    """The device of a cluster whose hosts have so much memory, shared by their devices evenly."""
    link, where = cluster.device.host_link, f"{path.name}, key `host_memory`"
    if link is None:
        raise ProfileError(
            f"nothing is kept on hosts of {cluster.device.name}: their link is not known",
            where=where, remedy="leave host_memory out, or give `host_link` in its profile",
        )  # fmt: skip
    given = {"memory_bytes": host_bytes // cluster.devices_per_host}
    link = convert(msgspec.to_builtins(link) | given, HostLink, where=where)
    return structs.replace(cluster.device, host_link=link)


def _link(base: Link, new: _LinkFile, where: str) -> Link:
    given = {k: v for k, v in structs.asdict(new).items() if v is not None}
    return convert(msgspec.to_builtins(base) | given, Link, where=where)


def _mixed(file: _MixedFile, path: Path) -> Cluster:
    """One cluster whose figures are the worst of its groups."""
    clusters = [_single(part, part.device, path) for part in file.groups]
    if len(clusters) == 1 and file.network is None:
        return replace(clusters[0], name=file.name or path.stem)
    per_host = {cluster.devices_per_host for cluster in clusters}
    if len(per_host) > 1:
        raise ProfileError(
            f"groups have {sorted(per_host)} devices per host, expected the same in all",
            where=f"{path.name}, key `groups`",
            remedy="set devices_per_host to a common divisor in every group",
        )
    network = functools.reduce(_slower, (cluster.network for cluster in clusters))
    if file.network is not None:
        network = _link(network, file.network, f"{path.name}, key `network`")
    slowest = min(clusters, key=lambda c: _gemm_rate(c.device))
    links = {c.intra_host for c in clusters}
    return Cluster(
        name=file.name or path.stem,
        num_devices=sum(c.num_devices for c in clusters),
        devices_per_host=per_host.pop(),
        domain=min(c.domain for c in clusters),
        device=functools.reduce(_weaker, (c.device for c in clusters)),
        intra_host=functools.reduce(_slower, (c.intra_host for c in clusters)),
        network=network,
        profile=slowest.profile,
        collectives=slowest.collectives if len(links) == 1 else None,
        gemm=slowest.gemm,
        ops=slowest.ops,
        attention=slowest.attention,
        parts=tuple(
            Part(c.device, c.num_devices, c.devices_per_host, c.intra_host, c.network)
            for c in clusters
        ),
    )


def _gemm_rate(device: Device) -> float:
    return device.peak("bfloat16") or device.peak("float32") or 0.0


def _weaker(a: Device, b: Device) -> Device:
    """The lower of every figure; a dtype that one of them lacks is left out."""
    if a == b:
        return a
    rates = dict(b.peak_flops)
    return Device(
        name=a.name if a.name == b.name else f"{a.name}+{b.name}",
        memory_bytes=min(a.memory_bytes, b.memory_bytes),
        memory_bandwidth_bytes_per_s=min(
            a.memory_bandwidth_bytes_per_s, b.memory_bandwidth_bytes_per_s
        ),
        peak_flops=tuple((t, min(r, rates[t])) for t, r in a.peak_flops if t in rates),
        kernel_launch_s=max(a.kernel_launch_s, b.kernel_launch_s),
        sustained_flops=tuple(sorted(_lower(dict(a.sustained_flops), dict(b.sustained_flops)))),
        fresh_bytes_per_s=min(
            filter(None, (a.fresh_bytes_per_s, b.fresh_bytes_per_s)), default=None
        ),
        host_link=_slower_to_host(a.host_link, b.host_link),
        source=a.source if a.source == b.source else f"{a.source}; {b.source}",
        date=max(a.date, b.date),
        evidence=a.evidence if a.evidence == b.evidence else "assumed",
    )


def _slower_to_host(a: HostLink | None, b: HostLink | None) -> HostLink | None:
    """The lower rate of two links in each direction; None if one of them is not known."""
    if a is None or b is None or a == b:
        return a if a == b else None
    return structs.replace(
        a,
        name=f"{a.name}+{b.name}",
        to_host_bytes_per_s=min(a.to_host_bytes_per_s, b.to_host_bytes_per_s),
        from_host_bytes_per_s=min(a.from_host_bytes_per_s, b.from_host_bytes_per_s),
        memory_bytes=min(filter(None, (a.memory_bytes, b.memory_bytes)), default=None),
        source=f"{a.source}; {b.source}",
        date=max(a.date, b.date),
    )


def _lower(a: dict[str, float], b: dict[str, float]) -> Iterator[tuple[str, float]]:
    """The lower of two rates of each dtype; one of them may have none."""
    for dtype in {*a, *b}:
        yield dtype, min(rates[dtype] for rates in (a, b) if dtype in rates)


def _slower(a: Link, b: Link) -> Link:
    return min(a, b, key=lambda link: link.bandwidth_bytes_per_s / link.shared_by_devices)


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """A line of `meshwright clusters`."""

    name: str
    memory_bytes: int
    peak_bf16_flops: float | None
    devices_per_host: int
    domain: int
    link: str
    link_bytes_per_s: float
    network: str
    network_bytes_per_s: float
    measured_tables: tuple[str, ...]
    source: str
    date: str
    evidence: str


def list_clusters() -> tuple[ClusterSummary, ...]:
    """What is known about every device that a cluster name may use, measured ones last.

    Raises:
        ProfileError: if the measurements kept here cannot be read.
    """
    return (*shipped_clusters(), *(_summary(profile) for _, _, profile in stored_profiles()))


def shipped_clusters() -> tuple[ClusterSummary, ...]:
    """The device without this machine's measurements."""
    return tuple(_summary(load_profile(name)) for name in profile_names())


def is_device_name(text: str) -> bool:
    """Whether a cluster's name can name a device so."""
    match = _NAME.fullmatch(text)
    return match is not None and match["device"] == text


def _summary(profile: Profile) -> ClusterSummary:
    tables = (
        ("collectives", profile.collectives), ("gemm", profile.gemm), ("ops", profile.ops),
        ("attention", profile.attention),
    )  # fmt: skip
    return ClusterSummary(
        name=profile.name,
        memory_bytes=profile.device.memory_bytes,
        peak_bf16_flops=profile.device.peak("bfloat16"),
        devices_per_host=profile.devices_per_host,
        domain=profile.domain,
        link=profile.intra_host.name,
        link_bytes_per_s=profile.intra_host.bandwidth_bytes_per_s,
        network=profile.network.name,
        network_bytes_per_s=profile.network.bandwidth_bytes_per_s
        / profile.network.shared_by_devices,
        measured_tables=tuple(name for name, table in tables if table is not None),
        source=profile.device.source,
        date=profile.device.date,
        evidence=profile.device.evidence,
    )

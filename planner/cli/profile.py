"""`meshwright profile`: measures this machine, and carries measurements between machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from costmodel import is_device_name
from profiles import (
    Profile,
    ProfileError,
    Sample,
    check_storable,
    database_path,
    load_profile,
    measuring,
    merge_profiles,
    profile_aliases,
    save_profile,
    store_profile,
    stored_profiles,
)
from profiles.measure import Measured, measure, present, profile_name

from ..common.units_text import bytes_text, seconds_text
from . import wishes
from .answer import Answer, progress
from .failure import profile_message
from .parameters import AsJson
from .table import table

Kind = Annotated[
    Literal["host", "gpu"], typer.Option("--device", help="Measure CPU devices or accelerators.")
]
Counts = Annotated[
    list[int] | None,
    typer.Option("--devices", min=1, help="How many at once; repeatable. [default: 1, 2, 4, 8]"),
]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer sizes: a minute and not several.")]
Shared = Annotated[
    bool,
    typer.Option("--shared", help="Others use this machine: count processor time, not wall time."),
]
Export = Annotated[
    Path | None, typer.Option("--export", help="Write the profile of the most devices as JSON.")
]
Merge = Annotated[
    list[Path] | None,
    typer.Option("--merge", help="Take in exported profiles of this machine instead of measuring."),
]


def profile_command(
    device: Kind = "host",
    devices: Counts = None,
    quick: Quick = False,
    shared: Shared = False,
    export: Export = None,
    merge: Merge = None,
    as_json: AsJson = False,
) -> Answer:
    """Measure the devices present, so that plans for them are chosen from measurements.

    Products, other operations and collectives are timed with 1, 2, 4 and 8 devices busy at once
    and kept in the user's cache folder, where the cluster `host` finds them.
    """
    if shared and device != "host":
        raise ProfileError(
            "processor time says nothing about accelerators", where="--shared",
            remedy="leave it out, or measure the CPU with --device host",
        )  # fmt: skip
    if export is not None:
        wishes.check_writable(export)
    if merge:
        kept = [_merged(path) for path in merge]
        samples: dict[int, tuple[Sample, ...]] = {}
    else:
        kept, samples = _measured(device, devices, quick=quick, shared=shared, as_json=as_json)
    if export is not None:
        save_profile(max(kept, key=lambda found: found[0])[1], export)
    data = {
        "database": str(database_path()),
        "profiles": [_plain(n, profile, samples.get(n, ())) for n, profile in kept],
        "export": None if export is None else str(export),
    }
    return Answer(data, lambda width: _text(kept, samples, width))


def _measured(
    device: Literal["host", "gpu"],
    counts: Iterable[int] | None,
    *,
    quick: bool,
    shared: bool,
    as_json: bool,
) -> tuple[list[tuple[int, Profile]], dict[int, tuple[Sample, ...]]]:
    wanted = sorted(set(counts or ()))
    found = present(device, max(wanted, default=8))
    if wanted and wanted[-1] > len(found):
        raise ProfileError(
            f"found {len(found)} devices, expected {wanted[-1]}", where="--devices",
            remedy="ask for fewer, or set --xla_force_host_platform_device_count in XLA_FLAGS",
        )  # fmt: skip
    name = profile_name(found)
    base = load_profile(name if name in profile_aliases() else "host")
    kept: list[tuple[int, Profile]] = []
    samples: dict[int, tuple[Sample, ...]] = {}
    check_storable()
    with measuring(), progress(as_json=as_json) as say:
        for count in wanted or [n for n in (1, 2, 4, 8) if n <= len(found)]:
            run = measure(name, base, found[:count], quick=quick, shared=shared, say=say)
            _keep(run)
            kept.append((count, run.profile))
            samples[count] = run.samples
    return kept, samples


def _keep(run: Measured) -> None:
    """Stores a measurement; if that fails, writes it to a file so that it is not lost."""
    try:
        store_profile(run.profile, run.devices, run.samples)
    except ProfileError as error:
        path = Path(f"{run.profile.name}-{run.devices}.profile.json").absolute()
        save_profile(run.profile, path)
        raise ProfileError(
            f"{profile_message(error)}; what was measured is in {path}", where=error.where,
            remedy=f"take it in with `meshwright profile --merge {path.name}`",
        ) from error  # fmt: skip


def _merged(path: Path) -> tuple[int, Profile]:
    """Imports an exported profile, whose rows replace stored ones."""
    profile = load_profile(path)
    known = {name for name, _, _ in stored_profiles()}
    if profile.name != "host" and profile.name in profile_aliases():
        raise ProfileError(
            f"is a profile of {profile.name!r}, whose figures are shipped", where=str(path),
            remedy=f"name the file in a cluster file: `device: {path.name}`",
        )  # fmt: skip
    if not is_device_name(profile.name):
        raise ProfileError(
            f"is a profile of {profile.name!r}, which no name of a cluster can say",
            where=str(path), remedy="name it in small letters, digits and hyphens, such as my-gpu",
        )  # fmt: skip
    if profile.device.evidence != "measured":
        raise ProfileError(
            f"holds {profile.device.evidence} figures, expected measured ones", where=str(path),
            remedy="merge what `meshwright profile --export` wrote",
        )  # fmt: skip
    count = profile.devices_per_host
    kept = store_profile(profile, count, merge=merge_profiles if profile.name in known else None)
    return count, kept


def _plain(count: int, profile: Profile, samples: tuple[Sample, ...]) -> dict[str, Any]:
    device = profile.device
    return {
        "name": profile.name,
        "devices": count,
        "source": device.source,
        "date": device.date,
        "peak_flops": dict(device.peak_flops),
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "kernel_launch_s": device.kernel_launch_s,
        "link_bytes_per_s": profile.intra_host.bandwidth_bytes_per_s,
        "link_latency_s": profile.intra_host.latency_s,
        "rows": sum(len(t.rows) for t in (profile.gemm, profile.ops, profile.collectives) if t),
        "samples": [asdict(s) for s in samples],
    }


def _text(
    kept: list[tuple[int, Profile]], samples: dict[int, tuple[Sample, ...]], width: int | None
) -> Text:
    head = ("device", "at once", "float32", "memory", "launch", "link", "latency", "spread")
    rows = [
        (
            profile.name,
            str(count),
            f"{(profile.device.peak('float32') or 0.0) / 1e9:.3g} GFLOP/s",
            f"{bytes_text(profile.device.memory_bandwidth_bytes_per_s)}/s",
            seconds_text(profile.device.kernel_launch_s),
            f"{bytes_text(profile.intra_host.bandwidth_bytes_per_s)}/s",
            seconds_text(profile.intra_host.latency_s),
            _spread(samples.get(count, ())),
        )
        for count, profile in kept
    ]
    note = f"\n\nKept in {database_path()}; figures are of one device while all are busy."
    return table(head, rows, width).append(note)


def _spread(samples: tuple[Sample, ...]) -> str:
    """Median over all timings of the interquartile range over the median."""
    shares = sorted((s.high_s - s.low_s) / s.median_s for s in samples)
    return f"{shares[len(shares) // 2]:.0%}" if shares else ""

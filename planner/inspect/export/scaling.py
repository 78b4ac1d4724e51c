"""`scaling`: the best step for each number of devices, packed and spread over hosts.

This is what a cluster scheduler asks for: how much faster a job gets with more devices, and what
it loses where they are not near each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from costmodel import Cluster

from ...common.errors import PlanError
from ...common.options import Options
from ...sharding.search.asked import as_written
from ..replan import replanned
from .record import Exported, Subject, json_bytes

FORMAT = "meshwright-scaling"


def scaling(subject: Subject) -> Exported:
    """Plans the program for each placement, with the same batch."""
    analysed = subject.analysed
    rows: list[dict[str, Any]] = []
    for placement, cluster in placements(analysed.cluster):
        subject.progress(f"{cluster.num_devices} devices, {placement}")
        row: dict[str, Any] = {
            "devices": cluster.num_devices, "placement": placement, "hosts": cluster.num_hosts,
        }  # fmt: skip
        options = Options(
            memory_bytes=max(1, int(analysed.program.limit_bytes)),
            pins=analysed.program.pins, forbidden=analysed.program.forbidden, baselines=False,
            **as_written(analysed.program, cluster.num_devices),
        )  # fmt: skip
        try:
            program = replanned(analysed, cluster, options)
        except PlanError as error:
            rows.append(row | {"fits": False, "reason": error.message})
            continue
        gap = (program.step_s - program.lower_bound_s) / program.step_s if program.step_s else 0.0
        rows.append(
            row
            | {
                "fits": True, "step_s": program.step_s, "device_seconds":
                program.step_s * cluster.num_devices, "peak_bytes": program.peak_bytes,
                "mesh": dict(program.mesh), "gap": gap,
            }
        )  # fmt: skip
    data = {
        "format": FORMAT, "version": 1, "program": analysed.program.name,
        "cluster": analysed.cluster.name, "microbatches": analysed.program.microbatches,
        "limit_bytes": analysed.program.limit_bytes, "rows": rows,
    }  # fmt: skip
    notes = ("the batch and the number of micro-batches are the plan's for every row",)
    return Exported(json_bytes(data), (), notes)


def placements(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """(packed or spread, machine) for powers of two up to the whole cluster."""
    counts = [1 << n for n in range(cluster.num_devices.bit_length())]
    if counts[-1] != cluster.num_devices:
        counts.append(cluster.num_devices)
    for count in counts:
        packed = _with(cluster, count, min(count, cluster.devices_per_host))
        if packed is not None:
            yield "packed", packed
        each = max(1, count // cluster.num_hosts)
        spread = _with(cluster, count, each)
        if spread is not None and packed is not None and spread.num_hosts > packed.num_hosts:
            yield "spread", spread


def _with(cluster: Cluster, count: int, per_host: int) -> Cluster | None:
    """A machine with these devices on each host; None if they do not fill the hosts."""
    if count % per_host or count // per_host > cluster.num_hosts:
        return None
    wide = cluster.domain > cluster.devices_per_host  # a switch that spans hosts
    domain = cluster.domain if wide else per_host
    name = f"{count} of {cluster.name}, {per_host} on a host"
    return replace(
        cluster, name=name, num_devices=count, devices_per_host=per_host, domain=domain, parts=()
    )

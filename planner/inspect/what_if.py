"""Plans the program of a plan with other devices, memory, links or pins."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from costmodel import Cluster
from profiles import CollectiveTable, Link

from ..common.errors import PlanError
from ..common.options import Options
from ..files.program_plan import ProgramPlan
from ..sharding.search.asked import as_written
from .analysed_plan import AnalysedPlan
from .replan import replanned


def what_if(
    analysed: AnalysedPlan,
    *,
    devices: int | None = None,
    memory_bytes: int | None = None,
    bandwidth: float = 1.0,
    pins: tuple[tuple[str, str], ...] = (),
) -> ProgramPlan:
    """Plans the program of a plan under other conditions, without its function.

    Args:
        analysed: the plan.
        devices: number of devices of the same kind, in the same hosts.
        memory_bytes: memory limit of one device [bytes].
        bandwidth: factor on the bandwidth of all links; latencies stay.
        pins: further pins.

    Raises:
        PlanError: if nothing fits, or the devices do not fill hosts.
    """
    cluster = analysed.cluster
    if devices not in (None, cluster.num_devices) and analysed.program.shardings == "pin":
        raise PlanError(
            f"shardings of the program are pins on a mesh of {cluster.num_devices} devices",
            kind="bad-option", where="devices", remedy="plan with shardings='warn'",
        )  # fmt: skip
    if devices is not None:
        cluster = _resized(cluster, devices)
    if bandwidth != 1.0:
        cluster = _faster(cluster, bandwidth)
    limit = memory_bytes or max(1, int(analysed.program.limit_bytes))
    options = Options(
        memory_bytes=limit, pins=(*analysed.program.pins, *pins),
        forbidden=analysed.program.forbidden, baselines=False,
        **as_written(analysed.program, cluster.num_devices),
    )  # fmt: skip
    return replanned(analysed, cluster, options)


def _resized(cluster: Cluster, devices: int) -> Cluster:
    per_host = min(devices, cluster.devices_per_host)
    if devices < 1 or devices % per_host:
        raise PlanError(
            f"{devices} devices do not fill hosts of {cluster.devices_per_host}",
            kind="bad-option", where="devices",
            remedy=f"use a multiple of {cluster.devices_per_host}, or less than that",
        )  # fmt: skip
    wide = cluster.domain > cluster.devices_per_host
    domain = cluster.domain if wide else per_host
    return replace(
        cluster, name=f"{devices} of {cluster.name}", num_devices=devices,
        devices_per_host=per_host, domain=domain, parts=(),
    )  # fmt: skip


def _faster(cluster: Cluster, times: float) -> Cluster:
    if not 0.0 < times < 1e6:
        raise PlanError(
            f"must be above 0, got {times:g}", kind="bad-option", where="bandwidth",
            remedy="write a factor, such as 2 for links twice as fast",
        )  # fmt: skip

    def link(of: Link) -> Link:
        return structs.replace(of, bandwidth_bytes_per_s=of.bandwidth_bytes_per_s * times)

    table = None if cluster.collectives is None else _scaled(cluster.collectives, times)
    return replace(
        cluster, name=f"{cluster.name} with {times:g} times the bandwidth",
        intra_host=link(cluster.intra_host), network=link(cluster.network), collectives=table,
    )  # fmt: skip


def _scaled(table: CollectiveTable, times: float) -> CollectiveTable:
    """Measured times with the part above the shortest one of their kind and group divided."""
    shortest: dict[object, float] = {}
    for row in table.rows:
        key = row.kind, row.group_size, row.stride
        shortest[key] = min(shortest.get(key, row.seconds), row.seconds)

    def seconds(of: float, least: float) -> float:
        return least + (of - least) / times

    rows = tuple(
        structs.replace(
            row, seconds=seconds(row.seconds, shortest[row.kind, row.group_size, row.stride])
        )
        for row in table.rows
    )
    return structs.replace(table, name=f"{table.name}-x{times:g}", rows=rows)

"""Plans the program of a plan with other devices, memory, links or pins, or its stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from costmodel import Cluster
from profiles import CollectiveTable, Link

from ..common.errors import PlanError
from ..common.options import Options
from ..files.plan_file import PlanFile, one_stage
from ..files.program_plan import ProgramPlan
from ..sharding.search.asked import as_written
from .analysed_plan import AnalysedPlan
from .replan import replanned
from .stages_what_if import Conditions, what_if_in_stages


def what_if(
    file: PlanFile,
    analysed: Sequence[AnalysedPlan],
    *,
    devices: int | None = None,
    memory_bytes: int | None = None,
    bandwidth: float = 1.0,
    pins: tuple[tuple[str, str], ...] = (),
    schedules: tuple[str, ...] = (),
) -> PlanFile:
    """Plans the program of a plan, or its stages, under other conditions, without the function.

    Args:
        file: the plan.
        analysed: the plans of its programs.
        devices: number of devices of the same kind, in the same hosts.
        memory_bytes: memory limit of one device [bytes].
        bandwidth: factor on the bandwidth of all links; latencies stay.
        pins: further pins.
        schedules: of stages, to choose from; that of the plan if empty.

    Raises:
        PlanError: if nothing fits, the devices do not fill hosts or stages, or pins are given for
            stages or schedules for one program.
    """
    _check(file, pins, schedules)
    if memory_bytes is not None and memory_bytes <= 0:
        raise PlanError(
            f"must be above 0, got {memory_bytes:g}", kind="bad-option", where="memory_bytes",
            remedy="write the bytes of one device, such as 70_000_000_000",
        )  # fmt: skip
    was = Cluster.from_dict(file.whole.cluster, where=analysed[0].where)
    cluster = was if devices is None else _resized(was, devices)
    if bandwidth != 1.0:
        cluster = _faster(cluster, bandwidth)
    if file.in_stages:
        limit = float(file.joined.limit_bytes if memory_bytes is None else memory_bytes)
        sizes = _in_proportion(file, was.num_devices, cluster)
        given = Conditions(cluster, limit, sizes)
        return what_if_in_stages(file, analysed, given, schedules)
    (one,) = analysed
    program = _of_one_program(one, cluster, memory_bytes, pins)
    return one_stage(program, len(one.graph.nodes))


def _check(file: PlanFile, pins: tuple[tuple[str, str], ...], schedules: tuple[str, ...]) -> None:
    """Refuses what does not apply to one program, or to stages."""
    if file.in_stages and pins:
        raise PlanError(
            "pins apply to a single program, and each stage has its own", kind="bad-option",
            where="pins", remedy="leave them out, or plan with pipeline='off'",
        )  # fmt: skip
    if not file.in_stages and schedules:
        raise PlanError(
            "a plan of one program has no schedule", kind="bad-option", where="schedules",
            remedy="leave it out, or plan with pipeline=",
        )  # fmt: skip


def _in_proportion(file: PlanFile, devices: int, cluster: Cluster) -> tuple[int, ...]:
    """Devices of every stage, which has the same share of all as in the plan.

    Raises:
        PlanError: if a share is no whole number, or neither within a host nor whole hosts.
    """
    host, ends = cluster.devices_per_host, {0}
    for size in file.groups:
        share, rest = divmod(size * cluster.num_devices, devices)
        inside = share and max(ends) % host + share <= host
        if rest or not share or not (inside or (max(ends) % host == 0 == share % host)):
            raise PlanError(
                f"its stages on {'+'.join(map(str, file.groups))} of {devices} devices do not have "
                f"the same shares of {cluster.num_devices} in hosts of {host}", kind="bad-option",
                where="devices", remedy="plan anew for that cluster, which divides it otherwise",
            )  # fmt: skip
        ends.add(max(ends) + share)
    return tuple(size * cluster.num_devices // devices for size in file.sizes)


def _of_one_program(
    analysed: AnalysedPlan,
    cluster: Cluster,
    memory_bytes: int | None,
    pins: tuple[tuple[str, str], ...],
) -> ProgramPlan:
    """The plan of one program on a cluster."""
    devices = analysed.cluster.num_devices
    if devices != cluster.num_devices and analysed.program.shardings == "pin":
        raise PlanError(
            f"shardings of the program are pins on a mesh of {devices} devices",
            kind="bad-option", where="devices", remedy="plan with shardings='warn'",
        )  # fmt: skip
    limit = max(1, int(analysed.program.limit_bytes)) if memory_bytes is None else memory_bytes
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

"""Hand-written shardings as a plan, priced by the same cost model."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, structs

from ..common.errors import PlanError
from ..common.mesh_setting import AXES, Named
from ..common.options import Options
from ..common.surface import public
from ..files.plan_file import one_stage
from ..files.program_plan import ProgramPlan
from ..inspect.analysed_plan import AnalysedPlan
from ..inspect.replan import replanned
from .plan import Plan

# A limit that every plan keeps: a plan that does not fit is priced with it.
ANY_BYTES = 10**18
FORMAT = "meshwright-shardings"
LARGEST_BYTES = 1 << 28

Entry = str | list[str] | None


class ShardingsFile(msgspec.Struct, frozen=True):
    """A file of hand-written shardings; other keys, as `export --to shardings` writes, are ignored.

    mesh: (axis, size), outermost first.
    arguments: name or pattern of arguments -> spec.
    """

    format: str
    version: int
    mesh: Annotated[tuple[tuple[str, Annotated[int, Meta(ge=1)]], ...], Meta(min_length=1)]
    arguments: dict[str, list[Entry]]


def read_shardings(path: str | Path) -> ShardingsFile:
    """Reads a file of shardings.

    Raises:
        PlanError: if it cannot be read or is of another form.
    """
    where = str(path)
    try:
        data = Path(path).read_bytes()
        if len(data) > LARGEST_BYTES:
            raise ValueError(f"it has {len(data)} bytes, more than any file of shardings")
        found = msgspec.json.decode(data, type=ShardingsFile)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanError(
            f"cannot be read as shardings: {reason}", kind="shardings", where=where,
            remedy="write what docs/how-to/compare-by-hand.md shows",
        ) from error  # fmt: skip
    if found.format != FORMAT or found.version != 1:
        raise PlanError(
            f"has format {found.format!r} version {found.version}, expected {FORMAT!r} version 1",
            kind="shardings", where=where, remedy="correct the keys format and version",
        )  # fmt: skip
    return found


@public
def by_hand(plan: Plan, shardings: Mapping[str, Any], *, mesh: Mapping[str, int]) -> Plan:
    """The plan of hand-written shardings, for the program and cluster of another plan.

    Arguments have exactly the given shardings; the search chooses those between them, as for
    baselines. Parameters without a spec are whole, optimizer state follows the parameter that its
    name ends in, and other arguments are free.

    Args:
        plan: plan with the program, the cluster and the memory limit.
        shardings: name or shell pattern of arguments -> PartitionSpec, or a sequence with None, an
            axis or several axes for each dimension; the first match holds.
        mesh: axis -> size, outermost first.

    Returns:
        A plan without a function. It may not fit.

    Raises:
        PlanError: if a name matches nothing, a spec is malformed or does not divide, or the mesh
            has another number of devices.
    """
    analysed = plan.analysed
    order = _axes(mesh, plan.mesh.num_devices)
    specs = {name: _spec(name, spec, order) for name, spec in shardings.items()}
    kept = _kept(analysed, specs)
    axes = tuple(mesh.items())
    limit = max(1, int(plan.program.limit_bytes))
    try:
        program = _priced(analysed, axes, tuple(_pins(analysed, kept)), limit)
    except PlanError as error:
        if error.kind != "bad-pin":
            raise
        raise _bad(
            "shardings", error.message, "check that every split divides its dimension"
        ) from error
    return Plan(one_stage(program, len(analysed.graph.nodes)), where=plan.where)


def _priced(
    analysed: AnalysedPlan, mesh: Named, pins: tuple[tuple[str, str], ...], limit: int
) -> ProgramPlan:
    """The plan within the memory limit if there is one, else without a limit."""
    settings: dict[str, Any] = {
        "mesh": mesh, "pins": pins, "baselines": False,
        "overlap": analysed.program.overlap,
        "collective_matmul": analysed.program.collective_matmul,
    }  # fmt: skip
    try:
        program = replanned(analysed, analysed.cluster, Options(**settings, memory_bytes=limit))
    except PlanError as error:
        if error.kind != "does-not-fit":
            raise
        program = replanned(analysed, analysed.cluster, Options(**settings, memory_bytes=ANY_BYTES))
    return structs.replace(program, limit_bytes=float(limit), origin="by hand")


# --- reading what the expert wrote ---------------------------------------------------------------


def _bad(where: str, message: str, remedy: str) -> PlanError:
    return PlanError(message, kind="shardings", where=where, remedy=remedy)


def _axes(mesh: Mapping[str, int], devices: int) -> dict[str, str]:
    """Names of mesh axes -> the same; of axes of size 1 the empty name."""
    if any(isinstance(n, bool) or n < 1 for n in mesh.values()):
        raise _bad("mesh", f"sizes must be whole numbers from 1, got {dict(mesh)}", "correct them")
    if math.prod(mesh.values()) != devices:
        raise _bad(
            "mesh", f"{dict(mesh)} has {math.prod(mesh.values())} devices, the plan has {devices}",
            "name axes whose sizes multiply to the plan's devices",
        )  # fmt: skip
    split = [axis for axis, size in mesh.items() if size > 1]
    if len(split) > len(AXES):
        raise _bad(
            "mesh", f"has {len(split)} axes, at most {len(AXES)} can be priced",
            "join axes that are always used together",
        )  # fmt: skip
    return {axis: axis if size > 1 else "" for axis, size in mesh.items()}


def _spec(name: str, spec: Any, order: Mapping[str, str]) -> tuple[str, ...]:
    """Entries of a pin for each dimension that the spec has."""
    if isinstance(spec, str) or not isinstance(spec, Iterable):
        raise _bad(
            name, f"'{spec}' is not a PartitionSpec", "write a sequence, such as (None, 'x')"
        )
    found: list[str] = []
    for entry in cast("Iterable[object]", spec):
        if entry is None:
            axes: Sequence[object] = ()
        elif isinstance(entry, str):
            axes = (entry,)
        elif isinstance(entry, Sequence):
            axes = tuple(cast("Sequence[object]", entry))
        else:
            found.append("*")  # PartitionSpec.UNCONSTRAINED
            continue
        if unknown := [a for a in axes if not isinstance(a, str) or a not in order]:
            raise _bad(
                name, f"there is no mesh axis '{unknown[0]}'", f"the mesh has {', '.join(order)}"
            )
        named = [order[str(axis)] for axis in axes if order[str(axis)]]
        found.append("*".join(named) or "-")
    return tuple(found)


def _kept(
    analysed: AnalysedPlan, specs: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Argument -> entries for all its dimensions, for those that are spoken of or implied."""
    inputs = {item.name: item for item in analysed.graph.inputs if item.role != "constant"}
    used: set[str] = set()
    kept: dict[str, tuple[str, ...]] = {}
    for name, item in inputs.items():
        pattern = next((p for p in specs if name == p or fnmatch.fnmatchcase(name, p)), None)
        if pattern is None:
            if item.role == "parameter":
                kept[name] = ("-",) * item.type.rank
            continue
        used.add(pattern)
        rank = item.type.rank
        if len(specs[pattern]) > rank:
            raise _bad(
                pattern, f"has {len(specs[pattern])} entries, '{name}' has {rank} dimensions",
                "write at most one entry for each dimension",
            )  # fmt: skip
        kept[name] = (*specs[pattern], *("-",) * (rank - len(specs[pattern])))
    if unused := [p for p in specs if p not in used]:
        raise _bad(
            unused[0], "no argument is called so", f"arguments are named like "
            f"{', '.join(list(inputs)[:6])}",
        )  # fmt: skip
    for name, item in inputs.items():
        if item.role == "optimizer-state" and name not in kept:
            kept[name] = _followed(name, item.type.shape, analysed, kept)
    return kept


def _followed(
    name: str, shape: tuple[int, ...], analysed: AnalysedPlan, kept: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """The entries of the parameter that an optimizer's state belongs to; whole if there is none."""
    for item in analysed.graph.inputs:
        path = item.name.partition("/")[2] or item.name
        if item.role == "parameter" and item.type.shape == shape and name.endswith(f"/{path}"):
            return kept[item.name]
    return ("-",) * len(shape)


def _pins(analysed: AnalysedPlan, kept: Mapping[str, tuple[str, ...]]) -> Iterable[tuple[str, str]]:
    """Pins for the arguments; those that differ only in numbers share one where that is exact."""
    names = [item.name for item in analysed.graph.inputs if item.role != "constant"]
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    for pattern, members in groups.items():
        alike = {kept.get(name) for name in members}
        plain = not re.search(r"[\[?]", pattern) and "*" in pattern
        if plain and len(alike) == 1 and sorted(fnmatch.filter(names, pattern)) == sorted(members):
            spec = next(iter(alike))
            if spec is not None:
                yield pattern, f"[{','.join(spec)}]"
            continue
        for name in members:
            if (spec := kept.get(name)) is not None:
                yield name, f"[{','.join(spec)}]"

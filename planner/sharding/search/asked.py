"""Placements that the user's program asks for: named in warnings, or turned into pins.

The axes of a user's mesh are the plan's, in their order.
"""

from __future__ import annotations

import glob
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from costmodel import Cluster
from ir import (
    SHARD_MAP,
    Graph,
    Node,
    Placement,
    asks,
    left_axes,
    live_inputs,
    mapped_axes,
    parts_split,
)

from ...common.errors import PlanError
from ...common.mesh_setting import AXES, Named, is_name, names_of
from ...common.options import Options
from ...common.resolved_pins import pin_dims
from ...files.program_plan import ProgramPlan

SHOWN = 3  # names in a warning
NOT_FOLLOWED = "not followed, the first"
NOT_OFFLOADED = "all are kept in that of the device, nothing is offloaded"


@dataclass(frozen=True, slots=True)
class Asked:
    """A placement that the program asks for.

    by: source of the request: a key of `_TOLD`.
    where: source line, or name of an argument or result.
    """

    by: str
    where: str
    place: Placement


# Sources of requests: singular, and plural.
_TOLD: Mapping[str, tuple[str, str]] = {
    "argument": ("sharding of an argument", "shardings of arguments"),
    "jit": ("sharding of a jitted function", "shardings of jitted functions"),
    "sharding_constraint": ("sharding constraint", "sharding constraints"),
    "reshard": ("reshard or explicit sharding", "reshards and explicit shardings"),
    "device_put": ("device_put", "device_puts"),
}
_SAME_AS = {"op": "reshard", "result": "jit"}


def asked_inside(graph: Graph, around: str = "") -> Iterator[Asked]:
    """Requests of the ops of a graph, in program order.

    Args:
        graph: the program, or the body of a loop or branch.
        around: source line of that loop or branch.
    """
    for node in graph.nodes:
        for by, place in asks(node):
            own = node.source if node.source != around else ""
            where = own or _made_at(graph, node) or around or node.op
            yield Asked(_SAME_AS.get(by, by), where, place)
        for body in node.bodies if node.op != SHARD_MAP else ():
            yield from asked_inside(body, node.source or around)


def _made_at(graph: Graph, node: Node) -> str:
    """Source line of what a node's value is computed by.

    What `jax.checkpoint` adds to a program, such as copies to the host, has no line of its own.
    """
    for operand in node.inputs:
        made = graph.maker.get(operand) if isinstance(operand, int) else None
        if made is not None and (source := graph.nodes[made].source):
            return source
    return ""


def may_offload(options: Options, machine: Cluster) -> bool:
    """Whether what a program sends to the memory of the host is kept there."""
    return options.offload == "auto" and machine.device.host_link is not None


def is_not_followed(warning: str) -> bool:
    """Whether a warning of a plan is about a request of the program that it does not follow."""
    return NOT_FOLLOWED in warning or NOT_OFFLOADED in warning


def mapped_inside(graph: Graph) -> Iterator[Asked]:
    """The meshes that a `shard_map` of a graph maps over, in program order."""
    for node in graph.nodes:
        if node.op != SHARD_MAP:
            for body in node.bodies:
                yield from mapped_inside(body)
        elif any(size > 1 for size in mapped_axes(node.attr("mesh")).values()):
            mesh = tuple(mapped_axes(node.attr("mesh")).items())
            yield Asked(SHARD_MAP, node.source or node.op, Placement(mesh))


def left_to_compiler(graph: Graph) -> Iterator[str]:
    """Warnings about each `shard_map` of a graph that leaves axes of its mesh to the compiler."""
    for node in graph.nodes:
        for body in node.bodies if node.op != SHARD_MAP else ():
            yield from left_to_compiler(body)
        left = left_axes(node.attr("auto")) if node.op == SHARD_MAP else ()
        if not left:
            continue
        inside = [one for body in node.bodies for one in asked_inside(body) if one.place.mesh]
        notes = [] if parts_split(node, {}) else ["all in it is whole along that"]
        if inside:
            counted = _counted(("sharding in it", "shardings in it"), inside)
            notes.append(f"{counted} {NOT_FOLLOWED} {_at(inside[0])}")
        if notes:
            where, which = node.source or node.op, ", ".join(left)
            yield f"the shard_map at {where} leaves {which} to the compiler: {'; '.join(notes)}"


def not_followed(asked: Sequence[Asked], *, pinned: bool) -> tuple[str, ...]:
    """A warning for each kind of request in the program that the plan does not follow.

    Args:
        asked: requests, in program order.
        pinned: whether shardings are pins.
    """
    lines: list[str] = []
    for by, names in _TOLD.items():
        split = [one for one in asked if one.by == by and (one.place.mesh or one.place.device)]
        if split and not pinned:
            why = "shardings='warn'" if split[0].place.mesh else "a plan uses the whole mesh"
            lines.append(f"{_counted(names, split)} {NOT_FOLLOWED} {_at(split[0])}: {why}")
    away = [one for one in asked if one.place.memory]
    if away:
        lines.append(
            f"{_counted(('value', 'values'), away)} asked to be in memory "
            f"'{away[0].place.memory}', the first at {away[0].where}: {NOT_OFFLOADED}"
        )
    return tuple(lines)


def unused(graph: Graph) -> tuple[str, ...]:
    """A warning about arguments that no result depends on."""
    live = live_inputs(graph)
    names = [
        item.name
        for v, item in enumerate(graph.inputs)
        if v not in live and item.role != "constant" and item.type.dtype != "float0"
    ]
    if not names:
        return ()
    some = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    are = "argument is" if len(names) == 1 else "arguments are"
    return (f"{len(names)} {are} not used: no result depends on {some}",)


def _counted(names: tuple[str, str], found: Sequence[Asked]) -> str:
    return f"1 {names[0]} is" if len(found) == 1 else f"{len(found)} {names[1]} are"


def _at(one: Asked) -> str:
    return f"{one.place} at {one.where}"


# --- pins ---------------------------------------------------------------------------------------


def pinned_options(
    options: Options, ranks: Mapping[str, int], asked: Sequence[Asked], size: int
) -> Options:
    """Options in which the program's requests are pins.

    Args:
        options: options with `shardings="pin"`.
        ranks: rank of each argument, by name.
        asked: requests of the program, at least one over a mesh.
        size: number of devices of the cluster.

    Raises:
        PlanError: if a request cannot be pinned.
    """
    for one in asked:
        _check_place(one)
    split = [one for one in asked if one.place.mesh]
    shape, mapped = _shape(split, size), [one for one in split if one.by == SHARD_MAP]
    if options.shape not in (None, shape):
        raise PlanError(
            f"the mesh {options.mesh} was asked for, and the program is written for {shape} "
            f"({_at(split[0])})", kind="bad-option", where="Options.mesh",
            remedy="leave mesh out" if mapped else "leave mesh out, or plan with shardings='warn'",
        )  # fmt: skip
    if options.mesh is None or (mapped and not names_of(options.mesh)):
        options = replace(options, mesh=_named(split) or shape)
    axes = options.axes
    for one in mapped:
        if (names := tuple(name for name, n in one.place.mesh if n > 1)) != axes[: len(shape)]:
            raise PlanError(
                f"maps over the axes {', '.join(names)}, those of the plan are "
                f"{', '.join(axes[: len(shape)])}", kind="bad-option", where=one.where,
                remedy="write the program for one mesh, whose axes are named with letters, digits "
                "and '_', and leave mesh out",
            )  # fmt: skip
    pins = [
        (_literally(one.where), f"[{','.join(pin_dims(one.place, ranks[one.where], axes, shape))}]")
        for one in split if one.by == "argument"
    ]  # fmt: skip
    return replace(options, pins=(*options.pins, *pins))


def _check_place(one: Asked) -> None:
    remedy = "take that out of the program, or plan with shardings='warn'"
    order = [name for name, _ in one.place.mesh]
    for entry in one.place.dims:
        if not isinstance(entry, str) and sorted(entry, key=order.index) != [*entry]:
            raise PlanError(
                f"asks for {one.place}: axes that split a dimension can be pinned in the order of "
                f"the mesh only, which is {', '.join(order)}", kind="bad-pin", where=one.where,
                remedy="make the mesh with its axes in the other order, or plan with "
                "shardings='warn'",
            )  # fmt: skip
    if one.place.device:
        raise PlanError(
            f"asks for {one.place.device}, which cannot be pinned: a plan uses the whole mesh",
            kind="bad-pin", where=one.where, remedy=remedy,
        )  # fmt: skip
    if one.place.partial:
        raise PlanError(
            f"asks for a sum that is not reduced ({one.place}), which cannot be pinned",
            kind="bad-pin", where=one.where, remedy=remedy,
        )  # fmt: skip


def _shape(split: Sequence[Asked], size: int) -> tuple[int, ...]:
    """The mesh shape whose axes make up those of all shardings."""
    shapes = {tuple(n for _, n in one.place.mesh if n > 1): one for one in split}
    for shape, one in shapes.items():
        if math.prod(shape) != size:
            raise PlanError(
                f"{_at(one)} is over {math.prod(shape)} devices, the cluster has {size}",
                kind="bad-pin", where="shardings", remedy="write shardings for the mesh that is "
                "planned for, or plan with shardings='warn'",
            )  # fmt: skip
    inner = sorted({n for shape in shapes for n in accumulate(shape, operator.mul)} - {1})
    finest = [b // a for a, b in pairwise([1, *inner])]
    if any(b % a for a, b in pairwise(inner)) or len(finest) > len(AXES):
        first, second, *_ = [*shapes.items(), ("", split[-1])]
        raise PlanError(
            f"shardings are over meshes of shapes that are no cuts of one of at most {len(AXES)} "
            f"axes, {first[0]} ({_at(first[1])}) and {second[0]} ({_at(second[1])})",
            kind="bad-pin", where="shardings",
            remedy="write all for one mesh, or plan with shardings='warn'",
        )  # fmt: skip
    return tuple(finest)


def _named(split: Sequence[Asked]) -> Named | None:
    """The axes of the mesh that all shardings share, if they have names that a plan can use."""
    meshes = {tuple((axis, n) for axis, n in one.place.mesh if n > 1) for one in split}
    if len(meshes) > 1:
        return None
    (mesh,) = meshes
    return mesh if all(is_name(axis) for axis, _ in mesh) else None


def as_written(program: ProgramPlan, devices: int) -> dict[str, Any]:
    """Options that plan a program anew from its file, on a number of devices.

    Pinned shardings need the file's mesh; one that the user has named is kept where it fits.
    """
    own = any(name not in AXES for name, _ in program.mesh)
    fits = math.prod(size for _, size in program.mesh) == devices
    kept = (own and fits) or program.shardings == "pin"
    mesh = program.mesh if kept else None
    return {
        "shardings": program.shardings, "mesh": mesh, "overlap": program.overlap,
        "collective_matmul": program.collective_matmul,
    }  # fmt: skip


def _literally(name: str) -> str:
    """A pattern that matches only this name."""
    return glob.escape(name) if any(mark in name for mark in "*?[") else name

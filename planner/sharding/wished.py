"""Shardings that a program is written with, as options and warnings."""

from __future__ import annotations

from dataclasses import replace

from costmodel import Cluster
from ir.trace import Traced

from ..common.options import Options
from .search.asked import (
    Asked,
    asked_inside,
    left_to_compiler,
    mapped_inside,
    not_followed,
    pinned_options,
    unused,
)


def with_asked(
    options: Options, traced: Traced, machine: Cluster
) -> tuple[Options, tuple[str, ...]]:
    """Options with the program's own shardings as pins, if asked for, and warnings.

    Raises:
        PlanError: if a sharding cannot be pinned.
    """
    graph, names = traced.graph, traced.out_names
    arguments = graph.inputs[len(traced.program.consts) :]
    asked = [*_of_arguments(traced), *asked_inside(graph)]
    pinned = options.shardings == "pin" and any(one.place.mesh for one in asked)
    asked += [
        Asked("jit", f"result {names[k]}", place)
        for k, place in traced.places.outputs.items()
        if not (pinned and place.mesh)  # else the graph contains it
    ]
    notes = (
        *not_followed(asked, pinned=pinned),
        *dict.fromkeys(left_to_compiler(graph)),
        *unused(graph),
    )
    mapped = [*mapped_inside(graph)]
    if not pinned:
        options, asked = replace(options, shardings="warn"), []
    if not pinned and not mapped:
        return options, notes
    ranks = {item.name: item.type.rank for item in arguments}
    options = pinned_options(options, ranks, [*asked, *mapped], machine.num_devices)
    inside = pinned and any(one.place.mesh for one in asked_inside(graph))
    if inside or mapped:
        options = replace(options, padding=False, sequence_order=False, sort_in_blocks=False)
    if options.substitutions and (inside or mapped):
        options = replace(options, substitutions=False)
        why = "shardings inside it are pins" if inside else "it has a shard_map"
        notes = (*notes, f"the program is not rewritten: {why}")
    return options, notes


def asks_for_shardings(traced: Traced) -> bool:
    """Whether the program is written with shardings over a mesh, of arguments or of values."""
    asked = (*_of_arguments(traced), *asked_inside(traced.graph))
    return any(one.place.mesh for one in asked) or any(
        place.mesh for place in traced.places.outputs.values()
    )


def _of_arguments(traced: Traced) -> list[Asked]:
    arguments = traced.graph.inputs[len(traced.program.consts) :]
    return [
        Asked("argument", arguments[k].name, place) for k, place in traced.places.inputs.items()
    ]

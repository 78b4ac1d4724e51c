"""Stages that are the same program on the same layout, which share their branches."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ir import digest

from .layout import ScanLayout
from .local_stage import LocalStage
from .wires import Wires


def classes_of(layout: ScanLayout) -> list[int]:
    """A number for each stage, the first of those that are like it."""
    likenesses = [_likeness(layout, s) for s in range(len(layout.stages))]
    return [next(k for k, other in enumerate(likenesses) if other == one) for one in likenesses]


def _captured(local: LocalStage) -> tuple[object, ...]:
    """The arrays that a stage has captured, each equal only to itself."""
    captured = {**dict(enumerate(local.traced.consts)), **local.program.captured}
    return tuple((v, id(array)) for v, array in sorted(captured.items()))


def _likeness(layout: ScanLayout, s: int) -> tuple[Any, ...]:
    local = layout.stages[s]
    stage, program = local.stage, local.program
    came, given = _at(layout.ahead, s - 1), _at(layout.ahead, s)
    behind, before = _at(layout.back, s), _at(layout.back, s - 1)
    return (
        digest(local.traced.graph), _captured(local), local.solved.decisions,
        local.solved.params, program.args, local.recompute, local.arrives, local.leaves,
        [(use.leaf, layout.held[use.leaf].entries(use)) for use in stage.params], stage.batch,
        [came[key] for key in stage.takes], _out(given, stage.gives, came),
        [behind[slope] for slope in program.incoming], _out(before, program.outgoing, behind),
        [(k, stage.gives.index(key)) for k, (r, key, _, _) in enumerate(layout.results) if r == s],
        s == layout.results[0][0],
        *((pool.places[s], pool.counts[s]) for pool in (layout.saved, layout.between, layout.sums)),
    )  # fmt: skip


def _at(wires: Wires, boundary: int) -> Mapping[Any, int]:
    return wires.at[boundary] if 0 <= boundary < len(wires.at) else {}


def _out(
    wires: Mapping[Any, int], made: Sequence[Hashable], came: Mapping[Any, int]
) -> list[tuple[int, str, int]]:
    """For each wire, which of the values made it carries, or from which wire it goes on."""
    return sorted(
        (wire, "made", list(made).index(value)) if value in made
        else (wire, "on", came[value])
        for value, wire in wires.items()
    )  # fmt: skip

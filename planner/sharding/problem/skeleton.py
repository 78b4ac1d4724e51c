"""The part of a program's problems that is the same on all meshes: nodes, edges, live intervals.

Members of a class (`planner.sharding.problem.repeated_layers`) are one node, and equal joins of two
nodes are one join with a count, so that a mesh prices classes and not ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel import ComputeModel
from ir import Neighbours, TensorType, neighbours_of
from ir.analysis import Link, Passage, has_experts

from ...solver.problem import Floats
from ..cost.least_seconds import least_each_s
from .facts import Facts
from .windows import Windows, windows_of

Ints = NDArray[np.intp]


class End(NamedTuple):
    """A value as one node provides it.

    how: of a value its "states", or these "lifted" by a leading dimension; of an op the "operand"
    or "result" at `position`.
    """

    node: int
    how: str = "states"
    position: int = 0


class Join(NamedTuple):
    """How two nodes are joined by an edge.

    how: "reshard" between two ends, "same state" where that is on the host, which reshards nothing;
        "same" option at both; "read" a value itself or a copy, or
    the "slices" of that, by a region.
    """

    u: int
    v: int
    how: str
    source: End
    target: End
    weight: float


class Slot(NamedTuple):
    """The op or value that a node stands for.

    kind: "op" i; "value" v; "wait" for results of op i; "stack" that link i enters; "result" v.
    number: that i or v.
    partial: states of a value may be partial sums, if those of `made` are, where that is given.
    made: the result of an op that a value is; the op of a wait; the port of a stack.
    """

    kind: str
    number: int
    partial: bool = False
    made: End | None = None


@dataclass(frozen=True, slots=True)
class Sites:
    """Every site at which a value may change its state: parallel arrays in program order.

    join: its join.
    passage: its number among `FlatProgram.passages`.
    """

    join: Ints
    passage: Ints


@dataclass(frozen=True)
class Outline:
    """The problems of a program without prices.

    facts: facts of the program.
    joins, types, counts: for each join the resharded type and the number of its sites; a
        count of 0 is not priced.
    taken: (node, result of the program) for results that overwrite no argument.
    members: ops of every node.
    node, start, end: buffers, as in `LiveIntervals`.
    """

    facts: Facts
    folded: bool
    slots: tuple[Slot, ...]
    op_node: dict[int, int]
    value_node: dict[int, int]
    out_node: dict[int, int]
    ends: tuple[End | None, ...]
    joins: tuple[Join, ...]
    types: tuple[TensorType, ...]
    counts: tuple[int, ...]
    taken: tuple[tuple[int, int], ...]
    stacks: tuple[tuple[int, Link], ...]
    waits: tuple[tuple[int, int], ...]
    members: tuple[int, ...]
    node: Ints
    start: Ints
    end: Ints
    sites: Sites

    @cached_property
    def kept(self) -> tuple[tuple[End, ...], tuple[int, ...]]:
        """Different ends of values, and for each value the number of its end, from 1; else 0."""
        numbers: dict[End | None, int] = {None: 0}
        of = tuple([numbers.setdefault(end, len(numbers)) for end in self.ends])
        return tuple(end for end in numbers if end is not None), of

    @cached_property
    def windows(self) -> Windows:
        """Where communication may run beside compute."""
        return windows_of(self.facts, self.op_node)

    def least_s(
        self, compute: ComputeModel, known: dict[int, dict[object, float]], devices: int
    ) -> Floats:
        """Least seconds of an op of each node that stands for large ops, of one run.

        The same on every mesh, so that a plan costs the same on all that can represent it.

        Args:
            compute: prices of ops on a device.
            known: number of devices -> seconds of ops on these, also of other programs.
            devices: number of devices.
        """
        of_op = {self.slots[n].number: n for n in map(int, self.windows.nodes)}
        found, here = np.zeros(len(self.slots)), known.setdefault(devices, {})
        for i, seconds in least_each_s(self.facts, compute, devices, of_op, here).items():
            found[of_op[i]] = seconds
        return found

    @cached_property
    def neighbours(self) -> Mapping[int, Neighbours]:
        """Products beside which values may be exchanged in chunks, by the number of the passage.

        Only programs with experts have exchanges that are worth it.
        """
        flat, spec = self.facts.flat, self.facts.spec
        return neighbours_of(flat, spec) if has_experts(flat, spec) else {}

    @cached_property
    def passage_numbers(self) -> dict[Passage, int]:
        """Number of each passage of the program."""
        return {passage: n for n, passage in enumerate(self.facts.flat.passages)}

    def end_of(self, v: int) -> End:
        """The node that provides a value, and in which form."""
        end = self.ends[v]
        assert end is not None, "made of literals alone"
        return end

# pyright: basic
"""The jitted programs of one chunk on its devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ir import IRError
from ir.trace import Program

from ...pipeline.cut.forward_backward import Part, nodes_behind, part_of
from ...pipeline.cut.stage import Stage
from ...pipeline.cut.stage_gradient import Slope, StageProgram
from .layout import Layout
from .processes import away, is_here, started

Array = Any


FORWARD = ("params", "batch", "takes")
INPUT = (*FORWARD, "slopes", "saved")
BACKWARD = (*INPUT, "sums")
WEIGHT = (*BACKWARD, "between")


@dataclass(frozen=True)
class Compiled:
    """A part of a stage's program, jitted.

    count: values that it is given.
    pick: those that it reads, of those that it is given.
    """

    count: int
    pick: Callable[[Sequence[Array]], Sequence[Array]]
    call: Any
    layout: Layout
    known: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def _is_alone(self) -> bool:
        """Whether there are no other processes."""
        return jax.process_count() == 1

    def __call__(self, given: Sequence[Array]) -> list[Array]:
        if len(given) != self.count:
            raise IRError(f"a part of a stage takes {self.count} values, got {len(given)}")
        args = self.pick(given)
        if self._is_alone:
            return list(self.call(*args))
        return list(started(self.call, args, self.layout.devices, self.layout.whole, self.known))


class ChunkPrograms:
    """What the runtime calls for one chunk.

    Args:
        program: of its stage.
        layout: how its values lie on the devices of its group.
        readers: value that it gives -> stages that take it.
        recompute: save the arguments of the forward pass only.
        name: for traces.
    """

    def __init__(
        self,
        program: StageProgram,
        layout: Layout,
        readers: Mapping[Any, tuple[int, ...]],
        *,
        recompute: bool,
        name: str,
    ) -> None:
        self.program, self.layout, self.readers = program, layout, readers
        self.recompute = recompute
        parts, traced = program.parts, program.program
        gives = len(program.stage.gives)
        outputs = parts.forward.makes
        light = part_of(traced, _behind(traced, outputs[:gives]), outputs[:gives])
        saves = part_of(traced, _behind(traced, outputs[gives:]), outputs[gives:])
        self._gives = gives
        self._known: dict[Any, Any] = {}
        first = light if recompute else parts.forward
        self._forward = self._jit(first, f"{name}_forward", FORWARD)
        self._saves = self._jit(saves, f"{name}_recompute", FORWARD) if recompute else None
        self._backward = self._jit(parts.backward, f"{name}_backward", BACKWARD, program.outgoing)
        self._input = self._jit(parts.input_gradient, f"{name}_input_gradient", INPUT)
        self._weight = self._jit(parts.weight_gradient, f"{name}_weight_gradient", WEIGHT, ())

    @property
    def stage(self) -> Stage:
        return self.program.stage

    @property
    def moves(self) -> tuple[bool, ...]:
        """Which of its parameters have a gradient."""
        return self.program.moves

    @property
    def incoming(self) -> tuple[Slope, ...]:
        return self.program.incoming

    @property
    def outgoing(self) -> tuple[Slope, ...]:
        return self.program.outgoing

    def _jit(
        self, part: Part, name: str, kinds: Sequence[str], slopes: Sequence[Slope] | None = None
    ) -> Compiled:
        """A part that is given values of some kinds.

        `slopes` are results before the sums of gradients, if it makes those.
        """
        args, parts = self.program.args, self.program.parts
        values = {**args, "saved": parts.saved, "between": parts.between}
        given = [v for kind in kinds for v in values[kind]]
        place = {v: k for k, v in enumerate(given)}
        added = 0 if slopes is None else len(part.makes) - len(slopes)
        call = self.layout.jit(part, name, set(args["sums"]), added)
        return Compiled(len(given), _picked([place[v] for v in part.reads]), call, self.layout)

    def goals(self, kind: str) -> list[Any]:
        """Shardings that arguments of one kind must have; None where any will do."""
        return [self.layout.goal(v) for v in self.program.args[kind]]

    def forward(
        self, params: Sequence[Array], batch: Sequence[Array], takes: Sequence[Array]
    ) -> tuple[list[Array], list[Array] | None]:
        """Values given, and what is saved; nothing (None) if it is computed again later."""
        found = self._forward([*params, *batch, *takes])
        return found[: self._gives], None if self.recompute else found[self._gives :]

    def again(
        self, params: Sequence[Array], batch: Sequence[Array], takes: Sequence[Array]
    ) -> list[Array]:
        """What the forward pass would have saved."""
        assert self._saves is not None
        return self._saves([*params, *batch, *takes])

    def backward(
        self,
        params: Sequence[Array],
        batch: Sequence[Array],
        takes: Sequence[Array],
        saved: Sequence[Array],
        slopes: Sequence[Array],
        sums: Sequence[Array],
    ) -> tuple[list[Array], list[Array]]:
        """Outgoing gradients and new sums; the old ones are donated."""
        found = self._backward([*params, *batch, *takes, *slopes, *saved, *sums])
        return found[: len(self.outgoing)], found[len(self.outgoing) :]

    def input_gradient(
        self,
        params: Sequence[Array],
        batch: Sequence[Array],
        takes: Sequence[Array],
        saved: Sequence[Array],
        slopes: Sequence[Array],
    ) -> tuple[list[Array], list[Array]]:
        """Outgoing gradients, and what the weight gradient reads of them."""
        found = self._input([*params, *batch, *takes, *slopes, *saved])
        return found[: len(self.outgoing)], found[len(self.outgoing) :]

    def weight_gradient(
        self,
        params: Sequence[Array],
        batch: Sequence[Array],
        takes: Sequence[Array],
        saved: Sequence[Array],
        slopes: Sequence[Array],
        between: Sequence[Array],
        sums: Sequence[Array],
    ) -> list[Array]:
        """New sums of gradients; the old ones are donated."""
        return self._weight([*params, *batch, *takes, *slopes, *saved, *sums, *between])

    def zeros(self) -> list[Array]:
        """Sums of no gradients."""
        return list(self._started(self._zeros))

    @cached_property
    def _zeros(self) -> Any:
        types = [self.program.program.graph.types[v] for v in self.program.args["sums"]]
        return self.layout.zeros(self.program.args["sums"], types)

    @cached_property
    def _finish(self) -> Any:
        return self.layout.finish(self.program.args["sums"])

    def finish(self, sums: Sequence[Array]) -> list[Array]:
        """Sums over micro-batches as sums over devices too."""
        return list(self._started(self._finish, *sums))

    def _started(self, call: Any, *args: Array) -> Any:
        return started(call, args, self.layout.devices, self.layout.whole, self._known)

    def seed(self, value: float) -> Array:
        """The gradient of the loss itself, in the loss's stage."""
        v = self.program.args["slopes"][-1]
        type_ = self.program.program.graph.types[v]
        filled = np.full(type_.shape, value).astype(jnp.dtype(type_.dtype))
        goal = self.layout.goal(v) or self.layout.whole(type_.rank)
        if not is_here(self.layout.devices):
            return away(filled.shape, filled.dtype, goal)
        return jax.device_put(filled, goal)


def _picked(places: Sequence[int]) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """Takes the values at some places out of a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda given: [given[k] for k in places]


def _behind(program: Program, ends: Sequence[Any]) -> set[int]:
    """Nodes that some operands depend on."""
    graph = program.graph
    maker = {v: i for i in range(len(graph.nodes)) for v in graph.values_of(i)}
    return nodes_behind(graph, maker, ends)

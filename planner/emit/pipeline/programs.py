# pyright: basic
"""The jitted programs of one chunk on its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ir.trace import Program

from ...pipeline.cut.forward_backward import Part, nodes_behind, part_of
from ...pipeline.cut.stage import Stage
from ...pipeline.cut.stage_gradient import Slope, StageProgram
from .layout import Layout
from .processes import away, is_here, started

Array = Any


@dataclass(frozen=True)
class Compiled:
    """A part of a stage's program, jitted.

    reads: values of the stage's program that it takes.
    count: results.
    """

    call: Any
    reads: tuple[int, ...]
    count: int


class ChunkPrograms:
    """What the runtime calls for one chunk.

    forward: values given, then those saved; without these if they are computed again.
    again: what the forward pass would have saved; None if it does.
    backward: outgoing gradients, then new sums.
    input_gradient: outgoing gradients, then what the weight gradient reads of them.
    weight_gradient: new sums.

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
        light, saves = (
            part_of(traced, _behind(traced, ends), ends, program.captured)
            for ends in (outputs[:gives], outputs[gives:])
        )
        self._known: dict[Any, Any] = {}
        first = light if recompute else parts.forward
        self.forward = self._jit(first, f"{name}_forward")
        self.again = self._jit(saves, f"{name}_recompute") if recompute else None
        sent = len(program.outgoing)
        self.backward = self._jit(parts.backward, f"{name}_backward", sent)
        self.input_gradient = self._jit(parts.input_gradient, f"{name}_input_gradient")
        self.weight_gradient = self._jit(parts.weight_gradient, f"{name}_weight_gradient", 0)

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

    def _jit(self, part: Part, name: str, others: int | None = None) -> Compiled:
        """A part, jitted.

        `others` are the results before the sums of gradients, if it makes those; the old ones are
        donated.
        """
        sums = set(self.program.args["sums"])
        added = 0 if others is None else len(part.makes) - others
        call = self.layout.jit(part, name, sums, added)
        return Compiled(call, part.reads, len(part.makes))

    def goals(self, kind: str) -> list[Any]:
        """Shardings that arguments of one kind must have; None where any will do."""
        return [self.layout.goal(v) for v in self.program.args[kind]]

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


def _behind(program: Program, ends: Sequence[Any]) -> set[int]:
    """Nodes that some operands depend on."""
    graph = program.graph
    maker = {v: i for i in range(len(graph.nodes)) for v in graph.values_of(i)}
    return nodes_behind(graph, maker, ends)

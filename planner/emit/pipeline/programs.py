# pyright: basic
"""The jitted programs of one chunk on its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """A part of a stage's program, jitted."""

    reads: tuple[int, ...]
    call: Any
    layout: Layout
    known: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def _is_alone(self) -> bool:
        """Whether there are no other processes."""
        return jax.process_count() == 1

    def __call__(self, env: Mapping[int, Array]) -> list[Array]:
        args = [env[v] for v in self.reads]
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
        self._forward = self._jit(light if recompute else parts.forward, f"{name}_forward")
        self._saves = self._jit(saves, f"{name}_recompute") if recompute else None
        self._backward = self._jit(parts.backward, f"{name}_backward", program.outgoing)
        self._input = self._jit(parts.input_gradient, f"{name}_input_gradient")
        self._weight = self._jit(parts.weight_gradient, f"{name}_weight_gradient", ())

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

    def _jit(self, part: Part, name: str, slopes: Sequence[Slope] | None = None) -> Compiled:
        """A part; `slopes` are results before the sums of gradients, if it makes those."""
        sums = set(self.program.args["sums"])
        added = 0 if slopes is None else len(part.makes) - len(slopes)
        return Compiled(part.reads, self.layout.jit(part, name, sums, added), self.layout)

    def goals(self, kind: str) -> list[Any]:
        """Shardings that arguments of one kind must have; None where any will do."""
        return [self.layout.goal(v) for v in self.program.args[kind]]

    def _env(self, **values: Sequence[Array]) -> dict[int, Array]:
        env: dict[int, Array] = {}
        for name, arrays in values.items():
            env.update(zip(self.program.args[name], arrays, strict=True))
        return env

    def forward(
        self, params: Sequence[Array], batch: Sequence[Array], takes: Sequence[Array]
    ) -> tuple[list[Array], list[Array] | None]:
        """Values given, and what is saved; nothing (None) if it is computed again later."""
        found = self._forward(self._env(params=params, batch=batch, takes=takes))
        return found[: self._gives], None if self.recompute else found[self._gives :]

    def again(
        self, params: Sequence[Array], batch: Sequence[Array], takes: Sequence[Array]
    ) -> list[Array]:
        """What the forward pass would have saved."""
        assert self._saves is not None
        return self._saves(self._env(params=params, batch=batch, takes=takes))

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
        env = self._env(params=params, batch=batch, takes=takes, slopes=slopes, sums=sums)
        env.update(zip(self.program.parts.saved, saved, strict=True))
        found = self._backward(env)
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
        env = self._env(params=params, batch=batch, takes=takes, slopes=slopes)
        env.update(zip(self.program.parts.saved, saved, strict=True))
        found = self._input(env)
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
        env = self._env(params=params, batch=batch, takes=takes, slopes=slopes, sums=sums)
        env.update(zip(self.program.parts.saved, saved, strict=True))
        env.update(zip(self.program.parts.between, between, strict=True))
        return self._weight(env)

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

# pyright: basic
"""A stage's programs on local shards, for devices that run them inside of one larger program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from ir import Literal, Sharding, TensorType, replicated
from ir.trace import Program

from ....pipeline.cut.forward_backward import Part, nodes_behind, part_of
from ....pipeline.cut.solved_stage import Solved, finished
from ....pipeline.cut.stage import Stage
from ....pipeline.cut.stage_gradient import StageProgram
from ...local import local_program
from ..layout import lowered_part
from .wires import Form

Array = Any
Env = dict[int, Array]


@dataclass(frozen=True)
class LocalStage:
    """A stage with what was decided for it.

    arrives: states in which parameters, examples, values and gradients of other stages arrive.
    leaves: states in which it leaves its results, by kind: gives, slopes.
    recompute: whether the forward pass keeps nothing, and is run again for the gradients.
    """

    program: StageProgram
    solved: Solved
    recompute: bool
    arrives: Mapping[int, Sharding] = field(default_factory=dict[int, Sharding])
    leaves: Mapping[str, Sequence[Sharding]] = field(default_factory=dict[str, Any])

    @property
    def stage(self) -> Stage:
        return self.program.stage

    @property
    def traced(self) -> Program:
        return self.program.program

    def state(self, o: Any) -> Sharding:
        """What was decided for an operand, as it is between programs."""
        type_ = self.traced.graph.type_of(o)
        if isinstance(o, Literal):
            return replicated(type_.rank)
        return finished(self.solved.decisions.values.get(((), o), replicated(type_.rank)))

    def sum_state(self, v: int) -> Sharding:
        """Of a sum of gradients, which may wait for its devices."""
        return self.solved.decisions.values[(), v]

    def form(self, type_: TensorType, state: Sharding) -> Form:
        """Local shape and type."""
        return state.local_shape(type_.shape, self.solved.decisions.mesh), type_.dtype

    def forms(self, values: Sequence[int]) -> list[Form]:
        """Of values as they are kept between programs."""
        types = self.traced.graph.types
        return [self.form(types[v], self.state(v)) for v in values]

    def sum_forms(self) -> list[Form]:
        """Of the sums of gradients."""
        types = self.traced.graph.types
        return [self.form(types[v], self.sum_state(v)) for v in self.program.args["sums"]]

    @property
    def saved(self) -> tuple[int, ...]:
        """Values that the forward pass keeps."""
        return () if self.recompute else self.program.parts.saved

    def env(self, **values: Sequence[Array]) -> Env:
        """Arguments by their values in the program."""
        found: Env = {}
        for name, arrays in values.items():
            found.update(zip(self.program.args[name], arrays, strict=True))
        return found

    def forward(self) -> Callable[[Env], tuple[list[Array], list[Array]]]:
        """Arguments to the values given and those saved."""
        parts, count = self.program.parts, len(self.stage.gives)
        part = self._light(parts.forward.makes[:count]) if self.recompute else parts.forward
        outs = [*self.leaves["gives"], *(self.state(v) for v in self.saved)]
        run = self._run(part, outs)

        def forward(env: Env) -> tuple[list[Array], list[Array]]:
            found = run(env)
            return found[:count], found[count:]

        return forward

    def again(self) -> Callable[[Env], Env]:
        """Arguments to all that the forward pass would have saved; what it did save is in them."""
        saved = self.program.parts.saved
        if not self.recompute:
            return lambda env: {}
        run = self._run(self._light(saved), [self.state(v) for v in saved])
        return lambda env: dict(zip(saved, run(env), strict=True))

    def _light(self, ends: Sequence[Any]) -> Part:
        graph = self.traced.graph
        nodes = nodes_behind(graph, graph.maker, ends)
        return part_of(self.traced, nodes, ends, self.program.captured)

    def backward(self) -> Callable[[Env], tuple[list[Array], list[Array]]]:
        """Arguments to gradients sent and new sums."""
        count = len(self.program.outgoing)
        run = self._run(self.program.parts.backward, [*self.leaves["slopes"], *self._sums()])

        def backward(env: Env) -> tuple[list[Array], list[Array]]:
            found = run(env)
            return found[:count], found[count:]

        return backward

    def input_gradient(self) -> Callable[[Env], tuple[list[Array], list[Array]]]:
        """Arguments to gradients sent, and what the weight gradient reads."""
        count, between = len(self.program.outgoing), self.program.parts.between
        outs = [*self.leaves["slopes"], *(self.state(v) for v in between)]
        run = self._run(self.program.parts.input_gradient, outs)

        def input_gradient(env: Env) -> tuple[list[Array], list[Array]]:
            found = run(env)
            return found[:count], found[count:]

        return input_gradient

    def weight_gradient(self) -> Callable[[Env], list[Array]]:
        """Arguments to new sums."""
        return self._run(self.program.parts.weight_gradient, self._sums())

    def finish(self, goals: Sequence[Sharding]) -> Callable[[Sequence[Array]], list[Array]]:
        """Sums of gradients to those over all devices of the stage.

        Args:
            goals: states that they are wanted in.
        """
        sums = self.program.args["sums"]
        run = self._run(part_of(self.traced, (), sums), goals)
        return lambda arrays: run(dict(zip(sums, arrays, strict=True)))

    def seed(self, scale: float) -> Array:
        """The gradient of what is minimised with respect to the loss of a micro-batch."""
        v = self.program.args["slopes"][-1]
        type_ = self.traced.graph.types[v]
        return np.full(type_.shape, scale).astype(jnp.dtype(type_.dtype))

    def _sums(self) -> list[Sharding]:
        return [self.sum_state(v) for v in self.program.args["sums"]]

    def _run(self, part: Part, outs: Sequence[Sharding]) -> Callable[[Env], list[Array]]:
        """A part as a function of local shards of what it reads."""
        sums = {*self.program.args["sums"]}
        back = {k: v for v, k in part.number.items()}
        inputs = [back[k] for k in range(len(part.program.graph.inputs))]
        ins = [self._sum_or_arriving(v, v in sums) for v in inputs]
        local = local_program(part.program, lowered_part(part, self.solved, ins, outs))
        consts = part.program.consts
        return lambda env: list(local(*consts, *(env[v] for v in part.reads)))

    def _sum_or_arriving(self, v: int, is_sum: bool) -> Sharding:
        """State in which an input of the program, or a value of an earlier part, is given."""
        if is_sum:
            return self.sum_state(v)
        if v < len(self.traced.consts) or v in self.program.captured:
            return replicated(self.traced.graph.types[v].rank)
        return self.arrives.get(v) or self.state(v)

# pyright: basic
"""How the values of a stage lie on its devices: by a plan, or whole parameters and split batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ir import Literal, LoweredPlan, Operand, Sharding, TensorType, replicated
from ir.analysis import Decisions, ValueKey, flatten, host_values
from ir.evaluate import plain_program

from ...common.compiler_options import options_on
from ...pipeline.cut.forward_backward import Part
from ...pipeline.cut.solved_stage import Solved, finished
from ...sharding.lower import lower_decisions
from ..jit import HOST_MEMORY, build_mesh, check_memories
from ..local import local_program
from ..local_op import partition_spec
from .transfer import Devices, tiled, whole

Array = Any


class Layout(Protocol):
    """What the programs of a chunk ask of its layout; values are those of the stage's program."""

    @property
    def devices(self) -> Devices:
        """Where they lie."""
        ...

    def jit(self, part: Part, name: str, sums: Collection[int], added: int) -> Any:
        """A part as a jitted function of `part.reads`.

        Args:
            part: of the stage's program.
            name: of the function, for traces.
            sums: values that hold sums of gradients; they are donated.
            added: how many of the last results are new sums.
        """
        ...

    def goal(self, value: int) -> Any:
        """Sharding that an argument must have; None if any will do."""
        ...

    def stored(self, position: int, rank: int) -> Any:
        """Sharding of a parameter between steps, by its position among those of the stage."""
        ...

    def state(self, shape: tuple[int, ...]) -> Any:
        """Sharding of the optimizer's state of that shape."""
        ...

    def zeros(self, values: Sequence[int], types: Sequence[TensorType]) -> Any:
        """A function that makes sums of nothing."""
        ...

    def finish(self, values: Sequence[int]) -> Callable[..., Sequence[Array]]:
        """A function that adds up what the devices have summed."""
        ...

    def whole(self, rank: int) -> NamedSharding:
        """All of a value on every device."""
        ...


def _named(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    def program(*arrays: Array) -> Any:
        return run(*arrays)

    program.__name__ = name
    return program


@dataclass(frozen=True)
class Plain:
    """Parameters whole on every device, examples and first dimensions split."""

    devices: Devices

    def jit(self, part: Part, name: str, sums: Collection[int], added: int) -> Any:
        run, consts = plain_program(part.program), part.program.consts
        types = [part.program.graph.type_of(o) for o in part.program.graph.outputs]
        plain = len(types) - added
        # left to choose, XLA may split an axis in a way that JAX has no name for
        out = (*map(self._split, types[:plain]), *(self.whole(t.rank) for t in types[plain:]))
        donated = tuple(k for k, v in enumerate(part.reads) if added and v in sums)
        program = _named(lambda *arrays: run(*consts, *arrays), name)
        return jax.jit(program, donate_argnums=donated, out_shardings=out)

    def _split(self, type_: TensorType) -> NamedSharding:
        first = [math.gcd(n, len(self.devices)) for n in type_.shape[:1]]
        return tiled(self.devices, (*first, *(1,) * (type_.rank - len(first))))

    def goal(self, value: int) -> None:
        return None

    def stored(self, position: int, rank: int) -> NamedSharding:
        return self.whole(rank)

    def state(self, shape: tuple[int, ...]) -> NamedSharding:
        return self.whole(len(shape))

    def zeros(self, values: Sequence[int], types: Sequence[TensorType]) -> Any:
        def zeros() -> tuple[Array, ...]:
            return tuple(jnp.zeros(t.shape, t.dtype) for t in types)

        return jax.jit(zeros, out_shardings=tuple(self.whole(t.rank) for t in types))

    def finish(self, values: Sequence[int]) -> Callable[..., Sequence[Array]]:
        return lambda *sums: sums

    def whole(self, rank: int) -> NamedSharding:
        return whole(self.devices, rank)


@dataclass(frozen=True)
class Planned:
    """Values as the planner decided; every collective is written out.

    A sum of gradients may stay apart on the devices until the last micro-batch. Between programs
    it then has a leading dimension, split over the axes that it waits to be summed over.

    gpu_options: of XLA's compiler, for devices that are GPUs.
    """

    solved: Solved
    devices: Devices
    gpu_options: Mapping[str, bool | int] = field(
        default_factory=dict[str, bool | int], compare=False
    )

    @cached_property
    def mesh(self) -> Mesh:
        return build_mesh(self.solved.decisions.mesh, self.devices)

    def jit(self, part: Part, name: str, sums: Collection[int], added: int) -> Any:
        known = [(v, self._known(v)) for v in self._inputs(part)]
        ins = [state if v in sums else finished(state) for v, state in known]
        plain = len(part.makes) - added
        held = [v for v in part.reads if v in sums] if added else []
        outs = [finished(self._of(part, k)) for k in range(plain)]
        # sums come out in the order in which they go in
        outs += [self._known(v) for v in (sorted(sums) if added else ())]
        lowered = lowered_part(part, self.solved, ins, outs)
        local, away = local_program(part.program, lowered), host_values(lowered.flat)
        if away.intersection((*lowered.flat.inputs, *lowered.flat.outputs)):
            check_memories(self.mesh)

        def placed(states: Sequence[Sharding], values: Sequence[Operand]) -> Any:
            return tuple(
                NamedSharding(self.mesh, _spec(s), memory_kind=HOST_MEMORY if v in away else None)
                for s, v in zip(states, values, strict=True)
            )

        waits_in, waits_out = [_axes(s) for s in ins], [_axes(s) for s in outs]

        def shards(*arrays: Array) -> tuple[Array, ...]:
            given = [x[0] if w else x for x, w in zip(arrays, waits_in, strict=True)]
            found = local(*given)
            return tuple(x[None] if w else x for x, w in zip(found, waits_out, strict=True))

        mapped = jax.shard_map(
            shards, mesh=self.mesh, in_specs=tuple(map(_spec, ins)),
            out_specs=tuple(map(_spec, outs)), check_vma=False,
        )  # fmt: skip
        consts = part.program.consts
        heads = len(consts)
        donated = tuple(k for k, v in enumerate(part.reads) if v in held)
        return jax.jit(
            _named(lambda *arrays: mapped(*consts, *arrays), name),
            donate_argnums=donated,
            in_shardings=placed(ins, lowered.flat.inputs)[heads:],
            out_shardings=placed(outs, lowered.flat.outputs),
            compiler_options=options_on(self.mesh.devices.flat[0].platform, self.gpu_options),
        )

    def _inputs(self, part: Part) -> list[int]:
        """Values of the whole program that are the part's inputs, captured constants first."""
        count = len(part.program.graph.inputs)
        back = {k: v for v, k in part.number.items()}
        return [back[k] for k in range(count)]

    def _known(self, v: int) -> Sharding:
        return self.solved.decisions.values[(), v]

    def _of(self, part: Part, k: int) -> Sharding:
        o = part.makes[k]
        rank = part.program.graph.type_of(part.program.graph.outputs[k]).rank
        if isinstance(o, Literal):
            return replicated(rank)
        return self.solved.decisions.values.get(((), o), replicated(rank))

    def goal(self, value: int) -> NamedSharding:
        return NamedSharding(self.mesh, _spec(self._known(value)))

    def stored(self, position: int, rank: int) -> NamedSharding:
        return NamedSharding(self.mesh, partition_spec(self.solved.params[position]))

    def state(self, shape: tuple[int, ...]) -> NamedSharding:
        found = self.solved.states.get(shape)
        return self.whole(len(shape)) if found is None else (
            NamedSharding(self.mesh, partition_spec(found))
        )  # fmt: skip

    def zeros(self, values: Sequence[int], types: Sequence[TensorType]) -> Any:
        states = [self._known(v) for v in values]
        sizes = [self.solved.decisions.mesh.product(_axes(s)) for s in states]
        shapes = [(n, *t.shape) if _axes(s) else t.shape
                  for n, t, s in zip(sizes, types, states, strict=True)]  # fmt: skip

        def zeros() -> tuple[Array, ...]:
            return tuple(jnp.zeros(a, t.dtype) for a, t in zip(shapes, types, strict=True))

        out = tuple(NamedSharding(self.mesh, _spec(s)) for s in states)
        return jax.jit(zeros, out_shardings=out)

    def finish(self, values: Sequence[int]) -> Callable[..., Sequence[Array]]:
        waits = [_axes(self._known(v)) for v in values]

        def finish(*sums: Array) -> tuple[Array, ...]:
            return tuple(jnp.sum(x, 0) if w else x for x, w in zip(sums, waits, strict=True))

        return jax.jit(finish)

    def whole(self, rank: int) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*(None,) * rank))


def _axes(state: Sharding) -> tuple[str, ...]:
    return tuple(axis for axis, _ in state.partial)


def _spec(state: Sharding) -> PartitionSpec:
    """The sharding of a value; one that waits to be summed has a leading dimension."""
    spec = partition_spec(finished(state))
    return PartitionSpec(_axes(state), *spec) if state.partial else spec


def lowered_part(
    part: Part, solved: Solved, ins: Sequence[Sharding], outs: Sequence[Sharding]
) -> LoweredPlan:
    """What was decided for the whole program, lowered for a part of it.

    Args:
        part: of the program.
        solved: what was decided.
        ins: states in which the part takes its inputs.
        outs: states in which it leaves its results.
    """
    whole, place = solved.decisions, {i: k for k, i in enumerate(part.nodes)}
    ops = {(place[at[0]], *at[1:]): r for at, r in whole.ops.items() if at[0] in place}
    values: dict[ValueKey, Sharding] = {}
    for (prefix, v), state in whole.values.items():
        if prefix and prefix[0] in place:
            values[(place[prefix[0]], *prefix[1:]), v] = state
        elif not prefix and v in part.number:
            values[(), part.number[v]] = state
    sites = {
        site: site._replace(place=(place[site.place[0]], *site.place[1:]))
        for site in (*whole.in_parts, *whole.chunks)
        if site.place and site.place[0] in place
    }
    in_parts = frozenset(sites[site] for site in whole.in_parts if site in sites)
    chunks = {sites[site]: n for site, n in whole.chunks.items() if site in sites}
    decisions = Decisions(whole.mesh, ops, values, tuple(ins), tuple(outs), in_parts, chunks)
    return lower_decisions(flatten(part.program.graph), decisions, solved.reshard, {})

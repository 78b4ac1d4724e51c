# pyright: basic
"""Parameters or optimizer state made by a function, each group of devices its own part of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from ir.evaluate import plain_program
from ir.trace import Traced, trace

from ...pipeline.cut.forward_backward import nodes_behind, part_of
from .holdings import Pieces, placed
from .places import At, Stack, Where
from .processes import alone, away, is_here
from .transfer import Devices, whole

Array = Any


@dataclass(frozen=True, slots=True)
class PieceShardings:
    """Where the parts of a stack of layers lie, along its first dimension.

    pieces: (first entry, the one after the last, sharding), in order.
    """

    pieces: tuple[tuple[int, int, NamedSharding], ...]


@dataclass(frozen=True)
class Kept:
    """Where the leaves of an argument are between steps.

    where: place of each leaf.
    goals: (leaf, piece) -> sharding there; whole on every device of its group if there is none.
    groups: devices of each group.
    """

    where: tuple[Where, ...]
    goals: dict[tuple[int, int], Any]
    groups: tuple[Devices, ...]

    def pieces(self, leaf: int) -> list[tuple[int, int, int]]:
        """(group, first, end) of the parts of a leaf; all of it if `end` is -1."""
        where = self.where[leaf]
        return list(where.pieces) if isinstance(where, Stack) else [(where.group, 0, -1)]

    def sharding(self, leaf: int, piece: int, rank: int) -> NamedSharding:
        """Sharding of a part of a leaf."""
        group = self.pieces(leaf)[piece][0]
        return self.goals.get((leaf, piece)) or whole(self.groups[group], rank)

    def shardings(self, types: Any) -> Any:
        """A `NamedSharding` for each leaf of an argument, `PieceShardings` for those in pieces.

        Args:
            types: the argument, a pytree of structs.
        """
        leaves, structure = jax.tree.flatten(types)
        return jax.tree.unflatten(structure, [self._of(k, x.ndim) for k, x in enumerate(leaves)])

    def _of(self, leaf: int, rank: int) -> NamedSharding | PieceShardings:
        found = [
            (low, high, self.sharding(leaf, n, rank))
            for n, (_, low, high) in enumerate(self.pieces(leaf))
        ]
        is_one = isinstance(self.where[leaf], At)
        return found[0][2] if is_one else PieceShardings(tuple(found))

    def made(self, init_fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        """What a function returns, in its places.

        Each group runs what its own leaves need of the function, on what they need of its
        arguments, which are copied there.

        Args:
            init_fn: the function.
            args: its arguments; arrays may lie on any devices, or in pieces.
        """
        traced = trace(init_fn, *types_of(args))
        leaves = zip(jax.tree.leaves(args), traced.args_info, strict=True)
        given = [x if _is_array(x) else np.asarray(x, type_.dtype) for x, type_ in leaves]
        outputs = traced.graph.outputs
        found: dict[tuple[int, int], Array] = {}
        for group in range(len(self.groups)):
            own = [
                (leaf, n, low, high)
                for leaf in range(len(outputs))
                for n, (g, low, high) in enumerate(self.pieces(leaf))
                if g == group
            ]
            if own:
                parts = self._group(traced, given, group, own)
                found |= {(leaf, n): x for (leaf, n, *_), x in zip(own, parts, strict=True)}
        made = [
            found[leaf, 0] if isinstance(where, At)
            else Pieces([found[leaf, n] for n in range(len(where.pieces))])
            for leaf, where in enumerate(self.where)
        ]  # fmt: skip
        return jax.tree.unflatten(traced.out_tree, made)

    def _group(
        self, traced: Traced, given: Sequence[Any], group: int,
        own: Sequence[tuple[int, int, int, int]],
    ) -> Sequence[Array]:  # fmt: skip
        """The parts that a group holds, as (leaf, piece, first, end)."""
        program, devices = traced.program, self.groups[group]
        graph, heads = program.graph, len(program.consts)
        ends = [graph.outputs[leaf] for leaf, *_ in own]
        part = part_of(program, nodes_behind(graph, graph.maker, ends), ends)
        run, consts = plain_program(part.program), part.program.consts

        def parts(*arrays: Array) -> list[Array]:
            values = run(*consts, *arrays)
            return [
                x if high < 0 else x[low:high]
                for x, (_, _, low, high) in zip(values, own, strict=True)
            ]

        goals = [
            self.sharding(leaf, n, graph.type_of(end).rank)
            for (leaf, n, *_), end in zip(own, ends, strict=True)
        ]
        reads = [placed(given[v - heads], At(group), self.groups, _anywhere) for v in part.reads]
        if not is_here(devices):
            types = jax.eval_shape(parts, *types_of(reads))
            return [away(t.shape, t.dtype, goal) for t, goal in zip(types, goals, strict=True)]
        return alone(jax.jit(parts, out_shardings=goals), devices)(*reads)


def _anywhere(piece: int) -> None:
    """No sharding is asked for."""
    del piece


def types_of(args: Sequence[Any]) -> Any:
    """The arguments of a function with structs in place of arrays, whole or in pieces."""
    return jax.tree.map(_type, tuple(args))


def _type(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if _is_array(x) else x


def _is_array(x: Any) -> bool:
    return isinstance(x, (jax.Array, Pieces))

# pyright: basic
"""Which entries of stacked parameters an op reads, along their first dimension.

Layers that a Python loop takes out of a stack (`w[k]`) read a static slice of it: a stage holds the
slices that it reads, as it holds the iterations of a `scan` that is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from jax import lax

from ir import lookup

from ...training.equation_list import Equation, Written
from .equations import Array, Equations

Read = tuple[int, int, int]  # a parameter, and the first and the end of the entries that are read


@dataclass(frozen=True, slots=True)
class Taken:
    """Entries low to high of the first operand, and what an op makes of these alone.

    what: what `run` computes, hashable.
    """

    low: int
    high: int
    run: Callable[[Array], Array]
    what: tuple[object, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the result is these entries as they are."""
        return self.run is _same


def taken(op: Equation, v: int) -> Taken | None:
    """The entries of its operand that a result is made of; None if these may be all.

    Args:
        op: an equation.
        v: one of its results.
    """
    if op.name not in _TAKES or isinstance(op.ins[0], Written):
        return None
    shape = op.eqn.invars[0].aval.shape
    found = _TAKES[op.name](op.params, shape, op.outs.index(v))
    return found if found and 0 < found.high - found.low < shape[0] else None


def _sliced(params: Mapping[str, Any], shape: tuple[int, ...], _: int) -> Taken | None:
    starts, limits = tuple(params["start_indices"]), tuple(params["limit_indices"])
    strides = tuple(params["strides"] or (1,) * len(shape))
    if not shape or limits[0] <= starts[0]:
        return None
    low = starts[0]
    high = low + (limits[0] - low - 1) // strides[0] * strides[0] + 1
    first, end = (0, *starts[1:]), (high - low, *limits[1:])
    if (end[1:], strides) == (shape[1:], (1,) * len(shape)) and not any(first):
        return Taken(low, high, _same, ("entries",))
    what = ("entries", first, end, strides)
    return Taken(low, high, lambda x: lax.slice(x, first, end, strides), what)


def _split(params: Mapping[str, Any], _: tuple[int, ...], k: int) -> Taken | None:
    if params["axis"] != 0:
        return None
    low, size = int(sum(params["sizes"][:k])), int(params["sizes"][k])
    return Taken(low, low + size, _same, ("entries",))


def _unstacked(params: Mapping[str, Any], _: tuple[int, ...], k: int) -> Taken | None:
    if params["axis"] != 0:
        return None
    return Taken(k, k + 1, lambda x: lax.squeeze(x, (0,)), ("entry",))


def _same(x: Array) -> Array:
    return x


_TAKES = {"slice": _sliced, "split": _split, "unstack": _unstacked}


def is_entrywise(program: Equations, op: Equation) -> bool:
    """Whether an op computes each entry of its first dimension alone, and names no shape."""
    if len(op.outs) != 1:
        return False
    shape = program.avals[op.outs[0]].shape
    shapes = {program.avals[u].shape for u in op.reads}
    known = bool(shape) and lookup(op.name).family == "elementwise"
    return known and shapes <= {shape, ()} and not ({"shape", "jaxpr"} & set(op.params))


class Reading:
    """The entries of parameters that values depend on through free ops.

    Args:
        program: the equations of the loss.
        free: value -> the free op that computes it.
    """

    def __init__(self, program: Equations, free: Mapping[int, Equation]) -> None:
        self._program, self._free = program, free
        self._known = {r: frozenset((r,)) for r in map(self._whole, program.params)}
        self._params = frozenset(program.params)

    def of(self, values: Iterable[int]) -> frozenset[Read]:
        """What some values depend on."""
        return frozenset[Read]().union(*(self._of(self._whole(v)) for v in values))

    def _whole(self, v: int) -> Read:
        shape = self._program.avals[v].shape
        return v, 0, shape[0] if shape else 1

    def _of(self, read: Read) -> frozenset[Read]:
        v, _, _ = read
        if read not in self._known:
            if v in self._params:
                found = frozenset((read,))
            elif v in self._free:
                found = frozenset[Read]().union(*map(self._of, self._behind(*read)))
            else:
                found = frozenset[Read]()
            self._known[read] = found
        return self._known[read]

    def _behind(self, v: int, low: int, high: int) -> Iterable[Read]:
        """What entries of the result of a free op are made of."""
        op = self._free[v]
        part = taken(op, v)
        if part is not None:
            (source,) = op.reads
            inside = (low, high) if part.is_plain else (0, part.high - part.low)
            return ((source, part.low + inside[0], part.low + inside[1]),)
        if is_entrywise(self._program, op):
            shape = self._program.avals[v].shape
            return [
                (u, low, high) if self._program.avals[u].shape == shape else self._whole(u)
                for u in op.reads
            ]
        return map(self._whole, op.reads)


def read_bytes(program: Equations, read: Read) -> float:
    """Bytes of some entries of a parameter."""
    v, low, high = read
    aval = program.avals[v]
    return float((high - low) * prod(aval.shape[1:])) * getattr(aval.dtype, "itemsize", 8)

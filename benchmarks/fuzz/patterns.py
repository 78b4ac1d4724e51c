# pyright: basic
"""Random programs in which a rule of the catalogue has a place.

A row says `matmul(x, add(w, v))`; a program of it has arrays with any number of dimensions in any
order, of any element type, products with exchanged operands, lookups of every mode. The axes of a
row are inferred first, then each gets some dimensions, then the ops are written with `lax`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax

from substitutions import Row
from substitutions.rewrite.pattern import Pattern
from substitutions.term import Term, axis_of

FLOATS = ("float32", "float32", "bfloat16", "float16")
WHOLE = ("int8", "int32", "uint8")
INDICES = ("int32", "int8", "uint8", "int16")
LENGTHS = (1, 2, 2, 3, 3, 5, 7)
WITH_FLOATS = ("exp", "tanh", "rsqrt", "conv")
Struct = jax.ShapeDtypeStruct


@dataclass
class Axes:
    """Which axes of the values of a row are one; each will be some dimensions.

    parts: of a joined axis, those it is joined of. tails: axes that agree but in their first
    dimension. single: axes of exactly one dimension.
    """

    parent: list[int] = field(default_factory=list)
    tails: list[int] = field(default_factory=list)
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)
    single: set[int] = field(default_factory=set)
    known: dict[Term, tuple[int, ...]] = field(default_factory=dict)

    def new(self) -> int:
        self.parent.append(len(self.parent))
        self.tails.append(len(self.tails))
        return len(self.parent) - 1

    def find(self, a: int, of: list[int] | None = None) -> int:
        of = self.parent if of is None else of
        while of[a] != a:
            a = of[a]
        return a

    def same(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        mine, other = self.parts.get(a), self.parts.get(b)
        self.parent[b] = a
        self.tail(a, b)
        if other and not mine:
            self.parts[a] = other
        for x, y in zip(mine or (), other or (), strict=False):
            self.same(x, y)

    def tail(self, a: int, b: int) -> None:
        self.tails[self.find(b, self.tails)] = self.find(a, self.tails)

    def of(self, term: Term, ranks: dict[str, int]) -> tuple[int, ...]:
        """The axes of a term's value."""
        if term not in self.known:
            args = [self.of(arg, ranks) for arg in term.args]
            self.known[term] = self._of(term, args, ranks)
        return self.known[term]

    def _of(self, term: Term, args: list[tuple[int, ...]], ranks: dict[str, int]):
        if not term.kind:
            return tuple(self.new() for _ in range(ranks[term.name]))
        rule = _AXES.get(term.kind)
        return rule(self, term, *args) if rule else args[0]

    def _product(self, term: Term, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        self.same(a[-1], b[-2])
        for x, y in zip(a[:-2], b[:-2], strict=True):
            self.same(x, y)
        return (*a[:-1], b[-1])

    def _pointwise(self, term: Term, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        for x, y in zip(a, b, strict=True):
            self.same(x, y)
        return a

    def _reduced(self, term: Term, a: tuple[int, ...]) -> tuple[int, ...]:
        at = axis_of(term)
        return (*a[:at], *a[at + 1 :])

    def _part(self, term: Term, a: tuple[int, ...]) -> tuple[int, ...]:
        at = axis_of(term)
        return (*a[:at], self.parts[self.find(a[at])][term.part], *a[at + 1 :])

    def _lookup(self, term: Term, table: tuple[int, ...], rows: tuple[int, ...]):
        self.single |= {table[0]}
        return (rows[0], table[1])

    def _conv(self, term: Term, x: tuple[int, ...], w: tuple[int, ...]) -> tuple[int, ...]:
        self.same(x[1], w[1])
        out = (x[0], w[0], self.new(), self.new())
        self.single |= {*x, *w, *out}
        return out

    def _along(self, term: Term, g: tuple[int, ...], x: tuple[int, ...]) -> tuple[int, ...]:
        self.same(g[0], x[axis_of(term)])
        return x

    def _expanded(self, term: Term, u: tuple[int, ...], x: tuple[int, ...]) -> tuple[int, ...]:
        at = axis_of(term)
        self._pointwise(term, u, (*x[:at], *x[at + 1 :]))
        return x

    def _concat(self, term: Term, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        return self._joined(axis_of(term), a, b)

    def _joined(self, at: int, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            if k != at:
                self.same(x, y)
        whole = self.new()
        self.parts[whole] = (a[at], b[at])
        self.tail(whole, a[at])
        self.tail(whole, b[at])
        return (*a[:at], whole, *a[at + 1 :])


_AXES: dict[str, Callable[..., tuple[int, ...]]] = {
    "add": Axes._pointwise, "along": Axes._along, "batch-matmul": Axes._product,
    "concat": Axes._concat, "conv": Axes._conv, "expand": Axes._expanded,
    "gather": Axes._lookup, "matmul": Axes._product, "max": Axes._reduced,
    "mul": Axes._pointwise, "split": Axes._part, "sum": Axes._reduced,
    "transpose": lambda axes, term, a: a[::-1],
}  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """An array, and which of its dimensions each axis is."""

    array: Any
    groups: tuple[tuple[int, ...], ...]


class Writer:
    """Writes the left side of a row as a JAX function of random shapes and types."""

    def __init__(self, row: Row, rng: np.random.Generator) -> None:
        self.rng, self.pattern = rng, Pattern(row)
        self.axes = Axes()
        terms = (*self.pattern.left, *self.pattern.right)
        for term in terms:
            self.axes.of(term, self.pattern.ranks)
        self.text = row.left + row.right
        self.in_order = "gather" in self.text or "conv" in self.text or rng.random() < 0.4
        self.floats = any(name in self.text for name in WITH_FLOATS) or rng.random() < 0.6
        self.dtype = str(rng.choice(FLOATS if self.floats else WHOLE))
        self.sizes: dict[int, tuple[int, ...]] = {}
        self.tails: dict[int, tuple[int, ...]] = {}
        self.drawn: dict[str, Any] = {}
        named = {v.name: v for term in terms for v in variables(term)}
        self.names = sorted(named)
        self.indices = {n for term in terms for n in rows_in(term)}
        self.orders = {name: self._order(named[name]) for name in self.names}
        self.structs = tuple(self._struct(named[name]) for name in self.names)
        self.scalar = rng.choice([0.5, -2.0, 3.0, 0.3]) if self.floats else rng.choice([2, 3])

    def choose(self, key: str, options: Sequence[Any]) -> Any:
        """One option; the same one whenever the key is asked for again."""
        if key not in self.drawn:
            self.drawn[key] = options[int(self.rng.integers(len(options)))]
        return self.drawn[key]

    # --- shapes --------------------------------------------------------------------------------

    def group(self, axis: int) -> tuple[int, ...]:
        """Lengths of the dimensions of an axis."""
        axis = self.axes.find(axis)
        if axis not in self.sizes:
            parts = self.axes.parts.get(axis)
            if parts:
                first, second = map(self.group, parts)
                self.sizes[axis] = (first[0] + second[0], *first[1:])
            else:
                self.sizes[axis] = self._drawn_group(axis)
        return self.sizes[axis]

    def _drawn_group(self, axis: int) -> tuple[int, ...]:
        rng, single = self.rng, any(self.axes.find(a) == axis for a in self.axes.single)
        if single:
            return (int(rng.choice(LENGTHS)) + 2 * ("conv" in self.text),)
        tail = self.axes.find(axis, self.axes.tails)
        shared = [a for a in range(len(self.axes.tails))
                  if self.axes.find(a, self.axes.tails) == tail]  # fmt: skip
        alone = len({self.axes.find(a) for a in shared}) == 1
        fixed = any(self.axes.find(a) in map(self.axes.find, self.axes.single) for a in shared)
        if tail not in self.tails:
            more = 0 if fixed else int(rng.choice([0, 0, 0, 1]))
            self.tails[tail] = tuple(int(rng.choice(LENGTHS)) for _ in range(more))
        if alone and not fixed and rng.random() < 0.1:
            return ()
        head = 0 if rng.random() < 0.02 and "max" not in self.text else int(rng.choice(LENGTHS))
        return (head, *self.tails[tail])

    def _order(self, variable: Term) -> list[int]:
        rank = sum(len(self.group(a)) for a in self.axes.known[variable])
        return list(range(rank)) if self.in_order else [int(k) for k in self.rng.permutation(rank)]

    def _struct(self, variable: Term) -> Struct:
        lengths = [n for a in self.axes.known[variable] for n in self.group(a)]
        shape = tuple(lengths[k] for k in self.orders[variable.name])
        if variable.name in self.indices:
            return Struct((*shape, 1), self.choose("index", INDICES))
        return Struct(shape, self.dtype)

    # --- values --------------------------------------------------------------------------------

    def __call__(self, *arrays: Any) -> list[Any]:
        """The outputs of the row's left side."""
        self.env = dict(zip(self.names, arrays, strict=True))
        self.made: dict[Term, Seen] = {}
        return [self.value(term).array for term in self.pattern.left]

    def value(self, term: Term) -> Seen:
        if term not in self.made:
            self.made[term] = self._variable(term) if not term.kind else self._written(term)
        return self.made[term]

    def _variable(self, term: Term) -> Seen:
        place = {k: d for d, k in enumerate(self.orders[term.name])}
        groups, at = [], 0
        for axis in self.axes.known[term]:
            count = len(self.group(axis))
            groups.append(tuple(place[k] for k in range(at, at + count)))
            at += count
        return Seen(self.env[term.name], tuple(groups))

    def _written(self, term: Term) -> Seen:
        if term.kind in ("along", "expand"):
            return self._spread(term)
        args = [self.value(arg) for arg in term.args]
        write = _WRITERS.get(term.kind)
        if write is not None:
            return write(self, term, *args)
        return Seen(getattr(lax, term.kind)(args[0].array), args[0].groups)

    def _pointwise(self, term: Term, x: Seen, y: Seen) -> Seen:
        pair = (x.array, self._aligned(y, x))
        if self.choose(f"flip {term}", (0, 1)):
            pair = pair[::-1]
        return Seen((lax.add if term.kind == "add" else lax.mul)(*pair), x.groups)

    def _scaled(self, term: Term, x: Seen, s: Seen) -> Seen:
        return Seen(x.array * self._scalar(s), x.groups)

    def _relu(self, term: Term, x: Seen) -> Seen:
        pair = (x.array, np.zeros((), x.array.dtype))
        return Seen(lax.max(*(pair if self.choose("relu", (0, 1)) else pair[::-1])), x.groups)

    def _cast(self, term: Term, x: Seen) -> Seen:
        options = [t for t in (*FLOATS, *WHOLE) if t != x.array.dtype]
        return Seen(x.array.astype(self.choose("cast", options)), x.groups)

    def _scalar(self, s: Seen) -> Any:
        if self.choose("literal", (True, False, False)):
            return np.asarray(self.scalar).astype(s.array.dtype)
        return s.array

    def _aligned(self, x: Seen, to: Seen) -> Any:
        """The array with its dimensions in the order of another one's."""
        place = {d: (g, k) for g, dims in enumerate(to.groups) for k, d in enumerate(dims)}
        order = [x.groups[place[d][0]][place[d][1]] for d in range(to.array.ndim)]
        return x.array if order == list(range(len(order))) else lax.transpose(x.array, order)

    def _product(self, term: Term, a: Seen, b: Seen) -> Seen:
        batch = (a.groups[0], b.groups[0]) if len(a.groups) == 3 else ((), ())
        inner = (a.groups[-1], b.groups[-2])
        rows, columns = a.groups[-2], b.groups[-1]
        wide = {"int8": [None, "int32"], "bfloat16": [None, "float32"]}
        wish = self.choose("preferred", wide.get(str(a.array.dtype), [None]))
        flip = self.choose("operands", (False, False, True))
        first, second = (b, a) if flip else (a, b)
        numbers: Any = (inner[::-1], batch[::-1]) if flip else (inner, batch)
        free = [
            [d for d in range(v.array.ndim) if d not in i and d not in g]
            for v, i, g in zip((first, second), *numbers, strict=True)
        ]
        out = lax.dot_general(
            first.array, second.array, numbers,
            precision=self.choose("precision", (None, "highest")), preferred_element_type=wish,
        )  # fmt: skip
        place = [{d: len(batch[0]) + k for k, d in enumerate(free[0])}]
        place.append({d: len(batch[0]) + len(free[0]) + k for k, d in enumerate(free[1])})
        left, right = place[::-1] if flip else place
        groups = (tuple(left[d] for d in rows), tuple(right[d] for d in columns))
        if len(a.groups) == 3:
            return Seen(out, (tuple(range(len(batch[0]))), *groups))
        return Seen(out, groups)

    def _transposed(self, term: Term, x: Seen) -> Seen:
        order = self.choose(
            f"order {term}",
            [tuple(range(x.array.ndim))[::-1]] * 2
            + [tuple(int(k) for k in self.rng.permutation(x.array.ndim))],
        )
        place = {d: k for k, d in enumerate(order)}
        groups = tuple(tuple(place[d] for d in dims) for dims in x.groups)
        return Seen(lax.transpose(x.array, order), groups[::-1])

    def _reduced(self, term: Term, x: Seen) -> Seen:
        at = axis_of(term)
        gone = x.groups[at]
        op = lax.reduce_sum if term.kind == "sum" else lax.reduce_max
        place = {d: k for k, d in enumerate(d for d in range(x.array.ndim) if d not in gone)}
        rest = (*x.groups[:at], *x.groups[at + 1 :])
        return Seen(op(x.array, gone), tuple(tuple(place[d] for d in dims) for dims in rest))

    def _concat(self, term: Term, x: Seen, y: Seen) -> Seen:
        at, parts = axis_of(term), [x.array, self._aligned(y, x)]
        return Seen(lax.concatenate(parts, x.groups[at][0]), x.groups)

    def _split(self, term: Term, x: Seen) -> Seen:
        at = axis_of(term)
        dim, cut = x.groups[at][0], self.value(term.args[0].args[0])
        length = cut.array.shape[cut.groups[at][0]]
        ends = (0, length, x.array.shape[dim])[term.part : term.part + 2]
        starts, limits = [0] * x.array.ndim, list(x.array.shape)
        starts[dim], limits[dim] = ends
        return Seen(lax.slice(x.array, starts, limits), x.groups)

    def _gather(self, term: Term, x: Seen, i: Seen) -> Seen:
        table, asked = x.array, i.array
        count = asked.ndim - 1
        numbers = lax.GatherDimensionNumbers(
            tuple(range(count, count + table.ndim - 1)), (0,), (0,)
        )
        mode = self.choose("mode", ("clip", "clip", "fill", "promise_in_bounds"))
        odd = jax.numpy.issubdtype(table.dtype, jax.numpy.floating)
        fill = self.choose(f"fill {odd}", (None, None, np.nan if odd else 7, 3))
        out = lax.gather(
            table, asked, numbers, (1, *table.shape[1:]), mode=mode,
            fill_value=fill if mode == "fill" else None,
        )  # fmt: skip
        return Seen(out, (tuple(range(count)), tuple(range(count, out.ndim))))

    def _conv(self, term: Term, x: Seen, w: Seen) -> Seen:
        specs = [tuple(dims[0] for dims in v.groups) for v in (x, w)]
        out = self.choose("out", ((0, 1, 2, 3), (0, 3, 1, 2)))
        numbers = lax.ConvDimensionNumbers(specs[0], specs[1], out)
        steps = self.choose("stride", ((1, 1), (1, 1), (2, 1), (3, 2)))
        found = lax.conv_general_dilated(x.array, w.array, steps, "SAME", dimension_numbers=numbers)
        return Seen(found, tuple((d,) for d in out))

    def _spread(self, term: Term) -> Seen:
        """A smaller array along some axes of a larger one, whose shape alone is read."""
        small, held = self.value(term.args[0]), term.args[1]
        to = self.value(held)
        at = axis_of(term)
        axes = [at] if term.kind == "along" else [k for k in range(len(to.groups)) if k != at]
        into = {d: e for own, k in enumerate(axes)
                for d, e in zip(small.groups[own], to.groups[k], strict=True)}  # fmt: skip
        order = sorted(into, key=lambda d: into[d])
        turned = small.array
        if order != list(range(len(order))):
            turned = lax.transpose(turned, order)
        dims = tuple(sorted(into.values()))
        return Seen(lax.broadcast_in_dim(turned, to.array.shape, dims), to.groups)


_WRITERS: dict[str, Callable[..., Seen]] = {
    "add": Writer._pointwise, "batch-matmul": Writer._product, "cast": Writer._cast,
    "concat": Writer._concat, "conv": Writer._conv, "gather": Writer._gather,
    "matmul": Writer._product, "max": Writer._reduced, "mul": Writer._pointwise,
    "relu": Writer._relu, "scale": Writer._scaled, "split": Writer._split,
    "sum": Writer._reduced, "transpose": Writer._transposed,
}  # fmt: skip


def variables(term: Term) -> list[Term]:
    """The variables of a term."""
    if not term.kind:
        return [term]
    return [v for arg in term.args for v in variables(arg)]


def rows_in(term: Term) -> set[str]:
    """Variables that are rows of a table."""
    found = {n for arg in term.args for n in rows_in(arg)}
    if term.kind == "gather":
        found |= {v.name for v in variables(term.args[1])}
    return found

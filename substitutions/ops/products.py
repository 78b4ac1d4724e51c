"""Products of matrices, on their own or in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from ir import Node, TensorType

from ..graph import Op, Ref
from ..numeric.arrays import Array, need
from ..numeric.devices import Run, Tensor, on_each
from ..program.matcher import Env, Found, Matcher
from ..program.net import Item, Source
from ..program.views import Group, Partial, unify
from ..program.writer import Built, NoFitError, Writer
from ..symbolic.expr import Expr
from ..symbolic.joints import Parts
from ..symbolic.meaning import Indices, Meaning, chunk_of, in_chunk, summed_over
from ..symbolic.types import Dim, Type, Typing, computed, fit_devices, fit_rank
from ..symbolic.values import Value, product, summed, times
from ..term import Term
from .elementwise import activated, compute_activated
from .record import Form, RuleOp

Dims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Product:
    """result[r, ...] = sum of left[...] * right[...] over the c in chunk r of c.

    devices: a letter for the replica and for each dimension of both operands and of the result.
        Operands have a copy for each chunk of the dimension that only the other one has. n is the
        dimension that only the left one has, o that of the right one, c is summed over, and any
        other is a batch.
    """

    devices: str

    @property
    def letters(self) -> tuple[str, str, str]:
        """Data dimensions of the operands and of the result."""
        x, y, made = self.devices.replace("->", ",").replace(" ", "").split(",")
        return x[1:], y[1:], made[1:]

    def type(self, typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
        x, y, made = self.letters
        for arg, letters in zip(args, (x, y), strict=True):
            fit_rank(op, arg, len(letters))
        left, right = (self._dims(a.dims, ls) for a, ls in zip(args, (x, y), strict=True))
        for letter in left:
            if letter in right:
                typing.solver.equal(left[letter].size, right[letter].size)
        degrees = fit_devices(typing, self.devices, args)
        dims = [replace((right | left)[letter], degree=degrees[letter]) for letter in made]
        return (computed(degrees["c"], dims),)

    def _dims(self, dims: Sequence[Dim], letters: str) -> dict[str, Dim]:
        return dict(zip(letters, dims, strict=True))

    def joints(self, m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
        found = self._joints(m, op)
        return [found[letter] for letter in self.letters[2]]

    def _joints(self, m: Parts, op: Op) -> dict[str, list[Expr]]:
        found: dict[str, list[Expr]] = {}
        for letters, r in zip(self.letters, op.inputs, strict=False):
            for letter, places in zip(letters, m.joints(r), strict=True):
                found.setdefault(letter, []).extend(places)
        return found

    def value(self, m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
        x, y, made = self.letters
        left, right = (m.parts.type(r).dims for r in op.inputs)
        rows, outs = left[x.index("n")], right[y.index("o")]
        channels = left[x.index("c")]
        at = dict(zip(made, index, strict=True))
        total: Value = ()
        for label, c in summed_over(m, self._joints(m.parts, op)["c"], channels.size):
            at["c"] = c
            a = m.at(op.inputs[0], chunk_of(at["o"], outs), tuple(at[i] for i in x))
            b = m.at(op.inputs[1], chunk_of(at["n"], rows), tuple(at[i] for i in y))
            total += summed(times(product(a, b), in_chunk(c, channels, replica)), (label,))
        return activated(op, total)

    def compute(self, op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
        x, y, made = self.letters
        need([len(x), len(y)] == [a.rank for a in args], f"{op.kind} of other dimensions")
        data, degrees = on_each(op, self.devices, args, run, partial(self._local, run))
        cuts = dict(zip(y, args[1].cuts[1:], strict=True))
        cuts |= dict(zip(x, args[0].cuts[1:], strict=True))
        held = (None, *(cuts[letter] for letter in made))
        return (Tensor(compute_activated(op, data, run), degrees, held),)

    def _local(self, run: Run, a: Array, b: Array) -> Array:
        """The product on one device, which spreads both arrays over all dimensions."""
        x, y, made = self.letters
        sizes: dict[str, int] = {}
        for letters, array in ((x, a), (y, b)):
            for letter, size in zip(letters, array.shape, strict=True):
                need(sizes.setdefault(letter, size) == size, f"product of {a.shape} and {b.shape}")
        run.spend(a.size * sizes["o"])
        wide = [
            array.transpose([letters.index(i) for i in f"{made}c" if i in letters]).reshape(
                [sizes[i] if i in letters else 1 for i in f"{made}c"]
            )
            for letters, array in ((x, a), (y, b))
        ]
        return run.numbers.total(run.numbers.mul(*wide), (len(made),))


def _dot_dims(node: Node) -> Dims:
    """(lhs contracting, rhs contracting, lhs batch, rhs batch) of a product."""
    contracting, batch = cast("tuple[Dims, Dims]", node.attr("dimension_numbers"))
    return (*contracting, *batch)


def _ordered(dims: Sequence[int], like: Group | None) -> Group:
    """The dimensions, in the order of a group that has the same ones."""
    return like if like is not None and set(like) == set(dims) else tuple(dims)


def _read(at: Matcher, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = at.maker(source, ("dot_general",))
    if item is None or int(dict(term.params).get("activation", "0")):
        return
    dims = _dot_dims(item.node)
    if bool(dims[2]) == (len(known) == 3):
        for flip in (False, True):
            yield from _read_oriented(at, term, item, dims, flip, known, env)


def _read_oriented(
    at: Matcher, term: Term, item: Item, dims: Dims, flip: bool, known: Partial, env: Env
) -> Found:
    """The product as written, or with its operands exchanged."""
    left, right = (1, 0) if flip else (0, 1)
    ranks = [at.net.type_of(s).rank for s in item.inputs]
    free = [[d for d in range(rank) if d not in dims[k] and d not in dims[2 + k]]
            for k, rank in enumerate(ranks)]  # fmt: skip
    batch = len(dims[2])
    first = {d: batch + k for k, d in enumerate(free[0])}
    second = {d: batch + len(free[0]) + k for k, d in enumerate(free[1])}
    to_out = (second, first) if flip else (first, second)
    head = known[: len(known) - 2]
    rows, cols = known[-2:]
    out_rows = _ordered(list(to_out[0].values()), rows)
    out_cols = _ordered(list(to_out[1].values()), cols)
    out_batch = _ordered(range(batch), head[0]) if head else ()
    out: Partial = (*((out_batch,) if head else ()), out_rows, out_cols)
    if unify(known, out) is None:
        return
    back = [{o: d for d, o in table.items()} for table in to_out]
    a_rows = tuple(back[0][o] for o in out_rows)
    b_cols = tuple(back[1][o] for o in out_cols)
    held = env.get(term.args[0])
    inner = _ordered(dims[left], held.groups[-1] if held is not None else None)
    if held is None and (other := env.get(term.args[1])) is not None:
        like = _ordered(dims[right], other.groups[-2])
        inner = tuple(dims[left][dims[right].index(d)] for d in like)
    paired = tuple(dims[right][dims[left].index(d)] for d in inner)
    a_batch = tuple(dims[2 + left][k] for k in out_batch)
    b_batch = tuple(dims[2 + right][k] for k in out_batch)
    lhs: Partial = (*((a_batch,) if head else ()), a_rows, inner)
    rhs: Partial = (*((b_batch,) if head else ()), paired, b_cols)
    operands = (item.inputs[left], lhs), (item.inputs[right], rhs)
    yield from at.match_operands(term, operands, out, env)


def _write(at: Writer, term: Term) -> Built:
    x, y = map(at.write, term.args)
    return _turned(_written(at, _turned(y), _turned(x))) if at.swapped else _written(at, x, y)


def _turned(x: Built) -> Built:
    """The transpose, of each matrix where there are several."""
    order = (*range(len(x.groups) - 2), -1, -2)
    return replace(
        x, groups=tuple(x.groups[k] for k in order), cuts=tuple(x.cuts[k] for k in order)
    )


def _written(at: Writer, x: Built, y: Built) -> Built:
    sample = at.sample("dot_general")
    batched = len(x.groups) == 3
    at.equal_sizes(x, -1, y, -2)
    if batched:
        at.equal_sizes(x, 0, y, 0)
    allowed = {at.net.type_of(s).dtype for s in sample.inputs}
    types = at.type_of(x), at.type_of(y)
    if len(allowed) != 1 or {t.dtype for t in types} != allowed:
        raise NoFitError
    precision = sample.node.attr("precision")
    if isinstance(precision, tuple) and len(set(precision)) > 1:
        raise NoFitError  # it is of each operand, which may be another one here
    batch = (x.groups[0], y.groups[0]) if batched else ((), ())
    numbers = ((x.groups[-1], y.groups[-2]), batch)
    free = [
        [d for d in range(t.rank) if d not in v.groups[inner] and d not in batch[k]]
        for k, (t, v, inner) in enumerate(((types[0], x, -1), (types[1], y, -2)))
    ]
    shape = [types[0].shape[d] for d in (*batch[0], *free[0])] + [
        types[1].shape[d] for d in free[1]
    ]
    attrs = tuple((k, numbers if k == "dimension_numbers" else v) for k, v in sample.node.attrs)
    type_ = TensorType(tuple(shape), sample.node.outputs[0].dtype)
    source = at.net.make("dot_general", (x.source, y.source), type_, attrs, sample)
    first, second = len(batch[0]), len(batch[0]) + len(free[0])
    rows = tuple(first + free[0].index(d) for d in x.groups[-2])
    cols = tuple(second + free[1].index(d) for d in y.groups[-1])
    if batched:
        return Built(source, (tuple(range(first)), rows, cols), (x.cuts[0], x.cuts[1], y.cuts[2]))
    return Built(source, (rows, cols), (x.cuts[0], y.cuts[1]))


def _record(name: str, devices: str, form: Form | None, *params: str) -> RuleOp:
    meaning = Product(devices)
    return RuleOp(
        name=name, operands=(2, 2), params=params, dims=len(meaning.letters[2]), sums=True,
        type=meaning.type, joints=meaning.joints, value=meaning.value, compute=meaning.compute,
        form=form,
    )  # fmt: skip


_FORM = Form(("dot_general",), _read, _write, joins=True)
PRODUCTS = (
    _record("matmul", "onc, nco -> cno", _FORM, "activation"),
    _record("linear", "onc, noc -> cno", None, "activation"),
    _record("batch-matmul", "obnc, nbco -> cbno", _FORM),
)

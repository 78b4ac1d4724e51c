"""Lookups of rows of a table; row numbers count modulo the number of rows.

In programs, they are the gathers that take whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from ir import Attr, Node, TensorType, dtype_kind, numpy_dtype

from ..graph import Op, Ref
from ..numeric.arrays import Array, need
from ..numeric.devices import Run, Tensor, on_each
from ..program.matcher import Env, Found, Matcher
from ..program.net import Source
from ..program.nodes import like, reshaped
from ..program.views import Partial, unify
from ..program.writer import Built, NoFitError, Writer
from ..symbolic.expr import ONE, Expr, call
from ..symbolic.joints import Parts
from ..symbolic.meaning import Indices, Meaning, chunk_of
from ..symbolic.solve import UndecidedError
from ..symbolic.types import IllFormedError, Type, Typing, computed, fit_devices
from ..symbolic.values import Index, Value
from ..term import Term
from .record import Form, RuleOp

_DEVICES = "n.c, cn -> .nc"  # as `on_each` of `numeric.devices` has it
# Modes in which a row that is not there is never asked for, or is another row of the table.
_ROWS_ONLY = ("CLIP", "PROMISE_IN_BOUNDS")


def _type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    table, rows = args
    if len(table.dims) != 2 or len(rows.dims) != 1:
        raise IllFormedError("gather takes a matrix and a vector of rows")
    fit_devices(typing, _DEVICES, args)
    return (computed(ONE, (rows.dims[0], table.dims[1])),)


def _joints(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    table, rows = (m.joints(r) for r in op.inputs)
    return [list(rows[0]), list(table[1])]


def _value(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    table, rows = op.inputs
    height, column = m.parts.type(table).dims
    found = m.at(rows, chunk_of(index[1], column), index[:1])
    if len(found) != 1 or found[0].bound or len(found[0].factors) != 1:
        raise UndecidedError("a lookup at computed rows")
    element = found[0].factors[0]
    if element.kind != "in" or found[0].coefficient != ONE:
        raise UndecidedError("a lookup at computed rows")
    row = call("row", *element.at, height.size, call(element.name))
    return m.at(table, chunk_of(index[0], m.parts.type(rows).dims[0]), (Index(row), index[1]))


def _compute(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    table, rows = args
    need(table.rank == 2 and rows.rank == 1, "gather takes a matrix and a vector")

    def looked_up(values: Array, number: Array) -> Array:
        return values[number.astype(np.int64) % len(values)]

    data, degrees = on_each(op, _DEVICES, args, run, looked_up)
    return (Tensor(data, degrees, (None, rows.cuts[1], table.cuts[2])),)


def _manner(table: TensorType, rows: TensorType) -> Mapping[str, Attr]:
    """Attributes that a gather has if it takes whole rows of a table, one for each index."""
    batch = rows.rank - 1
    return {
        "dimension_numbers": (
            ("offset_dims", tuple(range(batch, batch + table.rank - 1))),
            ("collapsed_slice_dims", (0,)),
            ("start_index_map", (0,)),
            ("operand_batching_dims", ()),
            ("start_indices_batching_dims", ()),
        ),
        "slice_sizes": (1, *table.shape[1:]),
    }


def _is_lookup(node: Node, table: TensorType, rows: TensorType) -> bool:
    numbers = dict(cast("tuple[tuple[str, object], ...]", node.attr("dimension_numbers")))
    wanted = _manner(table, rows)
    same = numbers == dict(cast("tuple[tuple[str, object], ...]", wanted["dimension_numbers"]))
    whole = node.attr("slice_sizes") == wanted["slice_sizes"] and rows.shape[-1:] == (1,)
    return same and whole and node.attr("mode") in (*_ROWS_ONLY, "FILL_OR_DROP")


def fills_alike(node: Node, table: TensorType, *, moves: bool) -> bool:
    """Whether rows that are not there are the same on both sides of a rule.

    They are wherever none is filled in, and where the rule computes nothing of rows. Otherwise
    they must be NaN, which every op of the rules keeps: a sum of no products does not.

    Args:
        node: the lookup, of this table or of one that stands for it on the other side.
        table: its type.
        moves: whether the rule only moves rows.
    """
    if node.attr("mode") in _ROWS_ONLY or moves:
        return True
    fill = node.attr("fill_value")
    nan = fill is None or (isinstance(fill, float) and fill != fill)
    return nan and table.size > 0 and _has_nan(table.dtype)


def _has_nan(dtype: str) -> bool:
    if dtype_kind(dtype) != "float":
        return False
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(np.asarray(np.nan).astype(numpy_dtype(dtype))))


def _read(at: Matcher, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = at.maker(source, ("gather",))
    if item is None:
        return
    table, rows = (at.net.type_of(s) for s in item.inputs)
    if not _is_lookup(item.node, table, rows):
        return
    if not fills_alike(item.node, table, moves=at.moves):
        return
    asked: Partial = (tuple(range(rows.rank - 1)),)
    out: Partial = (*asked, tuple(range(rows.rank - 1, rows.rank + table.rank - 2)))
    if unify(known, out) is None:
        return
    whole: Partial = ((0,), tuple(range(1, table.rank)))
    operands = (item.inputs[0], whole), (item.inputs[1], asked)
    yield from at.match_operands(term, operands, out, env)


def _write(at: Writer, term: Term) -> Built:
    x, i = map(at.write, term.args)
    sample = at.sample("gather")
    table = at.laid(x)
    if len(x.groups[0]) != 1:
        raise NoFitError
    asked = i.source
    type_, rows = at.net.type_of(table), at.net.type_of(asked)
    if not fills_alike(sample.node, type_, moves=at.moves):
        raise NoFitError
    if i.groups[0] != tuple(range(rows.rank - 1)):
        # joined indices have lost the dimension of one element that a gather wants at the end
        asked = reshaped(at.net, asked, (*at.sizes(i, 0), 1))
        rows = at.net.type_of(asked)
    count = rows.rank - 1
    shape = like(type_, (*rows.shape[:-1], *type_.shape[1:]))
    changed: Mapping[str, Attr] = {
        **_manner(type_, rows), "indices_are_sorted": False, "unique_indices": False,
    }  # fmt: skip
    attrs = tuple((key, changed.get(key, value)) for key, value in sample.node.attrs)
    source = at.net.make("gather", (table, asked), shape, attrs, sample)
    groups = (tuple(range(count)), tuple(range(count, shape.rank)))
    return Built(source, groups, (i.cuts[0], x.cuts[1]))


LOOKUPS = (
    RuleOp(
        name="gather", operands=(2, 2), moves=True, row_numbers=1,
        type=_type,
        joints=_joints, value=_value, compute=_compute,
        form=Form(("gather",), _read, _write, joins=False),
    ),
)  # fmt: skip

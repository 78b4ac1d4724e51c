"""Lookups: the gathers that take whole rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from ir import Attrs, Node, TensorType, dtype_kind, numpy_dtype

# Modes in which a row that is not there is never asked for, or is another row of the table.
_ROWS_ONLY = ("CLIP", "PROMISE_IN_BOUNDS")


def is_lookup(node: Node, types: Sequence[TensorType]) -> bool:
    """Whether a gather takes whole rows of its first operand, one for each index."""
    table, asked = types
    numbers = dict(cast("tuple[tuple[str, tuple[int, ...]], ...]", node.attr("dimension_numbers")))
    batch = asked.rank - 1
    rows = {
        "offset_dims": tuple(range(batch, batch + table.rank - 1)),
        "collapsed_slice_dims": (0,),
        "start_index_map": (0,),
        "operand_batching_dims": (),
        "start_indices_batching_dims": (),
    }
    whole = node.attr("slice_sizes") == (1, *table.shape[1:])
    known = node.attr("mode") in (*_ROWS_ONLY, "FILL_OR_DROP")
    return numbers == rows and asked.shape[-1:] == (1,) and whole and known


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


def lookup_attrs(like: Node, table: TensorType, asked: TensorType) -> Attrs:
    """Attributes of the lookup of whole rows in another table or with other indices."""
    batch = asked.rank - 1
    changed = {
        "dimension_numbers": (
            ("offset_dims", tuple(range(batch, batch + table.rank - 1))),
            ("collapsed_slice_dims", (0,)),
            ("start_index_map", (0,)),
            ("operand_batching_dims", ()),
            ("start_indices_batching_dims", ()),
        ),
        "indices_are_sorted": False,
        "slice_sizes": (1, *table.shape[1:]),
        "unique_indices": False,
    }
    return tuple((key, changed.get(key, value)) for key, value in like.attrs)

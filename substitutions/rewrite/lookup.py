"""Lookups: the gathers that take whole rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ir import Attrs, Node, TensorType

# Modes in which a row that is not there is never asked for, or is another row of the table.
_ROWS_ONLY = ("CLIP", "PROMISE_IN_BOUNDS")


def is_lookup(node: Node, types: Sequence[TensorType]) -> bool:
    """Whether a gather takes whole rows of its first operand, one for each index.

    Where rows out of bounds are filled, the table must be of floats: they are NaN then, and stay
    so under every op of the rules.
    """
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
    fill = node.attr("fill_value")
    nan = fill is None or (isinstance(fill, float) and fill != fill)
    filled = node.attr("mode") == "FILL_OR_DROP" and table.dtype.startswith(("float", "bfloat"))
    mode = node.attr("mode") in _ROWS_ONLY or (filled and nan)
    return numbers == rows and asked.shape[-1:] == (1,) and whole and mode


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

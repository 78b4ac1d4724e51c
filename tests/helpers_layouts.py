# pyright: basic
"""Small calls that trace to the ops which move elements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .helpers_internals import primitive
from .op_examples import INTS, Example, X, Y, indices, normal

MODES = ("clip", "fill", "promise_in_bounds")


def layouts() -> list[Example]:
    def reshape(*shape: int) -> Any:
        return lambda x: lax.reshape(x, shape)

    empty2 = primitive("empty2")
    memory = jax.memory.Space.Device
    return [
        Example("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (4, 2, 6), (0, 2)), (X,)),
        Example(
            "broadcast_in_dim",
            lambda x: lax.broadcast_in_dim(x, (4, 6), (0, 1)),
            (X[:, :1],),
            "unit",
        ),
        Example("concatenate", lambda x, y: lax.concatenate((x, y[:, :2]), 1), (X, Y)),
        Example("empty", lambda: lax.empty((4, 6), jnp.float32), ()),
        Example("empty2", lambda: empty2.bind(dtype=np.dtype("float32"), memory_space=memory), ()),
        Example("iota", lambda: lax.broadcasted_iota(jnp.int32, (4, 6), 1), ()),
        Example("pad", lambda x: lax.pad(x, np.float32(1), ((0, 0, 0), (1, 2, 1))), (X,)),
        Example("pad", lambda x: lax.pad(x, np.float32(0), ((-1, 2, 0), (0, 0, 0))), (X,), "crop"),
        Example("reshape", reshape(24), (X,), "merge"),
        Example("reshape", reshape(4, 2, 3), (X,), "split"),
        Example("reshape", reshape(2, 12), (X,), "both"),
        Example("reshape", reshape(8, 3), (X,), "regroup"),
        Example("reshape", reshape(4, 6), (normal(6, 4),), "uneven"),
        Example("reshape", reshape(2, 1, 8, 1, 6), (normal(4, 1, 4, 6),), "units"),
        Example("reshape", reshape(2, 3, 16), (normal(6, 4, 4),), "chain"),
        Example("reshape", reshape(0, 4), (normal(2, 0),), "empty"),
        Example("reshape", reshape(1, 1), (np.float32(3),), "scalar"),
        Example("rev", lambda x: lax.rev(x, (1,)), (X,)),
        Example("slice", lambda x: lax.slice(x, (0, 1), (4, 5)), (X,)),
        Example("slice", lambda x: lax.slice(x, (0, 0), (4, 6), (2, 1)), (X,), "strided"),
        Example("split", lambda x: lax.split(x, (2, 4), 1), (X,)),
        Example("squeeze", lambda x: lax.squeeze(x, (1,)), (normal(4, 1, 6),)),
        Example("stack", lambda x, y: jnp.stack([x, y], 1), (X, Y)),
        Example("tile", lambda x: jnp.tile(x, (2, 1)), (X,)),
        Example("tile", lambda x: jnp.tile(x, (4, 2)), (X,), "both"),
        Example("transpose", lambda x: lax.transpose(x, (2, 0, 1)), (normal(2, 4, 6),)),
        Example("unstack", lambda x: jnp.unstack(x, axis=1), (X,)),
    ]


def dynamic() -> list[Example]:
    at, late = np.int32(1), np.int32(9)

    def update(x: Any, part: Any, i: Any, j: Any) -> Any:
        return lax.dynamic_update_slice(x, part, (i, j))

    return [
        Example("dynamic_slice", lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 6)), (X, at, at)),
        Example(
            "dynamic_slice",
            lambda x, i, j: lax.dynamic_slice(x, (i, j), (4, 1)),
            (X, at, late),
            "late",
        ),
        Example("dynamic_update_slice", update, (X, Y[:2], at, at)),
        Example("dynamic_update_slice", update, (X, Y[:, 2:4], late, late), "late"),
    ]


def convolutions() -> list[Example]:
    def conv(**options: Any) -> Any:
        return lambda x, kernel: lax.conv_general_dilated(x, kernel, **options)

    same = {"window_strides": (1, 1), "padding": "SAME"}
    one = {"window_strides": (1,), "padding": "VALID"}
    image, wide = normal(4, 6, 8, 8), normal(4, 8, 10)
    last = ("NHWC", "HWIO", "NHWC")
    return [
        Example("conv_general_dilated", conv(**same), (image, normal(2, 6, 3, 3)), "same"),
        Example("conv_general_dilated", conv(**same), (image, normal(2, 6, 1, 1)), "pointwise"),
        Example(
            "conv_general_dilated",
            conv(**same, dimension_numbers=last),
            (normal(4, 8, 8, 6), normal(3, 1, 6, 2)),
            "channels last",
        ),
        Example(
            "conv_general_dilated",
            conv(window_strides=(2,), padding=[(1, 2)], lhs_dilation=(2,), rhs_dilation=(3,)),
            (wide, normal(6, 8, 3)),
            "dilated",
        ),
        Example(
            "conv_general_dilated",
            conv(**one, feature_group_count=8),
            (wide, normal(8, 1, 3)),
            "depthwise",
        ),
        Example(
            "conv_general_dilated",
            conv(**one, feature_group_count=4),
            (wide, normal(24, 2, 3)),
            "groups",
        ),
        Example(
            "conv_general_dilated",
            conv(**one, feature_group_count=2),
            (wide, normal(4, 4, 3)),
            "two groups",
        ),
        Example(
            "conv_general_dilated",
            conv(**one, batch_group_count=2),
            (wide, normal(4, 8, 3)),
            "batch groups",
        ),
        Example(
            "conv_general_dilated",
            conv(**one, batch_group_count=4),
            (wide, normal(8, 8, 3)),
            "all batch",
        ),
    ]


def gathers() -> list[Example]:
    rows, pairs = indices(8, 1, high=4), indices(6, 2, high=4)
    lookup = lax.GatherDimensionNumbers((1,), (0,), (0,))
    second = lax.GatherDimensionNumbers((0,), (1,), (1,))
    one = lax.GatherDimensionNumbers((0,), (0,), (0,))
    several = lax.GatherDimensionNumbers((1,), (0, 1), (0, 1))
    partial = lax.GatherDimensionNumbers((1, 2), (), (0,))
    batched = lax.GatherDimensionNumbers((1,), (1,), (1,), (0,), (0,))

    def gather(numbers: Any, sizes: tuple[int, ...], mode: str, **options: Any) -> Any:
        return lambda x, i: lax.gather(x, i, numbers, sizes, mode=mode, **options)

    found = [Example("gather", gather(lookup, (1, 6), mode), (X, rows), mode) for mode in MODES]
    cube = normal(4, 4, 6)
    return [
        *found,
        Example("gather", gather(lookup, (1, 6), "fill", fill_value=7.0), (X, rows), "seven"),
        Example("gather", gather(lookup, (1, 6), "fill"), (INTS, rows), "int"),
        Example("gather", gather(lookup, (1, 6), "clip"), (X > 0, rows), "bool"),
        Example("gather", gather(lookup, (1, 4), "clip"), (X, rows), "part of a row"),
        Example(
            "gather", gather(lookup, (1, 6), "clip"), (X, indices(2, 4, 1, high=4)[:, 0]), "few"
        ),
        Example(
            "gather",
            lambda x, i: jnp.take(x, i, axis=0),
            (X, np.abs(indices(2, 4, high=3))),
            "take",
        ),
        Example("gather", gather(one, (1, 6), "fill"), (X, rows[0]), "one row"),
        Example("gather", gather(second, (4, 1), "fill"), (X, indices(8, 1, high=6)), "columns"),
        Example("gather", gather(several, (1, 1, 6), "fill"), (cube, pairs), "two"),
        Example("gather", gather(partial, (2, 6), "clip"), (X, rows), "window"),
        Example("gather", gather(partial, (4, 6), "fill"), (X, rows), "whole window"),
        Example(
            "gather", gather(batched, (1, 1, 6), "fill"), (cube, indices(4, 1, high=4)), "batched"
        ),
    ]


def scatters() -> list[Example]:
    rows, pairs = indices(8, 1, high=4), indices(6, 2, high=4)
    distinct = np.array([[2], [0], [9], [-1]], np.int32)
    lookup = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    one = lax.ScatterDimensionNumbers((0,), (0,), (0,))
    several = lax.ScatterDimensionNumbers((1,), (0, 1), (0, 1))
    window = lax.ScatterDimensionNumbers((1, 2), (), (0,))
    batched = lax.ScatterDimensionNumbers((1,), (1,), (1,), (0,), (0,))

    def scatter(kind: str, numbers: Any, mode: str = "fill") -> Any:
        call = getattr(lax, f"scatter_{kind}" if kind else "scatter")
        return lambda x, i, u: call(x, i, u, numbers, mode=mode)

    updates, cube = normal(8, 6, seed=2), normal(4, 4, 6)
    found = [
        Example(f"scatter-{kind}", scatter(kind, lookup, mode), (X, rows, updates), mode)
        for kind in ("add", "max", "min", "mul", "sub")
        for mode in ("clip", "fill")
    ]
    return [
        *found,
        Example("scatter", scatter("", lookup), (X, distinct, updates[:4])),
        Example("scatter", scatter("", lookup, "clip"), (X, distinct[:3], updates[:3]), "clip"),
        Example(
            "scatter-add", scatter("add", lookup), (INTS, rows, np.abs(INTS)[[0, 1] * 4]), "int"
        ),
        Example("scatter", scatter("", one), (X, np.array([2], np.int32), updates[0]), "one row"),
        Example("scatter-add", scatter("add", one), (X, rows[0], updates[0]), "one row"),
        Example("scatter-add", scatter("add", lookup), (X, rows, updates[:, :4]), "part of a row"),
        Example("scatter-add", scatter("add", several), (cube, pairs, normal(6, 6)), "two"),
        Example("scatter-add", scatter("add", window), (X, rows, normal(8, 2, 6)), "window"),
        Example(
            "scatter-add", scatter("add", batched), (cube, indices(4, 1, high=4), X), "batched"
        ),
    ]


def moving() -> list[Example]:
    """Examples of the ops which move elements."""
    return [*layouts(), *dynamic(), *convolutions(), *gathers(), *scatters()]

"""Ops that take, replace, extend or turn parts of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..factors import FactorSpec
from ..opdef import Attributes, OpDef, Types
from .build import as_whole, build_spec, calling, ints, linear_in, names, no_flops, pairs
from .window import dilated

_ALONE = linear_in((0,))


def _some_whole(operands: Types, results: Types, plain: list[bool]) -> FactorSpec:
    """One operand and one result share the plain dimensions; the others are whole in each."""
    ins = [f"d{i}" if free else f"x{i}" for i, free in enumerate(plain)]
    outs = [f"d{i}" if free else f"y{i}" for i, free in enumerate(plain)]
    kinds = as_whole(names("x", len(plain)), names("y", len(plain)))
    scalars: list[tuple[str, ...]] = [() for _ in operands[1:]]
    return build_spec(operands, [ins, *scalars], results, [outs], kinds)


def _same_sizes(operands: Types, results: Types) -> list[bool]:
    pairs_ = zip(operands[0].shape, results[0].shape, strict=True)
    return [before == after for before, after in pairs_]


def _slice(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    # As many elements as there are: the slice starts at 0 and takes every one of them.
    del attrs
    return _some_whole(operands, results, _same_sizes(operands, results))


def _slice_local(operands: Types, results: Types, attrs: Attributes) -> Attributes:
    limits = ints(attrs["limit_indices"])
    full = _same_sizes(operands, results)
    return {
        "limit_indices": tuple(
            size if same else limit
            for size, same, limit in zip(operands[0].shape, full, limits, strict=True)
        )
    }


def _slice_meaning(attrs: Attributes, x: Any) -> Any:
    starts, limits = ints(attrs["start_indices"]), ints(attrs["limit_indices"])
    strides = (1,) * x.ndim if attrs["strides"] is None else ints(attrs["strides"])
    return x[tuple(slice(*edge) for edge in zip(starts, limits, strides, strict=True))]


def _pad(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    plain = [config == (0, 0, 0) for config in pairs(attrs["padding_config"])]
    return _some_whole(operands, results, plain)


def _pad_meaning(attrs: Attributes, x: Any, fill: Any) -> Any:
    config = pairs(attrs["padding_config"])
    edges = tuple((low, high) for low, high, _ in config)
    return dilated(x, edges, tuple(inner + 1 for _, _, inner in config), fill)


def _rev(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    turned = ints(attrs["dimensions"])
    dims = names("d", operands[0].rank)
    return build_spec(operands, [dims], results, [dims], as_whole([dims[i] for i in turned]))


def _dynamic_slice(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    # XLA clamps the start so that the slice fits: of a fully covered dimension it is 0.
    del attrs
    return _some_whole(operands, results, _same_sizes(operands, results))


def _dynamic_slice_local(operands: Types, results: Types, attrs: Attributes) -> Attributes:
    del operands, attrs
    return {"slice_sizes": results[0].shape}


def _clamped(starts: tuple[Any, ...], sizes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    edges = [
        min(max(int(start), 0), whole - size)
        for start, size, whole in zip(starts, sizes, shape, strict=True)
    ]
    return tuple(slice(e, e + size) for e, size in zip(edges, sizes, strict=True))


def _dynamic_slice_meaning(attrs: Attributes, x: Any, *starts: Any) -> Any:
    return x[_clamped(starts, ints(attrs["slice_sizes"]), x.shape)]


def _dynamic_update(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    del attrs
    operand, update = operands[0], operands[1]
    covered = [a == b for a, b in zip(operand.shape, update.shape, strict=True)]
    whole = [f"d{i}" if free else f"x{i}" for i, free in enumerate(covered)]
    part = [f"d{i}" if free else f"u{i}" for i, free in enumerate(covered)]
    kinds = as_whole(names("x", operand.rank), names("u", operand.rank))
    scalars: list[tuple[str, ...]] = [() for _ in operands[2:]]
    return build_spec(operands, [whole, part, *scalars], results, [whole], kinds)


def _dynamic_update_meaning(attrs: Attributes, x: Any, update: Any, *starts: Any) -> Any:
    del attrs
    found = x.copy()
    found[_clamped(starts, update.shape, x.shape)] = update
    return found


RECORDS = (
    OpDef(
        "dynamic_slice",
        _dynamic_slice,
        "index",
        no_flops,
        _ALONE,
        _dynamic_slice_local,
        meaning=_dynamic_slice_meaning,
    ),
    OpDef(
        "dynamic_update_slice",
        _dynamic_update,
        "index",
        no_flops,
        linear_in((0, 1)),
        meaning=_dynamic_update_meaning,
    ),
    # Linear only if the value of the padding is zero, which types do not show.
    OpDef("pad", _pad, "layout", no_flops, places=True, meaning=_pad_meaning),
    OpDef("rev", _rev, "layout", no_flops, _ALONE, meaning=calling(np.flip, "dimensions")),
    OpDef(
        "slice",
        _slice,
        "layout",
        no_flops,
        _ALONE,
        _slice_local,
        places=True,
        meaning=_slice_meaning,
    ),
)

"""Ops that move elements without computing with them.

`iota` counts from zero on every shard: emission adds the shard's start along its dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..factors import Dim, FactorSpec
from ..opdef import Attributes, OpDef, Types
from .build import (
    as_whole,
    build_spec,
    calling,
    ints,
    linear_in,
    linear_jointly,
    names,
    no_flops,
    opaque,
    whole_number,
)
from .numeric import numpy_dtype
from .reshape import reshape_spec

_ALONE = linear_in((0,))


def _local_shape(operands: Types, results: Types, attrs: Attributes) -> Attributes:
    del operands, attrs
    return {"shape": results[0].shape}


# --- broadcast_in_dim, iota, reshape, squeeze, transpose, tile --------------------------------


def _broadcast(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    dims = names("d", results[0].rank)
    kept = [dims[i] for i in ints(attrs["broadcast_dimensions"])]
    return build_spec(operands, [kept], results, [dims])


def _broadcast_meaning(attrs: Attributes, x: Any) -> Any:
    shape, places = ints(attrs["shape"]), ints(attrs["broadcast_dimensions"])
    middle = [1] * len(shape)
    for place, size in zip(places, x.shape, strict=True):
        middle[place] = size
    return np.broadcast_to(x.reshape(middle), shape)


def _new(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    del attrs
    return build_spec(operands, [], results, [names("d", results[0].rank)])


def _iota_meaning(attrs: Attributes) -> Any:
    shape, dimension = ints(attrs["shape"]), whole_number(attrs["dimension"])
    line = np.arange(shape[dimension]).astype(numpy_dtype(str(attrs["dtype"])))
    return np.broadcast_to(line.reshape([-1] + [1] * (len(shape) - dimension - 1)), shape)


def _reshape_meaning(attrs: Attributes, x: Any) -> Any:
    order = attrs.get("dimensions")
    turned = x if order is None else np.transpose(x, ints(order))
    return np.reshape(turned, ints(attrs["new_sizes"]))


def _reshape_local(operands: Types, results: Types, attrs: Attributes) -> Attributes:
    del operands, attrs
    return {"new_sizes": results[0].shape}


def _squeeze(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    gone = ints(attrs["dimensions"])
    dims = names("d", operands[0].rank)
    kept = [name for i, name in enumerate(dims) if i not in gone]
    return build_spec(operands, [dims], results, [kept])


def _transpose(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    dims = names("d", operands[0].rank)
    moved = [dims[i] for i in ints(attrs["permutation"])]
    return build_spec(operands, [dims], results, [moved])


def _tile(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    # Result element `i * size + j` is operand element j, hence repetition is the major factor.
    reps = ints(attrs["reps"])
    dims = names("d", operands[0].rank)
    sizes = dict(zip(dims, operands[0].shape, strict=True))
    sizes |= {f"rep{i}": n for i, n in enumerate(reps)}
    outs: list[Dim] = [(f"rep{i}", name) for i, name in enumerate(dims)]
    return build_spec(operands, [dims], results, [outs], sizes=sizes)


def _tile_local(operands: Types, results: Types, attrs: Attributes) -> Attributes:
    del attrs
    local = zip(results[0].shape, operands[0].shape, strict=True)
    return {"reps": tuple(whole // part if part else 1 for whole, part in local)}


# --- along one dimension: concatenate, split, stack, unstack -----------------------------------


def _axis_whole(operands: Types, results: Types, axis: int) -> FactorSpec:
    """All tensors share their dimensions but `axis`, which is whole in each."""

    def dims(prefix: str, types: Types) -> list[list[str]]:
        return [
            [f"d{i}" if i != axis else f"{prefix}{number}" for i in range(type_.rank)]
            for number, type_ in enumerate(types)
        ]

    kinds = as_whole(names("o", len(operands)), names("r", len(results)))
    return build_spec(operands, dims("o", operands), results, dims("r", results), kinds)


def _concatenate(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    return _axis_whole(operands, results, whole_number(attrs["dimension"]))


def _split(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    return _axis_whole(operands, results, whole_number(attrs["axis"]))


def _split_meaning(attrs: Attributes, x: Any) -> Any:
    ends = np.cumsum(ints(attrs["sizes"]))
    return tuple(np.split(x, ends[:-1], axis=whole_number(attrs["axis"])))


def _stack(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    axis = whole_number(attrs["axis"])
    dims = names("d", operands[0].rank)
    out = [*dims[:axis], "axis", *dims[axis:]]
    return build_spec(operands, [dims] * len(operands), results, [out], as_whole(["axis"]))


def _unstack(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    axis = whole_number(attrs["axis"])
    dims = names("d", results[0].rank) if results else names("d", operands[0].rank - 1)
    whole = [*dims[:axis], "axis", *dims[axis:]]
    return build_spec(operands, [whole], results, [dims] * len(results), as_whole(["axis"]))


def _unstack_meaning(attrs: Attributes, x: Any) -> Any:
    return tuple(np.moveaxis(x, whole_number(attrs["axis"]), 0))


def _joining(function: Callable[..., Any], key: str) -> Callable[..., Any]:
    def meaning(attrs: Attributes, *arrays: Any) -> Any:
        return function(arrays, axis=whole_number(attrs[key]))

    return meaning


RECORDS = (
    OpDef(
        "broadcast_in_dim",
        _broadcast,
        "layout",
        no_flops,
        _ALONE,
        _local_shape,
        meaning=_broadcast_meaning,
    ),
    OpDef(
        "concatenate",
        _concatenate,
        "layout",
        no_flops,
        linear_jointly,
        meaning=_joining(np.concatenate, "dimension"),
    ),
    OpDef("constant", opaque, "opaque", no_flops),
    OpDef("empty", _new, "layout", no_flops, local=_local_shape),
    OpDef("empty2", _new, "layout", no_flops),
    OpDef(
        "iota",
        _new,
        "layout",
        no_flops,
        local=_local_shape,
        offset=True,
        meaning=_iota_meaning,
    ),
    OpDef(
        "reshape",
        reshape_spec,
        "layout",
        no_flops,
        _ALONE,
        _reshape_local,
        meaning=_reshape_meaning,
    ),
    OpDef("split", _split, "layout", no_flops, _ALONE, meaning=_split_meaning),
    OpDef(
        "squeeze",
        _squeeze,
        "layout",
        no_flops,
        _ALONE,
        meaning=calling(np.squeeze, "dimensions"),
    ),
    OpDef(
        "stack",
        _stack,
        "layout",
        no_flops,
        linear_jointly,
        meaning=_joining(np.stack, "axis"),
    ),
    OpDef("tile", _tile, "layout", no_flops, _ALONE, _tile_local, meaning=calling(np.tile, "reps")),
    OpDef(
        "transpose",
        _transpose,
        "layout",
        no_flops,
        _ALONE,
        meaning=calling(np.transpose, "permutation"),
    ),
    OpDef("unstack", _unstack, "layout", no_flops, _ALONE, meaning=_unstack_meaning),
)

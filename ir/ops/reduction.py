"""Reductions, sorting and selection of the largest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..factors import FactorSpec
from ..opdef import Attributes, FactorRule, OpDef, Types
from ..types import dtype_kind
from .build import WHOLE, as_whole, build_spec, ints, linear_in, names, whole_number
from .numeric import largest, smallest

_REDUCIBLE = {
    "sum": ("int", "float", "complex"),
    "max": ("int", "float"),
    "min": ("int", "float"),
}


def _reducing(kind: str, key: str = "axes") -> FactorRule:
    """Rule of a reduction over `attrs[key]`; `kind` is that of the reduced factors."""

    def rule(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
        axes = ints(attrs[key])
        # The last operands of the general `reduce` are initial values of rank 0.
        dims = names("d", operands[0].rank)
        kept = [name for i, name in enumerate(dims) if i not in axes]
        possible = dtype_kind(operands[0].dtype) in _REDUCIBLE.get(kind, ())
        kinds = {dims[i]: kind if possible else WHOLE for i in axes}
        ins = [dims if type_.rank else () for type_ in operands]
        return build_spec(operands, ins, results, [kept] * len(results), kinds)

    return rule


def _input_size(operands: Types, results: Types, attrs: Attributes) -> int:
    del results, attrs
    return operands[0].size


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(attrs: Attributes, x: Any) -> Any:
        return function(x, axis=ints(attrs["axes"]))

    return meaning


def _sum(x: Any, axis: tuple[int, ...]) -> Any:
    wide = np.float32 if x.dtype.kind not in "biufc" else x.dtype
    return np.sum(x, axis=axis, dtype=wide)


def _prod(x: Any, axis: tuple[int, ...]) -> Any:
    product: Any = np.prod  # some versions of NumPy do not say what of an unknown array it is
    return product(x, axis=axis, dtype=x.dtype)


def _reduce(name: str, kind: str, function: Callable[..., Any]) -> OpDef:
    linear = linear_in((0,)) if kind == "sum" else None
    return OpDef(
        name, _reducing(kind), "reduction", _input_size, linear, meaning=_reduced(function)
    )


def _arg(function: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(attrs: Attributes, x: Any) -> Any:
        return function(x, axis=ints(attrs["axes"])[0])

    return meaning


# --- along one dimension, which must be whole --------------------------------------------------


def along(key: str) -> FactorRule:
    """Rule of an op whose operands and results share all dimensions but `attrs[key]`."""

    def rule(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
        axis = whole_number(attrs[key]) % operands[0].rank

        def dims(prefix: str, rank: int) -> list[str]:
            return [f"d{i}" if i != axis else f"{prefix}axis" for i in range(rank)]

        ins = [dims("o", type_.rank) for type_ in operands]
        outs = [dims("r", type_.rank) for type_ in results]
        return build_spec(operands, ins, results, outs, as_whole(["oaxis", "raxis"]))

    return rule


def _sort_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    del results, attrs
    size = operands[0].size
    return size * max(1, math.ceil(math.log2(max(2, size))))


def _sort(attrs: Attributes, *arrays: Any) -> Any:
    axis, keys = whole_number(attrs["dimension"]), whole_number(attrs["num_keys"])
    order = np.lexsort(tuple(reversed(arrays[:keys])), axis=axis)
    return tuple(np.take_along_axis(x, order, axis) for x in arrays)


def _largest(x: Any, k: int, axis: int, sign: int) -> Any:
    order = np.argsort(sign * x.astype(np.float64), axis=axis, kind="stable")
    order = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)


def _top_k(attrs: Attributes, x: Any) -> Any:
    return _largest(x, whole_number(attrs["k"]), whole_number(attrs["axis"]), -1)


RECORDS = (
    _reduce("reduce_and", WHOLE, np.bitwise_and.reduce),
    _reduce("reduce_max", "max", largest),
    _reduce("reduce_min", "min", smallest),
    _reduce("reduce_or", WHOLE, np.bitwise_or.reduce),
    _reduce("reduce_prod", WHOLE, _prod),
    _reduce("reduce_sum", "sum", _sum),
    _reduce("reduce_xor", WHOLE, np.bitwise_xor.reduce),
    OpDef("reduce", _reducing(WHOLE, "dimensions"), "reduction", _input_size),
    OpDef("argmax", _reducing(WHOLE), "reduction", _input_size, meaning=_arg(np.argmax)),
    OpDef("argmin", _reducing(WHOLE), "reduction", _input_size, meaning=_arg(np.argmin)),
    OpDef("sort", along("dimension"), "reduction", _sort_flops, meaning=_sort),
    OpDef("top_k", along("axis"), "reduction", _sort_flops, meaning=_top_k),
    OpDef("approx_top_k", along("reduction_dimension"), "reduction", _sort_flops),
)

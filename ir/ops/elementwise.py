"""Elementwise ops: every dimension is a plain factor; operands of rank 0 have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..factors import FactorSpec
from ..opdef import Attributes, LinearRule, OpDef, Types
from ..placements import HOST_COPIES
from ..types import TensorType, dtype_bytes, dtype_kind
from . import numeric
from .build import as_whole, build_spec, linear_in, names, no_flops


def pointwise(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    """Spec of an op whose results and operands have one shape, or rank 0."""
    del attrs
    dims = names("d", results[0].rank)
    return build_spec(
        operands, [_own(t, dims) for t in operands], results, [_own(t, dims) for t in results]
    )


def _own(type_: TensorType, dims: tuple[str, ...]) -> tuple[str, ...]:
    return dims if type_.rank else ()


def separately(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    """Spec of an identity on many operands: each has its own factors."""
    del attrs
    dims = [names(f"v{i}d", type_.rank) for i, type_ in enumerate(results)]
    return build_spec(operands, dims, results, dims)


def _bitcast(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    # The trailing dimension that appears or vanishes holds the parts of one element.
    dims = names("d", min(operands[0].rank, results[0].rank))
    ins, outs = (
        dims if type_.rank == len(dims) else (*dims, "parts") for type_ in (operands[0], results[0])
    )
    return build_spec(operands, [ins], results, [outs], as_whole(["parts"]))


def _linear_convert(
    operands: Types, results: Types, attrs: Attributes
) -> tuple[tuple[int, ...], ...]:
    # Between whole numbers a term may wrap or saturate where the sum does not.
    kinds = (dtype_kind(operands[0].dtype), dtype_kind(results[0].dtype))
    floats = (("float", "float"), ("float", "complex"), ("complex", "complex"))
    del attrs
    return ((0,),) if kinds in floats else ()


def _linear_div(operands: Types, results: Types, attrs: Attributes) -> tuple[tuple[int, ...], ...]:
    del results, attrs
    return ((0,),) if dtype_kind(operands[0].dtype) in ("float", "complex") else ()


def _linear_cases(
    operands: Types, results: Types, attrs: Attributes
) -> tuple[tuple[int, ...], ...]:
    return linear_in(tuple(range(1, len(operands))))(operands, results, attrs)


def _linear_if_one(
    operands: Types, results: Types, attrs: Attributes
) -> tuple[tuple[int, ...], ...]:
    return linear_in((0,))(operands, results, attrs) if len(operands) == 1 else ()


# The bits of a random word cost some 20 rounds of three integer operations.
_RANDOM_OPS = 70


def _random_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    del operands, attrs
    return _RANDOM_OPS * sum(t.size * dtype_bytes(t.dtype) // 4 for t in results)


def _polynomial_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    del attrs
    return 2 * (len(operands) - 2) * sum(t.size for t in results)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(attrs: Attributes, *arrays: Any) -> Any:
        del attrs
        return function(*arrays)

    return meaning


def _identity(*arrays: Any) -> Any:
    return arrays


def _op(name: str, function: Callable[..., Any] | None, linear: LinearRule | None = None) -> OpDef:
    meaning = None if function is None else _plain(function)
    return OpDef(name, pointwise, "elementwise", linear=linear, meaning=meaning)


def _integer_pow(attrs: Attributes, x: Any) -> Any:
    y = attrs["y"]
    assert isinstance(y, int)
    return x**y if y >= 0 else np.ones((), x.dtype) / x ** (-y)


_ALONE = linear_in((0,))
_SUM = linear_in((0, 1))

_ARITHMETIC = (
    _op("add", np.add, _SUM),
    _op("add_any", np.add, _SUM),
    OpDef("div", pointwise, "elementwise", linear=_linear_div, meaning=_plain(numeric.divide)),
    _op("max", numeric.maximum),
    _op("min", numeric.minimum),
    _op("mul", np.multiply, linear_in((0,), (1,))),
    _op("mulhi", numeric.multiply_high),
    _op("neg", np.negative, _ALONE),
    _op("nextafter", np.nextafter),
    _op("one_minus_square", numeric.one_minus_square),
    OpDef(
        "polynomial",
        pointwise,
        "elementwise",
        _polynomial_flops,
        meaning=_plain(numeric.polynomial),
    ),
    _op("pow", np.power),
    _op("rem", np.fmod),
    _op("square", np.square),
    _op("sub", np.subtract, _SUM),
    OpDef("integer_pow", pointwise, "elementwise", meaning=_integer_pow),
)

_FUNCTIONS = (
    _op("abs", np.abs),
    _op("acos", np.arccos),
    _op("acosh", np.arccosh),
    _op("asin", np.arcsin),
    _op("asinh", np.arcsinh),
    _op("atan", np.arctan),
    _op("atan2", np.arctan2),
    _op("atanh", np.arctanh),
    _op("bessel_i0e", None),
    _op("bessel_i1e", None),
    _op("cbrt", np.cbrt),
    _op("ceil", np.ceil),
    _op("cos", np.cos),
    _op("cosh", np.cosh),
    _op("digamma", numeric.digamma),
    _op("erf", numeric.erf),
    _op("erf_inv", numeric.erf_inv),
    _op("erfc", numeric.erfc),
    _op("exp", np.exp),
    _op("exp2", np.exp2),
    _op("expm1", np.expm1),
    _op("floor", np.floor),
    _op("igamma", None),
    _op("igamma_grad_a", None),
    _op("igammac", None),
    _op("lgamma", numeric.lgamma),
    _op("log", np.log),
    _op("log1p", np.log1p),
    _op("log2", np.log2),
    _op("logistic", numeric.logistic),
    _op("polygamma", None),
    _op("regularized_incomplete_beta", None),
    _op("rsqrt", numeric.rsqrt),
    _op("sign", np.sign),
    _op("sin", np.sin),
    _op("sinh", np.sinh),
    _op("sqrt", np.sqrt),
    _op("tan", np.tan),
    _op("tanh", np.tanh),
    _op("zeta", None),
    OpDef("round", pointwise, "elementwise", meaning=numeric.round_to),
)

_LOGIC = (
    _op("and", np.bitwise_and),
    _op("clz", numeric.count_leading_zeros),
    _op("eq", np.equal),
    _op("eq_to", numeric.equal_total),
    _op("ge", np.greater_equal),
    _op("gt", np.greater),
    _op("is_finite", np.isfinite),
    _op("le", np.less_equal),
    _op("le_to", numeric.less_equal_total),
    _op("lt", np.less),
    _op("lt_to", numeric.less_total),
    _op("ne", np.not_equal),
    _op("not", np.invert),
    _op("or", np.bitwise_or),
    _op("population_count", numeric.population_count),
    _op("shift_left", numeric.shift_left),
    _op("shift_right_arithmetic", numeric.shift_right_arithmetic),
    _op("shift_right_logical", numeric.shift_right_logical),
    _op("xor", np.bitwise_xor),
)

_SELECTION = (
    _op("clamp", numeric.clamp),
    OpDef(
        "select_n",
        pointwise,
        "elementwise",
        linear=_linear_cases,
        meaning=_plain(numeric.select),
    ),
)

_CONVERSION = (
    _op("complex", numeric.to_complex, _SUM),
    _op("conj", np.conj, _ALONE),
    _op("imag", np.imag, _ALONE),
    _op("real", np.real, _ALONE),
    OpDef("bitcast_convert_type", _bitcast, "elementwise", no_flops, meaning=numeric.bitcast),
    OpDef(
        "convert_element_type",
        pointwise,
        "elementwise",
        no_flops,
        linear=_linear_convert,
        meaning=numeric.convert,
    ),
    OpDef("reduce_precision", pointwise, "elementwise", meaning=numeric.reduce_precision),
)


def _same(name: str) -> OpDef:
    return OpDef(
        name,
        separately,
        "elementwise",
        no_flops,
        linear=_linear_if_one,
        meaning=_plain(_identity),
    )


_IDENTITY = tuple(
    _same(name)
    for name in (
        *("copy", "device_put", "name", "optimization_barrier", "reshard"),
        *("sharding_constraint", "stop_gradient"),
    )
)


def _host_copy(name: str) -> OpDef:
    """A copy of a whole buffer, which no loop around it takes in."""
    return OpDef(name, pointwise, "host-copy", no_flops, meaning=_plain(_identity))


RECORDS = (
    *_ARITHMETIC,
    *_FUNCTIONS,
    *_LOGIC,
    *_SELECTION,
    *_CONVERSION,
    *_IDENTITY,
    *map(_host_copy, HOST_COPIES),
    OpDef("threefry2x32", pointwise, "elementwise", _random_flops),
)

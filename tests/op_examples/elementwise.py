# pyright: basic
"""Example calls of elementwise ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from ..helpers_internals import has_primitive, primitive, threefry_2x32
from .example import (
    COMPLEX,
    INTS,
    MORE_INTS,
    PREDICATE,
    Example,
    X,
    Y,
    positive,
    unit,
    whole,
)


def _unary() -> list[Example]:
    real = (
        *("abs", "asinh", "atan", "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "cos", "cosh"),
        *("erf", "erfc", "exp", "exp2", "expm1", "floor", "is_finite", "logistic", "neg"),
        *("sign", "sin", "sinh", "square", "tan", "tanh"),
    )
    found = [Example(name, getattr(lax, name), (X,)) for name in real]
    found += [Example(n, getattr(lax, n), (unit(4, 6),)) for n in ("acos", "asin", "atanh")]
    found += [
        Example(name, getattr(lax, name), (positive(4, 6),))
        for name in ("digamma", "lgamma", "log", "log1p", "rsqrt", "sqrt")
    ]
    found += [
        Example("acosh", lax.acosh, (positive(4, 6) + 1,)),
        Example("clz", lax.clz, (INTS,)),
        Example("conj", lax.conj, (COMPLEX,)),
        Example("digamma", lax.digamma, (X,), "negative"),
        Example("erf_inv", lax.erf_inv, (unit(4, 6),)),
        Example("imag", lax.imag, (COMPLEX,)),
        Example("integer_pow", lambda x: lax.integer_pow(x, 3), (X,)),
        Example("integer_pow", lambda x: lax.integer_pow(x, -2), (positive(4, 6),), "negative"),
        Example("not", lax.bitwise_not, (INTS,)),
        Example("not", lax.bitwise_not, (PREDICATE,), "bool"),
        Example("population_count", lax.population_count, (INTS,)),
        Example("real", lax.real, (COMPLEX,)),
        Example("reduce_precision", lambda x: lax.reduce_precision(x, 8, 7), (X,)),
        Example("reduce_precision", lambda x: lax.reduce_precision(x, 5, 10), (X,), "half"),
        Example("round", lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), (X * 4,)),
        Example("round", lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), (X * 4,), "up"),
        Example("neg", lax.neg, (X[:, :1],), "unit"),
    ]
    return found


def _newer() -> list[Example]:
    """Ops that some versions of JAX lack."""
    found = [
        Example("log2", lambda x: _bind("log2")(x, accuracy=None), (positive(4, 6),)),
        Example("one_minus_square", _bind("one_minus_square"), (X,)),
        Example("polynomial", _bind("polynomial"), (X, Y, X, np.float32(2))),
    ]
    return [example for example in found if has_primitive(example.op)]


def _binary() -> list[Example]:
    both = {"add": lax.add, "div": lax.div, "max": lax.max, "min": lax.min, "mul": lax.mul}
    both |= {"rem": lax.rem, "sub": lax.sub}
    found = [Example(name, fn, (X, Y)) for name, fn in both.items()]
    divisor = np.where(MORE_INTS == 0, 3, MORE_INTS)
    found += [Example(name, fn, (INTS, divisor), "int") for name, fn in both.items()]
    found += [Example(name, fn, (X, np.float32(2)), "scalar") for name, fn in both.items()]
    compared = {"eq": lax.eq, "ge": lax.ge, "gt": lax.gt, "le": lax.le, "lt": lax.lt, "ne": lax.ne}
    found += [Example(name, fn, (INTS, INTS.T.reshape(4, 6))) for name, fn in compared.items()]
    totals = np.array([[0.0, -0.0, np.nan, np.inf], [-np.inf, 1, -1, -np.nan]], np.float32)
    found += [
        Example(name, _bind(name), (totals, totals[::-1].copy()))
        for name in ("eq_to", "le_to", "lt_to")
    ]
    logic = {"and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor}
    found += [Example(name, fn, (INTS, MORE_INTS)) for name, fn in logic.items()]
    shifts = ("shift_left", "shift_right_arithmetic", "shift_right_logical")
    amounts = np.abs(MORE_INTS) % 40
    found += [Example(name, getattr(lax, name), (INTS, amounts)) for name in shifts]
    found += [
        Example("add_any", jax.grad(lambda x: jnp.sum(jnp.sin(x) * jnp.cos(x))), (X,)),
        Example("atan2", lax.atan2, (X, Y)),
        Example("complex", lax.complex, (X, Y)),
        Example("igamma", lax.igamma, (positive(4, 6), positive(4, 6, seed=1))),
        Example("igamma_grad_a", lax.igamma_grad_a, (positive(4, 6), positive(4, 6, seed=1))),
        Example("igammac", lax.igammac, (positive(4, 6), positive(4, 6, seed=1))),
        Example("mulhi", lax.mulhi, (INTS * 10**7, MORE_INTS * 10**7)),
        Example("nextafter", lax.nextafter, (X, Y)),
        Example("polygamma", lax.polygamma, (np.ones((4, 6), np.float32), positive(4, 6))),
        Example("pow", lax.pow, (positive(4, 6), Y)),
        Example("pow", lax.pow, (X, np.int32(3)), "int"),
        Example("zeta", lax.zeta, (positive(4, 6) + 1, positive(4, 6, seed=1))),
    ]
    return found


def _bind(name: str) -> Callable[..., Any]:
    """A call of a primitive that has no public function."""
    return lambda *args, **params: primitive(name).bind(*args, **params)


def _other_elementwise() -> list[Example]:
    thirds = np.abs(INTS) % 3
    beta = (positive(4, 6), positive(4, 6, seed=1), np.abs(unit(4, 6)))
    words = np.arange(12, dtype=np.uint32)
    on_one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    explicit = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    on_one_axis = jax.sharding.NamedSharding(explicit, jax.sharding.PartitionSpec("rows"))
    return [
        Example("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.int32), (X,)),
        Example(
            "bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.uint8), (X,), "parts"
        ),
        Example(
            "bitcast_convert_type",
            lambda x: lax.bitcast_convert_type(x, jnp.int32),
            (whole(4, 6, 4).astype(np.uint8),),
            "join",
        ),
        Example("clamp", lax.clamp, (np.float32(-0.5), X, np.float32(0.5))),
        Example("clamp", lax.clamp, (-np.abs(Y), X, np.abs(Y)), "arrays"),
        Example("convert_element_type", lambda x: x.astype(jnp.bfloat16), (X,)),
        Example("convert_element_type", lambda x: x.astype(jnp.int8), (X * 100,), "int"),
        Example("convert_element_type", lambda x: x.astype(jnp.float32), (PREDICATE,), "bool"),
        Example("convert_element_type", lambda x: x.astype(jnp.int8), (INTS * 10,), "narrow"),
        Example("copy", jnp.copy, (X,)),
        Example("device_put", jax.device_put, (X,)),
        Example("name", lambda x: checkpoint_name(x, "kept"), (X,)),
        Example("optimization_barrier", lambda x, y: lax.optimization_barrier((x, y)), (X, Y.T)),
        Example("optimization_barrier", lax.optimization_barrier, (X,), "one"),
        Example("regularized_incomplete_beta", lax.betainc, beta),
        Example("reshard", lambda x: jax.sharding.reshard(x, on_one_axis), (X,)),
        Example("select_n", lax.select, (PREDICATE, X, Y)),
        Example("select_n", lambda p, x, y: lax.select_n(p[0, 0], x, y), (PREDICATE, X, Y), "0d"),
        Example("select_n", lax.select_n, (thirds, X, Y, X * Y), "three"),
        Example("sharding_constraint", lambda x: lax.with_sharding_constraint(x, on_one), (X,)),
        Example("stop_gradient", lax.stop_gradient, (X,)),
        Example("threefry2x32", lambda k, x: threefry_2x32(k, x), (words[:2], words)),
    ]


def elementwise() -> list[Example]:
    return [*_unary(), *_newer(), *_binary(), *_other_elementwise()]

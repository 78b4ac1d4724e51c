# pyright: basic
"""Steps that work on each element by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from tests.helpers_internals import has_primitive, primitive, threefry_2x32

from ..program import Drawn, Kind, Type, dtype_of, one_nan
from ..sorts import COMPLEX, WIDE

# Where a function has values that are finite and not large; None: everywhere.
FLOAT: dict[str, tuple[float, float] | None] = {
    "abs": None, "acos": (-0.9, 0.9), "acosh": (1.1, 50), "asin": (-0.9, 0.9), "asinh": None,
    "atan": None, "atanh": (-0.9, 0.9), "bessel_i0e": None, "bessel_i1e": None, "cbrt": None,
    "ceil": None, "cos": (-9, 9), "cosh": (-4, 4), "digamma": (0.2, 9), "erf": None, "erfc": None,
    "erf_inv": (-0.9, 0.9), "exp": (-4, 4), "exp2": (-4, 4), "expm1": (-4, 4), "floor": None,
    "is_finite": None, "lgamma": (0.2, 9), "log": (0.1, 90), "log1p": (-0.5, 90), "logistic": None,
    "neg": None, "round": None, "rsqrt": (0.1, 90), "sign": None, "sin": (-9, 9), "sinh": (-4, 4),
    "sqrt": (0, 90), "square": None, "tan": (-1.2, 1.2), "tanh": None,
}  # fmt: skip
LOGIC = {"clz": "int", "not": "logic", "population_count": "int"}
CALLS = {"not": "bitwise_not"}
TWO = {"add": "number", "atan2": "float", "div": "number", "max": "plain", "min": "plain",
       "mul": "number", "nextafter": "f32", "rem": "real", "sub": "number",
       "and": "logic", "or": "logic", "xor": "logic", "shift_left": "int",
       "shift_right_arithmetic": "int", "shift_right_logical": "int", "mulhi": "int"}  # fmt: skip
WEIGHTS = {"add": 4.0, "mul": 4.0, "sub": 3.0, "max": 2.0, "div": 2.0}
COMPARE = ("eq", "ge", "gt", "le", "lt", "ne")
TOTAL = tuple(name for name in ("eq_to", "le_to", "lt_to") if has_primitive(name))
GAMMAS = ("igamma", "igamma_grad_a", "igammac", "zeta", "polygamma")


def _domain(attrs: dict[str, Any], x: Any) -> Any:
    if "within" not in attrs:
        return x
    low, high = (np.asarray(v, x.dtype) for v in attrs["within"])
    return lax.clamp(low, x, high)


def _unary(name: str, limits: tuple[float, float] | None) -> Kind:
    def draw(d: Any) -> Drawn | None:
        x = d.value("f32" if name[:6] == "bessel" else "float")
        inside = limits is not None and d.rng.random() < 0.85
        return None if x is None else Drawn((x,), {"within": limits} if inside else {})

    def run(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
        return getattr(lax, name)(_domain(attrs, given[0]))

    return Kind(name, draw, run, 0.35)


def _of(sort: str) -> Callable[[Any], Drawn | None]:
    def draw(d: Any) -> Drawn | None:
        x = d.value(sort)
        return None if x is None else Drawn((x,))

    return draw


def _pair(d: Any, sort: str) -> tuple[int, int] | None:
    """Two values of one type, or one and a scalar argument of its type."""
    x = d.value(sort)
    if x is None:
        return None
    type_: Type = d.types[x]
    y = d.typed(type_.shape, type_.dtype)
    return None if y is None else ((x, y) if d.rng.random() < 0.5 else (y, x))


def _binary(name: str, sort: str) -> Kind:
    called = getattr(lax, {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}.get(
        name, name
    ))  # fmt: skip

    def draw(d: Any) -> Drawn | None:
        pair = _pair(d, sort)
        if pair is None:
            return None
        attrs: dict[str, Any] = {}
        if d.rng.random() < 0.2 and d.types[pair[0]].dtype in ("float32", "int32"):
            return Drawn(pair[:1], {"scalar": d.rng.choice((0, 1, 2, 3, -1, 8)), "turn": False})
        if name in ("div", "rem") and d.rng.random() < 0.8:
            attrs["away"] = True
        return Drawn(pair, attrs)

    def run(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
        x = given[0]
        y = jnp.asarray(attrs["scalar"], x.dtype) if "scalar" in attrs else given[1]
        if attrs.get("away"):
            y = jnp.where(jnp.abs(y) < 1, jnp.ones_like(y), y)
        return called(x, jnp.broadcast_to(y, x.shape))

    return Kind(name, draw, run, WEIGHTS.get(name, 0.5))


def _comparison(name: str) -> Kind:
    called: Callable[..., Any] = primitive(name).bind if name in TOTAL else getattr(lax, name)

    def draw(d: Any) -> Drawn | None:
        pair = _pair(d, "float" if name in TOTAL else "plain")
        return None if pair is None else Drawn(pair)

    return Kind(name, draw, lambda attrs, bodies, given: called(*map(one_nan, given)), 0.4)


def _positive(x: Any) -> Any:
    return jnp.minimum(jnp.abs(x), 8) + 0.5


def _gamma(name: str) -> Kind:
    def draw(d: Any) -> Drawn | None:
        pair = _pair(d, "float32")
        return None if pair is None else Drawn(pair)

    def run(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
        x, y = map(_positive, given)
        if name == "polygamma":
            return lax.polygamma(jnp.ones_like(x), y)
        return getattr(lax, name)(x + 1 if name == "zeta" else x, y)

    return Kind(name, draw, run, 0.1)


def _draw_cast(d: Any) -> Drawn | None:
    x = d.value("data")
    to = d.dtype("data") if d.rng.random() < 0.6 else d.dtype("float")
    if x is None or (d.types[x].dtype in COMPLEX and to not in COMPLEX):
        return None
    return Drawn((x,), {"dtype": to})


def _cast(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return lax.convert_element_type(given[0], dtype_of(attrs["dtype"]))


BITS = {8: ("int8", "uint8", "float8_e5m2"), 16: ("int16", "uint16", "float16", "bfloat16"),
        32: ("int32", "uint32", "float32"), 64: ("int64", "uint64", "float64")}  # fmt: skip


def _draw_bitcast(d: Any) -> Drawn | None:
    x = d.value("real")
    if x is None:
        return None
    type_: Type = d.types[x]
    width = np.dtype(dtype_of(type_.dtype)).itemsize * 8
    choices = [w for w in BITS if w <= width or type_.shape[-1:] == (w // width,)]
    names = [n for n in BITS[d.rng.choice(choices)] if d.wide or n not in WIDE]
    return Drawn((x,), {"dtype": d.rng.choice(names)}) if names else None


def _bitcast(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    found = lax.bitcast_convert_type(one_nan(given[0]), dtype_of(attrs["dtype"]))
    if jnp.issubdtype(found.dtype, jnp.floating):
        return jnp.where(jnp.isnan(found), jnp.zeros_like(found), found)
    return found


def _draw_pow(d: Any) -> Drawn | None:
    x = d.value("float")
    return None if x is None else Drawn((x,), {"y": d.rng.choice((-2, -1, 0, 1, 2, 3, 4))})


def _integer_pow(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    (x,) = given
    return lax.integer_pow(_positive(x) if attrs["y"] < 0 else x, attrs["y"])


def _draw_precision(d: Any) -> Drawn | None:
    x = d.value("f32")
    bits = d.rng.choice(((8, 7), (5, 10), (8, 23), (4, 3)))
    return None if x is None else Drawn((x,), {"bits": bits})


def _draw_select(d: Any) -> Drawn | None:
    pair = _pair(d, "data")
    if pair is None:
        return None
    shape = d.types[pair[0]].shape
    which = d.typed(shape if d.rng.random() < 0.8 else (), "bool")
    return None if which is None else Drawn((which, *pair))


def _draw_select_three(d: Any) -> Drawn | None:
    pair = _pair(d, "real")
    which = None if pair is None else d.typed(d.types[pair[0]].shape, "int32")
    return Drawn((which, *pair, pair[0])) if pair and which is not None else None


def _select_three(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return lax.select_n(jnp.abs(given[0]) % 3, *given[1:])


def _draw_clamp(d: Any) -> Drawn | None:
    x = d.value("real")
    if x is None:
        return None
    shape = d.types[x].shape if d.rng.random() < 0.6 else ()
    low, high = (d.typed(shape, d.types[x].dtype) for _ in range(2))
    return None if low is None or high is None else Drawn((low, x, high))


def _draw_barrier(d: Any) -> Drawn | None:
    some = [d.value("movable") for _ in range(d.rng.randint(1, 3))]
    return None if None in some else Drawn(some)


def _draw_threefry(d: Any) -> Drawn | None:
    key, x = d.typed((2,), "uint32"), d.value("uint32", least=1)
    return None if key is None or x is None else Drawn((key, x))


def _pow(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    x, y = given
    return lax.pow(_positive(x), jnp.clip(y, -2, 2))


def _two_floats(d: Any) -> Drawn | None:
    pair = _pair(d, "float")
    return None if pair is None else Drawn(pair)


def _two_f32(d: Any) -> Drawn | None:
    pair = _pair(d, "float32")
    return None if pair is None else Drawn(pair)


def _beta(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    x, y = given
    return lax.betainc(_positive(x), _positive(y), jnp.clip(jnp.abs(x) / 8, 0.1, 0.9))


def _first(call: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda attrs, bodies, given: call(given[0])


KINDS = (
    *(_unary(name, limits) for name, limits in FLOAT.items()),
    *(Kind(n, _of(s), _first(getattr(lax, CALLS.get(n, n))), 0.4) for n, s in LOGIC.items()),
    *(_binary(name, sort) for name, sort in TWO.items()),
    *(_comparison(name) for name in (*COMPARE, *TOTAL)),
    *(_gamma(name) for name in GAMMAS),
    Kind("beta", _two_f32, _beta, 0.1),
    Kind("barrier", _draw_barrier, lambda a, b, x: lax.optimization_barrier(tuple(x)), 0.6),
    Kind("bitcast", _draw_bitcast, _bitcast, 0.8),
    Kind("cast", _draw_cast, _cast, 6),
    Kind("clamp", _draw_clamp, lambda a, b, x: lax.clamp(*x), 0.6),
    Kind("complex", _two_f32, lambda a, b, x: lax.complex(*x), 0.4),
    Kind("conj", _of("complex"), _first(lax.conj), 0.3),
    Kind("copy", _of("movable"), _first(jnp.copy), 0.3),
    Kind("device_put", _of("data"), _first(jax.device_put), 0.2),
    Kind("imag", _of("complex"), _first(lax.imag), 0.4),
    Kind("integer_pow", _draw_pow, _integer_pow, 0.6),
    Kind("name", _of("data"), _first(lambda x: checkpoint_name(x, "kept")), 0.3),
    Kind("pow", _two_floats, _pow, 0.4),
    Kind("real", _of("complex"), _first(lax.real), 0.4),
    Kind("reduce_precision", _draw_precision,
         lambda a, b, x: lax.reduce_precision(x[0], *a["bits"]), 0.4),
    Kind("select", _draw_select, lambda a, b, x: lax.select_n(*x), 1.5),
    Kind("select_three", _draw_select_three, _select_three, 0.3),
    Kind("stop_gradient", _of("number"), _first(lax.stop_gradient), 0.3),
    Kind("threefry", _draw_threefry, lambda a, b, x: threefry_2x32(*x), 0.2),
)  # fmt: skip

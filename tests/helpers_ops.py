# pyright: basic
"""Small calls that together trace to every op that has a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback

from .helpers_internals import has_primitive, primitive, threefry_2x32

Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class Example:
    """A call whose trace contains the op `op`; `note` tells it from others of the same op."""

    op: str
    fn: Callable[..., Any]
    args: Arrays
    note: str = ""

    @property
    def label(self) -> str:
        return f"{self.op}:{self.note}" if self.note else self.op


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return np.abs(normal(*shape, seed=seed)) + np.float32(0.1)


def unit(*shape: int, seed: int = 0) -> np.ndarray:
    """Values inside (-1, 1)."""
    rng = np.random.default_rng([seed, *shape])
    return rng.uniform(-0.9, 0.9, size=shape).astype(np.float32)


def whole(*shape: int, high: int = 50, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(-high, high, shape).astype(np.int32)


def flags(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(0, 2, shape).astype(bool)


def indices(*shape: int, high: int, seed: int = 0) -> np.ndarray:
    """Start indices, one in eight out of range on either side."""
    rng = np.random.default_rng([seed, *shape])
    return rng.integers(-max(1, high // 8), high + max(1, high // 8), shape).astype(np.int32)


def batch_spd(*shape: int) -> np.ndarray:
    """Symmetric positive definite matrices."""
    x = normal(*shape)
    return x @ np.swapaxes(x, -1, -2) + 4 * np.eye(shape[-1], dtype=np.float32)


X = normal(4, 6)
Y = normal(4, 6, seed=1)
INTS, MORE_INTS = whole(4, 6), whole(4, 6, seed=1)
COMPLEX = (X + 1j * Y).astype(np.complex64)
PREDICATE = flags(4, 6)


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


def _products() -> list[Example]:
    def dot(dims: Any, **options: Any) -> Callable[..., Any]:
        return lambda x, y: lax.dot_general(x, y, dims, **options)

    ragged = (normal(6, 4), normal(2, 4, 8), np.array([2, 3], np.int32))
    by_rows = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    return [
        Example("dot_general", jnp.matmul, (normal(4, 6), normal(6, 2))),
        Example("dot_general", jnp.matmul, (whole(4, 6), whole(6, 2)), "int"),
        Example(
            "dot_general",
            dot((((3, 1), (0, 2)), ((0,), (3,)))),
            (normal(2, 4, 6, 8), normal(8, 10, 4, 2)),
            "two contracted",
        ),
        Example("dot_general", dot((((), ()), ((), ()))), (normal(4), normal(6)), "outer"),
        Example("dot_general", dot((((0,), (0,)), ((), ()))), (normal(4), normal(4)), "inner"),
        Example(
            "dot_general",
            dot((((1,), (1,)), ((), ())), preferred_element_type=jnp.float32),
            (normal(4, 8).astype(jnp.bfloat16), normal(6, 8).astype(jnp.bfloat16)),
            "preferred",
        ),
        Example("ragged_dot_general", lax.ragged_dot, ragged),
        Example(
            "ragged_dot_general",
            lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, by_rows),
            (normal(6, 4), normal(6, 8), np.array([2, 4], np.int32)),
            "ragged contraction",
        ),
    ]


def _reductions() -> list[Example]:
    def over(name: str, *axes: int) -> Callable[..., Any]:
        return lambda x: getattr(lax, f"reduce_{name}")(x, axes=axes)

    def along(name: str) -> Callable[..., Any]:
        return lambda x: getattr(lax, name)(x, axis=1)

    found = [
        Example(f"reduce_{name}", over(name, 0, 2), (normal(4, 6, 8),))
        for name in ("max", "min", "prod", "sum")
    ]
    found += [Example(f"reduce_{name}", over(name, 1), (PREDICATE,)) for name in ("and", "or")]
    found += [
        Example(name, along(name), (positive(4, 6),))
        for name in ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")
    ]
    average = lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b + a * b, (0,))  # noqa: E731
    return [
        *found,
        Example("approx_top_k", lambda x: lax.approx_max_k(x, 2), (normal(4, 8),)),
        Example("argmax", lambda x: lax.argmax(x, 1, jnp.int32), (X,)),
        Example("argmin", lambda x: lax.argmin(x, 0, jnp.int32), (X,)),
        Example("cumsum", lambda x: lax.cumsum(x, 0, reverse=True), (X,), "reverse"),
        Example("reduce", average, (X,)),
        Example("reduce_max", lambda x: lax.reduce_max(x, axes=(1,)), (INTS,), "int"),
        Example("reduce_sum", lambda x: lax.reduce_sum(x, axes=(0, 1)), (INTS,), "int"),
        Example("reduce_xor", lambda x: lax.reduce_xor(x, axes=(1,)), (INTS,)),
        Example("sort", lambda x: lax.sort(x, dimension=0), (X,)),
        Example("sort", lambda x, y: lax.sort((x % 3, y), num_keys=1), (INTS, Y), "keys"),
        Example("top_k", lambda x: lax.top_k(x, 2), (X,)),
    ]


def _windows() -> list[Example]:
    def window(fill: float, fn: Any, **options: Any) -> Callable[..., Any]:
        return lambda x: lax.reduce_window(
            x, np.float32(fill), fn, (1, 3, 1), (1, 2, 1), "SAME", **options
        )

    x = normal(4, 7, 6)
    largest = window(-np.inf, lax.max)
    return [
        Example("reduce_window", window(0, lambda a, b: a + b + a * b), (x,)),
        Example("reduce_window_max", largest, (x,)),
        Example("reduce_window_min", window(np.inf, lax.min), (x,)),
        Example("reduce_window_sum", window(0, lax.add), (x,)),
        Example(
            "reduce_window_sum", window(0, lax.add, window_dilation=(1, 2, 1)), (x,), "dilated"
        ),
        Example("select_and_gather_add", lambda x, t: jax.jvp(largest, (x,), (t,))[1], (x, x)),
        Example("select_and_scatter_add", jax.grad(lambda x: jnp.sum(largest(x) ** 2)), (x,)),
    ]


def _linalg() -> list[Example]:
    spd = batch_spd(2, 4, 4)
    lower, right = np.tril(spd), normal(2, 4, 6)
    linalg = lax.linalg

    def solve(**options: Any) -> Callable[..., Any]:
        return lambda a, b: linalg.triangular_solve(a, b, **options)

    found = [
        Example("fft", lambda x, f=f: f(x), (x,), f.__name__)
        for f, x in (
            (jnp.fft.fft, normal(4, 8)),
            (jnp.fft.rfft, normal(4, 8)),
            (jnp.fft.irfft, (normal(4, 5) + 1j * normal(4, 5, seed=1)).astype(np.complex64)),
            (jnp.fft.ifft2, normal(2, 4, 6).astype(np.complex64)),
        )
    ]
    diagonals = (normal(2, 4), positive(2, 4) + 4, normal(2, 4, seed=1))
    return [
        *found,
        Example("cholesky", lambda x: linalg.cholesky(x, symmetrize_input=False), (spd,)),
        Example("eig", lambda x: linalg.eig(x)[0], (spd,)),
        Example("eigh", lambda x: linalg.eigh(x, symmetrize_input=False), (spd,)),
        Example(
            "householder_product", linalg.householder_product, (right[:, :, :4], right[:, 0, :4])
        ),
        Example("lu", linalg.lu, (spd,)),
        Example(
            "lu_pivots_to_permutation",
            lambda p: linalg.lu_pivots_to_permutation(p, 6),
            (np.array([[1, 2, 3], [4, 2, 5]], np.int32),),
        ),
        Example("qr", lambda x: linalg.qr(x, full_matrices=False), (right,)),
        Example("svd", lambda x: linalg.svd(x, full_matrices=False), (right,)),
        Example("triangular_solve", solve(left_side=True, lower=True), (lower, right)),
        Example(
            "triangular_solve",
            solve(lower=True, transpose_a=True),
            (lower, np.swapaxes(right, 1, 2).copy()),
            "right",
        ),
        Example("tridiagonal_solve", linalg.tridiagonal_solve, (*diagonals, normal(2, 4, 6))),
    ]


def _random() -> list[Example]:
    key = jax.random.key(0)
    many = jax.random.split(key, 4)
    drawn = jax.vmap(lambda k: jax.random.bits(k, (6, 8)))
    return [
        Example("random_bits", lambda k: jax.random.bits(k, (4, 6)), (key,)),
        Example("random_bits", drawn, (many,), "keys"),
        Example("random_clone", jax.random.clone, (many,)),
        Example("random_fold_in", jax.vmap(jax.random.fold_in), (many, np.arange(4))),
        Example(
            "random_fold_in", jax.vmap(jax.random.fold_in, (None, 0)), (key, np.arange(4)), "n"
        ),
        Example("random_fold_in", jax.vmap(lambda k: jax.random.fold_in(k, 3)), (many,), "keys"),
        Example("random_gamma", lambda k, x: jax.random.gamma(k, x), (key, positive(4))),
        Example("random_seed", jax.vmap(jax.random.key), (np.arange(4, dtype=np.int32),)),
        Example("random_split", jax.vmap(lambda k: jax.random.split(k, 2)), (many,)),
        Example("random_unwrap", jax.random.key_data, (many,)),
        Example("random_wrap", jax.random.wrap_key_data, (jax.random.key_data(many),)),
        Example(
            "rng_bit_generator",
            lambda k: lax.rng_bit_generator(k, (4, 6)),
            (np.arange(4, dtype=np.uint32),),
        ),
        Example("rng_uniform", lambda: lax.rng_uniform(np.float32(0), np.float32(1), (4, 6)), ()),
    ]


def _control() -> list[Example]:
    def count(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))

    table = np.arange(24, dtype=np.float32).reshape(4, 6)
    captured = lambda x: jax.jit(lambda y: y + table)(x)  # noqa: E731
    by_platform = lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)  # noqa: E731
    same = jax.ShapeDtypeStruct((4, 6), np.float32)
    debugged = lambda x: (jax.debug.callback(lambda _: None, x), x)[1]  # noqa: E731
    printed = lambda x: (jax.debug.print("{}", x.sum()), x)[1]  # noqa: E731
    called = lambda x: io_callback(np.sin, same, x)  # noqa: E731
    return [
        Example("cond", lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), (X,)),
        Example("constant", captured, (X,)),
        Example("debug_callback", debugged, (X,)),
        Example("debug_print", printed, (X,)),
        Example("io_callback", called, (X,)),
        Example("custom_linear_solve", jnp.linalg.solve, (batch_spd(4, 4), normal(4, 2))),
        Example("platform_index", by_platform, (X,)),
        Example("pure_callback", lambda x: jax.pure_callback(np.sin, same, x), (X,)),
        Example("remat", lambda x: jax.checkpoint(jnp.sin)(x), (X,)),
        Example("scan", lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x), (X,)),
        Example("while", count, (X,)),
    ]


def computing() -> list[Example]:
    """Examples of all ops that are not in `helpers_layouts`."""
    return [
        *_unary(),
        *_newer(),
        *_binary(),
        *_other_elementwise(),
        *_products(),
        *_reductions(),
        *_windows(),
        *_linalg(),
        *_random(),
        *_control(),
    ]

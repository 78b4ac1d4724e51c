# pyright: basic
"""Steps on random keys: drawing, splitting, folding in, and the words behind them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..program import Drawn, Kind, Type

BITS = {"uint8": 8, "uint16": 16, "uint32": 32}


def _key(d: Any, rank: int | None = None) -> int | None:
    shape = d.shape(d.rng.choice((0, 0, 1)) if rank is None else rank)
    kind = d.rng.choice(("key<fry>",) * 12 + ("key<rbg>", "key<urbg>"))

    def fits(t: Type) -> bool:
        return t.dtype.startswith("key") and (rank is None or t.rank == rank)

    return d.find(fits, lambda: Type(shape if rank is None else shape[:rank], kind))


def _draw_bits(d: Any) -> Drawn | None:
    key = _key(d)
    if key is None or d.types[key].size > 12:
        return None
    return Drawn((key,), {"shape": d.shape(), "dtype": d.rng.choice(sorted(BITS))})


def _bits(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    (keys,) = given
    draw = lambda key: jax.random.bits(key, tuple(attrs["shape"]), attrs["dtype"])  # noqa: E731
    for _ in range(keys.ndim):
        draw = jax.vmap(draw)
    return draw(keys)


def _draw_sample(d: Any) -> Drawn | None:
    key = _key(d, 0)
    how = d.rng.choice(("uniform", "bernoulli", "normal", "randint", "gumbel", "permutation"))
    return None if key is None else Drawn((key,), {"shape": d.shape(), "how": how})


def _sample(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    (key,), shape, how = given, tuple(attrs["shape"]), attrs["how"]
    if how == "bernoulli":
        return jax.random.bernoulli(key, 0.4, shape)
    if how == "randint":
        return jax.random.randint(key, shape, -5, 9)
    if how == "permutation":
        return jax.random.permutation(key, shape[0] if shape else 3)
    return getattr(jax.random, how)(key, shape)


def _draw_gamma(d: Any) -> Drawn | None:
    key, x = _key(d, 0), d.value("float32")
    return None if key is None or x is None else Drawn((key, x))


def _gamma(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    key, x = given
    return jax.random.gamma(key, jnp.clip(jnp.abs(x), 0.5, 4))


def _draw_dropout(d: Any) -> Drawn | None:
    key, x = _key(d, 0), d.value("float")
    return None if key is None or x is None else Drawn((key, x))


def _dropout(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    key, x = given
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * 2, jnp.zeros_like(x))


def _draw_split(d: Any) -> Drawn | None:
    key = _key(d, 0)
    return None if key is None else Drawn((key,), {"n": d.rng.choice((1, 2, 3, *d.ways))})


def _draw_fold(d: Any) -> Drawn | None:
    key, x = _key(d, 0), d.typed((), "int32")
    return None if key is None or x is None else Drawn((key, x))


def _draw_folds(d: Any) -> Drawn | None:
    key, x = _key(d, 0), d.value("int32", rank=1)
    return None if key is None or x is None else Drawn((key, x))


def _folds(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    key, x = given
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(x)


def _draw_key(d: Any) -> Drawn | None:
    key = _key(d)
    return None if key is None else Drawn((key,))


def _draw_seed(d: Any) -> Drawn | None:
    x = d.typed((), "int32") if d.rng.random() < 0.6 else d.value("int32", rank=1)
    return None if x is None else Drawn((x,))


def _seed(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    (x,) = given
    return jax.vmap(jax.random.key)(x) if x.ndim else jax.random.key(x)


def _draw_wrap(d: Any) -> Drawn | None:
    x = d.find(
        lambda t: t.dtype == "uint32" and t.shape[-1:] == (2,),
        lambda: Type((*d.shape(d.rng.choice((0, 1))), 2), "uint32"),
    )
    return None if x is None else Drawn((x,))


def _draw_generator(d: Any) -> Drawn | None:
    x = d.typed((4,), "uint32")
    return None if x is None else Drawn((x,), {"shape": d.shape()})


def _generator(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return lax.rng_bit_generator(given[0], tuple(attrs["shape"]))


KINDS = (
    Kind("clone", _draw_key, lambda a, b, x: jax.random.clone(x[0]), 0.15),
    Kind("dropout", _draw_dropout, _dropout, 0.8),
    Kind("fold_in", _draw_fold, lambda a, b, x: jax.random.fold_in(*x), 0.4),
    Kind("fold_in_many", _draw_folds, _folds, 0.3),
    Kind("generator", _draw_generator, _generator, 0.15),
    Kind("key_data", _draw_key, lambda a, b, x: jax.random.key_data(x[0]), 0.4),
    Kind("random_bits", _draw_bits, _bits, 1),
    Kind("random_gamma", _draw_gamma, _gamma, 0.1),
    Kind("sample", _draw_sample, _sample, 1),
    Kind("seed", _draw_seed, _seed, 0.3),
    Kind("split_key", _draw_split, lambda a, b, x: jax.random.split(x[0], a["n"]), 0.6),
    Kind("wrap_key", _draw_wrap, lambda a, b, x: jax.random.wrap_key_data(x[0]), 0.3),
)

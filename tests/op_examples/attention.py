# pyright: basic
"""Example calls of attention kernels: masks, biases, layouts, grouped heads."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tests.helpers_internals import attention

from .example import Example, normal

FORWARD, BACKWARD = "dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"


def _arrays(heads: int = 4, groups: int = 2, keys: int = 6) -> tuple[np.ndarray, ...]:
    """Query, key and value for a batch of 2 and 6 queries."""
    query, key = normal(2, 6, heads, 8), normal(2, keys, groups, 8, seed=1)
    return query, key, normal(2, keys, groups, 8, seed=2)


def _heads_first(arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return tuple(np.swapaxes(x, 1, 2) for x in arrays)


def _calls() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Notes, arrays and options; the fourth array is a bias, the next two are lengths."""
    lengths = np.array([4, 6], np.int32), np.array([5, 2], np.int32)
    return [
        ("full", _arrays(keys=8), {}),
        ("causal", _arrays(), {"mask": "CAUSAL"}),
        ("one-key-head", _arrays(groups=1), {"mask": "CAUSAL"}),
        ("ungrouped-heads-first", _heads_first(_arrays(groups=4)), {"heads_first": True}),
        ("window", _arrays(), {"mask": "CAUSAL", "window": 3}),
        ("bias", (*_arrays(keys=8), normal(2, 4, 6, 8)), {}),
        ("shared-bias", (*_arrays(), normal(1, 1, 6, 6)), {"mask": "CAUSAL"}),
        ("padded", (*_arrays(), None, *lengths), {"mask": "PADDING_CAUSAL"}),
    ]


def attentions() -> list[Example]:
    """The kernels forward, which also give residuals where they are differentiated."""
    found: list[Example] = []
    for note, arrays, options in _calls():
        given = [x for x in arrays if x is not None]
        where = [i for i, x in enumerate(arrays) if x is not None]

        def run(*xs: Any, where: Any = where, options: Any = options) -> Any:
            at = dict(zip(where, xs, strict=True))
            lengths = (at[4], at[5]) if 4 in at else None
            return attention(at[0], at[1], at[2], bias=at.get(3), lengths=lengths, **options)

        def derive(*xs: Any, run: Any = run) -> Any:
            *primals, seed = xs
            floats = [x for x in primals if x.dtype == np.float32]
            rest = primals[len(floats) :]
            return jax.vjp(lambda *f: run(*f, *rest), *floats)[1](seed)

        found.append(Example(FORWARD, run, tuple(given), note))
        seed = normal(*arrays[0].shape, seed=3)
        found.append(Example(BACKWARD, derive, (*given, seed), note))
        if note == "padded":  # in training the forward kernel has a second result
            found.append(Example(FORWARD, derive, (*given, seed), "in-training"))
    return found

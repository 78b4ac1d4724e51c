# pyright: basic
"""The parts of JAX that are private or not stable, for tests: nothing else imports such."""

from __future__ import annotations

import inspect
from typing import Any

import jax.numpy as jnp
from jax._src import array, dispatch
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.lax import lax
from jax.extend.core import Literal as Literal
from jax.extend.core import Primitive as Primitive
from jax.extend.core import jaxprs_in_params as jaxprs_in_params
from jax.extend.random import threefry_2x32 as threefry_2x32

ArrayImpl = array.ArrayImpl


def forget_effects() -> None:
    """Drops effects that failed, whose error would else be raised wherever JAX next waits."""
    dispatch.runtime_tokens.clear()


def has_primitive(name: str) -> bool:
    """Whether this version of JAX has a primitive of `lax`."""
    return hasattr(lax, f"{name}_p")


def primitive(name: str) -> Any:
    """A primitive of `lax` that no public function binds."""
    return getattr(lax, f"{name}_p")


def attention(
    query: Any, key: Any, value: Any, *, bias: Any = None, lengths: Any = None,
    mask: str = "NO_MASK", window: int | None = None, heads_first: bool = False,
    dropout: float = 0.0, offsets: Any = None,
) -> Any:  # fmt: skip
    """Attention by cuDNN's kernel on arrays of any float type, which the public function checks."""
    unused = jnp.zeros(0, query.dtype)
    of_queries, of_keys = (unused, unused) if lengths is None else lengths
    given = {
        "query": query, "key": key, "value": value, "bias": unused if bias is None else bias,
        "q_seqlen": of_queries, "kv_seqlen": of_keys,
        "q_offsets": unused if offsets is None else offsets,
        "kv_offsets": unused if offsets is None else offsets,
        "page_table_k": unused, "page_table_v": unused, "score_mod_args": (), "scale": 0.5,
        "seed": 42, "dropout_rate": dropout, "variadic_args": (bias is not None, bias is not None),
        "mask_type": cudnn.MaskType[mask], "layout": int(heads_first),
        "sliding_window_length": window, "score_mod": None, "cudnn_version": 91100,
        "return_residual": False,
    }  # fmt: skip
    function: Any = cudnn._dot_product_attention
    return function(*(given[name] for name in inspect.signature(function.fun).parameters))

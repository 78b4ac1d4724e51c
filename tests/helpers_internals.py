# pyright: basic
"""The parts of JAX that are private or not stable, for tests: nothing else imports such."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax._src import array
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.lax import lax
from jax.extend.core import Primitive as Primitive
from jax.extend.random import threefry_2x32 as threefry_2x32

ArrayImpl = array.ArrayImpl


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
    return cudnn._dot_product_attention(
        query, key, value, unused if bias is None else bias, of_queries, of_keys,
        *(unused if offsets is None else offsets for _ in range(2)), unused, unused, 0.5, 42,
        dropout, (bias is not None, bias is not None), cudnn.MaskType[mask], int(heads_first),
        window, 91100, False,
    )  # fmt: skip

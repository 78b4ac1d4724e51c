"""Attention and its gradient written out, with the scores in memory: what the kernels compute.

For one head, with scale c and the pairs (t, s) that the mask allows:

    z = c q k^T + bias,  lse = log(sum_s exp z),  p = exp(z - lse),  o = p v
    dv = p^T do,  dz = p * (do v^T - rowsum(do * o)),  dq = c dz k,  dk = c dz^T q,  dbias = dz

A query without any allowed pair gives 0. Everything is computed in float32.

Source: Dao, FlashAttention-2, arXiv:2307.08691, section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..graph import Attr
from .attention_order import to_zigzag

Array = Any
CAUSAL = ("CAUSAL", "PADDING_CAUSAL")
PADDED = ("PADDING", "PADDING_CAUSAL")
HEADS_FIRST = 1  # the layout [batch, heads, length, features], against [batch, length, heads, ...]


def forward(xp: Any, attrs: Mapping[str, Attr], operands: Sequence[Array]) -> tuple[Array, ...]:
    """The output, and in training the logarithm of the sum of exponentials of each query.

    Args:
        xp: NumPy, or JAX's NumPy.
        attrs: attributes of the kernel's node.
        operands: query, key, value, bias, lengths of queries and keys, and what packed and paged
            attention take.
    """
    query, key, value = (_by_length(xp, x, attrs) for x in operands[:3])
    scores, allowed = _scores(xp, attrs, query, key, operands)
    highest = xp.max(scores, axis=-1, keepdims=True)
    total = xp.sum(xp.where(allowed, xp.exp(scores - highest), 0.0), axis=-1, keepdims=True)
    seen = total > 0.0
    lse = xp.where(seen, highest + xp.log(xp.where(seen, total, 1.0)), 0.0)
    weights = xp.where(allowed, xp.exp(scores - lse), 0.0)
    out = xp.einsum("bgrts,bsgd->btgrd", weights, _wide(xp, value))
    batch, length, heads, _ = query.shape
    out = xp.reshape(out, (batch, length, heads, value.shape[-1]))
    out = _by_length(xp, out, attrs).astype(operands[0].dtype)
    if not attrs["is_training"]:
        return (out,)
    return out, xp.reshape(lse, (batch, heads, length))


def backward(xp: Any, attrs: Mapping[str, Attr], operands: Sequence[Array]) -> tuple[Array, ...]:
    """Gradients of query, key and value, and of the bias where it has one.

    Args:
        xp: NumPy, or JAX's NumPy.
        attrs: attributes of the kernel's node.
        operands: those of `forward`, its logarithms and its output, and the output's gradient.
    """
    query, key, value, out, d_out = (_by_length(xp, operands[i], attrs) for i in (0, 1, 2, 11, 12))
    batch, length, heads, _ = query.shape
    groups = key.shape[2]
    scores, allowed = _scores(xp, attrs, query, key, operands)
    lse = xp.reshape(operands[10], (batch, groups, heads // groups, length, 1))
    weights = xp.where(allowed, xp.exp(scores - lse), 0.0)
    grouped_d_out = _grouped(xp, d_out, groups)
    inner = xp.sum(grouped_d_out * _grouped(xp, out, groups), axis=-1)
    inner = xp.transpose(inner, (0, 2, 3, 1))[..., None]
    d_scores = xp.einsum("btgrd,bsgd->bgrts", grouped_d_out, _wide(xp, value))
    d_scores = weights * (d_scores - inner)
    scale = attrs["scale"]
    d_query = scale * xp.einsum("bgrts,bsgh->btgrh", d_scores, _wide(xp, key))
    d_key = scale * xp.einsum("bgrts,btgrh->bsgh", d_scores, _grouped(xp, query, groups))
    d_value = xp.einsum("bgrts,btgrd->bsgd", weights, grouped_d_out)
    found = (xp.reshape(d_query, query.shape), d_key, d_value)
    grads = [
        _by_length(xp, x, attrs).astype(operand.dtype)
        for x, operand in zip(found, operands[:3], strict=True)
    ]
    if has_bias_gradient(attrs):
        bias = operands[3]
        d_bias = xp.reshape(d_scores, (batch, heads, length, key.shape[1]))
        shared = tuple(i for i in (0, 1) if bias.shape[i] == 1)
        grads.append(xp.sum(d_bias, axis=shared, keepdims=True).astype(bias.dtype))
    return tuple(grads)


def has_bias(attrs: Mapping[str, Attr]) -> bool:
    """Whether something is added to the scores."""
    bias = attrs["variadic_args"]
    return isinstance(bias, tuple) and bool(bias[0])


def has_bias_gradient(attrs: Mapping[str, Attr]) -> bool:
    """Whether the backward kernel also gives the gradient of the bias."""
    bias = attrs["variadic_args"]
    return isinstance(bias, tuple) and bool(bias[1])


def _by_length(xp: Any, x: Array, attrs: Mapping[str, Attr]) -> Array:
    """From the kernel's layout to [batch, length, heads, features], or back."""
    return xp.transpose(x, (0, 2, 1, 3)) if attrs["layout"] == HEADS_FIRST else x


def _wide(xp: Any, x: Array) -> Array:
    return x.astype(xp.float32)


def _grouped(xp: Any, x: Array, groups: int) -> Array:
    """Query heads as [key head, query head of that key head], in float32."""
    batch, length, heads, size = x.shape
    return _wide(xp, xp.reshape(x, (batch, length, groups, heads // groups, size)))


def _scores(
    xp: Any, attrs: Mapping[str, Attr], query: Array, key: Array, operands: Sequence[Array]
) -> tuple[Array, Array]:
    """Scores [batch, key heads, query heads of each, queries, keys], and the pairs allowed."""
    batch, length, heads, _ = query.shape
    groups, keys = key.shape[2], key.shape[1]
    scores = attrs["scale"] * xp.einsum(
        "btgrh,bsgh->bgrts", _grouped(xp, query, groups), _wide(xp, key)
    )
    if has_bias(attrs):
        bias = xp.broadcast_to(_wide(xp, operands[3]), (batch, heads, length, keys))
        scores = scores + xp.reshape(bias, scores.shape)
    rows, columns = _places(xp, attrs, length)[:, None], _places(xp, attrs, keys)[None, :]
    allowed = xp.ones((1, length, keys), dtype=bool)
    if attrs["mask_type"] in CAUSAL:
        allowed = allowed & (columns <= rows)
    if window := attrs["sliding_window_length"]:
        allowed = allowed & (columns > rows - window)
    if attrs["mask_type"] in PADDED:
        of_queries, of_keys = (xp.reshape(operands[i], (batch, 1, 1)) for i in (4, 5))
        allowed = allowed & (rows < of_queries) & (columns < of_keys)
    allowed = allowed[:, None, None]
    return xp.where(allowed, scores, xp.finfo(xp.float32).min), allowed


def _places(xp: Any, attrs: Mapping[str, Attr], length: int) -> Array:
    """Positions of a sequence's elements, which may be in the order of zigzag."""
    parts = attrs.get("zigzag_parts", 0)
    places = xp.arange(length)
    return to_zigzag(xp, places, 0, parts) if isinstance(parts, int) and parts else places

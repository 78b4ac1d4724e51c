"""Attention kernels of cuDNN: batch, heads and, where the mask allows it, queries are factors.

Query heads are a compound of key heads and the query heads of each. The scores reach no memory:
operands and results are all that a kernel reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..errors import IRError
from ..factors import Dim, FactorSpec
from ..graph import Attr
from ..opdef import Attributes, OpDef, Types
from .attention_math import CAUSAL, HEADS_FIRST, PADDED, backward, forward, has_bias
from .build import as_whole, build_spec, opaque, whole_number

FORWARD: Final = "dot_product_attention_fwd_wrapper"
BACKWARD: Final = "dot_product_attention_bwd_wrapper"
ATTENTION: Final = (FORWARD, BACKWARD)

_OPERANDS: Final = 10  # of the forward kernel; the backward has three more
_PACKED, _PAGED = 6, 8  # positions of the offsets of segments, and of the tables of pages

DimNames = tuple[str | Dim, ...]


def is_written_out(operands: Types, attrs: Attributes) -> bool:
    """Whether the kernel's meaning is known: without dropout, packed segments or pages."""
    packed = operands[_PACKED].rank == 2 and operands[_PACKED].shape[1] > 2
    paged = operands[_PAGED].rank == 4
    plain = attrs["mask_type"] in ("NO_MASK", *CAUSAL, *PADDED)
    return plain and not packed and not paged and not attrs["dropout_rate"]


def _laid_out(attrs: Attributes, length: str, heads: str | Dim, features: str) -> DimNames:
    if attrs["layout"] == HEADS_FIRST:
        return ("b", heads, length, features)
    return ("b", length, heads, features)


def _heads(type_: Any, attrs: Attributes) -> int:
    return int(type_.shape[1 if attrs["layout"] == HEADS_FIRST else 2])


def _lengths(operands: Types, attrs: Attributes) -> tuple[int, int]:
    """Numbers of queries and of keys."""
    axis = 2 if attrs["layout"] == HEADS_FIRST else 1
    return operands[0].shape[axis], operands[1].shape[axis]


def _splits_queries(attrs: Attributes) -> bool:
    """Whether some queries alone give their part of the result: no mask counts from the first."""
    return attrs["mask_type"] == "NO_MASK" and not attrs["sliding_window_length"]


def _dims_of_operands(operands: Types, attrs: Attributes) -> list[DimNames]:
    query_heads: Dim = ("g", "r")
    of_query = _laid_out(attrs, "t", query_heads, "h")
    dims: list[DimNames] = [
        of_query, _laid_out(attrs, "s", "g", "h"), _laid_out(attrs, "s", "g", "d"),
        ("b", query_heads, "t", "s") if has_bias(attrs) else ("unused",),
        *(("b",) for _ in range(4, _OPERANDS)),
    ]  # fmt: skip
    if len(operands) > _OPERANDS:
        of_output = _laid_out(attrs, "t", query_heads, "d")
        dims += [("b", query_heads, "t"), of_output, of_output]
    return dims


def _sizes(operands: Types, attrs: Attributes) -> dict[str, int]:
    groups, heads = _heads(operands[1], attrs), _heads(operands[0], attrs)
    if groups < 1 or heads % groups:
        raise IRError(f"{heads} query heads are no multiple of {groups} key heads")
    return {"b": operands[0].shape[0], "g": groups, "r": heads // groups}


def _forward_spec(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    if not is_written_out(operands, attrs):
        return opaque(operands, results, attrs)
    whole = ("h", "s", "d") if _splits_queries(attrs) else ("h", "s", "d", "t")
    out: list[DimNames] = [_laid_out(attrs, "t", ("g", "r"), "d"), ("b", ("g", "r"), "t")]
    return build_spec(
        operands, _dims_of_operands(operands, attrs), results, out[: len(results)],
        as_whole(whole), _sizes(operands, attrs),
    )  # fmt: skip


def _backward_spec(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    if not is_written_out(operands, attrs):
        return opaque(operands, results, attrs)
    dims = _dims_of_operands(operands, attrs)
    # Gradients of keys and values are sums over queries and over the query heads of a key head;
    # that of a bias over what shares it.
    kinds = as_whole(("h", "s", "d")) | {"r": "sum"}
    kinds["t"] = "sum" if _splits_queries(attrs) else "whole"
    if len(results) > 3:
        kinds |= {name: "sum" for name, n in zip("bg", operands[3].shape, strict=False) if n == 1}
    sizes = _sizes(operands, attrs)
    return build_spec(operands, dims, results, dims[: len(results)], kinds, sizes)


def pairs(queries: int, keys: int, *, causal: bool, window: Attr = None) -> int:
    """Pairs of a query and a key that attention computes for one head.

    Args:
        queries: number of queries.
        keys: number of keys.
        causal: whether query t sees only the keys up to t.
        window: number of keys up to t that query t sees; None or 0 for all.
    """
    width = whole_number(window) if window else queries + keys
    last: Any = np.arange(1, queries + 1, dtype=np.int64)
    end = np.minimum(last, keys) if causal else np.full(queries, keys)
    start = np.maximum(last - width, 0)
    return int(np.maximum(end - start, 0).sum())


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Sizes of an attention kernel as a whole.

    pairs: pairs of a query and a key that are computed for one head.
    features: mean size of a query's and a value's head.
    """

    batch: int
    key_heads: int
    shared: int  # query heads of each key head
    queries: int
    keys: int
    features: float
    pairs: int

    @property
    def all_pairs(self) -> int:
        """Pairs of all batches and heads."""
        return self.batch * self.key_heads * self.shared * self.pairs


def attention_sizes(operands: Types, attrs: Attributes) -> AttentionSizes:
    """The sizes that a kernel's price depends on.

    Raises:
        IRError: if its query heads are no multiple of its key heads.
    """
    counts, (queries, keys) = _sizes(operands, attrs), _lengths(operands, attrs)
    causal = attrs["mask_type"] in CAUSAL
    return AttentionSizes(
        counts["b"], counts["g"], counts["r"], queries, keys,
        (operands[0].shape[-1] + operands[2].shape[-1]) / 2,
        pairs(queries, keys, causal=causal, window=attrs["sliding_window_length"]),
    )  # fmt: skip


def _forward_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    """Two products of each pair, of 2 h and 2 d operations."""
    del results
    features = operands[0].shape[-1] + operands[2].shape[-1]
    return 2 * features * attention_sizes(operands, attrs).all_pairs


def _backward_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    """Five products of each pair: the scores again, and the gradients of scores, q, k and v."""
    del results
    features = 3 * operands[0].shape[-1] + 2 * operands[2].shape[-1]
    return 2 * features * attention_sizes(operands, attrs).all_pairs


def _forward_meaning(attrs: Attributes, *operands: Any) -> Any:
    found = forward(np, attrs, operands)
    return found if attrs["is_training"] else found[0]


def _backward_meaning(attrs: Attributes, *operands: Any) -> Any:
    return backward(np, attrs, operands)


RECORDS = (
    OpDef(FORWARD, _forward_spec, "contraction", _forward_flops, meaning=_forward_meaning),
    OpDef(BACKWARD, _backward_spec, "contraction", _backward_flops, meaning=_backward_meaning),
)

"""Attention kernels of cuDNN: batch, heads and, where the mask allows it, the sequence are factors.

Query heads are a compound of key heads and the query heads of each. The scores reach no memory:
operands and results are all that a kernel reads and writes.

The sequence of n devices is split in one of five ways, which differ in where keys and values are:

    t        every device has all keys and values, and some queries
    ring     it has a block of queries and of keys and values; the latter go round
    zigzag   the same of a causal mask, with the sequence in an order that gives all devices the
             same work: in 2 n chunks, of which device i works on numbers i and 2 n - 1 - i
    halo     under a sliding window, it has a block of each, and gets the keys and values before
             its block that its first query sees, all of them from one neighbour
    merge    it has a block of keys and values and all queries, as when few queries meet the keys of
             a long past; outputs of the blocks are merged. Backward that is a split of `s`

A kernel whose `ORDERED` attribute is n has its sequences in the order of zigzag of n parts, as an
edited program keeps them from layer to layer (`attention_order.py`): it is split in zigzag alone,
over n devices or a divisor of n.

A bias has whole rows of keys on a device, of which a block takes its columns; masks of any kind,
such as that of segments, are biases. Where a bias has a gradient, the sequence of keys is whole.

Under a causal mask a device computes block by block: those below the diagonal without a mask, the
one on it with the mask, none above it. What it reads and returns is in the order of the program.

Sources: Liu et al., Ring Attention, arXiv:2310.01889; the order of zigzag: zhuzilin,
ring-flash-attention (2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ..errors import IRError
from ..factors import Dim, FactorSpec
from ..graph import Attr
from ..opdef import Attributes, OpDef, Types
from .attention_math import (
    CAUSAL,
    HEADS_FIRST,
    PADDED,
    backward,
    forward,
    has_bias,
    has_bias_gradient,
)
from .build import as_whole, build_spec, opaque, whole_number

FORWARD: Final = "dot_product_attention_fwd_wrapper"
BACKWARD: Final = "dot_product_attention_bwd_wrapper"
ATTENTION: Final = (FORWARD, BACKWARD)
RING: Final = "ring"
ZIGZAG: Final = "zigzag"
HALO: Final = "halo"
MERGE: Final = "merge"
ORDERED: Final = "zigzag_parts"

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


def sequence_dim(attrs: Attributes) -> int:
    """Dimension of the sequence in queries, keys, values and outputs."""
    return 2 if attrs["layout"] == HEADS_FIRST else 1


def _lengths(operands: Types, attrs: Attributes) -> tuple[int, int]:
    """Numbers of queries and of keys."""
    axis = sequence_dim(attrs)
    return operands[0].shape[axis], operands[1].shape[axis]


def is_causal(attrs: Attributes) -> bool:
    """Whether query t sees only the keys up to t."""
    return attrs["mask_type"] in CAUSAL


def ordered_parts(attrs: Attributes) -> int:
    """Parts of the order of zigzag in which a kernel's sequences are; 0 in that of the program."""
    return whole_number(attrs[ORDERED]) if ORDERED in attrs else 0


def takes_order(operands: Types, attrs: Attributes, parts: int) -> bool:
    """Whether a kernel can have its sequences in the order of zigzag of a number of parts."""
    queries, keys = _lengths(operands, attrs)
    plain = is_causal(attrs) and attrs["mask_type"] not in PADDED and not ordered_parts(attrs)
    whole = plain and queries == keys and queries % (2 * parts) == 0
    known = is_written_out(operands, attrs) and not attrs["sliding_window_length"]
    return whole and known and not _gives_bias_gradient(operands, attrs)


def _gives_bias_gradient(operands: Types, attrs: Attributes) -> bool:
    """Whether it is a backward kernel that gives the gradient of a bias too."""
    return len(operands) > _OPERANDS and has_bias_gradient(attrs)


def _splits_queries(operands: Types, attrs: Attributes) -> bool:
    """Whether queries can be split: without a mask, or by blocks under a plain causal one."""
    if attrs["mask_type"] in PADDED or attrs["sliding_window_length"] or ordered_parts(attrs):
        return False
    queries, keys = _lengths(operands, attrs)
    return not is_causal(attrs) or (queries == keys and not _gives_bias_gradient(operands, attrs))


def _splits_keys(attrs: Attributes) -> bool:
    """Whether all queries see all keys that there are, so that blocks of these need no mask."""
    return not is_causal(attrs) and not attrs["sliding_window_length"]


def _with_joint(spec: FactorSpec, operands: Types, attrs: Attributes) -> FactorSpec:
    """The spec with the joint factors of its sequence."""
    sizes = _joint_sizes(operands, attrs) if {"t", "s"} <= {*spec.names} else {}
    joint = tuple((name, ("t", "s")) for name in sizes)
    if len(operands) == _OPERANDS and "s" in spec.names and _splits_keys(attrs):
        sizes, joint = sizes | {MERGE: spec.size("s")}, (*joint, (MERGE, ("s",)))
    return replace(spec, sizes=(*spec.sizes, *sizes.items()), joint=joint)


def _joint_sizes(operands: Types, attrs: Attributes) -> dict[str, int]:
    """What the number of parts must divide, of each joint factor of queries and keys."""
    queries, keys = _lengths(operands, attrs)
    if _gives_bias_gradient(operands, attrs):
        return {}
    if parts := ordered_parts(attrs):
        return {ZIGZAG: parts}
    if _splits_queries(operands, attrs):
        length = math.gcd(queries, keys)
        halved = is_causal(attrs) and length % 2 == 0
        return {RING: length} | ({ZIGZAG: length // 2} if halved else {})
    plain = attrs["mask_type"] == "CAUSAL" and not has_bias(attrs)
    if plain and queries == keys and halo(attrs) > 0:
        # blocks are multiples of a part of the sequence that holds what is seen before it
        part = next(n for n in range(1, keys + 1) if keys % n == 0 and n >= min(halo(attrs), keys))
        return {HALO: keys // part}
    return {}


def halo(attrs: Attributes) -> int:
    """Keys before a query that it sees under a sliding window; 0 without one."""
    window = attrs["sliding_window_length"]
    return whole_number(window) - 1 if window else 0


def _dims_of_operands(operands: Types, attrs: Attributes) -> list[DimNames]:
    query_heads: Dim = ("g", "r")
    of_query = _laid_out(attrs, "t", query_heads, "h")
    dims: list[DimNames] = [
        of_query, _laid_out(attrs, "s", "g", "h"), _laid_out(attrs, "s", "g", "d"),
        ("b", query_heads, "t", "columns") if has_bias(attrs) else ("unused",),
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
    split = _splits_queries(operands, attrs)
    whole = ("h", "s", "d", "columns") if split else ("h", "s", "d", "columns", "t")
    out: list[DimNames] = [_laid_out(attrs, "t", ("g", "r"), "d"), ("b", ("g", "r"), "t")]
    spec = build_spec(
        operands, _dims_of_operands(operands, attrs), results, out[: len(results)],
        as_whole(whole), _sizes(operands, attrs),
    )  # fmt: skip
    return _with_joint(spec, operands, attrs)


def _backward_spec(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    if not is_written_out(operands, attrs):
        return opaque(operands, results, attrs)
    dims = _dims_of_operands(operands, attrs)
    # Gradients of keys and values are sums over queries and over the query heads of a key head;
    # that of a bias over what shares it.
    kinds = as_whole(("h", "s", "d", "columns")) | {"r": "sum"}
    kinds["t"] = "sum" if _splits_queries(operands, attrs) else "whole"
    if _splits_keys(attrs) and not has_bias_gradient(attrs):
        kinds["s"] = "sum"  # of the gradient of queries
    if len(results) > 3:
        kinds |= {name: "sum" for name, n in zip("bg", operands[3].shape, strict=False) if n == 1}
    sizes = _sizes(operands, attrs)
    spec = build_spec(operands, dims, results, dims[: len(results)], kinds, sizes)
    return _with_joint(spec, operands, attrs)


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
    return AttentionSizes(
        counts["b"], counts["g"], counts["r"], queries, keys,
        (operands[0].shape[-1] + operands[2].shape[-1]) / 2,
        pairs(queries, keys, causal=is_causal(attrs), window=attrs["sliding_window_length"]),
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
    OpDef(
        FORWARD,
        _forward_spec,
        "contraction",
        _forward_flops,
        offset=True,
        meaning=_forward_meaning,
    ),
    OpDef(
        BACKWARD,
        _backward_spec,
        "contraction",
        _backward_flops,
        offset=True,
        meaning=_backward_meaning,
    ),
)

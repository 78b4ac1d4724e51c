"""Helpers with which the records of this folder are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import IRError
from ..factors import Dim, FactorSpec
from ..graph import Attr
from ..opdef import Attributes, FactorRule, LinearRule, Types
from ..types import TensorType, dtype_kind

DimNames = Sequence[str | Dim]  # the factor of each dimension, or its factors, major first

NUMBERS = ("int", "float", "complex")
WHOLE = "whole"
SINGLE = "device"  # name of the factor of ops that run on one device


def build_spec(
    operands: Types,
    operand_dims: Sequence[DimNames],
    results: Types,
    result_dims: Sequence[DimNames],
    kinds: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> FactorSpec:
    """Builds a spec from names; dimensions of size zero or one get no factor.

    Args:
        operands: operand types.
        operand_dims: for each operand, the factors of each dimension.
        results: result types.
        result_dims: for each result, the factors of each dimension.
        kinds: kinds of the factors that are not plain.
        sizes: sizes of the factors that occur in compounds.

    Raises:
        IRError: if a factor has two sizes, or names and shapes disagree.
    """
    known: dict[str, int] = dict(sizes or {})
    tensors: list[tuple[Dim, ...]] = []
    for type_, dims in zip((*operands, *results), (*operand_dims, *result_dims), strict=True):
        if len(dims) != type_.rank:
            raise IRError(f"{len(dims)} factors were named for the dimensions of {type_}")
        tensors.append(
            tuple(_dim(dim, size, known) for dim, size in zip(dims, type_.shape, strict=True))
        )
    used = {name for dims in tensors for dim in dims for name in dim}
    return FactorSpec(
        tuple(tensors[: len(operands)]),
        tuple(tensors[len(operands) :]),
        tuple((name, size) for name, size in known.items() if name in used),
        tuple(sorted((name, kind) for name, kind in (kinds or {}).items() if name in used)),
    )


def _dim(dim: str | Dim, size: int, known: dict[str, int]) -> Dim:
    if size <= 1:
        return ()
    if isinstance(dim, str):
        dim = (dim,)
    if len(dim) == 1:
        known.setdefault(dim[0], size)
    found = tuple(name for name in dim if known[name] != 1)
    if math.prod(known[name] for name in found) != size:
        raise IRError(f"the factors {found} of sizes {known} do not make a dimension of {size}")
    return found


def names(prefix: str, rank: int) -> tuple[str, ...]:
    """`prefix0, prefix1, ...`, one per dimension."""
    return tuple(f"{prefix}{i}" for i in range(rank))


def as_whole(*groups: Sequence[str]) -> dict[str, str]:
    """Kinds that make the named factors whole."""
    return {name: WHOLE for group in groups for name in group}


def opaque(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    """Every dimension of every operand and result is a whole factor of its own."""
    del attrs
    ins = [names(f"o{i}d", type_.rank) for i, type_ in enumerate(operands)]
    outs = [names(f"r{i}d", type_.rank) for i, type_ in enumerate(results)]
    return build_spec(operands, ins, results, outs, as_whole(*ins, *outs))


def on_one_device(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    """As `opaque`, but one device runs the op; its results, if any, are summed to the others."""
    whole = opaque(operands, results, attrs)
    if not results:
        return whole
    return replace(
        whole,
        sizes=(*whole.sizes, (SINGLE, 1)),
        kinds=tuple(sorted((*whole.kinds, (SINGLE, "single")))),
    )


def leading_plain(core: int) -> FactorRule:
    """Rule of an op that works on the last `core` dimensions of the first operand.

    The dimensions before them are a batch, shared by all operands and results, and plain;
    all others are whole.
    """

    def rule(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
        batch = operands[0].shape[: operands[0].rank - core]
        if any(type_.shape[: len(batch)] != batch for type_ in (*operands, *results)):
            return opaque(operands, results, attrs)
        shared = names("b", len(batch))
        ins = [(*shared, *names(f"o{i}d", t.rank - len(batch))) for i, t in enumerate(operands)]
        outs = [(*shared, *names(f"r{i}d", t.rank - len(batch))) for i, t in enumerate(results)]
        whole = [dims[len(batch) :] for dims in (*ins, *outs)]
        return build_spec(operands, ins, results, outs, as_whole(*whole))

    return rule


def linear_in(*groups: tuple[int, ...]) -> LinearRule:
    """Linear rule with fixed groups of operands, for numbers only."""

    def rule(operands: Types, results: Types, attrs: Attributes) -> tuple[tuple[int, ...], ...]:
        del results, attrs
        return tuple(group for group in groups if are_numbers(operands[i] for i in group))

    return rule


def linear_jointly(
    operands: Types, results: Types, attrs: Attributes
) -> tuple[tuple[int, ...], ...]:
    """Linear in all operands together, such as a concatenation."""
    del results, attrs
    return (tuple(range(len(operands))),) if operands and are_numbers(operands) else ()


def are_numbers(types: Iterable[TensorType]) -> bool:
    """Whether partial sums of values of these types make sense."""
    return all(dtype_kind(type_.dtype) in NUMBERS for type_ in types)


def no_flops(operands: Types, results: Types, attrs: Attributes) -> int:
    """The flop rule of an op that only moves elements."""
    del operands, results, attrs
    return 0


def calling(function: Callable[..., Any], key: str) -> Callable[..., Any]:
    """The meaning `function(x, attrs[key])`, of an attribute that is a tuple of numbers."""

    def meaning(attrs: Attributes, x: Any) -> Any:
        return function(x, ints(attrs[key]))

    return meaning


# --- attributes ------------------------------------------------------------------------------


def ints(value: Attr) -> tuple[int, ...]:
    """An attribute that is a tuple of whole numbers."""
    if not isinstance(value, tuple):
        raise IRError(f"expected a tuple of whole numbers, got {value!r}")
    found: list[int] = []
    for item in value:
        if not isinstance(item, int):
            raise IRError(f"expected a tuple of whole numbers, got {value!r}")
        found.append(item)
    return tuple(found)


def pairs(value: Attr) -> tuple[tuple[int, ...], ...]:
    """An attribute that is a tuple of tuples of whole numbers."""
    if not isinstance(value, tuple):
        raise IRError(f"expected a tuple of tuples, got {value!r}")
    return tuple(ints(item) for item in value)


def whole_number(value: Attr) -> int:
    """An attribute that is one whole number."""
    if not isinstance(value, int):
        raise IRError(f"expected a whole number, got {value!r}")
    return value


def fields(value: Attr) -> dict[str, Attr]:
    """An attribute that is an encoded record: a tuple of (field, value)."""
    if not isinstance(value, tuple):
        raise IRError(f"expected (field, value) pairs, got {value!r}")
    found: dict[str, Attr] = {}
    for item in value:
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)):
            raise IRError(f"expected (field, value) pairs, got {value!r}")
        found[item[0]] = item[1]
    return found

"""Gather: which dimensions of operand, indices and result go together.

With one indexed operand dimension, as in an embedding lookup, that dimension is the sum factor
`v`. Each device then looks up the rows it holds. Emission, for a shard that starts at `first`:

    1. brings the indices into their global meaning: mode CLIP clamps them to [0, size - 1];
    2. subtracts `first`, clamps the local index to the shard, and looks up;
    3. puts zero where the local index was outside of the shard;
    4. in mode FILL_OR_DROP puts the fill value where the global index is out of range, on the
       first shard only.

The sum over the shards is the result.

Where the result has n k rows of n rows of a table, as that of tokens brought into the order of
their experts, the joint factor `exchange` splits both alike: devices ask the holders of their rows
for these, and get them in one exchange. So do rows that are added to a table, `scatter.py`. Tables
may be in blocks, [b, n, ...] with lookups [b, n k]: devices that split blocks exchange nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ..factors import FactorSpec
from ..opdef import Attributes, OpDef, Types
from ..types import TensorType, dtype_kind
from .build import NUMBERS, build_spec, fields, ints, names, no_flops
from .numeric import convert

SUMMED = "v"
EXCHANGE: Final = "exchange"
EXCHANGED: Final = ("gather", "scatter-add")


@dataclass(frozen=True, slots=True)
class GatherNumbers:
    """`GatherDimensionNumbers` as attributes encode it."""

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...]
    start_indices_batching_dims: tuple[int, ...]

    @staticmethod
    def of(attrs: Attributes) -> GatherNumbers:
        found = fields(attrs["dimension_numbers"])
        return GatherNumbers(
            ints(found["offset_dims"]),
            ints(found["collapsed_slice_dims"]),
            ints(found["start_index_map"]),
            ints(found["operand_batching_dims"]),
            ints(found["start_indices_batching_dims"]),
        )

    def window_dims(self, rank: int) -> list[int]:
        """Operand dimensions that appear in the result, in the order of `offset_dims`."""
        gone = (*self.collapsed_slice_dims, *self.operand_batching_dims)
        return [i for i in range(rank) if i not in gone]


def _gather(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    operand, indices = operands
    numbers, sizes = GatherNumbers.of(attrs), ints(attrs["slice_sizes"])
    kinds: dict[str, str] = {}
    at_operand = list(names("x", operand.rank))
    at_indices = [*names("i", indices.rank - 1), "index"]
    at_result = list(names("y", results[0].rank))
    for i, j in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        at_operand[i] = at_indices[j]
    for i, j in zip(numbers.window_dims(operand.rank), numbers.offset_dims, strict=True):
        if sizes[i] == operand.shape[i]:  # taken as a whole: the start can only be 0
            at_operand[i] = at_result[j] = f"w{i}"
    batch = [j for j in range(results[0].rank) if j not in numbers.offset_dims]
    for j, name in zip(batch, at_indices[:-1], strict=True):
        at_result[j] = name
    if is_lookup(operand, sizes, numbers.start_index_map):
        at_operand[numbers.start_index_map[0]] = SUMMED
        kinds[SUMMED] = "sum"
    whole = {name for name in (*at_operand, *at_result) if name[0] in "xy"} | {"index"}
    kinds |= dict.fromkeys(whole, "whole")
    spec = build_spec(operands, [at_operand, at_indices], results, [at_result], kinds)
    return exchanged(spec, operand, indices, results[0], moved_by(numbers))


@dataclass(frozen=True, slots=True)
class Moved:
    """Dimensions of a lookup of rows in a table, or of what adds rows to it.

    indexed: of the table; gone: those of the table without a place in a row; kept: of rows, those
    that are dimensions of the table; blocks: of the table and of the indices.
    """

    indexed: tuple[int, ...]
    gone: tuple[int, ...]
    kept: tuple[int, ...]
    blocks: tuple[tuple[int, ...], tuple[int, ...]]


def moved_by(numbers: GatherNumbers) -> Moved:
    """What the dimensions of a lookup are."""
    return Moved(
        numbers.start_index_map, numbers.collapsed_slice_dims, numbers.offset_dims,
        (numbers.operand_batching_dims, numbers.start_indices_batching_dims),
    )  # fmt: skip


def exchanged(
    spec: FactorSpec, table: TensorType, indices: TensorType, rows: TensorType, moved: Moved
) -> FactorSpec:
    """The spec with the joint factor of rows that devices exchange, if the lookup has that form.

    Args:
        spec: of a lookup of rows in a table, or of what adds rows to it.
        table: its type, [n, ...] or [b, n, ...].
        indices: their type, [n k, 1] or [b, n k, 1].
        rows: their type, [n k, ...] or [b, n k, ...].
        moved: what their dimensions are.
    """
    lead = len(moved.blocks[0])
    each = tuple(range(lead))
    form = Moved((lead,), (lead,), tuple(range(lead + 1, table.rank)), (each, each))
    known = dtype_kind(table.dtype) in ("int", "float") and table.nbytes >= table.size
    if not known or lead > 1 or indices.rank != lead + 2 or moved != form:
        return spec
    count = table.shape[lead]
    if count < 2 or rows.shape[lead] % count or not rows.size or table.rank < lead + 2:
        return spec
    if table.shape[lead + 1 :] != rows.shape[lead + 1 :]:
        return spec
    joint = ((EXCHANGE, (SUMMED, f"i{lead}")),)
    return replace(spec, sizes=(*spec.sizes, (EXCHANGE, count)), joint=joint)


def is_lookup(operand: TensorType, sizes: tuple[int, ...], indexed: tuple[int, ...]) -> bool:
    """Whether one dimension is indexed, an element at a time, and can be looked up in shards."""
    return (
        len(indexed) == 1
        and sizes[indexed[0]] == 1
        and operand.shape[indexed[0]] > 1
        and dtype_kind(operand.dtype) in NUMBERS
    )


def _gather_local(operands: Types, results: Types, attrs: Attributes) -> Attributes:
    numbers, sizes = GatherNumbers.of(attrs), list(ints(attrs["slice_sizes"]))
    for i, j in zip(numbers.window_dims(operands[0].rank), numbers.offset_dims, strict=True):
        sizes[i] = results[0].shape[j]
    return {"slice_sizes": tuple(sizes)}


def _gather_linear(
    operands: Types, results: Types, attrs: Attributes
) -> tuple[tuple[int, ...], ...]:
    """Linear unless a value is filled in that does not add up to itself (zero and NaN do)."""
    del results
    kind, fill = dtype_kind(operands[0].dtype), attrs.get("fill_value")
    if kind not in NUMBERS:
        return ()
    nan = fill is None and kind != "int"
    harmless = nan or fill == 0 or (isinstance(fill, float) and fill != fill)
    return ((0,),) if attrs["mode"] != "FILL_OR_DROP" or harmless else ()


# --- meaning, shared with the scatters ---------------------------------------------------------


def windows(
    shape: tuple[int, ...],
    indices: Any,
    sizes: tuple[int, ...],
    mode: Any,
    index_map: tuple[int, ...],
    batching: tuple[tuple[int, int], ...],
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...] | None]]:
    """For each place of the indices the part of an operand it means; None if out of range.

    `batching` holds pairs (operand dimension, indices dimension).
    """
    room = [whole - size for whole, size in zip(shape, sizes, strict=True)]
    for place in np.ndindex(*indices.shape[:-1]):
        start = [0] * len(shape)
        for i, value in zip(index_map, indices[place], strict=True):
            start[i] = int(value)
        for i, j in batching:
            start[i] = place[j]
        inside = all(0 <= s <= r for s, r in zip(start, room, strict=True))
        if mode != "FILL_OR_DROP":
            start = [min(max(s, 0), r) for s, r in zip(start, room, strict=True)]
            inside = True
        part = tuple(slice(s, s + n) for s, n in zip(start, sizes, strict=True))
        yield place, part if inside else None


def _fill_value(attrs: Attributes, dtype: Any) -> Any:
    if attrs["fill_value"] is not None:
        return convert({"new_dtype": dtype.name}, np.asarray(attrs["fill_value"]))
    if dtype.kind == "b":
        return True
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
    return np.nan


def _gather_meaning(attrs: Attributes, operand: Any, indices: Any) -> Any:
    numbers, sizes = GatherNumbers.of(attrs), ints(attrs["slice_sizes"])
    kept = numbers.window_dims(operand.ndim)
    window = tuple(sizes[i] for i in kept)
    out = np.empty((*indices.shape[:-1], *window), operand.dtype)
    batching = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    for place, part in windows(
        operand.shape, indices, sizes, attrs["mode"], numbers.start_index_map, tuple(batching)
    ):
        if part is None:
            out[place] = _fill_value(attrs, operand.dtype)
        else:
            out[place] = operand[part].reshape(window)
    first = indices.ndim - 1
    return np.moveaxis(out, range(first, out.ndim), numbers.offset_dims)


RECORDS = (
    OpDef(
        "gather",
        _gather,
        "index",
        no_flops,
        _gather_linear,
        _gather_local,
        offset=True,
        meaning=_gather_meaning,
    ),
)

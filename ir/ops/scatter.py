"""Scatters: which dimensions of operand, indices, updates and result go together.

With one scattered operand dimension, that dimension is the plain factor `v`. Emission, for a
shard that starts at `first`:

    1. brings the indices into their global meaning: mode CLIP clamps them to [0, size - 1];
    2. subtracts `first`, and brings what other shards have to the rows before and after its own;
    3. scatters with mode FILL_OR_DROP, so that each device keeps the updates of its own rows; an
       update that is alone is put at a row of its own, with what is there if it is another's.

Where updates are added, the places of the indices are sum factors, named `i0`, `i1`, ...: each
device adds its own updates. The operand must then be counted once: emission passes it to the
first shard along those axes and zeros to the others. The sum over the shards is the result. Rows
that are added to rows of a table may be sent to the devices that hold these (`gather.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..factors import FactorSpec
from ..graph import Node
from ..opdef import Attributes, FactorRule, OpDef, Types
from ..types import dtype_kind
from .build import NUMBERS, build_spec, fields, ints, linear_in, names
from .gather import GatherNumbers, Moved, exchanged, moved_by, windows

SCATTERED = "v"


@dataclass(frozen=True, slots=True)
class ScatterNumbers:
    """`ScatterDimensionNumbers` as attributes encode it."""

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...]
    scatter_indices_batching_dims: tuple[int, ...]

    @staticmethod
    def of(attrs: Attributes) -> ScatterNumbers:
        found = fields(attrs["dimension_numbers"])
        return ScatterNumbers(
            ints(found["update_window_dims"]),
            ints(found["inserted_window_dims"]),
            ints(found["scatter_dims_to_operand_dims"]),
            ints(found["operand_batching_dims"]),
            ints(found["scatter_indices_batching_dims"]),
        )

    def window_dims(self, rank: int) -> list[int]:
        """Operand dimensions that updates cover, in the order of `update_window_dims`."""
        gone = (*self.inserted_window_dims, *self.operand_batching_dims)
        return [i for i in range(rank) if i not in gone]


def _moved(numbers: ScatterNumbers) -> Moved:
    return Moved(
        numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims,
        numbers.update_window_dims,
        (numbers.operand_batching_dims, numbers.scatter_indices_batching_dims),
    )  # fmt: skip


def moves_rows(node: Node, operands: Types) -> bool:
    """Whether an op looks rows of a table up by their numbers, or adds rows to those of a table.

    Args:
        node: a gather or a scatter.
        operands: their types: table [n, ...], numbers [m, 1] and, of a scatter, rows [m, ...].
    """
    attrs, (table, indices) = dict(node.attrs), operands[:2]
    found = (
        moved_by(GatherNumbers.of(attrs)) if len(operands) < 3 else _moved(ScatterNumbers.of(attrs))
    )
    rows = operands[2] if len(operands) > 2 else node.outputs[0]
    form = Moved((0,), (0,), tuple(range(1, table.rank)), ((), ()))
    whole = table.rank > 0 and rows.shape[1:] == table.shape[1:]
    return found == form and indices.rank == 2 and whole


def _scatter(adds: bool, combined: bool) -> FactorRule:
    """Rule of a scatter.

    Args:
        adds: whether updates are combined by a sum.
        combined: whether they are added.
    """

    def rule(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
        operand, indices, updates = operands
        numbers = ScatterNumbers.of(attrs)
        summed = adds and dtype_kind(operand.dtype) in NUMBERS
        at_operand = list(names("x", operand.rank))
        at_indices = [*names("i", indices.rank - 1), "index"]
        at_updates = list(names("u", updates.rank))
        kinds = dict.fromkeys(at_indices[:-1], "sum" if summed else "whole")
        places = [j for j in range(updates.rank) if j not in numbers.update_window_dims]
        for number, (i, j) in enumerate(
            zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
        ):
            at_operand[i] = at_indices[j] = f"b{number}"
        for j, name in zip(places, at_indices[:-1], strict=True):
            at_updates[j] = name
        sizes = dict.fromkeys(range(operand.rank), 1)
        window = numbers.window_dims(operand.rank)
        for i, j in zip(window, numbers.update_window_dims, strict=True):
            sizes[i] = updates.shape[j]
            if sizes[i] == operand.shape[i]:
                at_operand[i] = at_updates[j] = f"w{i}"
        scattered = numbers.scatter_dims_to_operand_dims
        if len(scattered) == 1 and sizes[scattered[0]] == 1:
            at_operand[scattered[0]] = SCATTERED
        whole = {name for name in (*at_operand, *at_updates) if name[0] in "xu"} | {"index"}
        kinds |= dict.fromkeys(whole, "whole")
        dims = [at_operand, at_indices, at_updates]
        spec = build_spec(operands, dims, results, [at_operand], kinds)
        if not combined:
            return spec
        return exchanged(spec, operand, indices, updates, _moved(numbers))

    return rule


def _meaning(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def meaning(attrs: Attributes, operand: Any, indices: Any, updates: Any) -> Any:
        numbers = ScatterNumbers.of(attrs)
        found = operand.copy()
        places = indices.ndim - 1
        ordered = np.moveaxis(updates, numbers.update_window_dims, range(places, updates.ndim))
        sizes = [1] * operand.ndim
        for i, j in zip(numbers.window_dims(operand.ndim), numbers.update_window_dims, strict=True):
            sizes[i] = updates.shape[j]
        batching = zip(
            numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
        )
        for place, part in windows(
            operand.shape,
            indices,
            tuple(sizes),
            "CLIP" if attrs["mode"] == "CLIP" else "FILL_OR_DROP",
            numbers.scatter_dims_to_operand_dims,
            tuple(batching),
        ):
            if part is not None:
                found[part] = combine(found[part], ordered[place].reshape(sizes))
        return found

    return meaning


def _replace(old: Any, new: Any) -> Any:
    del old
    return new


def _update_size(operands: Types, results: Types, attrs: Attributes) -> int:
    del results, attrs
    return operands[2].size


def _record(name: str, combine: Callable[[Any, Any], Any]) -> OpDef:
    adds = name in ("scatter-add", "scatter-sub")
    return OpDef(
        name,
        _scatter(adds, name == "scatter-add"),
        "index",
        _update_size,
        linear_in((0, 2)) if adds else None,
        offset=True,
        meaning=_meaning(combine),
    )


RECORDS = (
    _record("scatter", _replace),
    _record("scatter-add", np.add),
    _record("scatter-max", np.maximum),
    _record("scatter-min", np.minimum),
    _record("scatter-mul", np.multiply),
    _record("scatter-sub", np.subtract),
)

"""The planner's knowledge of an operation: one record per primitive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .factors import FactorSpec
from .graph import Attr, Node
from .types import TensorType

Types = tuple[TensorType, ...]
Attributes = Mapping[str, Attr]
FactorRule = Callable[[Types, Types, Attributes], FactorSpec]
FlopRule = Callable[[Types, Types, Attributes], int]
LinearRule = Callable[[Types, Types, Attributes], tuple[tuple[int, ...], ...]]
LocalRule = Callable[[Types, Types, Attributes], Attributes]
Meaning = Callable[..., Any]  # meaning(attrs, *numpy arrays) -> array or tuple of arrays


@dataclass(frozen=True, slots=True)
class OpDef:
    """Everything about one primitive; strategies, partial results and costs are derived.

    factors: (operand types, result types, attributes) -> factor spec.
    family: elementwise | contraction | reduction | layout | index | convolution | random |
        linalg | control | collective | host-copy | effect (acts outside the program, once and in
        program order) | opaque (unknown); only elementwise, layout and cheap ops are fused.
    flops: floating-point operations of the whole op; None counts one per result element.
    linear: groups of operand positions; a partial sum in exactly the operands of one group
        (the others not partial) is, over the reals, a partial sum of the result. `add` has
        ((0, 1),), `mul` ((0,), (1,)). `ir.passing_groups` says where it is in floats.
    local: (local operand types, local result types, attributes) -> attributes of the same
        primitive on one device's shards; None if attributes do not depend on shapes.
    offset: factors along which the op must know where its shard starts (iota, gather, ...):
        emission has code for each of them.
    places: whether attributes beyond its factors only say where parts are taken from or put, so
        that ops with equal types and factors are split and priced alike (slice, pad).
    meaning: the value with NumPy; None where only JAX can tell.
    """

    name: str
    factors: FactorRule
    family: str
    flops: FlopRule | None = None
    linear: LinearRule | None = None
    local: LocalRule | None = None
    offset: bool = False
    places: bool = False
    meaning: Meaning | None = None


def flops_of(record: OpDef, node: Node, operands: Sequence[TensorType]) -> int:
    """Floating-point operations of a node as a whole."""
    if record.flops is not None:
        return record.flops(tuple(operands), node.outputs, dict(node.attrs))
    return sum(type_.size for type_ in node.outputs)

"""Collective matmuls: products that run in parts, beside the permutes of a gather or scatter.

The n devices of a group hold parts of an operand along a dimension that the result has too. Instead
of gathering it first, each device multiplies the part that it has while it sends it on, n times.
Where results are partial sums that are to be reduced and split along a dimension, it computes the
part that another device is to have, adds what came, and sends the sum on.

Source: Wang et al., Overlap Communication with Dependent Computation via Decomposition in Large
Deep Learning Models, ASPLOS 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from .factors import FactorSpec
from .graph import Node
from .lowered import Change
from .sharding import Sharding
from .strategy import Strategy

PRODUCT = "dot_general"


@dataclass(frozen=True, slots=True)
class Parts:
    """A product in parts.

    kind: what the permutes take the place of.
    dim: dimension of the operand or result that is cut into parts.
    axes: of the group, the last one innermost.
    factor: the factor of that dimension.
    """

    kind: Literal["all-gather", "reduce-scatter"]
    dim: int
    axes: tuple[str, ...]
    factor: str


def gathered_operand(spec: FactorSpec) -> int:
    """The operand of a product that may be gathered in parts: that with more rows of its own."""
    kept = {name for dim in spec.results[0] for name in dim}
    own = ({name for dim in dims for name in dim} & kept for dims in spec.operands)
    left, right = own
    rows, columns = (math.prod(map(spec.size, names)) for names in (left - right, right - left))
    return 0 if rows >= columns else 1


def gather_in_parts(
    spec: FactorSpec, position: int, result: Sharding, before: Sharding, after: Sharding
) -> Parts | None:
    """The parts of a product whose operand is gathered; None if it is not gathered in parts.

    Args:
        spec: of the product.
        position: of the operand.
        result: raw state of the result; one that waits to be summed may be reduced in parts.
        before: state in which the operand is kept.
        after: state in which the product needs it.
    """
    if result.partial or before.partial or after.partial or position != gathered_operand(spec):
        return None
    found = _parts("all-gather", spec, spec.operands[position], after, before)
    other = {name for dim in spec.operands[1 - position] for name in dim}
    return None if found is None or found.factor in other else found


def scatter_in_parts(spec: FactorSpec, before: Sharding, after: Sharding) -> Parts | None:
    """The parts of a product whose result is reduced and split; None if that is not in parts.

    Args:
        spec: of the product.
        before: raw state of the result.
        after: state in which it is kept or read.
    """
    found = _parts("reduce-scatter", spec, spec.results[0], before, after)
    if found is None:
        return None
    done = dict(before.partial)
    left = tuple((axis, kind) for axis, kind in before.partial if axis not in found.axes)
    sums = all(done.get(axis) == "sum" for axis in found.axes)
    return found if sums and left == after.partial else None


def parts_of(spec: FactorSpec, position: int, strategy: Strategy, change: Change) -> Parts | None:
    """The parts of a product beside a reshard; None if it is not of this product in parts.

    Args:
        spec: of the product.
        position: of the operand; of partial sums, which are the result, of no meaning.
        strategy: of the product.
        change: the reshard.
    """
    before, after = change.before, change.after
    if before.partial:
        return scatter_in_parts(spec, before, after) if before == strategy.results[0] else None
    return gather_in_parts(spec, position, strategy.results[0], before, after)


def _parts(
    kind: Literal["all-gather", "reduce-scatter"],
    spec: FactorSpec,
    dims: tuple[tuple[str, ...], ...],
    whole: Sharding,
    split: Sharding,
) -> Parts | None:
    """The one dimension that `split` has split further than `whole`."""
    if len(whole.dims) != len(split.dims):
        return None
    found = [d for d, axes in enumerate(whole.dims) if split.dims[d] != axes]
    if len(found) != 1:
        return None
    (dim,) = found
    more = len(whole.dims[dim])
    if split.dims[dim][:more] != whole.dims[dim] or len(dims[dim]) != 1:
        return None
    (factor,) = dims[dim]
    kept = {name for each in spec.results[0] for name in each}
    return Parts(kind, dim, split.dims[dim][more:], factor) if factor in kept else None


def is_product(node: Node) -> bool:
    """Whether an op is a product of floats, which can run in parts."""
    floats = ("float", "bfloat")
    return node.op == PRODUCT and node.outputs[0].dtype.startswith(floats)

"""Matrix products of a program: their flops, and which of them are computed again."""

from __future__ import annotations

from collections.abc import Hashable

from costmodel import Cluster, ComputeModel
from ir import ATTENTION, GROUPED, Graph, Literal, flops_of, lookup
from ir.analysis import FlatProgram, Place, operand_types

NAMES = ("dot_general", "conv_general_dilated", GROUPED, *ATTENTION)


def products(flat: FlatProgram) -> list[tuple[int, float]]:
    """Matrix products, also those inside kernels: flat number and flops of all rounds of each."""
    return [
        (i, op.weight * flops_of(lookup(op.node.op), op.node, operand_types(flat, op)))
        for i, op in enumerate(flat.ops)
        if op.node.op in NAMES
    ]


def at_peak_s(flat: FlatProgram, cluster: Cluster, without: frozenset[int] = frozenset()) -> float:
    """Seconds of all matrix products at the peak rate of one device.

    Args:
        flat: the program.
        cluster: whose devices.
        without: flat numbers of products that are left out.
    """
    compute, total = ComputeModel(cluster), 0.0
    for i, flops in products(flat):
        if i not in without:
            dtype = operand_types(flat, flat.ops[i])[0].dtype
            total += flops / compute.peak_flops(dtype, tensor=True)
    return total


def computed_again(flat: FlatProgram) -> frozenset[int]:
    """Products in regions of `jax.checkpoint` that equal an earlier one elsewhere, by flat number.

    Two ops are equal if all that they are computed from is. What enters a loop's body counts as
    equal if it is of the same type, since the backward loop gets what the forward loop had.
    """
    regions = _regions(flat.graph, ())
    if not regions:
        return frozenset()
    same: dict[int, Hashable] = {}  # value -> what equal values share

    def name_of(value: int | Literal) -> Hashable:
        if isinstance(value, Literal) or value in same:
            return value if isinstance(value, Literal) else same[value]
        item = flat.values[value]
        return item.type if item.kind == "port" else value

    def region_of(i: int) -> Place:
        place = flat.ops[i].place
        return next((place[:n] for n in range(1, len(place)) if place[:n] in regions), ())

    first: dict[Hashable, int] = {}
    found: set[int] = set()
    for i, op in enumerate(flat.ops):
        inputs = tuple(map(name_of, op.inputs))
        at = first.setdefault((op.node.op, repr(op.node.attrs), op.node.outputs, inputs), i)
        if at != i:
            same.update(zip(op.outputs, map(name_of, flat.ops[at].outputs), strict=True))
            if op.node.op in NAMES and region_of(i) not in ((), region_of(at)):
                found.add(i)
    return frozenset(found)


def _regions(graph: Graph, prefix: Place) -> set[Place]:
    """Places of all regions of `jax.checkpoint`."""
    found: set[Place] = set()
    for i, node in enumerate(graph.nodes):
        if node.op == "remat":
            found.add((*prefix, i))
        for b, body in enumerate(node.bodies):
            found |= _regions(body, (*prefix, i, b))
    return found

"""Matrix products of a program: their flops, and which of them are computed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import groupby

from costmodel import Cluster, ComputeModel
from ir import ATTENTION, GROUPED, Graph, flops_of, lookup
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


def computed_again(flat: FlatProgram, *, chosen: bool = False) -> frozenset[int]:
    """Products that the backward pass computes again, by flat number.

    Each stands for an earlier product of the same form: op, attributes and types. The tables that
    it is computed from may differ, as JAX moves some out of a loop in the forward pass alone. A
    region of which all products have such a counterpart has no gradients, so it is a forward one.

    Args:
        flat: the program.
        chosen: whether the plan chose what is computed again. Regions then hold copies alone, and
            loops of the backward pass, which take slices of what other loops stack up, are regions
            too.
    """
    copies = _regions(flat.graph, ())
    regions = copies | _backward_loops(flat) if chosen else copies
    forms, found = Counter[Hashable](), set[int]()

    def region_of(i: int) -> Place:
        place = flat.ops[i].place
        return next((place[:n] for n in range(1, len(place)) if place[:n] in regions), ())

    numbers = [i for i, _ in products(flat)] if regions else []
    for region, group in groupby(numbers, region_of):
        members = [(i, _form(flat, i)) for i in group]
        left, again = forms.copy(), set[int]()
        for i, form in members:
            if region and left[form]:
                left[form] -= 1
                again.add(i)
        if again and (len(again) < len(members) or (chosen and region in copies)):
            found |= again
            forms = left
        else:
            forms.update(form for _, form in members)
    return frozenset(found)


def _backward_loops(flat: FlatProgram) -> set[Place]:
    """Places of the bodies of loops that take slices of what other loops stack up."""
    sliced = {link.target for link in flat.links if link.lift and link.source in flat.stacked}
    return {(*r.place, 0) for r in flat.regions if not sliced.isdisjoint(r.entered)}


def _form(flat: FlatProgram, i: int) -> Hashable:
    op, node = flat.ops[i], flat.ops[i].node
    types = (*operand_types(flat, op), *node.outputs)
    return node.op, repr(node.attrs), types, op.weight


def _regions(graph: Graph, prefix: Place) -> set[Place]:
    """Places of all regions of `jax.checkpoint`."""
    found: set[Place] = set()
    for i, node in enumerate(graph.nodes):
        if node.op == "remat":
            found.add((*prefix, i))
        for b, body in enumerate(node.bodies):
            found |= _regions(body, (*prefix, i, b))
    return found

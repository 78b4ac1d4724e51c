"""Seconds that a product in parts adds to the product: what is exposed of its permutes.

A group of n devices computes n parts of t each, and n - 1 permutes of h seconds, beside all parts
but one. Of a permute beside a part, min(h, i t) is hidden, which slows the part down by the factor
i of interference. Beside that,

    gather     parts of the result are written to their places: it is set to zero, read, written
    scatter    parts of the operand are cut out; what comes is added to each part but the first

so that a step is longer than the product alone by

    max(0, n t - t_product) + copies + (n - 1) (h - min(h, i t) / i).

Emission: `planner.emit.collective_matmul`.

Source: Wang et al., Overlap Communication with Dependent Computation via Decomposition in Large
Deep Learning Models, ASPLOS 2023, section 5.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ir import Parts

from .collectives import INTERFERENCE
from .compute import ComputeModel
from .opcost import OpWork, local_sizes, op_seconds, tensor_bytes
from .reshard import ReshardModel

Floats = NDArray[np.float64]
# Times that a part's bytes pass memory beside its product.
PLACED, CUT, ADDED = 3.0, 2.0, 3.0


@dataclass(frozen=True, slots=True)
class InParts:
    """Products in parts beside their permutes, in one run, one entry per way to cut them.

    count: permutes; sent_bytes: of a device, in all of them.
    seconds: of these, and by which the parts take longer than the product; added_s + hidden_s.
    added_s: seconds that the product and its permutes take longer than the product alone, if the
        window that they are in has the compute for what is hidden.
    hidden_s: seconds of permutes that compute hides, interference taken off.
    held_bytes: of parts on their way.
    """

    count: Floats
    sent_bytes: Floats
    seconds: Floats
    added_s: Floats
    hidden_s: Floats
    held_bytes: Floats


def is_within_host(parts: Parts, reshard: ReshardModel) -> bool:
    """Whether permutes are between devices of one host, on fast links."""
    return reshard.collectives.within_host(reshard.group(parts.axes))


def in_parts(
    cuts: Sequence[Parts], work: OpWork, ways: Mapping[str, Floats], compute: ComputeModel,
    reshard: ReshardModel,
) -> InParts:  # fmt: skip
    """Prices of a product in parts.

    Args:
        cuts: how it is cut, one entry per price; of one kind.
        work: the product.
        ways: for every factor the number of parts that the strategy splits it into, likewise.
        compute: prices of the device.
        reshard: the mesh and its collectives.
    """
    count = len(cuts)
    n = np.array([float(reshard.mesh.product(parts.axes)) for parts in cuts])
    factors = np.array([parts.factor for parts in cuts])
    both = {
        name: np.concatenate((w, w * np.where(factors == name, n, 1.0))) for name, w in ways.items()
    }
    alone_s, part_s = op_seconds(work, both, compute).reshape(2, count)
    local = local_sizes(work.spec, both)
    whole, part = np.zeros(count), np.zeros(count)  # bytes of the operands that are cut
    for type_, dims in zip(work.operands, work.spec.operands, strict=True):
        has = np.isin(factors, list(itertools.chain.from_iterable(dims)))
        each = tensor_bytes(type_, dims, local, 2 * count).reshape(2, count)
        whole, part = whole + has * each[0], part + has * each[1]
    result, sum_ = tensor_bytes(
        work.node.outputs[0], work.spec.results[0], local, 2 * count
    ).reshape(2, count)  # fmt: skip
    if cuts[0].kind == "all-gather":
        moved, copied, kernels = part, PLACED * result, n + 1.0
    else:
        moved, copied = sum_, CUT * whole + ADDED * (n - 1.0) * sum_
        kernels = 2.0 * n - 1.0
    hop_s = _hop_s(cuts, moved, reshard)
    hidden_s = np.minimum(hop_s, INTERFERENCE * part_s) / INTERFERENCE
    slower_s = np.maximum(0.0, n * part_s - alone_s)
    copies_s = compute.memory_s(copied) + kernels * compute.launch_s
    hops = n - 1.0
    added_s = slower_s + copies_s + hops * (hop_s - hidden_s)
    seconds = added_s + hops * hidden_s
    return InParts(hops, hops * moved, seconds, added_s, hops * hidden_s, 2.0 * moved)


def _hop_s(cuts: Sequence[Parts], moved: Floats, reshard: ReshardModel) -> Floats:
    found = np.zeros(len(cuts))
    for axes in {parts.axes for parts in cuts}:
        at = np.array([parts.axes == axes for parts in cuts])
        group = reshard.group(axes)
        found[at] = reshard.collectives.copy_s(group, moved[at])
    return found

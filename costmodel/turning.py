"""Seconds in which a tensor is put in another order before or after a collective.

A collective sends and receives whole blocks. Along a dimension behind others that are longer than
one element, the parts of the devices lie between each other in memory, and compilers put the
operand, the result or both in another order. That is a transpose, and costs what one takes where
transposes were measured; elsewhere the time is part of the error of a collective.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from ir import Mesh, Shape

from .cluster import Cluster
from .compute import ComputeModel

Floats = NDArray[np.float64]
Dims = tuple[tuple[str, ...], ...]


@final
class Turning:
    """Prices of another order on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._compute = ComputeModel(cluster)
        self.measured = self._compute.moving_s("transpose", np.zeros(1)) is not None

    def seconds(self, order_bytes: Floats) -> Floats:
        """Seconds to read bytes and write them in another order; 0 if not measured."""
        found = self._compute.moving_s("transpose", 2.0 * order_bytes)
        return np.zeros_like(order_bytes) if found is None else found


def turned(shape: Shape, mesh: Mesh, dim: int, to_dim: int, before: Dims, after: Dims) -> float:
    """Share of a tensor that each device puts in another order for one collective.

    An all-gather does so with its operand and its result, a reduce-scatter too; an all-to-all with
    the operand for the dimension that it splits, with the result for the one that it joins.

    Args:
        shape: shape of the whole tensor.
        mesh: the axes.
        dim: the dimension that loses axes, -1 if none does.
        to_dim: the dimension that gains axes, -1 if none does.
        before: axes of each dimension before it.
        after: axes of each dimension after it.
    """

    def apart(d: int) -> bool:
        """Parts along a dimension lie between each other."""
        return any(n > mesh.product(axes) for n, axes in zip(shape[:d], before[:d], strict=True))

    def held(dims: Dims) -> float:
        return 1.0 / math.prod(mesh.product(axes) for axes in dims)

    if dim == to_dim:  # all of it is summed, or parts move unchanged
        return 0.0
    if dim >= 0 and to_dim >= 0:
        return apart(to_dim) * held(before) + apart(dim) * held(after)
    return apart(max(dim, to_dim)) * (held(before) + held(after))

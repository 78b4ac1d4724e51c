"""What passes the borders between shards when a value that is split is shifted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ir import Node, TensorType, border_elements

from .compute import item_bytes

Floats = NDArray[np.float64]


def border_bytes(
    node: Node, operands: Sequence[TensorType], ways: Mapping[str, Floats], count: int
) -> Floats:
    """Bytes that a device sends to the one beside it, one entry per strategy.

    Args:
        node: a shift.
        operands: types of its whole operands.
        ways: for every factor the number of parts it is split into, one entry per strategy.
        count: number of strategies.
    """
    elements, factors = border_elements(dict(node.attrs), tuple(operands))
    found = np.full(count, float(elements) * item_bytes(operands[0].dtype))
    for name in factors:
        found = found / ways.get(name, 1.0)
    return found

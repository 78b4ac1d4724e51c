"""The values of a program that lie in the memory of the host."""

from __future__ import annotations

from ..placements import TO_HOST
from .flat_program import FlatProgram


def host_values(flat: FlatProgram) -> frozenset[int]:
    """Results of copies to the host, and what loops and branches make of them.

    A stack of such results is on the host, and so are its slices.
    """
    found = {v for op in flat.ops if op.node.op == TO_HOST for v in op.outputs}
    count = 0
    while found and len(found) > count:
        count = len(found)
        found.update(link.target for link in flat.links if link.source in found)
        found.update(outer for outer, port in flat.stacked.items() if port in found)
    return frozenset(found)

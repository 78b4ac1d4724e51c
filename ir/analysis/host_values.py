"""The values of a program that lie in the memory of the host."""

from __future__ import annotations

from ..graph import Graph
from ..placements import FROM_HOST, TO_HOST
from .flat_program import FlatProgram


def offloads(graph: Graph) -> bool:
    """Whether a program sends values to the memory of the host."""
    return any(node.op == TO_HOST or any(map(offloads, node.bodies)) for node in graph.nodes)


def host_values(flat: FlatProgram) -> frozenset[int]:
    """Results of copies to the host, what loops and branches make of them, and what comes back.

    A stack of such results is on the host, and so are its slices. An argument is there if all that
    reads it are copies from the host, of itself or of its slices.
    """
    found = {v for op in flat.ops if op.node.op == TO_HOST for v in op.outputs}
    found |= _arguments(flat)
    count = 0
    while found and len(found) > count:
        count = len(found)
        found.update(link.target for link in flat.links if link.source in found)
        found.update(outer for outer, port in flat.stacked.items() if port in found)
    return frozenset(found)


def _arguments(flat: FlatProgram) -> frozenset[int]:
    """The arguments that only copies from the host read."""
    back = {v for op in flat.ops if op.node.op == FROM_HOST for v in op.reads}
    if not back:
        return frozenset()
    read = {v for op in flat.ops if op.node.op != FROM_HOST for v in op.reads}
    read |= {v for v in flat.outputs if isinstance(v, int)}
    entered: dict[int, list[int]] = {}
    for link in flat.links:
        entered.setdefault(link.source, []).append(link.target)

    def there(v: int) -> bool:
        inside = entered.get(v, [])
        return v not in read and (v in back or bool(inside)) and all(map(there, inside))

    return frozenset(filter(there, flat.inputs))

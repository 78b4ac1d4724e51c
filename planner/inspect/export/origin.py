"""Which argument a value is, but for casts and the like."""

from __future__ import annotations

from ..analysed_plan import AnalysedPlan

_SAME = ("convert_element_type", "copy", "reshape", "squeeze", "transpose")


def origin(analysed: AnalysedPlan, v: int) -> int:
    """The argument that a value is made of alone without arithmetic, or the last value there is."""
    maker, seen = analysed.flat.maker, set[int]()
    entering = {link.target: link.source for link in reversed(analysed.flat.links)}
    while v not in seen:
        seen.add(v)
        if v in entering and analysed.flat.values[v].kind == "port":
            v = entering[v]
            continue
        op = analysed.flat.ops[maker[v][0]] if v in maker else None
        sources = [] if op is None else [x for x in op.inputs if isinstance(x, int)]
        if op is None or op.node.op not in _SAME or len(sources) != 1:
            break
        v = sources[0]
    return v

"""Plans a rewritten program like the original program, with new choices only near the change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ir import FactorSpec, Strategy
from ir.analysis import FlatProgram, Place
from substitutions import Draft, Mark

from ..problem.records import Limits


def limits_near(
    draft: Draft, flat: FlatProgram, known: Mapping[Place, tuple[str, ...]], reach: int
) -> Limits:
    """Ops of the traced program do what they did, unless they are near a new one.

    Args:
        draft: the rewritten program.
        flat: the same, laid out flat.
        known: roles of the mesh axes for ops of the traced program, by place.
        reach: how many ops away from a new one is near.
    """
    old = _places(draft.marks, ())
    new = {i for i, op in enumerate(flat.ops) if old.get(op.place) not in known}
    free = _around(flat, new, reach)

    def allowed(i: int, _spec: FactorSpec, menu: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        if i in free:
            return menu
        roles = known[old[flat.ops[i].place]]
        return tuple(s for s in menu if s.roles == roles) or menu

    return Limits(allowed)


def _places(marks: Sequence[Mark], prefix: Place) -> dict[Place, Place]:
    """Place in the rewritten program -> place in the traced one, of nodes that it had."""
    found: dict[Place, Place] = {}
    for i, mark in enumerate(marks):
        if mark.place:
            found[*prefix, i] = mark.place
        for b, inner in enumerate(mark.bodies):
            found |= _places(inner, (*prefix, i, b))
    return found


def _around(flat: FlatProgram, start: set[int], reach: int) -> set[int]:
    """Ops at most `reach` steps away; links between values are no step."""
    joined: dict[int, set[int]] = {}
    pairs = [(link.source, link.target) for link in flat.links] + [*flat.stacked.items()]
    for a, b in pairs:
        joined.setdefault(a, set()).add(b)
        joined.setdefault(b, set()).add(a)
    users: dict[int, list[int]] = {}
    touched = [[v for v in (*op.inputs, *op.outputs) if isinstance(v, int)] for op in flat.ops]
    for i, values in enumerate(touched):
        for v in values:
            users.setdefault(v, []).append(i)
    found, edge = set(start), set(start)
    for _ in range(reach):
        values = {v for i in edge for v in touched[i]}
        stack = list(values)
        while stack:
            for v in joined.get(stack.pop(), ()):
                if v not in values:
                    values.add(v)
                    stack.append(v)
        edge = {i for v in values for i in users.get(v, ())} - found
        found |= edge
    return found

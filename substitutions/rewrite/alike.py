"""Equal bodies are rewritten once: the others take the result, with marks of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..program.net import Draft, Mark

Path = tuple[int, ...]


def taken_over(done: Draft, before: Draft, other: Draft) -> Draft | None:
    """The result of rewriting `other`, where the rewrite turned the equal `before` into `done`.

    Args:
        done: the rewritten graph.
        before: what was rewritten.
        other: the same graph, with marks of its own.

    Returns:
        None if nodes that come from one place in `before` come from several in `other`.
    """
    places: dict[Path, Path] = {(): ()}
    if not _paired(before.marks, other.marks, places):
        return None
    return Draft(done.graph, _moved(done.marks, places))


def _paired(left: Sequence[Mark], right: Sequence[Mark], places: dict[Path, Path]) -> bool:
    """Pairs the places of left and right marks in `places`; False if one would get two partners."""
    for a, b in zip(left, right, strict=True):
        if places.setdefault(a.place, b.place) != b.place:
            return False
        if places.setdefault(a.like, b.like) != b.like:
            return False
        pairs = zip(a.bodies, b.bodies, strict=True)
        if a.bodies and not all(_paired(x, y, places) for x, y in pairs):
            return False
    return True


def _moved(marks: Sequence[Mark], places: Mapping[Path, Path]) -> tuple[Mark, ...]:
    return tuple(
        [
            Mark(places[m.place], tuple([_moved(b, places) for b in m.bodies]), places[m.like])
            for m in marks
        ]
    )

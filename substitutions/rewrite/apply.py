"""Finds the places of rules in a program, and rewrites the program there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ir import Literal

from ..catalogue import CATALOGUE
from ..errors import RuleError
from ..ops import OPS
from ..program.net import Draft, Net, finished
from ..program.writer import NoFitError, Writer
from .alike import taken_over
from .match import Match, index_of, matches
from .pattern import Pattern
from .policy import may_apply, may_begin
from .region import Region, region_of
from .regions import with_bodies

Sound = Callable[[Region], bool]
Prefix = tuple[int, ...]  # (node, body) for every level down to the graph of a place
# Places of one rule in one graph that are rewritten at most.
MOST_PLACES = 4096
_WRITERS = {name: op.form.write for name, op in OPS.items() if op.form is not None}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rule may be applied: node `root` of the graph at `prefix`, reading `number` of it.

    kind: equal for places with equal shapes, axes and makers of operands, which are rewritten
        together.
    nodes: of the graph at `prefix` that the left side of the rule is.
    """

    rule: str
    prefix: Prefix
    root: int
    number: int
    kind: str
    nodes: tuple[int, ...]

    @property
    def path(self) -> tuple[int, ...]:
        """The place as numbers, for a file."""
        return (*self.prefix, self.root, self.number)


@lru_cache(maxsize=1)
def patterns() -> dict[str, Pattern]:
    """The rows of the catalogue for one device, by name."""
    rows = (row for members in CATALOGUE.values() for row in members if not row.parallel)
    return {row.name: Pattern(row) for row in rows}


def pattern_of(rule: str) -> Pattern:
    """The pattern of a rule.

    Raises:
        RuleError: if the catalogue has no such rule that can be applied to programs.
    """
    found = patterns().get(rule)
    if found is None:
        raise RuleError("the catalogue has no such rule for programs", where=rule)
    return found


def find(draft: Draft, rules: Iterable[str]) -> list[Place]:
    """All places of some rules, bodies included."""
    wanted = [pattern_of(rule) for rule in rules]
    known: dict[tuple[str, tuple[str, ...]], list[Place]] = {}  # of equal bodies
    found: list[Place] = []
    for prefix, graph, path in _graphs(draft, (), ()):
        key = graph.graph.digest, path
        if key not in known:
            known[key] = list(_places(graph.net, wanted, path))
        found += [replace(place, prefix=prefix) for place in known[key]]
    return found


def _graphs(
    draft: Draft, prefix: Prefix, ops: tuple[str, ...]
) -> Iterator[tuple[Prefix, Draft, tuple[str, ...]]]:
    """The graph and its bodies, with the ops that they are bodies of."""
    yield prefix, draft, ops
    for i, node in enumerate(draft.graph.nodes):
        for b in range(len(node.bodies)):
            inner = draft.body(i, b)
            yield from _graphs(inner, (*prefix, i, b), (*ops, f"{node.op}.{b}"))


def _places(net: Net, wanted: Sequence[Pattern], path: tuple[str, ...]) -> Iterator[Place]:
    """Places in one graph, as if it were the program itself."""
    index = index_of(net, net.items)
    for pattern in wanted:
        counts: dict[int, int] = {}
        for total, found in enumerate(matches(net, pattern, index, may_begin)):
            if total >= MOST_PLACES:
                break
            root = found.roots[0][0]
            number = counts.get(root, 0)
            counts[root] = number + 1
            if may_apply(net, found):
                nodes = tuple(n for n, _ in found.items)
                yield Place(pattern.name, (), root, number, _kind(net, found, path), nodes)


def _kind(net: Net, found: Match, path: tuple[str, ...]) -> str:
    """Text of the rule, shapes and axes at a place, and of the makers of its operands."""
    parts = [found.pattern.name, *path]
    for term, view in sorted(found.views.items(), key=lambda pair: repr(pair[0])):
        made = net.maker(view.source)
        if isinstance(view.source, Literal):
            origin = repr(view.source.value)
        elif made is None:
            item = net.inputs[view.source[1]]
            origin = item.role
        else:
            origin = made.node.op
        parts.append(f"{term.name} {net.type_of(view.source)} {view.groups} {origin}")
    return " | ".join(parts)


def apply(draft: Draft, places: Sequence[Place], sound: Sound | None = None) -> tuple[Draft, int]:
    """The program with one rule applied at some places, and the number of places where it was.

    The rule is not applied at a place that overlaps an earlier one, nor where the program would
    then depend on itself.

    Args:
        draft: the program.
        places: of one rule, all at the same depth.
        sound: decides on each region that is rewritten whether it may be; a `Trial`.
    """
    pairs = [(place.prefix, place) for place in places]
    return _within(draft, pairs, sound) if pairs else (draft, 0)


def _within(
    draft: Draft, places: Sequence[tuple[Prefix, Place]], sound: Sound | None
) -> tuple[Draft, int]:
    """Applies a rule at places given with their prefixes from this draft on, all of one length."""
    if not places[0][0]:
        return _here(draft, [place for _, place in places], sound)
    inner: dict[tuple[int, int], list[tuple[Prefix, Place]]] = {}
    for prefix, place in places:
        inner.setdefault((prefix[0], prefix[1]), []).append((prefix[2:], place))
    bodies: dict[tuple[int, int], Draft] = {}
    known: dict[object, tuple[Draft, Draft, int]] = {}  # of equal bodies and places
    total = 0
    for (at, number), members in inner.items():
        body = draft.body(at, number)
        key = id(body.graph), tuple([(way, p.root, p.number) for way, p in members])
        before, after, count = known.get(key, (body, body, 0))
        found = taken_over(after, before, body) if key in known else None
        if found is None:
            found, count = _within(body, members, sound)
            known.setdefault(key, (body, found, count))
        if count:
            bodies[at, number] = found
            total += count
    return (with_bodies(draft, bodies), total) if bodies else (draft, 0)


def _here(draft: Draft, places: Sequence[Place], sound: Sound | None) -> tuple[Draft, int]:
    net = draft.net.copy()
    wanted = {(place.root, place.number) for place in places}
    count = 0
    for found in _chosen(net, pattern_of(places[0].rule), wanted):
        count += _rewrite(net, found, sound)
    done = finished(net) if count else None
    return (done, count) if done is not None else (draft, 0)


def _chosen(net: Net, pattern: Pattern, wanted: set[tuple[int, int]]) -> list[Match]:
    counts: dict[int, int] = {}
    chosen: list[Match] = []
    index = index_of(net, {root for root, _ in wanted if root in net.items})
    for found in matches(net, pattern, index, may_begin):
        if len(chosen) == len(wanted):
            break
        root = found.roots[0][0]
        number = counts.get(root, 0)
        counts[root] = number + 1
        if (root, number) in wanted and may_apply(net, found):
            chosen.append(found)
    return chosen


def _rewrite(net: Net, found: Match, sound: Sound | None) -> bool:
    """Writes the right side of a rule in the place of the left one; False if it does not fit."""
    if not found.is_there(net):
        return False
    if net.reaches(found.needs(), {root[0] for root in found.roots}):
        return False
    pattern = found.pattern
    net.line = net.items[found.roots[0][0]].node.source
    writer = Writer(
        net, found.views, [item for _, item in found.items], _WRITERS, found.swapped,
        pattern.may_stack, pattern.moves,
    )  # fmt: skip
    try:
        new = [
            writer.as_root(writer.write(right), found.views[left])
            for left, right in zip(pattern.left, pattern.right, strict=True)
        ]
    except NoFitError:
        return False
    if all(old == source for old, source in zip(found.roots, new, strict=True)):
        return False
    if sound is not None and not sound(region_of(net, found, new)):
        return False
    for old, source in zip(found.roots, new, strict=True):
        net.swap(old, source)
    return True

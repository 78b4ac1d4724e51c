"""Places where the left side of a rule stands in a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ir import Literal, TensorType

from ..ops import OPS, Form
from ..program.matcher import Env, Matcher
from ..program.net import Item, Net, Source, Value
from ..program.views import Groups, Partial, View, covers, filled
from ..term import Term
from .pattern import Pattern

# Candidates for another output that are tried for each place of the first one.
MOST_PARTNERS = 4
_PRODUCT = "dot_general"
_FORMS: Mapping[str, Form] = {name: op.form for name, op in OPS.items() if op.form is not None}
_READERS = {name: form.read for name, form in _FORMS.items()}
_MAKERS = {name: form.primitives if form.only else () for name, form in _FORMS.items()}


@dataclass(frozen=True, slots=True)
class Match:
    """An instance of a rule.

    roots: values that the outputs of the rule are.
    views: value of each variable and each output, with its axes.
    items: nodes of the pattern, by the number of the item.
    swapped: whether the factors of all its products are exchanged, and transposed, in the program.
    """

    pattern: Pattern
    roots: tuple[Value, ...]
    views: Mapping[Term, View]
    items: tuple[tuple[int, Item], ...]
    swapped: bool = False

    def is_there(self, net: Net) -> bool:
        """Whether nothing of it was rewritten since."""
        return all(net.items.get(n) is item for n, item in self.items) and all(
            net.users_of(root) or root in net.outputs for root in self.roots
        )

    def needs(self) -> list[Source]:
        """Values that the other side is computed from."""
        return [v.source for t, v in self.views.items() if not t.kind and not v.only_shape]


def index_of(net: Net, members: Iterable[int]) -> dict[str, list[int]]:
    """Some items of a net by their op."""
    index: dict[str, list[int]] = {}
    for n in members:
        index.setdefault(net.items[n].node.op, []).append(n)
    return index


def matches(
    net: Net,
    pattern: Pattern,
    index: Mapping[str, list[int]],
    begins: Callable[[str, TensorType], bool],
) -> Iterator[Match]:
    """Instances of a rule in the order of their first output.

    Args:
        net: the program.
        pattern: the rule.
        index: items that the first output may be of, by their op.
        begins: whether a rule (by name) may be applied where its first output has a type.
    """
    at = Matcher(net, pattern.term_ranks, pattern.moves, _READERS, _MAKERS)
    seen: set[object] = set()
    first = pattern.left[0]
    wanted: dict[TensorType, bool] = {}
    for n in sorted(n for op in _FORMS[first.kind].primitives for n in index.get(op, ())):
        for k, type_ in enumerate(net.items[n].node.outputs):
            if type_ not in wanted:
                wanted[type_] = begins(pattern.name, type_)
            if not wanted[type_]:
                continue
            for env in _all_known(at, first, (n, k), {}):
                for full, roots in _others(at, pattern, env, ((n, k),)):
                    found = _match(net, pattern, full, roots)
                    if found is not None and (key := _key(found)) not in seen:
                        seen.add(key)
                        yield found


def _key(match: Match) -> object:
    sources = sorted(str(v.source) for t, v in match.views.items() if not t.kind)
    return frozenset(match.roots), tuple(n for n, _ in match.items), tuple(sources)


def _all_known(at: Matcher, term: Term, root: Value, env: Env) -> Iterator[Env]:
    """Ways to read an output at a value, with the axes of everything in it known.

    Axes that the nodes leave open are chosen at the output, which decides those of its operands.
    """
    for groups, more in at.match(term, root, None, env):
        if all(None not in seen.groups for seen in more.values()):
            yield more
            continue
        whole = filled(groups, at.net.type_of(root))
        yield from (last for _, last in at.match(term, root, whole, env))


def _others(
    at: Matcher, pattern: Pattern, env: Env, roots: tuple[Value, ...]
) -> Iterator[tuple[Env, tuple[Value, ...]]]:
    """The other outputs, each at a reader of a value that is bound."""
    left = pattern.left
    if len(roots) == len(left):
        yield env, roots
        return
    term = left[len(roots)]
    for root in _partners(at.net, term, env, roots):
        for more in _all_known(at, term, root, env):
            yield from _others(at, pattern, more, (*roots, root))


def _partners(net: Net, term: Term, env: Env, roots: tuple[Value, ...]) -> list[Value]:
    """Values that could be another output: readers of bound operands, in the order of the graph."""
    known = [env[arg].source for arg in term.args if arg in env]
    if not known:
        return []
    primitives = _FORMS[term.kind].primitives
    readers = [n for n in net.users_of(known[0]) if net.items[n].node.op in primitives]
    values = [(n, k) for n in sorted(readers) for k in range(len(net.items[n].node.outputs))]
    return [value for value in values if value > roots[-1]][:MOST_PARTNERS]


def _match(net: Net, pattern: Pattern, env: Env, roots: tuple[Value, ...]) -> Match | None:
    views: dict[Term, View] = {}
    items: dict[int, Item] = {}
    for term, seen in env.items():
        made = None if seen.only_shape or not term.kind else net.maker(seen.source)
        if made is not None and not isinstance(seen.source, Literal):
            items[seen.source[0]] = made
        if term.kind and term not in pattern.left:
            continue
        whole = _whole(seen.groups)
        if whole is None or not covers(whole, net.type_of(seen.source)):
            return None
        views[term] = View(seen.source, whole, seen.only_shape)
    if any(v not in views or views[v].only_shape for t in pattern.right for v in read_by(t)):
        return None
    parts = tuple(sorted(items.items(), key=lambda pair: pair[0]))
    return Match(pattern, roots, views, parts, _swapped(net, env))


def _swapped(net: Net, env: Env) -> bool:
    ways: set[bool] = set()
    for term, seen in env.items():
        product = term.kind and _PRODUCT in _FORMS[term.kind].primitives
        item = net.maker(seen.source) if product else None
        if item is not None and item.node.op == _PRODUCT:
            ways.add(item.inputs[1] == env[term.args[0]].source)
    return ways == {True}


def _whole(groups: Partial) -> Groups | None:
    found = tuple(group for group in groups if group is not None)
    return found if len(found) == len(groups) else None


def read_by(term: Term) -> Iterator[Term]:
    """Variables whose elements a term reads, and not only their shape."""
    if not term.kind:
        yield term
    args = term.args[:-1] if term.kind and OPS[term.kind].shape_only else term.args
    for arg in args:
        yield from read_by(arg)

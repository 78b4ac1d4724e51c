"""The part of a program that rewrites change, with what lies around it, as a problem of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from costmodel import VIEWS
from costmodel.compiler import is_fused
from ir import Literal, Sharding
from ir.analysis import ValueKey

from .sharded_egraph import Item, Prices, Wish, Work
from .value_classes import ClassNode, ValueClasses


class Part:
    """Ops that are chosen anew; the others do what they do in the plan.

    Attributes:
        items: ways to make values; named by the number of their form, or -1 for values that lie
            somewhere already.
        wish: values that the others read, each in the sharding in which the plan keeps it.
        runs: how often a value is made.
    """

    def __init__(
        self,
        classes: ValueClasses,
        forms: Sequence[ClassNode],
        gone: set[tuple[int, ...]],
        known: Mapping[ValueKey, Sharding],
    ) -> None:
        opened = _opened(forms, gone)
        shut = [form for k, form in enumerate(forms) if k not in opened]
        made = {forms[k].outs[0] for k in opened}
        kept = _kept(classes, known)
        fixed = {c for form in shut for c in form.outs} | (kept.keys() - made)
        placed = {c: kept[c] for c in sorted(fixed) if c in kept}
        self.types, self.runs = classes.types, _runs(classes, forms)
        self.needed = _needed(classes, forms)
        fused = {c for form in forms if is_fused(form.node) for c in form.outs}
        self.stored = self.needed | (set(self.runs) - fused)
        self.items = [Item(-1, c, placed=state) for c, states in placed.items() for state in states]
        ready = made | placed.keys()
        self.items += [self._item(k, forms[k], ready) for k in opened]
        read = [a for form in shut for a in form.args]
        read += [a for end in classes.ends.values() for a in end]
        asked = {classes.find(a) for a in read if not isinstance(a, Literal)} & made - placed.keys()
        wanted = [(c, state) for c in sorted(asked) for state in kept.get(c, ())[:1]]
        self.wish = Wish(tuple(c for c, _ in wanted), tuple(state for _, state in wanted))

    def count(self, prices: Prices) -> int:
        """Ways of all ops."""
        return sum(
            len(prices.ways_of(item.work, _operands(item)))
            for item in self.items
            if item.work is not None
        )

    def _item(self, k: int, form: ClassNode, ready: set[int]) -> Item:
        """An op; values computed from literals alone are no operands."""
        inputs = tuple(a if isinstance(a, Literal) else 0 for a in form.args)
        node = replace(form.node, inputs=inputs, source="")
        types = tuple(a.type if isinstance(a, Literal) else self.types[a] for a in form.args)
        (out,) = form.outs
        args = [(n, a) for n, a in enumerate(form.args) if not isinstance(a, Literal)]
        reads = tuple(n for n, a in args if a in self.stored or not is_fused(form.node))
        idle = node.op in VIEWS or (is_fused(form.node) and out not in self.needed)
        work = Work(node, types, (), (), 0) if idle else Work(node, types, reads, (0,), 1)
        return Item(k, out, tuple((n, a) for n, a in args if a in ready), work, None, form.runs)


def _operands(item: Item) -> int:
    return 1 + max((n for n, _ in item.args), default=-1)


def _opened(forms: Sequence[ClassNode], gone: set[tuple[int, ...]]) -> list[int]:
    """Ops that rules made, that they leave out, and those that share a value with them."""
    core = {k for k, form in enumerate(forms) if not form.place or form.place in gone}
    able = [k for k, form in enumerate(forms) if not form.node.bodies and len(form.outs) == 1]
    near = {c for k in core for c in (*forms[k].args, *forms[k].outs)}
    return [k for k in able if k in core or near & {*forms[k].args, *forms[k].outs}]


def _kept(
    classes: ValueClasses, known: Mapping[ValueKey, Sharding]
) -> dict[int, tuple[Sharding, ...]]:
    """Class -> shardings in which the plan keeps its values."""
    found: dict[int, dict[Sharding, None]] = {}
    for c, keys in classes.at.items():
        for key in keys:
            if key in known:
                found.setdefault(classes.find(c), {})[known[key]] = None
    return {c: tuple(states) for c, states in found.items()}


def _needed(classes: ValueClasses, forms: Sequence[ClassNode]) -> set[int]:
    """Classes that reach memory whoever makes them: something that is not fused reads them."""
    read = [a for form in forms if not is_fused(form.node) for a in form.args]
    read += [a for end in classes.ends.values() for a in end]
    return {classes.find(a) for a in read if not isinstance(a, Literal)}


def _runs(classes: ValueClasses, forms: Sequence[ClassNode]) -> dict[int, float]:
    """How often a class is made: as seldom as one of its forms."""
    found: dict[int, float] = {}
    every = [(c, form.runs) for form in forms for c in form.outs]
    every += [
        (classes.find(c), classes.runs[place])
        for c, keys in classes.at.items()
        for place, _ in keys
    ]
    for c, runs in every:
        found[c] = min(runs, found.get(c, runs))
    return found

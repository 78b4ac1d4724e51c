"""A program with a causal sequence in the order of zigzag, from its batch to its loss.

Every value with dimensions of the sequence has the form in which its op makes it, straight or in
the order of zigzag, and gets the other where that is read. Batches are put into the order where
they enter, counted positions where they are made, and causal kernels of attention work on it. Ops
that treat the elements of a sequence apart from each other, or add them up, run in either form and
follow the greater part of their operands' bytes; all others run straight. Arguments and results
stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ir import ATTENTION, REGIONS, Literal, takes_order, to_straight, to_zigzag
from ir.analysis import Place
from ir.ordered_attention import with_order
from ir.trace import Program

from ..padding.classified import Classified
from ..padding.nodes import can_be_padded
from ..padding.region_forms import Port, RegionForms
from ..padding.rules import hidden
from ..recompute.draft import Draft, Item, Numbers, Value, draft_of, program_of
from .nodes import OrderWriter

_ALONG = ("argmax", "argmin", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")


@dataclass(frozen=True)
class Order:
    """A class of dimensions and the order that it gets.

    place, number, dim: one of its dimensions: body, number of the value in it, dimension.
    parts: of the order of zigzag.
    """

    place: Place
    number: int
    dim: int
    parts: int


def ordered(program: Program, order: Order, known: Classified | None = None) -> Program:
    """The program with the sequence of a class of dimensions in the order of zigzag."""
    known = known or Classified(program.graph)
    v = known.flat.names[order.place, order.number]
    whole = _Ordered(known, known.classes.of_dim(v, order.dim), order.parts, Numbers())
    inputs = program.graph.inputs
    eager = [item.role not in ("parameter", "optimizer-state", "constant") for item in inputs]
    draft, _ = whole.body(
        program, (), [False] * len(inputs), [False] * len(program.graph.outputs), eager
    )
    return program_of(draft)


def takes(known: Classified, i: int, parts: int, sequence: int | None = None) -> bool:
    """Whether a flat op is a kernel whose queries and keys can be in the order of zigzag.

    Args:
        known: the program.
        i: the op.
        parts: of the order.
        sequence: class of its queries and keys; None for any.
    """
    op = known.flat.ops[i]
    if op.node.op not in ATTENTION:
        return False
    names = known.specs.of(op).names
    if not {"t", "s"} <= set(names):
        return False
    queries, keys = (known.classes.of_factor(i, name) for name in "ts")
    types = tuple(
        v.type if isinstance(v, Literal) else known.flat.values[v].type for v in op.inputs
    )
    able = queries == keys and takes_order(types, dict(op.node.attrs), parts)
    return able and sequence in (None, queries)


@dataclass
class _Value:
    """A value in one form or both.

    home: the form in which its op makes it; None if it is the same in both.
    """

    straight: Value | None
    zigzag: Value | None
    home: Port


@dataclass
class _Ordered:
    """What is the same in all bodies."""

    known: Classified
    sequence: int
    parts: int
    numbers: Numbers

    def body(
        self, program: Program, place: Place, entering: Sequence[bool], leaving: Sequence[Port],
        eager: Sequence[bool] = (),
    ) -> tuple[Draft, list[Port]]:  # fmt: skip
        """A body with its sequence in order, and the forms that its results have.

        Args:
            program: the body.
            place: of the body.
            entering: whether each input, captured constants first, is in order.
            leaving: whether each result is to be; None for the form that it has.
            eager: whether each input is put into order where it enters.
        """
        draft = draft_of(program, self.numbers)
        scope = _Scope(self, draft, place)
        for k, (v, _) in enumerate(draft.inputs):
            dims = scope.dims(v)
            if dims and entering[k]:
                scope.values[v] = _Value(None, v, True)
            else:
                scope.values[v] = _Value(v, None, bool(dims and eager and eager[k]))
        for i, item in enumerate(list(draft.items)):
            scope.run(i, item)
        draft.items = scope.items
        homes = [scope.home(v) for v in draft.outputs]
        forms = [h if want is None else want for h, want in zip(homes, leaving, strict=True)]
        draft.outputs = [
            scope.form(v, form=bool(f)) for v, f in zip(draft.outputs, forms, strict=True)
        ]
        return draft, forms


@dataclass
class _Scope(RegionForms[_Ordered]):
    """One body while it is edited."""

    whole: _Ordered
    draft: Draft
    place: Place
    items: list[Item] = field(default_factory=list[Item])
    values: dict[int, _Value] = field(default_factory=dict[int, _Value])

    def __post_init__(self) -> None:
        self.writer = OrderWriter(self.whole.numbers, self.items, self.whole.parts)

    def dims(self, v: Value) -> tuple[int, ...]:
        """Dimensions of a value that are of the sequence and divide into its chunks."""
        if isinstance(v, Literal) or not can_be_padded(self.whole.numbers.types[v]):
            return ()
        known, chunks = self.whole.known, 2 * self.whole.parts
        flat = known.flat.names.get((self.place, v - self.draft.first))
        if flat is None:
            return ()
        return tuple(
            d for d, n in enumerate(self.whole.numbers.types[v].shape)
            if n > 1 and n % chunks == 0 and known.classes.of_dim(flat, d) == self.whole.sequence
        )  # fmt: skip

    def home(self, v: Value) -> Port:
        """The form in which a value is made."""
        return None if isinstance(v, Literal) or not self.dims(v) else self.values[v].home

    def form(self, v: Value, *, form: bool) -> Value:
        """A value in the order of zigzag, or straight."""
        if isinstance(v, Literal):
            return v
        value = self.values[v]
        if not self.dims(v) or value.home is None:
            found = value.straight if value.zigzag is None else value.zigzag
        elif form:
            if value.zigzag is None:
                assert value.straight is not None
                value.zigzag = self._turned(value.straight, v, to_zigzag)
            found = value.zigzag
        else:
            if value.straight is None:
                assert value.zigzag is not None
                value.straight = self._turned(value.zigzag, v, to_straight)
            found = value.straight
        assert found is not None
        return found

    def _turned(self, made: Value, v: int, order: Callable[..., Any]) -> Value:
        assert isinstance(made, int)
        return self.writer.turned(made, self.dims(v), order)

    # --- nodes -------------------------------------------------------------------------------

    def run(self, i: int, item: Item) -> None:
        """Writes a node of the body."""
        if item.op in REGIONS:
            self._region(i, item)
        elif self._counts(item):
            self._counted(item)
        elif takes(self.whole.known, self._op(i), self.whole.parts, self.whole.sequence):
            node, binding = with_order(item.node, item.binding, self.whole.parts)
            self._written_as(replace(item, node=node, binding=binding), form=True)
        else:
            self._written_as(item, form=self._form_of(i, item))

    def _op(self, i: int) -> int:
        return self.whole.known.op_at[*self.place, i]

    def _counts(self, item: Item) -> bool:
        """Whether a node counts positions of the sequence."""
        return item.op == "iota" and item.node.attr("dimension") in self.dims(item.outs[0])

    def _counted(self, item: Item) -> None:
        """Positions in the order of zigzag."""
        (v,) = item.outs
        dim = item.node.attr("dimension")
        assert isinstance(dim, int)
        made = self.writer.counted(self.whole.numbers.types[v], dim)
        self.values[v] = _Value(None, made, True)

    def _form_of(self, i: int, item: Item) -> Port:
        """The form in which a node runs."""
        touched = [v for v in (*item.ins, *item.outs) if self.dims(v)]
        if not touched or not self._alike(i, item):
            return False
        homes = [self.home(v) for v in item.ins if self.dims(v)]
        if all(h is None for h in homes):
            return None if any(self.dims(v) for v in item.outs) else False
        weighed = {True: 0, False: 0, None: 0}
        for v in {v for v in item.ins if isinstance(v, int) and self.dims(v)}:
            weighed[self.home(v)] += self.whole.numbers.types[v].nbytes
        return weighed[True] > weighed[False]

    def _alike(self, i: int, item: Item) -> bool:
        """Whether a node makes the same of its operands' elements in whatever order they are."""
        known = self.whole.known
        spec = known.specs.of(known.flat.ops[self._op(i)])
        types = tuple(self.draft.type_of(v) for v in item.ins)
        if item.op in ATTENTION or not all(map(can_be_padded, (*types, *item.node.outputs))):
            return False
        factors = frozenset(
            name for name in spec.names
            if known.classes.of_factor(self._op(i), name) == self.whole.sequence
        )  # fmt: skip
        if not factors or any(self._odd(v) for v in (*item.ins, *item.outs)):
            return False
        how = hidden(item.node, spec, factors, types)
        if how is None or how.indexed:
            return False
        attrs = dict(item.node.attrs)
        axes = attrs.get("axes", (attrs.get("axis"),)) if item.op in _ALONG else ()
        return not (isinstance(axes, tuple) and {*axes} & {*self.dims(item.ins[0])})

    def _odd(self, v: Value) -> bool:
        """Whether a value has a dimension of the sequence that does not divide into its chunks."""
        if isinstance(v, Literal):
            return False
        known = self.whole.known
        flat = known.flat.names.get((self.place, v - self.draft.first))
        if flat is None:
            return False
        here = self.dims(v)
        return any(
            n > 1 and d not in here and known.classes.of_dim(flat, d) == self.whole.sequence
            for d, n in enumerate(self.whole.numbers.types[v].shape)
        )

    def _written_as(self, item: Item, *, form: Port) -> None:
        """The node in a form; its results have that form too."""
        self.items.append(replace(item, ins=[self.form(v, form=bool(form)) for v in item.ins]))
        for v in item.outs:
            if form is None or not self.dims(v):
                self.values[v] = _Value(v, v, None)
            else:
                self.values[v] = _Value(None, v, True) if form else _Value(v, None, False)

    # --- loops, branches and checkpoints -----------------------------------------------------

    def _region(self, i: int, item: Item) -> None:
        forms_in, forms_out, bodies = self.region(i, item)
        ins = [self.form(v, form=bool(f)) for v, f in zip(item.ins, forms_in, strict=True)]
        for v, form in zip(item.outs, forms_out, strict=True):
            inside = bool(form and self.dims(v))
            self.values[v] = _Value(None, v, True) if inside else _Value(v, None, False)
        self.items.append(replace(item, ins=ins, bodies=bodies))

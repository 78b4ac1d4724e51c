"""A program with rows sorted within blocks, wherever that gives the same results.

Values keep their shapes and rows their places in blocks, so that only the ops change that make an
order, and those that gain by one in blocks: sorts, counts of groups, grouped products, lookups of
rows and rows that are added. Each is written as a reshape, the op with a dimension of blocks, and a
reshape back. Counts of groups in blocks have a form of their own, which passes loops.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from ir import REGIONS, IRError, Literal
from ir.analysis import Place
from ir.trace import Program

from ..padding.region_forms import Port, RegionForms
from ..recompute.draft import Draft, Item, Numbers, Value, draft_of, program_of
from .nodes import COUNT, BlockWriter
from .orders import Counts, Orders, Site


def in_blocks(program: Program, blocks: int, known: Orders | None = None) -> Program | None:
    """The program with its rows sorted in some blocks; None if it has no rows that can be.

    Args:
        program: any program.
        blocks: number of blocks.
        known: its orders.
    """
    known = known or Orders(program.graph)
    good = known.good(blocks)
    if not good:
        return None
    whole = _Whole(known, good, blocks, Numbers())
    draft, _ = whole.body(
        program, (), [False] * len(program.graph.inputs), [False] * len(program.graph.outputs)
    )
    return program_of(draft)


@dataclass
class _Whole:
    """What is the same in all bodies."""

    known: Orders
    good: frozenset[Hashable]
    blocks: int
    numbers: Numbers

    def body(
        self, program: Program, place: Place, entering: Sequence[bool], leaving: Sequence[Port]
    ) -> tuple[Draft, list[Port]]:
        """A body with rows in blocks, and which of its results are counts of blocks.

        Args:
            program: the body.
            place: of the body.
            entering: which of its inputs, captured constants first, are counts of blocks.
            leaving: which of its results are to be; None for what they are.
        """
        draft = draft_of(program, self.numbers)
        scope = _Scope(self, draft, place)
        for k, (v, given) in enumerate(list(draft.inputs)):
            scope.values[v] = _Value(v, None)
            if entering[k] and scope.dims(v):
                made = scope.made(v)
                draft.inputs[k] = made, replace(given, type=self.numbers.types[made])
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
class _Value:
    """A value as the program has it, and its counts by block."""

    plain: Value | None
    blocks: Value | None


@dataclass
class _Scope(RegionForms[_Whole]):
    """One body while it is edited."""

    whole: _Whole
    draft: Draft
    place: Place
    items: list[Item] = field(default_factory=list[Item])
    values: dict[int, _Value] = field(default_factory=dict[int, _Value])

    def __post_init__(self) -> None:
        self.writer = BlockWriter(self.whole.numbers, self.items, self.whole.blocks)
        names = self.whole.known.flat.names
        self.here = {flat: k for (place, k), flat in names.items() if place == self.place}

    def dims(self, v: Value) -> tuple[int, ...]:
        """The dimension of blocks of a value that has one."""
        known = self._known(v)
        return (known.lifted,) if isinstance(known, Counts) else ()

    def home(self, v: Value) -> Port:
        """Whether a value has counts by block."""
        return isinstance(v, int) and self.values[v].blocks is not None

    def form(self, v: Value, *, form: bool, like: Item | None = None) -> Value:
        """A value by block, or as the program has it."""
        if isinstance(v, Literal):
            return v
        value = self.values[v]
        if form:
            if value.blocks is None:
                raise IRError("counts of groups have lost their blocks")
            return value.blocks
        if value.plain is None:
            assert value.blocks is not None
            dtype = self.whole.numbers.types[v].dtype
            (dim,) = self.dims(v)
            like = like or self.items[-1]
            value.plain = self.writer.summed(like, value.blocks, dim, dtype)
        return value.plain

    def made(self, v: int) -> int:
        """The number of the counts by block that are made in place of a value."""
        type_, (dim,) = self.whole.numbers.types[v], self.dims(v)
        shape = (*type_.shape[:dim], self.whole.blocks, *type_.shape[dim:])
        found = self.whole.numbers.new(replace(type_, shape=shape, dtype=COUNT))
        self.values[v] = _Value(None, found)
        return found

    def _known(self, v: Value) -> object:
        if isinstance(v, Literal):
            return None
        flat = self.whole.known.flat.names.get((self.place, v - self.draft.first))
        return None if flat is None else self.whole.known.values.of(flat)

    def run(self, i: int, item: Item) -> None:
        """Writes a node of the body."""
        if item.op in REGIONS:
            self._region(i, item)
            return
        number = self.whole.known.op_at[*self.place, i]
        site = self.whole.known.sites.get(number)
        if site is not None and site.root in self.whole.good and site.fits(self.whole.blocks):
            self._site(site, item)
        elif number in self.whole.known.counts:
            self._plain(item)
            self._counted(self.whole.known.counts[number], item)
        else:
            self._plain(item)
            self._passed_on(item)

    def _plain(self, item: Item) -> None:
        ins = [self.form(v, form=False, like=item) for v in item.ins]
        self.items.append(replace(item, ins=ins))
        for v in item.outs:
            self.values[v] = _Value(v, None)

    def _passed_on(self, item: Item) -> None:
        """Counts that an op leaves as they are."""
        if item.ins and self.home(item.ins[0]) and self.dims(item.outs[0]):
            self.values[item.outs[0]].blocks = self.form(item.ins[0], form=True)

    def _counted(self, source: int, item: Item) -> None:
        (v,) = item.outs
        number = self.here.get(source)
        if number is None:
            raise IRError("the numbers that are sorted are not where they are counted")
        keys = self.form(self.draft.first + number, form=False, like=item)
        groups = self.whole.numbers.types[v].shape[0]
        self.values[v].blocks = self.writer.counts(item, keys, groups)

    def _site(self, site: Site, item: Item) -> None:
        ins = [self.form(v, form=False, like=item) for v in item.ins[:2]]
        if site.kind == "product":
            counts = self.form(item.ins[2], form=True)
            found = self.writer.product(item, [*ins, counts])
        else:
            ins += [self.form(v, form=False, like=item) for v in item.ins[2:]]
            write = self.writer.sorted if site.kind == "sort" else self.writer.moved
            found = write(item, ins)
        for v, made in zip(item.outs, found, strict=True):
            self.values[v] = _Value(made, None)

    def _region(self, i: int, item: Item) -> None:
        forms_in, forms_out, bodies = self.region(i, item)
        ins = [
            self.form(v, form=bool(f), like=item)
            for v, f in zip(item.ins, forms_in, strict=True)
        ]  # fmt: skip
        outs: list[int] = []
        for v, form in zip(item.outs, forms_out, strict=True):
            self.values[v] = _Value(v, None)
            outs.append(self.made(v) if form and self.dims(v) else v)
        self.items.append(replace(item, ins=ins, outs=outs, bodies=bodies))

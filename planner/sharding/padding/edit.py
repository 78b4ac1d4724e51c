"""A program with some classes of dimensions padded wherever an op gains by it.

Every value has the form in which its op makes it, plain or padded, and the other one where that is
read: a pad puts zeros behind it, a slice takes the padding off. Products that have a padded factor
run padded. Other ops follow their operands: padded where more bytes of these are padded than not,
if there is a rule of what padding means to them. Where a padded size is that of the elements, the
forms are one. Arguments and results of the program keep their sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ir import REGIONS, Literal, Node, TensorType, lookup
from ir.analysis import Place
from ir.trace import Binding, Program

from ..recompute.draft import Draft, Item, Numbers, Value, draft_of, program_of
from .bordered import group_of, starts_of
from .candidates import padded_at_once
from .classified import Classified, Padding, Sizes
from .moved_nodes import MovedWriter
from .moving import Move, Moved, is_setting, move_of
from .nodes import can_be_padded
from .region_forms import Port, RegionForms
from .rules import PRODUCTS, Hidden, Number, hidden, looked_up


def padded(program: Program, padding: Padding, known: Classified | None = None) -> Program:
    """The program with a class of dimensions, or those that differ by borders from it, padded.

    Args:
        program: the program.
        padding: the class and its size.
        known: the program's classes, if they have been found.
    """
    known = known or Classified(program.graph)
    place, number, dim, size, parts = (
        padding.place, padding.number, padding.dim, padding.size, padding.parts
    )  # fmt: skip
    sizes = group_of(known, place, number, dim, size, parts)
    whole = _Padded(known, sizes, parts, Numbers())
    inputs, outputs = program.graph.inputs, program.graph.outputs
    eager = padded_at_once(known, sizes)
    draft, _ = whole.body(program, (), [False] * len(inputs), [False] * len(outputs), eager)
    return program_of(draft)


@dataclass
class _Value:
    """A value in one form or both.

    sizes: dimensions with padding -> elements before it.
    home: whether its op makes it padded; None if it can make either.
    filled: padded forms in which the padding is known, by what is there.
    """

    plain: Value | None
    padded: Value | None
    sizes: Mapping[int, int]
    home: Port
    filled: dict[Number, Value] = field(default_factory=dict[Number, Value])


@dataclass
class _Padded:
    """What is the same in all bodies."""

    known: Classified
    sizes: Sizes
    parts: int  # of which these are multiples; 0 if that is not known
    numbers: Numbers

    def shape(self, type_: TensorType, dims: Mapping[int, int]) -> tuple[int, ...]:
        """A shape with some dimensions padded."""
        return tuple(dims.get(d, n) for d, n in enumerate(type_.shape))

    def body(
        self, program: Program, place: Place, entering: Sequence[bool], leaving: Sequence[Port],
        eager: Sequence[bool] = (),
    ) -> tuple[Draft, list[Port]]:  # fmt: skip
        """A body with padded dimensions, and the forms that its results have.

        Args:
            program: the body.
            place: of the body.
            entering: whether each input, captured constants first, is padded.
            leaving: whether each result is to be; None for the form that it has.
            eager: whether each input is padded where it enters.
        """
        draft = draft_of(program, self.numbers)
        scope = _Scope(self, draft, place)
        scope.enter(entering, eager)
        for i, item in enumerate(list(draft.items)):
            scope.run(i, item)
        draft.items = scope.items
        homes = [scope.home(v) for v in draft.outputs]
        forms = [h if want is None else want for h, want in zip(homes, leaving, strict=True)]
        last = program_item(program)
        draft.outputs = [
            scope.form(v, form=bool(f), like=last)
            for v, f in zip(draft.outputs, forms, strict=True)
        ]
        return draft, forms


def program_item(program: Program) -> Item:
    """What conversions of a body's results are like: its last node."""
    if not program.graph.nodes:
        return Item(Node("", (), ()), Binding(None, {}), [], [], False)
    binding = program.bindings[-1]
    return Item(program.graph.nodes[-1], binding, [], [], binding.backward)


@dataclass
class _Scope(RegionForms[_Padded]):
    """One body while it is edited."""

    whole: _Padded
    draft: Draft
    place: Place
    items: list[Item] = field(default_factory=list[Item])
    values: dict[int, _Value] = field(default_factory=dict[int, _Value])

    def __post_init__(self) -> None:
        self.writer = MovedWriter(self.whole.numbers, self.items)

    def dims(self, v: Value) -> dict[int, int]:
        """Dimensions of a value of this body that can be padded, with their sizes then."""
        if isinstance(v, Literal) or not can_be_padded(self.whole.numbers.types[v]):
            return {}
        number = v - self.draft.first
        return self.whole.known.dims(self.place, number, self.whole.sizes)

    def enter(self, entering: Sequence[bool], eager: Sequence[bool]) -> None:
        for k, (v, item) in enumerate(list(self.draft.inputs)):
            dims = self.dims(v)
            sizes = {d: item.type.shape[d] for d in dims}
            if dims and entering[k]:
                shape = self.whole.shape(item.type, dims)
                bigger = TensorType(shape, item.type.dtype)
                inner = self.whole.numbers.new(bigger)
                self.draft.inputs[k] = inner, replace(item, type=bigger)
                self.values[v] = _Value(None, inner, sizes, True)
            else:
                # the plain form is there all the same
                home = bool(dims) and (dims == sizes or bool(eager and eager[k]))
                self.values[v] = _Value(v, None, sizes, home)

    def home(self, v: Value) -> Port:
        """The form in which a value is made."""
        return False if isinstance(v, Literal) else self.values[v].home

    def form(self, v: Value, *, form: bool, like: Item) -> Value:
        """A value, padded or plain."""
        if isinstance(v, Literal):
            return v
        value = self.values[v]
        if not value.sizes:
            form = False
        if form and value.padded is None:
            assert value.plain is not None
            shape = self.whole.shape(self.whole.numbers.types[v], self.dims(v))
            value.padded = value.plain
            if shape != self.whole.numbers.types[v].shape:
                value.padded = value.filled[0] = self.writer.padded(value.plain, shape, like)
        if not form and value.plain is None:
            assert value.padded is not None
            shape = self.whole.numbers.types[v].shape
            value.plain = value.padded
            if self.dims(v) != dict(value.sizes):
                value.plain = self.writer.cut(value.padded, shape, like)
        found = value.padded if form else value.plain
        assert found is not None
        return found

    def with_fill(self, v: Value, fill: Number | None, like: Item) -> Value:
        """The padded form of a value, with a number in its padding."""
        found = self.form(v, form=True, like=like)
        if fill is None or isinstance(v, Literal) or not self.values[v].sizes:
            return found
        value = self.values[v]
        if fill not in value.filled:
            assert isinstance(found, int)
            dims = self.dims(v)
            beyond = {d: n for d, n in value.sizes.items() if n < dims[d]}
            value.filled[fill] = self.writer.filled(found, beyond, fill, like)
        return value.filled[fill]

    # --- nodes -------------------------------------------------------------------------------

    def run(self, i: int, item: Item) -> None:
        """Writes a node of the body, padded, plain or both."""
        if item.op in REGIONS:
            self._region(i, item)
            return
        touched = [v for v in (*item.ins, *item.outs) if self.dims(v)]
        how = self._how(i, item) if touched else None
        move = self._move(i, item) if touched and how is None else None
        homes = [self.home(v) for v in item.ins if self.dims(v)]
        if how is None and move is None:
            home: Port = False
        elif item.op in PRODUCTS:
            home = True
        elif all(h is None for h in homes):
            home = None if any(self.dims(v) for v in item.outs) else True
        else:
            home = self._more_padded(item)
        if home is not True:
            self._plain(item)
        if home is not False and how is not None:
            self._bigger(item, how)
        if home is not False and move is not None:
            self._moved(item, move)
        for v in item.outs:
            value = self.values[v]
            same = bool(value.sizes) and dict(value.sizes) == self.dims(v)
            value.home = (home or same) if value.sizes and home is not None else home
            value.home = value.home if value.sizes else False

    def _how(self, i: int, item: Item) -> Hidden | None:
        known = self.whole.known
        op = known.op_at[*self.place, i]
        spec = known.specs.of(known.flat.ops[op])
        types = tuple(self.draft.type_of(v) for v in item.ins)
        if not all(map(can_be_padded, (*types, *item.node.outputs))):
            return None
        factors = frozenset(
            name for name in spec.names
            if known.classes.of_factor(op, name) in self.whole.sizes
        )  # fmt: skip
        return hidden(item.node, spec, factors, types) if factors else None

    def _move(self, i: int, item: Item) -> Move | None:
        """What a node becomes that moves elements along padded dimensions."""
        known, types = self.whole.known, tuple(self.draft.type_of(v) for v in item.ins)
        if not all(map(can_be_padded, (*types, *item.node.outputs))) or len(item.outs) != 1:
            return None
        at = known.op_at[*self.place, i]
        starts = starts_of(known, known.flat.ops[at]) if is_setting(item.op) else None
        dims, (made,) = tuple(self.dims(v) for v in item.ins), item.node.outputs
        # operands of a node of a draft are in its item
        node = replace(item.node, inputs=tuple(item.ins))
        out = self.dims(item.outs[0])
        return move_of(Moved(node, types, dims, made, out, starts, self.whole.parts))

    def _moved(self, item: Item, move: Move) -> None:
        """The node with its dimensions padded, as what has the same elements."""
        ins = [self.with_fill(v, f, item) for v, f in zip(item.ins, move.fills, strict=True)]
        (v,) = item.outs
        sizes = {d: self.whole.numbers.types[v].shape[d] for d in self.dims(v)}
        value = self.values.setdefault(v, _Value(None, None, sizes, True))
        value.padded = move.write(self.writer, ins, item)
        if not sizes and value.plain is None:
            value.plain = value.padded

    def _more_padded(self, item: Item) -> bool:
        """Whether more bytes of the operands that may be padded are so than not."""
        weighed = {True: 0, False: 0, None: 0}
        for v in {v for v in item.ins if isinstance(v, int) and self.dims(v)}:
            weighed[self.home(v)] += self.whole.numbers.types[v].nbytes
        return weighed[True] > weighed[False]

    def _plain(self, item: Item) -> None:
        ins = [self.form(v, form=False, like=item) for v in item.ins]
        self.items.append(replace(item, ins=ins))
        for v in item.outs:
            type_ = self.whole.numbers.types[v]
            self.values[v] = _Value(v, None, {d: type_.shape[d] for d in self.dims(v)}, False)

    def _bigger(self, item: Item, how: Hidden) -> None:
        """The node with all dimensions of the class padded, hidden where they must be."""
        numbers = self.whole.numbers
        ins = [self.with_fill(v, f, item) for v, f in zip(item.ins, how.fills, strict=True)]
        if how.indexed:
            (d,) = looked_up(item.node)
            size = self.draft.type_of(item.ins[0]).shape[d]
            ins[1] = self.writer.within(ins[1], size, str(item.node.attr("mode")), item)
        outs: list[int] = []
        for v in item.outs:
            type_ = numbers.types[v]
            dims = self.dims(v)
            made = numbers.new(TensorType(self.whole.shape(type_, dims), type_.dtype))
            sizes = {d: type_.shape[d] for d in dims}
            value = self.values.setdefault(v, _Value(None, None, sizes, True))
            value.padded = made
            if not dims and value.plain is None:
                value.plain = made
            if item.op in _KEEPS_ZERO and 0 in self._known_fills(item.ins[0]):
                value.filled[0] = made
            outs.append(made)
        types_in = tuple(numbers.types[v] if isinstance(v, int) else v.type for v in ins)
        types_out = tuple(numbers.types[v] for v in outs)
        local = lookup(item.op).local
        changed = {} if local is None else dict(local(types_in, types_out, dict(item.node.attrs)))
        attrs = tuple((key, changed.get(key, value)) for key, value in item.node.attrs)
        binding = replace(item.binding, params={**item.binding.params, **changed})
        self.items.append(
            Item(replace(item.node, attrs=attrs, outputs=types_out), binding, ins, outs,
                 item.backward)
        )  # fmt: skip

    def _known_fills(self, v: Value) -> Mapping[Number, Value]:
        """Fills that the padded form of a value has."""
        if isinstance(v, Literal):
            return {}
        value = self.values[v]
        return {fill: at for fill, at in value.filled.items() if at == value.padded}

    # --- loops, branches and checkpoints -----------------------------------------------------

    def _region(self, i: int, item: Item) -> None:
        forms_in, forms_out, bodies = self.region(i, item)
        numbers = self.whole.numbers
        ins = [
            self.form(v, form=bool(f), like=item) for v, f in zip(item.ins, forms_in, strict=True)
        ]
        outs: list[int] = []
        for v, form in zip(item.outs, forms_out, strict=True):
            type_, dims = numbers.types[v], self.dims(v)
            sizes = {d: type_.shape[d] for d in dims}
            if dims and form:
                made = numbers.new(TensorType(self.whole.shape(type_, dims), type_.dtype))
                self.values[v] = _Value(None, made, sizes, True)
                outs.append(made)
            else:
                self.values[v] = _Value(v, None, sizes, False)
                outs.append(v)
        self.items.append(replace(item, ins=ins, outs=outs, bodies=bodies))


# Ops that make zeros of zeros, of their only operand.
_KEEPS_ZERO = (
    "convert_element_type", "copy", "neg", "reduce_precision", "reshape", "squeeze", "transpose",
)  # fmt: skip

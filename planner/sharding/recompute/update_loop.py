"""Writes the loop that updates stacks slice by slice, some of them in the memory of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ir import FROM_HOST, TO_HOST, Input, Literal, Node
from ir.jax_internals import counted_loop, host_copies
from ir.trace import Binding

from ..padding.nodes import Writer
from .draft import Draft, Item, Numbers, Value, program_of


@dataclass(frozen=True)
class Update:
    """What one loop updates.

    length: of the stacks.
    items: operations that do the same with each slice, in order.
    states: stacks in the memory of the host -> number of the result that is their next value.
    donated: arguments that results may overwrite -> number of the result.
    """

    length: int
    items: Sequence[Item]
    states: Mapping[int, int]
    donated: Mapping[int, int]


def host_copy(
    numbers: Numbers, op: str, value: Value, like: Item | None = None, *, backward: bool = False
) -> Item:
    """A copy of a value to the host, or back; `like` is the item that it serves."""
    type_ = value.type if isinstance(value, Literal) else numbers.types[value]
    primitive, params = host_copies()[op]
    node = Node(op, (), (type_,), (), (), like.node.source if like else "")
    binding = Binding(primitive, params, backward=backward)
    return Item(node, binding, [value], [numbers.new(type_)], backward)


def update_loop(draft: Draft, update: Update) -> None:
    """Replaces the operations of an update by a loop over slices."""
    inside = set(map(id, update.items))
    draft.items = [item for item in draft.items if id(item) not in inside]
    made = {v for item in update.items for v in item.outs}
    read = {v for item in update.items for v in item.reads}
    overwritten: dict[int, int] = {}
    for v, r in update.donated.items():
        after = draft.outputs[r]
        if not isinstance(after, int) or draft.numbers.types[v] != draft.numbers.types[after]:
            continue
        if v in read and after in made and after not in overwritten.values():
            overwritten[v] = after
    body, sent = _written(draft, update, overwritten)
    left = [body.written[v] for v in overwritten]
    after_loop = [body.numbers.new(draft.numbers.types[v]) for v in overwritten]
    found = dict(zip(overwritten.values(), after_loop, strict=True))
    stacks, outputs = list[int](), list(draft.outputs)
    hosted = set(update.states.values())
    for n, x in enumerate(draft.outputs):
        if not isinstance(x, int) or x not in made:
            continue
        if n in hosted:
            stacks.append(sent[x])
            outputs[n] = body.stack(stacks[-1])
            continue
        if x not in found:
            stacks.append(body.inner[x])
            found[x] = body.stack(stacks[-1])
        outputs[n] = found[x]
    draft.outputs = outputs
    draft.items.append(body.loop([*left, *stacks], after_loop))


def _written(
    draft: Draft, update: Update, overwritten: Mapping[int, int]
) -> tuple[_Body, dict[int, int]]:
    """The body of the loop, and the slices that it sends to the host: next state -> slice.

    Args:
        draft: the program, without the operations of the update.
        update: what the loop updates.
        overwritten: stacks that it carries -> their next values.
    """
    like = update.items[0]
    writer = Writer(draft.numbers, draft.items)
    body = _Body(draft.numbers, like, update.length)
    index = body.slice_of(writer.counted(update.length, like))
    for v in overwritten:
        body.overwrite(v, index)
    for v in update.states:
        body.fetch(v)
    over, sent = {after: v for v, after in overwritten.items()}, dict[int, int]()
    away = {draft.outputs[r] for r in update.states.values()}
    for item in update.items:
        body.run(item)
        for v in item.outs:
            if v in over:
                body.write(over[v], v, index)
            if v in away:
                sent[v] = body.send(v)
    return body, sent


class _Body:
    """The body of the loop while it is written.

    inner: value of the program -> value of an iteration.
    """

    def __init__(self, numbers: Numbers, like: Item, length: int) -> None:
        self.numbers, self.like, self.length = numbers, like, length
        self.items: list[Item] = []
        self.inner: dict[int, int] = {}
        self.carried: dict[int, int] = {}
        self.written: dict[int, int] = {}  # carried stack -> as an iteration leaves it
        self._fixed: dict[int, int] = {}
        self._sliced: dict[int, int] = {}
        self._stacks: list[int] = []
        self._writer = Writer(numbers, self.items)

    def slice_of(self, v: int) -> int:
        """The slice of a stack, which is among the xs of the loop."""
        type_ = self.numbers.types[v]
        if v not in self._sliced:
            self._sliced[v] = self.numbers.new(replace(type_, shape=type_.shape[1:]))
        return self._sliced[v]

    def overwrite(self, v: int, index: int) -> None:
        """Carries a stack through the loop, and reads the slice of an iteration."""
        self.carried[v] = inside = self.numbers.new(self.numbers.types[v])
        self.inner[v] = self._writer.row(inside, index, self.like)

    def fetch(self, v: int) -> None:
        """Brings a slice of a stack from the host."""
        copy = host_copy(self.numbers, FROM_HOST, self.slice_of(v), self.like)
        self.items.append(copy)
        self.inner[v] = copy.outs[0]

    def run(self, item: Item) -> None:
        """Runs an operation on slices."""
        node, binding = item.node, item.binding
        (shape,) = {self.numbers.types[v].shape[1:] for v in item.outs}
        outs = [self.numbers.new(replace(self.numbers.types[v], shape=shape)) for v in item.outs]
        if item.op == "broadcast_in_dim":
            attrs = {"broadcast_dimensions": (), "shape": shape}
            node = replace(node, attrs=tuple(sorted(attrs.items())))
            binding = replace(binding, params={**binding.params, **attrs})
        ins = [self._inside(v) if isinstance(v, int) else v for v in item.ins]
        self.items.append(Item(node, binding, ins, outs, False))
        self.inner.update(zip(item.outs, outs, strict=True))

    def _inside(self, v: int) -> int:
        if v in self.inner:
            return self.inner[v]
        type_ = self.numbers.types[v]
        if type_.rank:
            return self.slice_of(v)
        return self._fixed.setdefault(v, self.numbers.new(type_))

    def write(self, v: int, after: int, index: int) -> None:
        """Writes the next value of the slice of an iteration into a carried stack."""
        row = self.inner[after]
        self.written[v] = self._writer.with_row(self.carried[v], row, index, self.like)

    def send(self, after: int) -> int:
        """A slice, sent to the host."""
        copy = host_copy(self.numbers, TO_HOST, self.inner[after], self.like)
        self.items.append(copy)
        return copy.outs[0]

    def stack(self, v: int) -> int:
        """What the loop stacks the slices up to."""
        type_ = self.numbers.types[v]
        self._stacks.append(self.numbers.new(replace(type_, shape=(self.length, *type_.shape))))
        return self._stacks[-1]

    def loop(self, outputs: Sequence[int], carries: Sequence[int]) -> Item:
        """The loop; `outputs` of its body, and its `carries` when it ends."""
        entered = {**self._fixed, **self.carried, **self._sliced}
        inputs = [(v, Input("in", self.numbers.types[v], "body")) for v in entered.values()]
        body = Draft(self.numbers, inputs, self.items, list(outputs))
        primitive, params = counted_loop(self.length)
        params |= {"num_consts": len(self._fixed), "num_carry": len(self.carried)}
        attrs = tuple(sorted({**params, "jaxpr": "body 0"}.items()))
        outs = [*carries, *self._stacks]
        types = tuple(self.numbers.types[v] for v in outs)
        node = Node("scan", (), types, attrs, (), self.like.node.source)
        binding = Binding(primitive, params, (program_of(body),))
        return Item(node, binding, list(entered), outs, False, {0: body})

"""Values of layers that are written out, in the memory of the host until the backward pass.

Between the passes of one program, as between those of a stage of a pipeline, which are programs of
their own, what waits on the host takes no memory of a device. A value is sent where it is made. It
is fetched when the backward pass has made the product before the one that reads the value one layer
before it:

    forward:  h1' = to_host(h1); ... h2' = to_host(h2); ...
    backward: d2 = g @ w3;  (h1, d2) = region(h1', d2): from_host(h1');  e2 = d2 * df(h2); ...

The barrier of the region holds the copy back until d2 is made, so that values of two layers are on
the device at once, and the compute of one runs beside the copies. How many values make a layer is
told by the values themselves: those that the same line makes alike are of one class, and the
smallest class has one value of each layer. Values of the first layer that is read are fetched when
the backward pass begins.

In one program nothing but what the regions take keeps the passes apart. So the first one takes all
that is sent: compilers else send a value when it is fetched. And each takes what the backward pass
has made and not read, gradients of weights: compilers else make them at the end, of values that
are kept until then.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ir import FROM_HOST, TO_HOST, Input, Literal, Node
from ir.analysis import Place
from ir.jax_internals import host_copies
from ir.trace import Binding, Program

from ..padding.nodes import can_be_padded
from .again import made_of, region_of
from .draft import Draft, Item, Value, draft_of
from .passes import HEAVY, bodies_with_passes, late_values, pairs_of
from .saved import Key


@dataclass(frozen=True, slots=True)
class Alike:
    """Values of layers that are written out, one or more of each layer.

    numbers: the values, in the order in which the backward pass reads them first.
    nbytes: of each, of all devices together.
    """

    numbers: tuple[int, ...]
    nbytes: float


@dataclass(frozen=True, slots=True)
class WrittenBody:
    """Values of layers that are written out in one body with both passes.

    copies: number of its runs in a step.
    first: number of its first value.
    forward: numbers of the nodes of its forward pass that are no loops over layers.
    values: those of each class that may wait on the host.
    """

    place: Place
    copies: float
    first: int
    forward: tuple[int, ...]
    values: tuple[Alike, ...]

    def each(self) -> Iterator[tuple[Key, float]]:
        """Every value, and its bytes in a step: the largest class first, read last first."""
        for one in self.values:
            for v in reversed(one.numbers):
                yield (self.place, v - self.first), self.copies * one.nbytes


def written_classes(
    program: Program, values: Collection[int], late: Iterable[int]
) -> tuple[Alike, ...]:
    """Classes of some values of a program, the largest first.

    Args:
        program: forward and backward pass.
        values: results of nodes of the forward pass that the backward pass reads.
        late: inputs that are there only when the backward pass begins.
    """
    return _classes(draft_of(program, late=late), values)


def _classes(draft: Draft, values: Collection[int]) -> tuple[Alike, ...]:
    makers, classes = draft.makers(), dict[Hashable, list[int]]()
    for v in _ordered(draft, values):
        classes.setdefault(_kind(draft, makers[v], v), []).append(v)
    found = [Alike(tuple(some), draft.type_of(some[0]).nbytes) for some in classes.values()]
    return tuple(sorted(found, key=lambda one: (-len(one.numbers) * one.nbytes, one.numbers)))


def behind_the_first(classes: Iterable[Alike]) -> list[tuple[Alike, int]]:
    """Classes without the values of the layer that the backward pass reads first, and their number.

    There is nothing that the copies of these could run beside. Layers are as many as the class with
    the most bytes has values.
    """
    several = [one for one in classes if len(one.numbers) > 1]
    found: list[tuple[Alike, int]] = []
    for one in several:
        first = math.ceil(len(one.numbers) / len(several[0].numbers))
        if rest := one.numbers[first:]:
            found.append((replace(one, numbers=rest), first))
    return found


def written_bodies(program: Program) -> tuple[WrittenBody, ...]:
    """The bodies of a program whose backward pass reads values of layers that are written out."""
    draft = draft_of(program)
    found: list[WrittenBody] = []
    for place, body, copies in bodies_of_both(draft):
        late, loops = late_values(body), {id(pair.forward) for pair in pairs_of(body)}
        marked = [item for item in body.items if item.backward]
        read = {v for item in marked for v in item.reads}.difference(late, body.outputs)
        classes = _classes(body, may_be_hosted(body, read))
        values = [one for one, _ in behind_the_first(classes)]
        forward = [i for i, item in enumerate(body.items)
                   if id(item) not in loops and late.isdisjoint(item.outs)]  # fmt: skip
        if values:
            found.append(WrittenBody(place, copies, body.first, tuple(forward), tuple(values)))
    return tuple(found)


def bodies_of_both(
    draft: Draft, place: Place = (), copies: float = 1.0
) -> Iterator[tuple[Place, Draft, float]]:
    """A program and its bodies that hold both passes, with the number of their runs."""
    for i, b, body in bodies_with_passes(draft):
        length = draft.items[i].node.attr("length") if draft.items[i].op == "scan" else 1
        assert isinstance(length, int)
        yield from bodies_of_both(body, (*place, i, b), copies * length)
    if draft.late or any(item.backward for item in draft.items):
        yield place, draft, copies


def host_written(draft: Draft, values: Collection[int]) -> None:
    """Sends values of a body to the host where they are made, and fetches them when it is time.

    Args:
        draft: forward and backward pass, which is changed.
        values: results of nodes of the forward pass that the backward pass reads.
    """
    passes = _Passes(draft)
    makers, ordered = draft.makers(), _ordered(draft, values)
    classes: dict[Hashable, int] = {}
    for v in ordered:
        kind = _kind(draft, makers[v], v)
        classes[kind] = classes.get(kind, 0) + 1
    step = math.ceil(len(ordered) / min(classes.values()))
    away = {v: _copy(draft, makers[v], TO_HOST, v, backward=False) for v in ordered}
    fetched: dict[int, list[int]] = {}  # number of the node behind which they are fetched
    for k, v in enumerate(ordered):
        at = passes.begin if k < step else passes.before(passes.first[ordered[k - step]])
        at = max(at, passes.maker[v])
        fetched.setdefault(at, []).append(v)
    passes.write(away, fetched)


def may_be_hosted(draft: Draft, values: Collection[int]) -> set[int]:
    """Those of some values that `host_written` can send to the host."""
    makers, read = draft.makers(), _Passes(draft).first
    return {
        v for v in values
        if v in makers and v in read and not makers[v].binding.bodies
        and can_be_padded(draft.type_of(v))
    }  # fmt: skip


class _Passes:
    """The backward pass of a body.

    late: inputs of the backward pass, and all that is made of them; in one program what JAX marks,
        and all that is made of that.
    first: value that it reads -> number of the first node of it that does.
    begin: number of the node behind which it has begun: the one before its first, or in one program
        its first that reads what the forward pass has made, as nothing else holds copies back.
    maker: value -> number of its node.
    read: all that is read, or given.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft, self.items = draft, draft.items
        self.late = made_of(draft, draft.late) if draft.late else late_values(draft)
        numbered = enumerate(self.items)
        self.backward = [i for i, one in numbered if not self.late.isdisjoint(one.outs)]
        self.first: dict[int, int] = {}
        for i in self.backward:
            for v in self.items[i].reads:
                if v not in self.late:
                    self.first.setdefault(v, i)
        self.maker = {v: i for i, one in enumerate(self.items) for v in one.outs}
        self.begin = self._begin()
        self.read = {v for one in self.items for v in one.reads} | {*draft.outputs}

    def _begin(self) -> int:
        if self.draft.late:
            return min(self.backward, default=0) - 1
        made = self.maker.keys() - self.late
        begun = (i for i in self.backward if not made.isdisjoint(self.items[i].reads))
        return next(begun, -1)

    def before(self, i: int) -> int:
        """The last product of the backward pass that leads to a node; else its beginning."""
        seen, todo = set[int](), [i]
        best = self.begin
        while todo:
            for v in self.items[todo.pop()].reads:
                k = self.maker.get(v, -1)
                if v not in self.late or k <= best or k in seen:
                    continue
                seen.add(k)
                if self.items[k].op in HEAVY:
                    best = k
                else:
                    todo.append(k)
        return best

    def write(self, away: dict[int, Item], fetched: dict[int, list[int]]) -> None:
        """Puts copies into the body.

        Args:
            away: value -> its copy to the host.
            fetched: number of a node -> values that are fetched behind it.
        """
        renamed: dict[int, int] = {}
        there = {v: copy.outs[0] for v, copy in away.items()}
        backward, items, unread = frozenset(self.backward), list[Item](), list[int]()
        for i, item in enumerate(self.items):
            if i in backward:
                unread = [v for v in unread if v not in item.reads] + self._to_pass(item)
                item.ins = [renamed.get(v, v) if isinstance(v, int) else v for v in item.ins]
            items.append(item)
            items += [away[v] for v in item.outs if v in away]
            if i in fetched:
                held = dict.fromkeys((self._waits(i), *unread))
                items.append(self._fetch(fetched[i], [*held], there, renamed, self._sent(i, away)))
                unread = []
        self.draft.items = items
        outputs = self.draft.outputs
        self.draft.outputs = [
            renamed.get(v, v) if isinstance(v, int) and v in self.late else v for v in outputs
        ]

    def _to_pass(self, item: Item) -> list[int]:
        """Results of the backward pass that have to be there before the next values are fetched.

        In one program those are gradients of weights, which compilers else make at the end, of
        values that are kept until then.
        """
        if self.draft.late:
            return []
        return [v for v in item.outs if v in self.read and can_be_padded(self.draft.type_of(v))]

    def _sent(self, i: int, away: Iterable[int]) -> list[int]:
        """Values that have to be on the host before the first are fetched behind a node.

        In one program those are all that the forward pass has made, as compilers else send a value
        when it is fetched, and keep it until then.
        """
        if self.draft.late or i != self.begin:
            return []
        return [v for v in away if self.maker[v] <= i]

    def _fetch(
        self, values: Sequence[int], held: Sequence[int], there: dict[int, int],
        renamed: dict[int, int], sent: Iterable[int],
    ) -> Item:  # fmt: skip
        """The region that brings some values back, once others are made or sent.

        `renamed` and `there` get what is read from then on, on the devices and on the host.
        """
        draft, rest = self.draft, [v for v in sent if v not in values]
        entering = [there[v] for v in values] + [renamed.get(v, v) for v in held]
        entering += [there[v] for v in rest]
        inside = [draft.numbers.new(draft.type_of(v)) for v in entering]
        body = Draft(
            draft.numbers,
            [(v, Input("in", draft.type_of(v), "body")) for v in inside],
            [_copy(draft, self.items[self.maker[v]], FROM_HOST, x, backward=True)
             for v, x in zip(values, inside, strict=False)],
            [],
        )  # fmt: skip
        body.outputs = [*(one.outs[0] for one in body.items), *inside[len(values) :]]
        outs = [draft.numbers.new(draft.type_of(v)) for v in entering]
        renamed.update(zip((*values, *held), outs, strict=False))
        there.update(zip(rest, outs[len(values) + len(held) :], strict=True))
        return region_of(body, [*entering], outs)

    def _waits(self, at: int) -> int:
        """What the backward pass has made up to a node, or begins with."""
        last = max((i for i in self.backward if i <= at), default=None)
        if last is not None:
            return next(v for v in self.items[last].outs if v in self.late)
        return next(v for v in self.items[self.begin + 1].reads if v in self.late)


def _ordered(draft: Draft, values: Collection[int]) -> list[int]:
    """Values in the order in which the backward pass reads them first."""
    first = _Passes(draft).first
    return sorted(values, key=lambda v: (first[v], v))


def _kind(draft: Draft, item: Item, v: int) -> Hashable:
    """Equal for results that nodes of one kind make on one line of the user's."""
    types = tuple(o.type if isinstance(o, Literal) else draft.type_of(o) for o in item.ins)
    return item.op, repr(item.node.attrs), types, item.node.source, item.outs.index(v)


def _copy(draft: Draft, like: Item, op: str, v: int, *, backward: bool) -> Item:
    """A copy to the host, or back."""
    primitive, params = host_copies()[op]
    type_ = draft.type_of(v)
    ins: list[Value] = [v]
    return Item(
        Node(op, (), (type_,), (), (), like.node.source),
        Binding(primitive, params, backward=backward), ins, [draft.numbers.new(type_)], backward,
    )  # fmt: skip

"""Values of layers that are written out, in the memory of the host until the backward pass.

A stage of a pipeline runs its two passes as programs of their own, and other micro-batches between
them: what waits on the host takes no memory of a device meanwhile. A value is sent where it is
made. It is fetched when the backward pass has made the product before the one that reads the value
one layer before it:

    forward:  h1' = to_host(h1); ... h2' = to_host(h2); ...
    backward: d2 = g @ w3;  (h1, d2) = region(h1', d2): from_host(h1');  e2 = d2 * df(h2); ...

The barrier of the region holds the copy back until d2 is made, so that values of two layers are on
the device at once, and the compute of one runs beside the copies. How many values make a layer is
told by the values themselves: those that the same line makes alike are of one class, and the
smallest class has one value of each layer. Values of the first layer that is read are fetched when
the backward pass begins.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

from ir import FROM_HOST, TO_HOST, Input, Literal, Node
from ir.jax_internals import host_copies
from ir.trace import Binding, Program

from ..padding.nodes import can_be_padded
from .again import made_of, region_of
from .draft import Draft, Item, Value, draft_of
from .passes import HEAVY


@dataclass(frozen=True, slots=True)
class Alike:
    """Values of layers that are written out, one or more of each layer.

    numbers: the values, in the order in which the backward pass reads them first.
    nbytes: of each, of all devices together.
    """

    numbers: tuple[int, ...]
    nbytes: float


def written_classes(
    program: Program, values: Collection[int], late: Iterable[int]
) -> tuple[Alike, ...]:
    """Classes of some values of a program, the largest first.

    Args:
        program: forward and backward pass.
        values: results of nodes of the forward pass that the backward pass reads.
        late: inputs that are there only when the backward pass begins.
    """
    draft = draft_of(program, late=late)
    makers, classes = draft.makers(), dict[Hashable, list[int]]()
    for v in _ordered(draft, values):
        classes.setdefault(_kind(draft, makers[v], v), []).append(v)
    found = [Alike(tuple(some), draft.type_of(some[0]).nbytes) for some in classes.values()]
    return tuple(sorted(found, key=lambda one: (-len(one.numbers) * one.nbytes, one.numbers)))


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

    late: inputs of the backward pass, and all that is made of them.
    first: value that it reads -> number of the first node of it that does.
    begin: number of its first node, less one.
    maker: value -> number of its node.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft, self.items = draft, draft.items
        self.late = made_of(draft, draft.late)
        numbered = enumerate(self.items)
        self.backward = [i for i, one in numbered if not self.late.isdisjoint(one.outs)]
        self.first: dict[int, int] = {}
        for i in self.backward:
            for v in self.items[i].reads:
                if v not in self.late:
                    self.first.setdefault(v, i)
        self.begin = min(self.backward, default=0) - 1
        self.maker = {v: i for i, one in enumerate(self.items) for v in one.outs}

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
        backward, items = frozenset(self.backward), list[Item]()
        for i, item in enumerate(self.items):
            if i in backward:
                item.ins = [renamed.get(v, v) if isinstance(v, int) else v for v in item.ins]
            items.append(item)
            items += [away[v] for v in item.outs if v in away]
            if i in fetched:
                items += self._fetch(i, fetched[i], away, renamed)
        self.draft.items = items
        outputs = self.draft.outputs
        self.draft.outputs = [
            renamed.get(v, v) if isinstance(v, int) and v in self.late else v for v in outputs
        ]

    def _fetch(
        self, at: int, values: Sequence[int], away: dict[int, Item], renamed: dict[int, int]
    ) -> list[Item]:
        """The region that brings some values back; `renamed` gets what is read from then on."""
        draft = self.draft
        waits = self._waits(at)
        entering = [away[v].outs[0] for v in values] + [renamed.get(waits, waits)]
        inside = [draft.numbers.new(draft.type_of(v)) for v in entering]
        body = Draft(
            draft.numbers,
            [(v, Input("in", draft.type_of(v), "body")) for v in inside],
            [_copy(draft, away[v], FROM_HOST, x, backward=True)
             for v, x in zip(values, inside, strict=False)],
            [],
        )  # fmt: skip
        body.outputs = [*(one.outs[0] for one in body.items), inside[-1]]
        outs = [draft.numbers.new(draft.type_of(v)) for v in entering]
        renamed.update(zip((*values, waits), outs, strict=True))
        return [region_of(body, [*entering], outs)]

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

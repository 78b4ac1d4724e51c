"""A program in which values that wait for the backward pass wait in the memory of the host.

What a loop over layers stacks up for its backward pass is copied to the host by the iteration
after the one that makes it, and back by the iteration before the one that reads it. So each copy
has the compute of a whole iteration beside it, and two slices are on the device:

    forward:  a = to_host(p);  h = tanh(x @ w);  p' = h                  carried: p; stacked: a
    backward: q' = from_host(a);  dh = g * (1 - q^2)                     carried: q

Slice i of the stack is of layer i - 1; that of the last layer enters the backward loop as it is.
Values of layers that are written out may wait on the host too (`hosted_written.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from ir import FROM_HOST, TO_HOST, Input, Node
from ir.analysis import Place
from ir.jax_internals import host_copies
from ir.trace import Binding, Program

from ...common.errors import PlanError
from ..padding.nodes import Writer, can_be_padded
from .across import InLoops
from .draft import Draft, Item, Value, draft_of, program_of, with_numbers
from .hosted_written import bodies_of_both, host_written, may_be_hosted
from .passes import Pair, bodies_with_passes, pairs_of
from .saved import Key


@dataclass(frozen=True, slots=True)
class Stacked:
    """A value that a loop over layers stacks up for its backward pass.

    nbytes: of all its slices in a step, of all devices together; slice_bytes: of one slice.
    reader: place of that loop of the backward pass.
    """

    key: Key
    nbytes: float
    slice_bytes: float
    reader: Place


def stacked_values(program: Program) -> tuple[Stacked, ...]:
    """The values that loops over layers stack up for their backward pass, the largest first."""
    found = [
        Stacked((place, v - across.source.first), copies * type_.nbytes, type_.nbytes, reader)
        for place, reader, across, copies in _loops(draft_of(program), (), 1.0)
        for v in across.stacked
        if can_be_padded(type_ := across.source.type_of(v))
    ]
    return tuple(sorted(found, key=lambda one: (-one.nbytes, one.key)))


def with_hosted(program: Program, keys: Collection[Key], late: Collection[int] = ()) -> Program:
    """The program with some of its `stacked_values` in the memory of the host.

    Args:
        program: forward and backward pass.
        keys: the values; also those of layers that are written out.
        late: inputs that are there only when the backward pass begins.

    Raises:
        PlanError: if one of the values is given twice, or cannot wait there.
    """
    if not keys:
        return program
    draft, left = draft_of(program, late=late), list(keys)
    bodies = [(place, body) for place, body, _ in bodies_of_both(draft)]
    for place, _, across, _ in list(_loops(draft, (), 1.0)):
        for v in across.stacked:
            if (key := (place, v - across.source.first)) in left:
                left.remove(key)
                _host(across, v)
    alone = [(body, _alone(place, body, left)) for place, body in bodies]
    if left:
        place, number = left[0]
        raise PlanError(
            f"value {number} of {f'the loop at {place}' if place else 'the program'} is to wait on "
            "the host twice, or no loop or layer keeps it for its backward pass",
            kind="plan-file", remedy="make the plan again with this version",
        )  # fmt: skip
    for body, values in alone:
        if values:
            host_written(body, values)
    return program_of(draft)


def _alone(place: Place, body: Draft, left: list[Key]) -> set[int]:
    """Values of layers that are written out in a body, which are taken out of the list."""
    found = may_be_hosted(body, {v + body.first for at, v in left if at == place})
    for v in found:
        left.remove((place, v - body.first))
    return found


def hidden_behind(
    values: Iterable[tuple[Key, float]], compute_s: float, copy_s: Callable[[float], float]
) -> frozenset[Key]:
    """As much of some values, in their order, as the compute of their pass hides.

    Args:
        values: candidates, with their bytes in a step, of all devices together.
        compute_s: seconds of the forward pass, split evenly over all devices [s].
        copy_s: seconds of copying an amount, spread over all devices.
    """
    chosen: list[Key] = []
    for key, nbytes in values:
        spent_s = copy_s(nbytes)
        if spent_s <= compute_s:
            chosen.append(key)
            compute_s -= spent_s
    return frozenset(chosen)


def _loops(
    draft: Draft, place: Place, copies: float
) -> Iterator[tuple[Place, Place, InLoops, float]]:
    """Pairs of loops over layers in opposite orders.

    Yields: place of the forward body and of the backward loop, the pair, copies.
    """
    for i, b, body in bodies_with_passes(draft):
        item = draft.items[i]
        length = item.node.attr("length") if item.op == "scan" else 1
        assert isinstance(length, int)
        yield from _loops(body, (*place, i, b), copies * length)
    numbers = {id(item): i for i, item in enumerate(draft.items)}
    seen: set[int] = set()
    for pair in pairs_of(draft):
        if id(pair.forward) not in seen and _opposite(pair):
            seen.add(id(pair.forward))
            length = pair.forward.node.attr("length")
            assert isinstance(length, int)
            here, back = ((*place, numbers[id(i)]) for i in (pair.forward, pair.backward))
            yield (*here, 0), back, InLoops(draft, pair), copies * length


def _opposite(pair: Pair) -> bool:
    """Whether one of the loops runs from the last layer to the first, over more than one."""
    one, two = pair.forward.node, pair.backward.node
    return one.attr("reverse") != two.attr("reverse") and one.attr("length") != 1


def _host(across: InLoops, v: int) -> None:
    """Sends a value of the forward body to the host, and brings it back in the backward body."""
    source, target, draft = across.source, across.target, across.draft
    type_, forward, backward = source.type_of(v), across.pair.forward, across.pair.backward
    made = source.makers().get(v)
    line = made.node.source if made is not None else ""

    def copy(op: str, value: int, *, backward: bool) -> Item:
        primitive, params = host_copies()[op]
        node = Node(op, (), (type_,), (), (), line)
        result = source.numbers.new(type_)
        return Item(
            node, Binding(primitive, params, backward=backward), [value], [result], backward
        )

    before: list[Item] = []
    nothing = Writer(draft.numbers, before).zeros(type_, forward)
    at = next(i for i, item in enumerate(draft.items) if item is forward)
    draft.items[at:at] = before
    previous, last = _carried(forward, source, nothing, v)
    away = copy(TO_HOST, previous, backward=False)
    across.add([away])
    back = copy(FROM_HOST, across.port(away.outs[0]), backward=True)
    fetched, _ = _carried(backward, target, last, back.outs[0])

    def read(values: list[Value]) -> list[Value]:
        return [fetched if isinstance(x, int) and across.forward(x) == v else x for x in values]

    for item in target.items:
        item.ins = read(item.ins)
    target.outputs = read(target.outputs)
    target.items.insert(0, back)


def _carried(loop: Item, body: Draft, first: int, result: int) -> tuple[int, int]:
    """Carries a value of a body into its next iteration: the value inside, and after the loop.

    Args:
        loop: the loop.
        body: its body.
        first: what enters the first iteration.
        result: what the body carries on.
    """
    wiring, type_ = loop.wiring(), body.type_of(result)
    inside, after = body.numbers.new(type_), body.numbers.new(type_)
    at = wiring.constants + wiring.carries
    loop.ins.insert(at, first)
    body.inputs.insert(len(body.consts) + at, (inside, Input("in", type_, "body")))
    body.outputs.insert(wiring.carries, result)
    loop.outs.insert(wiring.carries, after)
    with_numbers(loop, num_carry=wiring.carries + 1)
    return inside, after

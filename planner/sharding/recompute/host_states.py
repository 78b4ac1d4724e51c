"""A program whose state waits in the memory of the host between its steps.

State is what an optimizer alone reads: no value of the backward pass is made of it. Parameters are
stacks that loops over layers read besides (`host_parameters`). The update is the operations that
depend on either outside of these loops, with those that only they read. Stacks as long as a loop
over layers are updated slice by slice, by one loop for all of a length, so that a slice of each is
on the device at a time; what is updated with them stays there and is overwritten in place,

    for i in 0 .. L-1:   m = from_host(mean[i]);  m' = 0.9 m + 0.1 g[i]
                         p[i] = p[i] - a m';      mean'[i] = to_host(m')

Other state, and stacks whose update is not the same for each slice, go there and back as a whole.
The next state is in another buffer of the host than the last one: XLA would copy a stack that a
loop fills into a donated argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ir import FROM_HOST, TO_HOST, Node, lookup
from ir.trace import Traced

from ..padding.nodes import can_be_padded
from .draft import Draft, Item, draft_of, program_of
from .host_parameters import fetch_slices, fetching
from .passes import differentiates
from .update_loop import Update, host_copy, update_loop

# Of all state: smaller arrays stay on the device. Not measured.
LEAST_SHARE = 1e-3
BUFFERS = 2  # of a state on the host: the last one and the next one
# Requests of a sharding or a memory, which hold a rank.
_PLACED = frozenset({"device_put", "reshard", "sharding_constraint"})


class Waiting(Enum):
    """What waits on the host from step to step, in words; each has what comes before it too."""

    NOTHING = ""
    STATES = "states of an optimizer"
    PARAMETERS = "parameters of loops over layers"

    def __bool__(self) -> bool:
        return self is not Waiting.NOTHING

    @property
    def words(self) -> tuple[str, ...]:
        """Its part of the key of a plan; empty for nothing."""
        return (self.value,) if self else ()


@dataclass(frozen=True, slots=True)
class State:
    """An argument that may wait on the host, and the result that is its next value.

    argument, result: their numbers; captured constants do not count.
    """

    name: str
    argument: int
    result: int
    nbytes: float


def states_of(traced: Traced) -> tuple[State, ...]:
    """The state that may wait on the host, the largest first."""
    draft, heads = draft_of(traced.program), len(traced.program.consts)
    found: list[State] = []
    for argument, result in traced.tied:
        v, item = draft.inputs[heads + argument]
        reached, made = _reached(draft, {v})
        trains = any(i.backward or any(map(differentiates, i.binding.bodies)) for i in reached)
        numbers = item.type.rank > 0 and can_be_padded(item.type)
        if numbers and not trains and draft.outputs[result] in made - {v}:
            found.append(State(item.name, argument, result, float(item.type.nbytes)))
    total = sum(one.nbytes for one in found)
    return _largest(found, total)


def parameters_of(traced: Traced) -> tuple[State, ...]:
    """The parameters that may wait on the host, the largest first.

    They are stacks that loops over layers take slices of, and that are updated slice by slice even
    if all state and all of them are on the host.
    """
    draft, heads = draft_of(traced.program), len(traced.program.consts)
    state = {draft.inputs[heads + one.argument][0] for one in states_of(traced)}
    pairs = {draft.inputs[heads + a][0]: (a, r) for a, r in traced.tied}
    read = {v: fetching(draft, v) for v in pairs if v not in state}
    stacks = {v for v, loops in read.items() if loops and can_be_padded(draft.type_of(v))}
    found: list[State] = []
    for part in _parts(draft, state | stacks, _passes(draft, stacks)):
        if _length_of(draft, part) is None or any(item.backward for item in part.items):
            continue
        made = {v for item in part.items for v in item.outs}
        for v in part.states:
            a, r = pairs[v]
            if v in stacks and draft.outputs[r] in made:
                type_ = draft.type_of(v)
                found.append(State(traced.graph.inputs[heads + a].name, a, r, float(type_.nbytes)))
    return _largest(found, sum(float(draft.type_of(v).nbytes) for v in pairs if v not in state))


def _largest(found: Sequence[State], total: float) -> tuple[State, ...]:
    """What is worth a copy, the largest first; `total`: bytes of all of its kind."""
    large = [one for one in found if one.nbytes >= LEAST_SHARE * total]
    return tuple(sorted(large, key=lambda one: (-one.nbytes, one.argument)))


def within_hosts(states: Sequence[State], host_bytes: float) -> tuple[State, ...]:
    """As much of some state as the hosts hold, in its order; the next state is another buffer."""
    kept: list[State] = []
    for one in states:
        if BUFFERS * one.nbytes <= host_bytes:
            kept.append(one)
            host_bytes -= BUFFERS * one.nbytes
    return tuple(kept)


def with_states_on_host(traced: Traced, arguments: Collection[int]) -> Traced:
    """The function with some of its `states_of` and `parameters_of` on the host, by argument."""
    if not arguments:
        return traced
    draft, heads = draft_of(traced.program), len(traced.program.consts)
    pairs = {a: r for a, r in traced.tied if a in arguments}
    hosted = {draft.inputs[heads + a][0]: r for a, r in sorted(pairs.items())}
    kept = {
        draft.inputs[heads + a][0]: r for a, r in traced.tied
        if a not in arguments and a in traced.donated
    }  # fmt: skip
    looped: dict[int, list[_Part]] = {}
    whole: list[int] = []
    for part in _parts(draft, hosted, _passes(draft, hosted)):
        length = _length_of(draft, part)
        if length is None:
            whole += part.states
        else:
            looped.setdefault(length, []).append(part)
    for v in whole:
        _copied_whole(draft, v, hosted[v])
    for length, parts in looped.items():
        items = _with_what_only_they_read(draft, [i for p in parts for i in p.items], length)
        states = {v: hosted[v] for p in parts for v in p.states}
        for v in states:
            for item in fetching(draft, v):
                fetch_slices(draft, item, v)
        update_loop(draft, Update(length, items, states, kept))
    program = program_of(draft)
    donated = tuple(a for a in traced.donated if a not in pairs)
    return replace(traced, program=program, donated=donated)


@dataclass(frozen=True)
class _Part:
    """Operations that depend on some state, and on none of the other parts'.

    states: the state, as values; items: the operations, in order.
    """

    states: list[int]
    items: list[Item]


def _reached(
    draft: Draft, values: Collection[int], without: Collection[int] = ()
) -> tuple[list[Item], set[int]]:
    """The nodes that depend on some values, and these values with what those nodes make.

    without: nodes that do not count, by `id`.
    """
    found, items = set(values), list[Item]()
    for item in draft.items:
        if id(item) not in without and not found.isdisjoint(item.reads):
            items.append(item)
            found.update(item.outs)
    return items, found


def _passes(draft: Draft, values: Iterable[int]) -> set[int]:
    """The nodes that read some values slice by slice, by `id`: loops over layers of both passes."""
    return {id(item) for v in values for item in fetching(draft, v)}


def _length_of(draft: Draft, part: _Part) -> int | None:
    """The length of the stacks of an update that is the same for each slice, else None."""
    length = (*draft.type_of(part.states[0]).shape, 0)[0]
    alike = all(_by_slices(draft, item, length) for item in part.items)
    return length if alike and length > 1 and length in _trip_counts(draft) else None


def _parts(draft: Draft, states: Collection[int], without: Collection[int]) -> list[_Part]:
    """The update of some state in parts that share no value which depends on any of it.

    without: loops over layers that read it as well, by `id`.
    """
    items, made = _reached(draft, states, without)
    leader = {v: v for v in made}

    def root(v: int) -> int:
        while leader[v] != v:
            v = leader[v]
        return v

    for item in items:
        first, *rest = [v for v in (*item.reads, *item.outs) if v in made]
        for v in rest:
            leader[root(v)] = root(first)
    found: dict[int, _Part] = {}
    for v in sorted(states):
        found.setdefault(root(v), _Part([], [])).states.append(v)
    for item in items:
        found[root(item.outs[0])].items.append(item)
    return list(found.values())


def _trip_counts(draft: Draft) -> Iterator[int]:
    """Iterations of the loops of a program, with those in their bodies."""

    def inside(node: Node) -> Iterator[int]:
        length = node.attr("length") if node.op == "scan" else 0
        assert isinstance(length, int)
        yield length
        for body in node.bodies:
            for inner in body.nodes:
                yield from inside(inner)

    for item in draft.items:
        yield from inside(item.node)


def _by_slices(draft: Draft, item: Item, length: int) -> bool:
    """Whether a node does the same with each slice of its operands along their first dimension."""
    record = lookup(item.op)
    if record.family != "elementwise" or record.local is not None or item.op in _PLACED:
        return False
    shapes = {draft.type_of(v).shape for v in (*item.outs, *item.ins)} - {()}
    return len(shapes) == 1 and next(iter(shapes))[0] == length


def _with_what_only_they_read(draft: Draft, items: Sequence[Item], length: int) -> tuple[Item, ...]:
    """Nodes, and those that can run with them slice by slice since only they read them, in order.

    Run before, these would fill memory with what the loop reads in slices.
    """
    inside = set(map(id, items))
    read_by: dict[int, list[Item]] = {}
    for item in draft.items:
        for v in item.reads:
            read_by.setdefault(v, []).append(item)
    returned = {v for v in draft.outputs if isinstance(v, int)}
    for item in reversed(draft.items):
        readers = [r for v in item.outs for r in read_by.get(v, [])]
        only = bool(readers) and all(id(r) in inside for r in readers)
        joins = _by_slices(draft, item, length) or _is_filled(draft, item, length)
        if only and joins and not item.backward and returned.isdisjoint(item.outs):
            inside.add(id(item))
    return tuple(item for item in draft.items if id(item) in inside)


def _is_filled(draft: Draft, item: Item, length: int) -> bool:
    """Whether a node repeats a number along all dimensions."""
    shape = draft.type_of(item.outs[0]).shape
    single = item.op == "broadcast_in_dim" and not draft.type_of(item.ins[0]).rank
    return single and bool(shape) and shape[0] == length


def _copied_whole(draft: Draft, v: int, result: int) -> None:
    """Brings a value to the device before it is first read, and the result back at the end."""
    at = next(i for i, item in enumerate(draft.items) if v in item.reads)
    arrived = host_copy(draft.numbers, FROM_HOST, v)
    for item in draft.items:
        item.ins = [arrived.outs[0] if x == v else x for x in item.ins]
    draft.items.insert(at, arrived)
    after = draft.outputs[result]
    assert isinstance(after, int)
    left = host_copy(draft.numbers, TO_HOST, after)
    draft.items.append(left)
    draft.outputs[result] = left.outs[0]

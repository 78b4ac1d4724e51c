"""The part of a program that repeats: a scan's body, or the layers of a model written out.

Heavy operations are kept (products, convolutions, gathers, scatters, sorts, and whatever a
collective stands before or after); chains of light ones between them become edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir import Literal, lookup
from ir.analysis import FlatOp, FlatProgram

from ..analysed_plan import AnalysedPlan
from ..timeline import COLLECTIVE, Event, Predicted

HEAVY = ("contraction", "convolution", "linalg", "opaque")
HEAVY_OPS = ("gather", "scatter", "sort", "top_k")
MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class Row:
    """An operation of the picture.

    roles: factors that each mesh axis splits, in words.
    result: type and sharding of its first result.
    arguments: the program's arguments that it reads, with their shardings.
    before, after: collectives around it.
    reads: rows that it depends on.
    light: light operations between this row and the one before.
    """

    op: int
    name: str
    source: str
    roles: str
    result: str
    arguments: tuple[tuple[str, str], ...]
    before: tuple[Event, ...]
    after: tuple[Event, ...]
    reads: tuple[int, ...]
    light: int


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one repeat, how often it runs, and how many rows had no room."""

    rows: tuple[Row, ...]
    times: int
    left_out: int


def repeated_block(analysed: AnalysedPlan, step: Predicted) -> Block:
    """The first repeat of the most repeated layer; the whole program if nothing repeats."""
    flat = analysed.flat
    members, times = _members(flat)
    events: dict[int, list[Event]] = {}
    for event in step.events:
        if event.lane == COLLECTIVE and event.op >= 0:
            events.setdefault(event.op, []).append(event)
    kept = [i for i in members if is_heavy(flat.ops[i]) or i in events]
    shown = kept[:MOST_ROWS]
    reads = _reads(flat, members, shown)
    rows: list[Row] = []
    last = members[0] - 1 if members else -1
    for i in shown:
        rows.append(_row(analysed, i, events, step, reads[i], max(0, i - last - 1)))
        last = i
    return Block(tuple(rows), times, len(kept) - len(shown))


def is_heavy(op: FlatOp) -> bool:
    """Whether an operation is worth a box of its own."""
    return lookup(op.node.op).family in HEAVY or op.node.op.startswith(HEAVY_OPS)


# --- repeats -------------------------------------------------------------------------------------


def _members(flat: FlatProgram) -> tuple[list[int], int]:
    """Operations of one repeat and the number of repeats."""
    loops: dict[tuple[int, ...], list[int]] = {}
    for i, op in enumerate(flat.ops):
        if op.weight > 1 and len(op.place) > 1:
            loops.setdefault(op.place[:-1], []).append(i)
    heavy = {place: sum(is_heavy(flat.ops[i]) for i in ops) for place, ops in loops.items()}
    if any(heavy.values()):
        weights = {place: flat.ops[ops[0]].weight for place, ops in loops.items()}
        place = max(heavy, key=lambda p: (heavy[p] > 0, weights[p], -loops[p][0]))
        return loops[place], round(weights[place])
    return _written_out(flat)


def _written_out(flat: FlatProgram) -> tuple[list[int], int]:
    """Layers of a Python loop: the longest run of heavy operations with a period."""
    heavy = [i for i, op in enumerate(flat.ops) if is_heavy(op)]
    labels = [_label(flat.ops[i]) for i in heavy]
    start, period, length = longest_run(labels)
    if length < 2 * period:
        return list(range(len(flat.ops))), 1
    begin, end = heavy[start], heavy[min(start + period, len(heavy) - 1)]
    return list(range(begin, end)), length // period


def _label(op: FlatOp) -> tuple[object, ...]:
    return op.node.op, op.node.source, op.node.outputs


def longest_run(labels: Sequence[object]) -> tuple[int, int, int]:
    """(start, period, length) of a stretch with labels[i] == labels[i + period] that is long.

    Of all that cover at least half as much as the longest the earliest, which in a training step
    is the forward pass; then the shortest period.
    """
    found: list[tuple[int, int, int]] = []
    for period in range(1, len(labels) // 2 + 1):
        run = 0
        for i in range(len(labels) - period + 1):
            same = i + period < len(labels) and labels[i] == labels[i + period]
            if same:
                run += 1
            elif run:
                if run >= period:
                    found.append((i - run, period, run + period))
                run = 0
    longest = max((length for _, _, length in found), default=0)
    long = [run for run in found if 2 * run[2] >= longest]
    return min(long, key=lambda run: (run[0], run[1]), default=(0, max(len(labels), 1), 0))


# --- rows ----------------------------------------------------------------------------------------


def _reads(
    flat: FlatProgram, members: Sequence[int], shown: Sequence[int]
) -> Mapping[int, tuple[int, ...]]:
    """Shown operations that each shown one depends on through light ones."""
    place = {i: n for n, i in enumerate(shown)}
    sources: dict[int, frozenset[int]] = {}  # value -> rows that it comes from
    found: dict[int, tuple[int, ...]] = {}
    for i in members:
        op = flat.ops[i]
        above = frozenset[int]().union(
            *(sources.get(v, frozenset()) for v in op.inputs if isinstance(v, int))
        )
        if i in place:
            found[i] = tuple(sorted(above))
            above = frozenset((place[i],))
        for v in op.outputs:
            sources[v] = above
    return found


def _row(
    analysed: AnalysedPlan,
    i: int,
    events: Mapping[int, Sequence[Event]],
    step: Predicted,
    reads: tuple[int, ...],
    light: int,
) -> Row:
    op = analysed.flat.ops[i]
    node = analysed.built.op_node.get(i)
    arguments, on_the_way = _arguments(analysed, op)
    roles, result = "", str(op.node.outputs[0]) if op.node.outputs else ""
    if node is not None:
        strategy = analysed.built.refs[node].menu[analysed.choice[node]]
        roles = _roles(analysed, i, strategy.roles)
        if strategy.results:
            result = f"{result} {strategy.results[0]}"
    at, mine = _start(step, i), events.get(i, ())
    before = [e for n in on_the_way for e in events.get(n, ())]
    before += [e for e in mine if e.start_s < at]
    return Row(
        i, op.node.op, op.node.source, roles, result, arguments, tuple(before),
        tuple(e for e in mine if e.start_s >= at), reads, light,
    )  # fmt: skip


def _roles(analysed: AnalysedPlan, i: int, roles: Sequence[str]) -> str:
    """What each mesh axis does, with the name of the dimension where it has one."""
    found: list[str] = []
    for axis, role in zip(analysed.decisions.mesh.names, roles, strict=True):
        if role.startswith("@"):
            found.append(f"{axis} stays partial")
        elif role:
            found.append(f"{axis} splits {analysed.kinds.of_factor(i, role) or role}")
    return ", ".join(found) or "whole on every device"


def _start(step: Predicted, i: int) -> float:
    return next((e.start_s for e in step.events if e.op == i and e.lane != COLLECTIVE), 0.0)


def _arguments(analysed: AnalysedPlan, op: FlatOp) -> tuple[tuple[tuple[str, str], ...], list[int]]:
    """Arguments that an operation reads, and the casts, slices and the like on their way."""
    on_the_way: list[int] = []
    entering = {link.target: link.source for link in reversed(analysed.flat.links)}
    found: list[tuple[str, str]] = []
    for v in op.inputs:
        if isinstance(v, Literal):
            continue
        origin, passed = _origin(analysed, v, entering)
        if origin is not None:
            node, states = analysed.builder.source(origin)
            found.append((analysed.flat.values[origin].name, str(states[analysed.choice[node]])))
            on_the_way += reversed(passed)
    return tuple(found), on_the_way


def _origin(
    analysed: AnalysedPlan, v: int, entering: Mapping[int, int]
) -> tuple[int | None, list[int]]:
    """The argument that a value is made of alone, and the operations between, last first."""
    flat, maker = analysed.flat, analysed.flat.maker
    seen: set[int] = set()
    passed: list[int] = []
    while flat.values[v].kind != "argument":
        if v in seen:
            return None, []  # a carry that is renewed
        seen.add(v)
        if v in entering:
            v = entering[v]
            continue
        op = flat.ops[maker[v][0]] if v in maker else None
        sources = [] if op is None else [x for x in op.inputs if isinstance(x, int)]
        if op is None or is_heavy(op) or len(sources) != 1:
            return None, []
        passed.append(maker[v][0])
        v = sources[0]
    return v, passed

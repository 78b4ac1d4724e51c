# pyright: basic
"""Cuts a case that goes wrong down to a few steps that go wrong in the same way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import msgspec

from planner.common.mesh_setting import AXES

from .case import Case, Outcome, bits, run, told
from .decisions import Told, on_axes
from .generate import NOT_A_PROGRAM, is_program, step_types
from .program import Argument, Program, Step, Type

Judge = Callable[[Case], Outcome]


def shrunk(case: Case, seconds: float = 60.0, judge: Judge = run) -> tuple[Case, Outcome]:
    """A case as small as was found in some time, and what becomes of it."""
    until = time.monotonic() + seconds
    outcome = judge(case)
    best = _same(told(case), outcome, judge)
    if best is None:  # it does not come again
        return case, outcome
    while (smaller := _next(best[0], outcome, judge, until)) is not None:
        best = smaller
    return best


def _next(
    case: Case, wanted: Outcome, judge: Judge, until: float
) -> tuple[Case, Outcome] | None:  # fmt: skip
    """The first smaller case that goes wrong as this one does."""
    for smaller in candidates(case):
        if time.monotonic() > until:
            return None
        found = _same(smaller, wanted, judge)
        if found is not None:
            return found
    return None


def _same(case: Case, wanted: Outcome, judge: Judge) -> tuple[Case, Outcome] | None:
    """The case, if it goes wrong in the wanted way."""
    with bits(case.wide):
        if not is_program(case.program):
            return None
    found = judge(case)
    alike = found.verdict == wanted.verdict and sort_of(found) == sort_of(wanted)
    return (case, found) if alike else None


def sort_of(outcome: Outcome) -> str:
    """What two outcomes have in common that are of one kind."""
    return outcome.reason[:60] if outcome.verdict == "raised" else outcome.verdict


def candidates(case: Case) -> Iterator[Case]:
    """Cases that are a little smaller, the smallest first."""
    for program in programs(case.program):
        yield msgspec.structs.replace(case, program=program)
    for fewer in _fewer(case.told):
        yield msgspec.structs.replace(case, told=fewer)
    if case.route != "direct":
        yield msgspec.structs.replace(case, route="direct")
    if case.usual:
        yield msgspec.structs.replace(case, usual=False)
    if case.wide:
        yield msgspec.structs.replace(case, wide=False)
    if case.emission != "shard_map":
        yield msgspec.structs.replace(case, emission="shard_map")
    for mesh in ((2,), (3,), (4,), (2, 2)):
        if (len(mesh), mesh) < (len(case.mesh), case.mesh):
            for axes in itertools.combinations(AXES[: len(case.mesh)], len(mesh)):
                names = dict(zip(axes, AXES, strict=False))
                yield msgspec.structs.replace(case, mesh=mesh, told=on_axes(case.told, names))


def _fewer(told: Told) -> Iterator[Told]:
    """Without some of the decisions: halves first, then one after the other."""
    size = len(told) // 2
    while size >= 1:
        for at in range(0, len(told), size):
            if len(told) > size:
                yield (*told[:at], *told[at + size :])
        size //= 2


def programs(program: Program) -> Iterator[Program]:
    """Smaller programs of the same arguments or others."""
    if program.gradient:
        yield msgspec.structs.replace(program, gradient=False)
    for output in program.outputs if len(program.outputs) > 1 else ():
        yield without_dead(msgspec.structs.replace(program, outputs=(output,)))
    sizes = _sizes(program)
    if sizes is None:
        return
    for k in reversed(range(len(program.steps))):
        cut = _as_argument(program, k, sizes)
        if cut is not None:
            yield cut
    for k, step in enumerate(program.steps):
        for number, body in enumerate(step.bodies):
            if step.kind in ("jit", "checkpoint", "custom_jvp", "custom_vjp", "by_platform"):
                yield _inlined(program, k, sizes)
            for smaller in _bodies(body):
                yield _with_body(program, k, number, smaller)


def _sizes(program: Program) -> list[list[Type]] | None:
    """Types of the results of each step; None if it is no program."""
    try:
        return step_types(program)
    except NOT_A_PROGRAM:
        return None


def _as_argument(program: Program, k: int, sizes: list[list[Type]]) -> Program | None:
    """Step k is dropped; its results become arguments, or its operands results of the program."""
    count = len(program.arguments)
    first = count + sum(map(len, sizes[:k]))
    made = len(sizes[k])
    arguments = (*program.arguments, *(Argument(*t) for t in sizes[k]))

    def moved(v: int) -> int:
        if v < count:
            return v
        if first <= v < first + made:
            return count + v - first
        return v + made if v < first else v

    steps = [*program.steps[:k], *program.steps[k + 1 :]]
    renamed = tuple(_renamed(step, moved) for step in steps)
    gone = range(first, first + made)
    before = [v for v in program.steps[k].inputs if v >= count]
    ends = [v for w in program.outputs for v in (before if w in gone else [w])]
    outputs = tuple(dict.fromkeys(moved(v) for v in ends))
    return without_dead(Program(arguments, renamed, outputs, program.gradient)) if ends else None


def _renamed(step: Step, moved: Callable[[int], int]) -> Step:
    return msgspec.structs.replace(step, inputs=tuple(moved(v) for v in step.inputs))


def without_dead(program: Program) -> Program:
    """Without steps and arguments that no result depends on."""
    sizes = _sizes(program)
    if sizes is None:
        return program
    starts = [len(program.arguments)]
    for types in sizes:
        starts.append(starts[-1] + len(types))
    needed = set(program.outputs)
    keep: list[int] = []
    for k in reversed(range(len(program.steps))):
        if needed & set(range(starts[k], starts[k + 1])):
            keep.insert(0, k)
            needed |= set(program.steps[k].inputs)
    kept = [v for v in range(len(program.arguments)) if v in needed]
    number = {v: i for i, v in enumerate(kept)}
    next_value = len(kept)
    for k in keep:
        for v in range(starts[k], starts[k + 1]):
            number[v] = next_value
            next_value += 1
    return Program(
        tuple(program.arguments[v] for v in kept),
        tuple(_renamed(program.steps[k], number.__getitem__) for k in keep),
        tuple(number[v] for v in program.outputs),
        program.gradient,
    )


def _inlined(program: Program, k: int, sizes: list[list[Type]]) -> Program:
    """The body of step k in its place."""
    step = program.steps[k]
    (body, *_) = step.bodies
    first = len(program.arguments) + sum(map(len, sizes[:k]))
    made = len(sizes[k])
    inner_sizes = _sizes(body)
    inner = sum(map(len, inner_sizes)) if inner_sizes is not None else 0

    def inside(v: int) -> int:
        count = len(body.arguments)
        return step.inputs[v] if v < count else first + v - count

    def moved(v: int) -> int:
        if v < first:
            return v
        return inside(body.outputs[v - first]) if v < first + made else v - made + inner

    steps = (
        *program.steps[:k],
        *(_renamed(s, inside) for s in body.steps),
        *(_renamed(s, moved) for s in program.steps[k + 1 :]),
    )
    outputs = tuple(dict.fromkeys(moved(v) for v in program.outputs))
    return without_dead(Program(program.arguments, steps, outputs, program.gradient))


def _bodies(body: Program) -> Iterator[Program]:
    """Bodies of the same type: a value in the place of another of its type."""
    sizes = _sizes(body)
    if sizes is None:
        return
    types = [a.type for a in body.arguments] + [t for step in sizes for t in step]
    for at, output in enumerate(body.outputs):
        for v in range(output):
            if types[v] == types[output]:
                outputs = (*body.outputs[:at], v, *body.outputs[at + 1 :])
                yield _same_arguments(msgspec.structs.replace(body, outputs=outputs))
    for k, step in enumerate(body.steps):
        for at, given in enumerate(step.inputs):
            for v in range(given):
                if types[v] == types[given] and v < len(body.arguments) <= given:
                    inputs = (*step.inputs[:at], v, *step.inputs[at + 1 :])
                    steps = list(body.steps)
                    steps[k] = msgspec.structs.replace(step, inputs=inputs)
                    yield _same_arguments(msgspec.structs.replace(body, steps=tuple(steps)))


def _same_arguments(body: Program) -> Program:
    """Without dead steps; its arguments stay."""
    cut = without_dead(
        msgspec.structs.replace(body, outputs=(*body.outputs, *range(len(body.arguments))))
    )
    return msgspec.structs.replace(cut, outputs=cut.outputs[: len(body.outputs)])


def _with_body(program: Program, k: int, number: int, body: Program) -> Program:
    step = program.steps[k]
    bodies = (*step.bodies[:number], body, *step.bodies[number + 1 :])
    steps = list(program.steps)
    steps[k] = msgspec.structs.replace(step, bodies=bodies)
    return msgspec.structs.replace(program, steps=tuple(steps))

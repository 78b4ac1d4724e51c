# pyright: basic
"""One program, traced and planned as a whole: the search over meshes, and its outcome on file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax

from costmodel import Cluster
from ir import IRError, TraceError, check, digest, show
from ir.trace import Traced, trace

from .binding import Bound
from .errors import PlanError
from .flatten import flatten
from .fusion import analyse
from .inter.price import Phases
from .intra.facts import Facts
from .kept import keep_plan, kept_plan, plan_key
from .mesh_search import THOROUGH, Candidate, Effort
from .options import Options, wishes
from .outcome import outcome
from .plan import Plan
from .planfile import FILE_VERSION, FORMAT, PlanFile
from .program import Program, roles_of
from .remembered import Memory, key_of, memory_of
from .search import Found, Search
from .stepcall import StepCall
from .version import VERSION


@dataclass(frozen=True)
class One:
    """One step to plan."""

    call: StepCall
    microbatches: int
    donate: tuple[int, ...]
    roles: tuple[str, ...]
    name: str


def plan_one(
    one: One,
    machine: Cluster,
    options: Options,
    say: Callable[[str], None],
    start: float,
    cutoff_s: float = float("inf"),
) -> Plan:
    """Traces one step and plans it; only steps below the cutoff are of interest.

    Raises:
        PlanError: if nothing fits or is below the cutoff, or there is nothing to plan.
        TraceError: if it cannot be traced.
    """
    say("trace")
    begun = time.monotonic()
    traced = trace(one.call.fn, *one.call.args, donate_argnums=one.donate, roles=one.roles)
    try:
        check(traced.graph, after="trace")
    except IRError as error:
        raise TraceError(f"the traced program is not well-formed: {error}") from error
    if not traced.graph.inputs and not traced.graph.nodes:
        raise PlanError(
            f"'{one.name}' has no arguments and computes nothing", kind="bad-argument",
            where="plan", remedy="pass the arguments after the function: plan(fn, *args, ...)",
        )  # fmt: skip
    memory = memory_of(options)
    text = show(traced.graph)
    key = key_of_one(one, traced, machine, options, cutoff_s) if memory.store else ""
    file = kept_plan(memory, key, text)
    if file is None:
        plan, _ = plan_traced(
            one, traced, machine, options, say, start, begun, memory, cutoff_s=cutoff_s
        )
        keep_plan(memory, key, plan.file)
        return plan
    now = time.monotonic()
    seconds = dict.fromkeys(("trace", "substitute", "build", "solve", "inter"), 0.0)
    spent = {"trace": now - begun, "total": now - start}
    return Plan(file, Bound(traced), seconds | spent, cached=True)


def key_of_one(one: One, traced: Traced, machine: Cluster, options: Options, *more: object) -> str:
    """The name of a step's plan in the plan store; `more` is what else decides it."""
    parts = (
        show(traced.graph), one.microbatches, one.call.reduction, one.call.warnings,
        traced.warnings, traced.donated, _ties(traced), [i.role for i in traced.graph.inputs],
        [repr(each) for each in more],
    )  # fmt: skip
    return plan_key(one.name, parts, machine, options)


def stage_key(
    one: One,
    traced: Traced,
    phases: Phases,
    machine: Cluster,
    options: Options,
    effort: Effort,
) -> str:
    """The name of a pipeline stage in the plan store."""
    parts = (
        phases.loop, sorted(phases.forward), sorted(phases.input_gradient),
        sorted(phases.weight_gradient), list(phases.saved), list(phases.takes),
        list(phases.sums), list(phases.own),
    )  # fmt: skip
    return key_of("stage", key_of_one(one, traced, machine, options, effort), parts)


def plan_traced(
    one: One,
    traced: Traced,
    machine: Cluster,
    options: Options,
    say: Callable[[str], None],
    start: float,
    begun: float,
    memory: Memory | None = None,
    effort: Effort = THOROUGH,
    cutoff_s: float = float("inf"),
) -> tuple[Plan, Found]:
    """Plans a traced step.

    Args:
        one: the step.
        traced: its program.
        machine: what it runs on.
        options: of the search.
        say: hears of progress.
        start: when planning began, for the seconds spent.
        begun: when tracing began.
        memory: the plan store; the one that the options ask for if None.
        effort: how far it goes.
        cutoff_s: only steps below are of interest.

    Raises:
        PlanError: if nothing fits in memory.
    """
    flat = flatten(traced.graph)
    names = {v: i.name for v, i in zip(flat.inputs, traced.graph.inputs, strict=True)}
    resolved = wishes(options, names, {v: flat.values[v].type.rank for v in names})
    program = Program(
        Facts(flat, analyse(flat), _ties(traced), _donated(traced)),
        roles_of([item.role for item in traced.graph.inputs], flat), resolved,
    )  # fmt: skip
    traced_s = time.monotonic() - begun
    search = Search(program, machine, options, say, memory, effort, cutoff_s)
    found = search.run()
    total = time.monotonic() - start
    seconds = {
        "trace": traced_s, "substitute": 0.0, "build": found.seconds["build"],
        "solve": found.seconds["solve"], "inter": 0.0, "total": total,
    }  # fmt: skip
    file = _file(one, traced, machine, options, found, program, search.limit)
    return Plan(file, Bound(traced), seconds), found


def _ties(traced: Traced) -> tuple[tuple[int, int], ...]:
    """Ties in positions of the graph's inputs, which start with captured constants."""
    heads = len(traced.program.consts)
    return tuple((a + heads, b) for a, b in traced.tied)


def _donated(traced: Traced) -> frozenset[int]:
    heads = len(traced.program.consts)
    return frozenset(a + heads for a in traced.donated)


def _file(
    one: One,
    traced: Traced,
    machine: Cluster,
    options: Options,
    found: Found,
    program: Program,
    limit: float,
) -> PlanFile:
    warnings = (
        *traced.warnings, *one.call.warnings, *dict.fromkeys(program.flat.warnings),
        *_idle(found.best, machine),
    )  # fmt: skip
    return PlanFile(
        format=FORMAT,
        version=FILE_VERSION,
        planner=VERSION,
        jax=jax.__version__,
        name=one.name,
        graph_digest=digest(traced.graph),
        graph=show(traced.graph),
        microbatches=one.microbatches,
        schedule="none",
        emission=options.emission,
        loss_reduction=one.call.reduction,
        donated=traced.donated,
        ties=_ties(traced),
        roles=tuple(item.role for item in traced.graph.inputs),
        substitutions=(),
        warnings=warnings,
        **outcome(found, machine, options, limit, len(traced.graph.nodes)),
    )


def _idle(best: Candidate, machine: Cluster) -> list[str]:
    """A warning for every mesh axis along which all devices do the same."""
    used: set[str] = set()
    for roles in best.decisions.ops.values():
        used.update(a for a, r in zip(best.mesh.names, roles, strict=True) if r)
    for state in best.decisions.values.values():
        used.update(state.axes)
    idle = [(a, n) for a, n in best.mesh.axes if a not in used and n > 1]
    busy = machine.num_devices
    for _, n in idle:
        busy //= n
    if not idle:
        return []
    return [
        f"only {busy} of {machine.num_devices} devices do different work: nothing is split over "
        f"mesh axis {', '.join(f'{a}={n}' for a, n in idle)}, because no dimension divides or "
        "splitting would cost more than it saves"
    ]

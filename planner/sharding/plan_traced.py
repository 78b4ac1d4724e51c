"""Plans a traced program: search over meshes, and the plan file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from costmodel import Cluster, missing_sizes
from ir import digest
from ir.trace import Traced

from ..common.options import Options
from ..common.request import Request
from ..common.store.keys import Memory
from ..files.program_plan import ProgramPlan
from ..training.step_call import StepCall
from .host_limit import check_host
from .planned_program import PlannedProgram
from .problem.program import InFlight, Program, Programs
from .problem.records import Menus
from .search.context import THOROUGH, Candidate, Effort
from .search.found_to_file import idle_axes, outcome
from .search.over_meshes import Search, SearchOutcome


@dataclass(frozen=True)
class One:
    """One step to plan.

    call: the step and its arguments.
    microbatches: number of micro-batches in the step.
    donate: indices of donated arguments.
    roles: role of each argument.
    name: name of the function.
    in_flight: micro-batches in flight of a pipeline stage.
    """

    call: StepCall
    microbatches: int
    donate: tuple[int, ...]
    roles: tuple[str, ...]
    name: str
    in_flight: InFlight | None = None


def plan_traced(
    one: One,
    traced: Traced,
    request: Request,
    begun: float,
    memory: Memory | None = None,
    cutoff_s: float = float("inf"),
    known: Sequence[Candidate] = (),
    menus: Menus | None = None,
    programs: Programs | None = None,
    effort: Effort = THOROUGH,
) -> tuple[PlannedProgram, SearchOutcome]:
    """Plans a traced step.

    Args:
        one: the step.
        traced: its traced program.
        request: machine, options, and progress callback.
        begun: time at which tracing began [s].
        memory: the plan store; None for that of the options.
        cutoff_s: upper limit of the step [s].
        known: plans of the program as starting points.
        menus: menus of other searches on the same cluster.
        programs: those that have been prepared for it.
        effort: of the search.

    Raises:
        PlanError: if nothing fits in memory, or the plan not in that of the hosts.
    """
    program = program_for(traced, request.options, request.machine, programs)
    program = program.holding(one.in_flight)
    traced_s = time.monotonic() - begun
    search = Search(program, request, memory, effort, cutoff_s, known, menus)
    made = planned(one, traced, search, found := search.run(), traced_s)
    check_host(made.program.host_bytes, request.machine)
    return made, found


def planned(
    one: One, traced: Traced, search: Search, found: SearchOutcome, traced_s: float
) -> PlannedProgram:
    """The plan that a search found.

    Args:
        one: the step.
        traced: its traced program.
        search: the finished search.
        found: its outcome.
        traced_s: seconds of tracing.
    """
    program, total_s = _file(one, traced, search, found), time.monotonic() - search.request.start
    seconds = {"trace": traced_s, "substitute": 0.0, **found.seconds, "inter": 0.0}
    seconds["total"] = total_s
    return PlannedProgram(program, traced, seconds)


def program_for(
    traced: Traced, options: Options, machine: Cluster, programs: Programs | None = None
) -> Program:
    """Prepares a traced step for the search on a machine, unless it is among `programs`."""
    known, alone = programs or Programs(), machine.num_devices == 1
    return known.of(traced.graph, ties_of(traced), donated_of(traced), options, alone=alone)


def ties_of(traced: Traced) -> tuple[tuple[int, int], ...]:
    """Ties in positions of the graph's inputs, which start with captured constants."""
    heads = len(traced.program.consts)
    return tuple((a + heads, b) for a, b in traced.tied)


def donated_of(traced: Traced) -> frozenset[int]:
    heads = len(traced.program.consts)
    return frozenset(a + heads for a in traced.donated)


def _file(one: One, traced: Traced, search: Search, found: SearchOutcome) -> ProgramPlan:
    machine, options = search.cluster, search.options
    warnings = (
        *traced.warnings, *one.call.warnings,
        *dict.fromkeys(search.scope.program.flat.warnings),
        *idle_axes(found.best, machine), *missing_sizes(machine),
    )  # fmt: skip
    return ProgramPlan(
        name=one.name,
        graph_digest=digest(traced.graph),
        graph=traced.text,
        microbatches=one.microbatches,
        emission=options.emission,
        loss_reduction=one.call.reduction,
        donated=traced.donated,
        ties=ties_of(traced),
        roles=tuple(item.role for item in traced.graph.inputs),
        substitutions=(),
        traced_digest="",
        warnings=warnings,
        **outcome(found, machine, options, search.limit),
    )

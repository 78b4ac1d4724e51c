"""One question to a planner: a profile, a machine, a batch; one answer."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...common.errors import PlanError
from .coarsen import coarsened
from .convention import Convention
from .formulas import CONVENTIONS
from .graph import LayerGraph
from .machine import Machine
from .outcome import Outcome, StageReport
from .planner import Request
from .price import price
from .problem import PipelinePlan, Problem
from .readers import aceso, galvatron
from .reading import read_profile
from .registry import PLANNERS
from .search import search
from .stage_space import Space

MOST_LAYERS, MOST_SETS = 64, 160
MEMORY_TRIES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to plan.

    path: a profile, see `planner/pipeline/published/readers`.
    machine: devices, memory, links.
    planner, convention: names; by default the convention of the profile's own paper, or `flush`.
    batch: samples of a step.
    microbatches: parts of it; chosen if not given and the convention cares.
    profile_batch: samples in the profiled micro-batch, for formats that do not say or have several.
    stages: most stages.
    model: which model of a database.
    """

    path: Path
    machine: Machine
    batch: int
    planner: str = "ours"
    convention: str | None = None
    microbatches: int | None = None
    profile_batch: int | None = None
    stages: int | None = None
    model: str | None = None


def ask(question: Question) -> Outcome:
    """The planner's answer.

    Raises:
        PlanError: on names that are not known, a bad profile, or wishes that contradict it.
    """
    _known("--planner", question.planner, PLANNERS)
    _known("--convention", question.convention, CONVENTIONS)
    if question.batch < 1:
        raise _bad("--batch", f"must be at least 1, got {question.batch}", "give samples of a step")
    return _ask_graph(question, _graphs(question))


def _graphs(question: Question) -> Mapping[str, LayerGraph]:
    """Graphs of the profile by device kind."""
    path, size = question.path, question.profile_batch
    one_model = galvatron.is_folder(path) or not aceso.is_database(path)
    if one_model and question.model is not None:
        raise _bad("--model", f"'{question.model}' is asked for, but the profile is of one model",
                   "leave it out")  # fmt: skip
    if galvatron.is_folder(path):
        return {"": galvatron.layer_graph(galvatron.read(path), microbatch=size or 1)}
    if one_model:
        return read_profile(path, batch=size)
    if question.model is None:
        raise _bad("--model", "is needed for a database", "name one, such as gpt_1_3B")
    database = aceso.read(path, model=question.model)
    smallest = min(batch for batch, _ in database.table)
    return {"": aceso.layer_graph(database, microbatch=size or smallest)}


def _known(where: str, name: str | None, names: Collection[str]) -> None:
    if name is not None and name not in names:
        raise _bad(where, f"'{name}' is not known", f"choose one of {', '.join(sorted(names))}")


def _bad(where: str, message: str, remedy: str) -> PlanError:
    return PlanError(message, kind="bad-option", where=where, remedy=remedy)


def _ask_graph(question: Question, graphs: Mapping[str, LayerGraph]) -> Outcome:
    first = next(iter(graphs.values()))
    name = question.convention or (first.format if first.format in CONVENTIONS else "flush")
    convention = CONVENTIONS[name]
    if question.stages is not None and not 1 <= question.stages <= len(first.layers):
        raise _bad("--stages", f"is {question.stages}; the profile has {len(first.layers)} layers",
                   f"choose 1 to {len(first.layers)}")  # fmt: skip
    merged, groups = coarsened(graphs, most_layers=MOST_LAYERS, most_sets=MOST_SETS)
    machine = question.machine
    if len(graphs) == 1 and all(not host.kind for host in machine.hosts):
        merged = {"": next(iter(merged.values()))}
    count, choose = _microbatches(question, first, convention)
    problem = Problem(merged, machine, question.batch, count)
    request = Request(problem, convention, choose, question.stages)
    start = time.perf_counter()
    plan = PLANNERS[question.planner].plan(request)
    seconds = time.perf_counter() - start
    notes = _notes(len(first.layers), groups, plan, machine)
    names = tuple(layer.name for layer in first.layers)
    found = None if plan is None else price(problem, plan, convention)
    memory = max(host.memory_bytes for host in machine.hosts)
    if plan is None or found is None or not found.fits:
        needed = _needed_bytes(request) if found is None else memory + max(found.excess_bytes, 0.0)
        if found is not None and found.against:
            notes = (*notes, f"the plan breaks a rule of the convention: {found.against}")
        return Outcome(
            question.planner, name, False, None, None, (), convention.schedule, None, seconds,
            False, needed, memory, names, (*notes, *_help(first, question)),
        )  # fmt: skip
    stages = tuple(
        StageReport(
            tuple(sorted(v for node in stage.nodes for v in groups[node])), stage.devices,
            stage.data_parallel, stage.tensor_parallel, stage.recompute_kind, peak, shares,
        )
        for stage, peak, shares in zip(plan.stages, found.peak_bytes, found.shares, strict=True)
    )  # fmt: skip
    exact = plan.exact and len(groups) == len(first.layers)
    return Outcome(
        question.planner, name, True, found.seconds_per_sample, found.step_s, stages,
        convention.schedule, plan.microbatches, seconds, exact, None, memory, names, notes,
    )  # fmt: skip


def _microbatches(
    question: Question, graph: LayerGraph, convention: Convention
) -> tuple[int, bool]:
    """Micro-batches to start from, and whether they may be chosen."""
    if question.microbatches is not None:
        return question.microbatches, False
    size = min(graph.batch, question.batch)
    if question.batch % size:
        raise _bad(
            "--batch",
            f"{question.batch} samples cannot be cut into micro-batches of the {size} profiled",
            f"choose a multiple of {size} or give --microbatches",
        )
    return question.batch // size, not convention.by_replicas


def _notes(
    layers: int, groups: tuple[tuple[int, ...], ...], plan: PipelinePlan | None, machine: Machine
) -> tuple[str, ...]:
    found: list[str] = []
    if len(groups) < layers:
        found.append(f"{layers} layers were merged to {len(groups)} to be searched")
    if plan is not None:
        idle = machine.devices - sum(stage.devices for stage in plan.stages)
        if idle:
            found.append(f"{idle} devices are left over: no stage gains from them")
    return tuple(found)


def _help(graph: LayerGraph, question: Question) -> tuple[str, ...]:
    found = ["more devices, so that stages hold fewer layers"]
    if question.microbatches is not None:
        found.append("more and smaller micro-batches")
    if question.planner != "ours":
        found.append("--planner ours, which also recomputes and splits layers")
    if len(graph.degrees()) == 1:
        found.append("a profile with tensor parallelism")
    return tuple(f"would help: {text}" for text in found)


def _needed_bytes(request: Request) -> float | None:
    """Least memory per device, to 2 %, with which our search finds a plan; None if none does."""
    machine = request.problem.machine

    def fits(factor: float) -> bool:
        hosts = tuple(replace(h, memory_bytes=h.memory_bytes * factor) for h in machine.hosts)
        scaled = replace(request.problem, machine=Machine(hosts))
        space = Space("either", stages=request.stages)
        return search(scaled, request.convention, space) is not None

    low, high = 1.0, 2.0
    for _ in range(MEMORY_TRIES):
        if fits(high):
            break
        low, high = high, 2 * high
    else:
        return None
    while high > low * 1.02:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high * max(host.memory_bytes for host in machine.hosts)

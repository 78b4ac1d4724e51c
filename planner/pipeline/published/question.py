"""One question to a planner: a profile, a machine, a batch; one answer."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...common.errors import PlanError
from .aceso.cost import OpPlan, price_ops
from .aceso.grid import grid_ops
from .aceso.search import search_ops
from .coarsen import coarsened
from .convention import Convention
from .formulas import CONVENTIONS
from .galvatron.search import search_layers
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
MIB = 1 << 20
MEMORY_TRIES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to plan.

    path: a profile, see `planner/pipeline/published/readers`.
    machine: devices, memory, links.
    planner, convention: names; the convention of the profile's own paper if not given.
    batch: samples of a step.
    microbatches: parts of it; chosen if not given and the convention cares.
    profile_batch: samples in the profiled micro-batch, for formats that do not say.
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
    _known("--convention", question.convention, {*CONVENTIONS, "aceso", "galvatron"})
    if question.batch < 1:
        raise _bad("--batch", f"must be at least 1, got {question.batch}", "give samples of a step")
    if galvatron.is_folder(question.path):
        return _ask_galvatron(question)
    if aceso.is_database(question.path):
        return _ask_aceso(question)
    if question.model is not None:
        raise _bad("--model", f"'{question.model}' is asked for, but the profile is of one model",
                   "leave it out")  # fmt: skip
    return _ask_graph(question, read_profile(question.path, batch=question.profile_batch))


def _known(where: str, name: str | None, names: Collection[str]) -> None:
    if name is not None and name not in names:
        raise _bad(where, f"'{name}' is not known", f"choose one of {', '.join(sorted(names))}")


def _bad(where: str, message: str, remedy: str) -> PlanError:
    return PlanError(message, kind="bad-option", where=where, remedy=remedy)


def _ask_graph(question: Question, graphs: Mapping[str, LayerGraph]) -> Outcome:
    first = next(iter(graphs.values()))
    name = question.convention or (first.format if first.format in CONVENTIONS else "flush")
    convention = CONVENTIONS.get(name)
    if convention is None:
        raise _bad("--convention", f"'{name}' does not price this profile",
                   f"choose one of {', '.join(CONVENTIONS)}")  # fmt: skip
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


def _ask_aceso(question: Question) -> Outcome:
    if question.model is None:
        raise _bad("--model", "is needed for a database", "name one, such as gpt_1_3B")
    database = aceso.read(question.path, model=question.model)
    if question.convention not in (None, "aceso"):
        smallest = min(b for b, _ in database.table)
        size = question.profile_batch or smallest
        return _ask_graph(question, {"": aceso.layer_graph(database, microbatch=size)})
    finders = {"ours": search_ops, "equal-layers": grid_ops}
    if question.planner not in finders:
        raise _bad("--planner", f"'{question.planner}' does not plan ops of a database",
                   "choose ours or equal-layers, or another --convention")  # fmt: skip
    hosts = question.machine.hosts
    memory, per_host = hosts[0].memory_bytes, hosts[0].devices
    devices = question.machine.devices
    start = time.perf_counter()
    plan = finders[question.planner](
        database, devices=devices, devices_per_host=per_host, memory_bytes=memory,
        batch=question.batch,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    if plan is None:
        return Outcome(
            question.planner, "aceso", False, None, None, (), "1f1b", None, seconds,
            memory_bytes=memory, layers=database.ops,
            notes=("would help: more devices or memory",),
        )  # fmt: skip
    found = price_ops(database, plan, batch=question.batch, devices_per_host=per_host)
    return Outcome(
        question.planner, "aceso", True, found.step_s / question.batch, found.step_s,
        _op_stages(plan, found.peak_bytes), "1f1b", question.batch // plan.microbatch, seconds,
        False, None, memory, database.ops,
    )  # fmt: skip


def _op_stages(plan: OpPlan, peaks: tuple[float, ...]) -> tuple[StageReport, ...]:
    kinds = {(True, True): "selective", (True, False): "full", (False, True): "none"}
    return tuple(
        StageReport(
            tuple(range(stage.first, stage.last)), stage.devices, stage.data_parallel,
            stage.tensor_parallel, kinds[any(stage.again), not all(stage.again)], peak,
        )
        for stage, peak in zip(plan.stages, peaks, strict=True)
    )  # fmt: skip


def _ask_galvatron(question: Question) -> Outcome:
    profile = galvatron.read(question.path)
    if question.planner != "ours" or question.convention not in (None, "galvatron"):
        raise _bad(
            "--planner",
            "this profile has times of one layer only, which `ours` plans under the convention "
            "galvatron",
            "leave --planner and --convention out",
        )
    if question.machine.devices != profile.devices:
        raise _bad("--devices", f"is {question.machine.devices}; the profile was taken on "
                   f"{profile.devices}", f"give {profile.devices}")  # fmt: skip
    memory = question.machine.hosts[0].memory_bytes
    start = time.perf_counter()
    plan = search_layers(profile, memory_mb=int(memory / MIB), batch=question.batch)
    seconds = time.perf_counter() - start
    names = tuple(f"layer {v}" for v in range(profile.layers))
    if plan is None:
        return Outcome(
            "ours", "galvatron", False, None, None, (), "1f1b", None, seconds,
            memory_bytes=memory, layers=names, notes=("would help: more memory",),
        )  # fmt: skip
    stages: list[StageReport] = []
    at = 0
    for stage in plan.stages:
        count = sum(n for _, n in stage.counts)
        again = sum(n for strategy, n in stage.counts if strategy.again)
        way = stage.counts[0][0]
        kind = "none" if not again else "full" if again == count else "selective"
        nodes = tuple(range(at, at + count))
        stages.append(
            StageReport(nodes, way.group * way.data, way.data * (way.group // way.tensor),
                        way.tensor, kind, stage.memory_mb * MIB)
        )  # fmt: skip
        at += count
    return Outcome(
        "ours", "galvatron", True, plan.step_s / question.batch, plan.step_s, tuple(stages),
        "1f1b", plan.setting.chunks, seconds, False, None, memory, names,
    )  # fmt: skip

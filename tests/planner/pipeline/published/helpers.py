"""Small random profiles, and every plan of one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from planner.pipeline.published import CONVENTIONS, LayerGraph, Machine, Problem, flat, price
from planner.pipeline.published.downset_lattice import lattice
from planner.pipeline.published.graph import Edge, Layer, Variant
from planner.pipeline.published.problem import PipelinePlan, Stage

DATA = Path(__file__).parent / "data"


def random_graph(
    seed: int, *, layers: int, degrees: tuple[int, ...] = (1, 2), branches: bool = True
) -> LayerGraph:
    """A chain with skips; every layer has both variants at every degree."""
    rng = np.random.default_rng(seed)
    made: list[Layer] = []
    for v in range(layers):
        forward, backward, weights, kept = rng.uniform(0.5, 2.0, size=4)
        variants: list[tuple[int, tuple[Variant, ...]]] = []
        for t in degrees:
            f, b = forward / t + 0.1 * (t - 1), backward / t + 0.1 * (t - 1)
            plain = Variant("none", f, b, weights / t, kept / t, 3 * weights / t)
            again = Variant("full", f, f + b, weights / t, 0.2 * kept, 3 * weights / t + 0.1)
            variants.append((t, (plain, again)))
        made.append(Layer(f"layer {v}", tuple(variants)))
    pairs = {(v, v + 1) for v in range(layers - 1)}
    if branches:
        skip = int(rng.integers(0, max(layers - 2, 1)))
        pairs |= {(skip, min(skip + 2, layers - 1))} if layers > 2 else set()
        if layers > 3 and rng.random() < 0.5:
            pairs.discard((skip, skip + 1))
    edges = tuple(
        Edge(a, b, float(rng.uniform(0, 1)), tuple((t, 0.1 * (t - 1)) for t in degrees))
        for a, b in sorted(pairs)
        if a != b
    )
    return LayerGraph(f"random {seed}", "piper", 1, tuple(made), edges)


def random_problem(
    seed: int, *, layers: int = 4, devices: int = 4, degrees: tuple[int, ...] = (1, 2)
) -> Problem:
    """A problem whose memory is sometimes tight."""
    rng = np.random.default_rng(1000 + seed)
    graph = random_graph(seed, layers=layers, degrees=degrees)
    machine = flat(
        devices,
        memory_bytes=float(rng.uniform(4, 30)),
        bandwidth_bytes_per_s=float(rng.uniform(2, 20)),
    )
    batch = int(rng.choice([4, 6, 8]))
    return Problem({"": graph}, machine, batch, batch)


def every_plan(problem: Problem, machine: Machine | None = None) -> Iterator[PipelinePlan]:
    """All plans: chains of suffix sets, degrees of each stage, recomputation of each layer."""
    whole = machine or problem.machine
    found = lattice(problem.graph)
    last = len(found.member) - 1
    for stages in _chains(found.member, found.pair, last):
        yield from _dressed(problem, whole, stages)


def _chains(
    member: npt.NDArray[np.bool_], pair: npt.NDArray[np.int64], outer: int
) -> Iterator[list[tuple[int, ...]]]:
    if outer == 0:
        yield []
        return
    for inner in range(len(member)):
        if pair[outer, inner] < 0:
            continue
        stage = tuple(int(v) for v in np.flatnonzero(member[outer] & ~member[inner]))
        for rest in _chains(member, pair, inner):
            yield [stage, *rest]


def _dressed(
    problem: Problem, machine: Machine, cut: list[tuple[int, ...]]
) -> Iterator[PipelinePlan]:
    shapes = [(d, t) for t in problem.graph.degrees() for d in range(1, machine.devices // t + 1)]
    for chosen in itertools.product(shapes, repeat=len(cut)):
        used = sum(d * t for d, t in chosen)
        if used > machine.devices:
            continue
        options = [list(itertools.product(("none", "full"), repeat=len(nodes))) for nodes in cut]
        for kinds in itertools.product(*options):
            first = machine.devices - used
            stages: list[Stage] = []
            for nodes, (d, t), names in zip(cut, chosen, kinds, strict=True):
                stages.append(Stage(nodes, first, d, t, names))
                first += d * t
            yield PipelinePlan(tuple(stages), machine, problem.microbatches)


def allowed(problem: Problem, plan: PipelinePlan, name: str) -> bool:
    """Rules of a convention that are not about cost."""
    convention, count = CONVENTIONS[name], problem.microbatches
    replicas = [stage.data_parallel for stage in plan.stages]
    for stage in plan.stages:
        for r in range(stage.data_parallel):
            a = stage.first + r * stage.tensor_parallel
            if plan.machine.host_of(a) != plan.machine.host_of(a + stage.tensor_parallel - 1):
                return False
    if convention.divides:
        return all(count % d == 0 for d in replicas) and sum(replicas) <= count
    return convention.by_replicas or max(replicas) <= problem.batch // count


def brute_force(problem: Problem, name: str, machines: list[Machine] | None = None) -> float:
    """Step seconds of the best plan of all; infinite where nothing fits."""
    best = np.inf
    for machine in machines or [problem.machine]:
        placed = replace(problem, machine=machine)
        for plan in every_plan(placed):
            if allowed(placed, plan, name):
                found = price(placed, plan, CONVENTIONS[name])
                if found.fits:
                    best = min(best, found.step_s)
    return float(best)

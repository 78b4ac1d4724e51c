"""What a plan costs under a convention, straight from the profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .convention import Convention, Floats, StageTerms
from .graph import Edge, LayerGraph, Variant
from .problem import PipelinePlan, Priced, Problem, Stage
from .recompute import choices
from .uneven_shares import split


def price(problem: Problem, plan: PipelinePlan, convention: Convention) -> Priced:
    """Seconds and memory of a plan.

    Args:
        problem: the layers and the batch; machine and micro-batches are the plan's.
        plan: stages, first to last.
        convention: whose formula.

    Raises:
        ValueError: if the stages are no pipeline: a layer is missing, runs twice or before one that
            it needs, or devices overlap or lie beyond the machine.
    """
    _check(problem, plan)
    problem = replace(problem, microbatches=plan.microbatches)
    held, worst = 0, -np.inf
    costs: list[StageTerms] = []
    peaks: list[float] = []
    shares: list[tuple[float, ...]] = []
    for stage in reversed(plan.stages):
        held += convention.adds(stage.data_parallel)
        flight = min(convention.in_flight(held, stage.data_parallel), problem.microbatches)
        cost, peak, excess, parts = _stage(problem, plan, stage, convention, flight)
        costs.insert(0, cost)
        peaks.insert(0, peak)
        shares.insert(0, parts)
        worst = max(worst, excess)
    step = convention.step_s(costs, problem.microbatches)
    against = broken_rule(problem, plan, convention)
    return Priced(step, step / problem.batch, tuple(peaks), tuple(shares), float(worst), against)


def broken_rule(problem: Problem, plan: PipelinePlan, convention: Convention) -> str:
    """What a convention asks of degrees and a plan does not keep; empty if it keeps all."""
    replicas = [stage.data_parallel for stage in plan.stages]
    count = plan.microbatches
    if convention.divides:
        odd = [d for d in replicas if count % d]
        if odd:
            return f"{odd[0]} replicas do not divide {count} micro-batches"
        if sum(replicas) > count:
            return f"{sum(replicas)} replicas are more than the {count} micro-batches"
    elif not convention.by_replicas and max(replicas) > problem.batch // count:
        return (
            f"{max(replicas)} replicas cannot share a micro-batch of {problem.batch // count} "
            "samples"
        )
    return ""


def _check(problem: Problem, plan: PipelinePlan) -> None:
    place = {v: s for s, stage in enumerate(plan.stages) for v in stage.nodes}
    held = sum(len(stage.nodes) for stage in plan.stages)
    count = len(problem.graph.layers)
    if held != count or place.keys() != set(range(count)):
        raise ValueError(f"stages hold {held} layers, expected each of {count} once")
    for edge in problem.graph.edges:
        if place[edge.source] > place[edge.target]:
            raise ValueError(f"layer {edge.target} runs in a stage before {edge.source}")
    at = 0
    for stage in plan.stages:
        if stage.first < at or stage.first + stage.devices > plan.machine.devices:
            raise ValueError(f"a stage takes devices from {stage.first}, which are not free")
        at = stage.first + stage.devices


def replica_kinds(plan: PipelinePlan, stage: Stage) -> tuple[int, ...]:
    """Host of the first device of each replica of a stage."""
    machine, t = plan.machine, stage.tensor_parallel
    return tuple(machine.host_of(stage.first + r * t) for r in range(stage.data_parallel))


def _stage(
    problem: Problem, plan: PipelinePlan, stage: Stage, convention: Convention, flight: int
) -> tuple[StageTerms, float, float, tuple[float, ...]]:
    machine, scale, d = plan.machine, problem.scale, stage.data_parallel
    hosts = replica_kinds(plan, stage)
    ran = {
        h: _sums(problem.graphs[machine.hosts[h].kind], stage, convention, scale)
        for h in sorted(set(hosts))
    }
    seconds = {h: (f, b) for h, (f, b, _, _) in ran.items()}
    if convention.averages:
        mean = _mean(problem, plan, stage, convention)
        seconds = dict.fromkeys(seconds, mean)
    caps = {h: _cap(machine.hosts[h].memory_bytes, ran[h], flight) for h in ran}
    parts = _shares(hosts, seconds, caps, whole=convention.by_replicas, even=convention.averages)
    # Shares even out the sum of both directions; how it falls apart is read off the first device.
    slowest = max(parts[h] * sum(seconds[h]) for h in ran)
    both = sum(seconds[hosts[0]])
    forward, backward = (slowest * value / both if both else 0.0 for value in seconds[hosts[0]])
    needs = {
        h: ran[h][2] * flight * (1.0 if convention.by_replicas else parts[h]) + ran[h][3]
        for h in ran
    }
    excess = max(needs[h] - machine.hosts[h].memory_bytes for h in ran)
    ring = machine.link(stage.first, stage.first + stage.devices - 1)
    graph, t = problem.graph, stage.tensor_parallel
    inside = set(stage.nodes)
    enters = [e for e in graph.edges if e.target in inside and e.source not in inside]
    leaves = [e for e in graph.edges if e.source in inside and e.target not in inside]
    entering, leaving = (_tensor_bytes(found, once=graph.shared) for found in (enters, leaves))
    edge_bytes = entering + leaving
    edge_bytes += sum(e.into(t) for e in enters) + sum(e.out(t) for e in leaves)
    weights = sum(graph.layers[v].at(t)[0].parameter_bytes for v in stage.nodes)
    before = machine.link(max(stage.first - 1, 0), stage.first)
    end = stage.first + stage.devices - 1
    after = machine.link(end, min(end + 1, machine.devices - 1))
    late = max(_late(problem, machine.hosts[h].kind, stage, ring) for h in ran)
    cost = StageTerms(
        _array(forward), _array(backward), _array(edge_bytes * scale),
        _array(entering * scale / before),
        _array(leaving * scale / after),
        _array(2 * (d - 1) / d * weights / ring), _array(late), _array(weights),
        ring, d,
    )  # fmt: skip
    return cost, max(needs.values()), excess, tuple(float(parts[h]) for h in hosts)


def _tensor_bytes(edges: list[Edge], *, once: bool) -> float:
    """Bytes of edges; of those with one source the largest only, if they carry one tensor."""
    if not once:
        return sum(edge.size_bytes for edge in edges)
    largest: dict[int, float] = {}
    for edge in edges:
        largest[edge.source] = max(largest.get(edge.source, 0.0), edge.size_bytes)
    return sum(largest.values())


def _array(value: float) -> Floats:
    return np.array(value, dtype=np.float64)


Sums = tuple[float, float, float, float]


def _chosen(graph: LayerGraph, stage: Stage) -> list[Variant]:
    pairs = zip(stage.nodes, stage.recompute, strict=True)
    return [choices(graph.layers[v].at(stage.tensor_parallel))[kind] for v, kind in pairs]


def _sums(graph: LayerGraph, stage: Stage, convention: Convention, scale: float) -> Sums:
    """Forward and backward seconds, bytes per micro-batch in flight and bytes always held."""
    chosen = _chosen(graph, stage)
    stash = sum(v.parameter_bytes for v in chosen) if convention.stashes else 0.0
    return (
        scale * sum(v.forward_s for v in chosen),
        scale * sum(v.backward_s for v in chosen),
        scale * sum(v.flight_bytes for v in chosen) + stash,
        sum(v.fixed_bytes for v in chosen),
    )


def _mean(
    problem: Problem, plan: PipelinePlan, stage: Stage, convention: Convention
) -> tuple[float, float]:
    total = plan.machine.devices
    rows = [
        (
            host.devices / total,
            _sums(problem.graphs[host.kind], stage, convention, problem.scale),
        )
        for host in plan.machine.hosts
    ]
    return sum(w * r[0] for w, r in rows), sum(w * r[1] for w, r in rows)


def _cap(memory: float, sums: Sums, flight: int) -> float:
    held = sums[2] * flight
    left = memory - sums[3]
    return left / held if held else (np.inf if left >= 0 else -np.inf)


def _shares(
    hosts: tuple[int, ...],
    seconds: dict[int, tuple[float, float]],
    caps: dict[int, float],
    *,
    whole: bool,
    even: bool,
) -> dict[int, float]:
    """Share of a replica on each host; without room for all, as if there were no limit."""
    kinds = sorted(set(hosts))
    if even or len(kinds) == 1:
        return dict.fromkeys(kinds, 1 / len(hosts))
    counts = [hosts.count(h) for h in kinds]
    each = [np.array(sum(seconds[h])) for h in kinds]
    free = [np.array(np.inf)] * len(kinds)
    limits = free if whole else [np.array(caps[h]) for h in kinds]
    tau, found = split(each, counts, limits)
    if not np.isfinite(tau):
        _, found = split(each, counts, free)
    return {h: float(x) for h, x in zip(kinds, found, strict=True)}


def _late(problem: Problem, kind: str, stage: Stage, ring: float) -> float:
    if stage.data_parallel == 1:
        return 0.0
    d = stage.data_parallel
    share = 2 * (d - 1) / d / ring
    clock = busy = 0.0
    graph = problem.graphs[kind]
    for v in sorted(stage.nodes, reverse=True):
        variant = graph.layers[v].at(stage.tensor_parallel)[0]
        clock += variant.backward_s * problem.scale / d
        if variant.parameter_bytes:
            busy = max(busy, clock) + share * variant.parameter_bytes
    return max(busy - clock, 0.0)

"""Piper: all degrees, downsets, recomputation by its greedy knapsack, one flat network."""

from __future__ import annotations

from dataclasses import replace

from ..formulas import CONVENTIONS
from ..machine import flat
from ..planner import Planner, Request
from ..problem import PipelinePlan, Problem
from ..search import search
from ..stage_space import Space


def flattened(problem: Problem) -> Problem:
    """The same with the least memory and the slowest link everywhere."""
    hosts = problem.machine.hosts
    one = flat(
        problem.machine.devices,
        memory_bytes=min(host.memory_bytes for host in hosts),
        bandwidth_bytes_per_s=min(host.inter_bytes_per_s for host in hosts),
    )
    slow = max(problem.graphs, key=lambda kind: _seconds(problem, kind))
    return replace(problem, graphs={"": problem.graphs[slow]}, machine=one)


def _seconds(problem: Problem, kind: str) -> float:
    graph = problem.graphs[kind]
    degree = graph.degrees()[0]
    return sum(layer.at(degree)[0].seconds for layer in graph.layers)


def plan(request: Request) -> PipelinePlan | None:
    """The best plan of its space under its own convention."""
    problem = request.problem
    whole = problem if problem.machine.is_flat else flattened(problem)
    space = Space(recompute="greedy", stages=request.stages)
    found = search(whole, CONVENTIONS["piper"], space)
    return None if found is None else replace(found, machine=problem.machine, exact=False)


PIPER = Planner("piper", "Tarnawski et al., NeurIPS 2021, section 4", "piper", plan)

"""The plan of a program with its rows sorted within blocks, where that is faster.

The program as it is has a plan first. It, and the program with as many blocks as there are hosts,
have rough plans on the same mesh; twice and half as many blocks follow, as long as plans become
faster. The fastest is planned as every program is, and kept if the result is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from costmodel import Cluster
from ir import GROUPED
from ir.trace import Traced

from ...common.request import Request
from ..edited import as_edited, found_or_none
from ..recompute.rough_plans import RoughPlans
from ..recompute.variants import Variant
from ..rewrite.price import Pricer
from ..search.context import Candidate
from ..search.over_meshes import limit_of
from ..searched import Searched
from .orders import Orders
from .rows import blocked


def with_blocks(
    known: Searched,
    traced: Traced,
    request: Request,
    search: Callable[[Variant, float, Request], Searched],
    pricer: Callable[[Traced, Candidate], Pricer],
) -> tuple[Searched, Traced]:
    """The faster plan, and the program that it is of.

    Args:
        known: the plan of the program as it is.
        traced: that program.
        request: machine, options and progress.
        search: plans a program below some seconds, as requested.
        pricer: plans a program on the mesh of a plan, without a proof.
    """
    best, options, machine = known.outcome.best, request.options, request.machine
    allowed = options.sort_in_blocks and options.emission == "shard_map"
    if not allowed or options.baseline is not None or request.over:
        return known, traced
    if all(op.node.op != GROUPED for op in best.builder.flat.ops):
        return known, traced
    request.say("rows in blocks")
    rough = RoughPlans(traced, lambda t: pricer(t, best), limit_of(options, machine))
    again = replace(request, options=replace(options, baselines=False))

    def faster() -> tuple[int, Traced, Searched] | None:
        found = _fastest(traced, machine, rough)
        return found and (*found, search(Variant(found[1]), known.step_s, again))

    found = found_or_none(request, faster)
    if found is None or found[2].step_s >= known.step_s:
        return known, traced
    blocks, edited, made = found
    return as_edited(known, made, sorted_blocks=blocks), edited


def _fastest(traced: Traced, machine: Cluster, rough: RoughPlans) -> tuple[int, Traced] | None:
    """The number of blocks whose rough plan is fastest, and the program in these; None if one."""
    orders, programs = Orders(traced.graph), {1: traced}

    def step_s(blocks: int) -> float:
        edited = blocked(traced, blocks, orders)
        programs[blocks] = edited or traced
        return float("inf") if edited is None else rough.step_s(Variant(edited))

    blocks = fastest_blocks(machine, rough.step_s(Variant(traced)), step_s)
    return None if blocks == 1 else (blocks, programs[blocks])


def fastest_blocks(machine: Cluster, whole_s: float, step_s: Callable[[int], float]) -> int:
    """The number of blocks with the least seconds: hosts, and twice and half as many from there on.

    Args:
        machine: the devices.
        whole_s: seconds of a step without blocks.
        step_s: of a number of blocks; infinite if there is no plan.
    """
    steps = {1: whole_s}

    def known_s(blocks: int) -> float:
        if blocks < 1 or machine.num_devices % blocks:
            return float("inf")
        if blocks not in steps:
            steps[blocks] = step_s(blocks)
        return steps[blocks]

    at = max(machine.num_hosts, 2)
    known_s(at)
    for factor in (2.0, 0.5):
        while known_s(int(at * factor)) < known_s(at):
            at = int(at * factor)
    return min(steps, key=lambda blocks: (steps[blocks], blocks))

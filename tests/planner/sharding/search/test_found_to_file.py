# pyright: basic
"""What a search found, as the fields of a plan file."""

from __future__ import annotations

import math
from dataclasses import replace

from ir.trace import trace
from planner import Options
from planner.common.request import Request
from planner.sharding.problem.build import Builder
from planner.sharding.problem.program import program_of
from planner.sharding.search.found_to_file import outcome
from planner.sharding.search.over_meshes import Search
from tests.planner.programs import CASES, slow_machine


def test_a_file_holds_no_infinity_where_buffers_had_no_limit() -> None:
    """A hand-written plan is looked for without a limit where there is none within it."""
    case, machine, options = CASES["scanned"], slow_machine(4), Options(baselines=False)
    traced = trace(case.fn, *case.args)
    program = program_of(traced.graph, (), frozenset(), options)
    found = Search(program, Request(machine, options)).run()
    builder = found.best.builder
    reshard = builder.cache.reshard.with_room(float("inf"))
    roomy = Builder(builder.facts, replace(builder.cache, reshard=reshard), builder.limit_bytes)
    best = replace(found.best, decided=replace(found.best.decided, builder=roomy))
    rows = outcome(replace(found, best=best), machine, options, 1e9)
    assert math.isfinite(rows["room_bytes"])
    assert rows["room_bytes"] > 1e15

"""The search over mesh shapes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from costmodel import parse_cluster
from ir.trace import trace
from planner import Options, PlanError
from planner.common.request import Request
from planner.sharding.problem.program import program_of
from planner.sharding.search.context import Candidate
from planner.sharding.search.hand_written import HandWritten
from planner.sharding.search.on_mesh import MeshSearch
from planner.sharding.search.over_meshes import Search
from tests.planner.programs import CASES, slow_machine


def search(
    name: str, memory_bytes: int | None, cutoff_s: float = float("inf"), mesh: object = None
) -> Search:
    case, options = CASES[name], Options(memory_bytes=memory_bytes, mesh=mesh)
    traced = trace(case.fn, *case.args)
    program = program_of(traced.graph, (), frozenset(), options)
    return Search(program, Request(slow_machine(4), options), cutoff_s=cutoff_s)


@pytest.mark.parametrize("name", ["scanned", *[name for name in CASES if name != "scanned"][:2]])
def test_the_best_plan_alone_is_that_of_a_run(name: str) -> None:
    alone, found = search(name, None).best(), search(name, None).run()
    assert alone.mesh == found.best.mesh
    assert alone.solution.choice == found.best.solution.choice
    assert alone.account.step_s == found.best.account.step_s
    assert alone.account.peak_bytes == found.best.account.peak_bytes
    assert 0.0 < found.lower_bound_s <= alone.account.step_s


def test_what_a_search_made_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the garbage collector, so that no cycle holds the arrays of a mesh until it runs."""
    held = list[weakref.ref[Any]]()
    best = MeshSearch.best

    def noted(self: MeshSearch, *given: Any) -> Any:
        answer, cache = best(self, *given), self.builder.cache
        held.extend(map(weakref.ref, (self, cache, *cache.edges.values(), *answer[0])))
        return answer

    monkeypatch.setattr(MeshSearch, "best", noted)
    was = gc.isenabled()
    gc.disable()
    try:
        search("scanned", None).run()
        assert len(held) > 3
        assert not [one for one in held if one() is not None]
    finally:
        if was:
            gc.enable()


def test_what_does_not_fit_is_refused_alike() -> None:
    with pytest.raises(PlanError) as alone:
        search("scanned", 100).best()
    with pytest.raises(PlanError) as found:
        search("scanned", 100).run()
    assert str(alone.value) == str(found.value)


@pytest.mark.parametrize("name", [*CASES][:2])
def test_below_a_step_that_no_plan_has_no_plan_by_hand_is_priced(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    priced: list[str] = []
    on = HandWritten.on

    def noted(self: HandWritten, searcher: MeshSearch) -> Iterator[Candidate]:
        priced.append(str(searcher.mesh))
        return on(self, searcher)

    monkeypatch.setattr(HandWritten, "on", noted)
    found = search(name, None, mesh=(4,)).run()
    assert priced
    priced.clear()
    with pytest.raises(PlanError) as caught:
        search(name, None, 0.9 * found.lower_bound_s, (4,)).run()
    assert caught.value.kind == "not-faster"
    assert not priced


def test_a_bound_where_only_an_inner_loop_takes_time() -> None:
    """The outer body runs as often as it does, though none of its ops takes time."""

    def nested(table: Any, weights: Any, rows: Any) -> Any:
        def one(total: Any, at: Any) -> Any:
            x, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), table[at], weights)
            return total + x.sum(), None

        return jax.lax.scan(one, jnp.float32(0.0), rows)[0]

    shapes = (64, 256), (3, 256, 256)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    traced = trace(nested, *args, jax.ShapeDtypeStruct((4, 8), jnp.int32))
    program = program_of(traced.graph, (), frozenset(), Options(cache=False))
    depth = max(len(op.place) for op in program.flat.ops)
    inner = program.where(lambda place: len(place) == depth)
    request = Request(parse_cluster("4xv100-16gb"), Options(cache=False))
    bounds = [Search(one, request).lower_bound_s() for one in (inner, program)]
    assert 0.0 < bounds[0] <= bounds[1]

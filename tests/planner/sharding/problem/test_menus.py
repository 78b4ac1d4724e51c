# pyright: basic
"""Searches that share menus and tables find what each finds alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct as Shape

from costmodel import parse_cluster
from ir.trace import trace
from planner import Options
from planner.common.request import Request
from planner.sharding.problem.program import KEPT, Programs, program_of
from planner.sharding.problem.records import Menus
from planner.sharding.search.over_meshes import Search, SearchOutcome
from tests.helpers_exhaustive import usual


def products(a: Any, b: Any, c: Any) -> Any:
    return jnp.tanh(a @ b) @ c


def attention(q: Any, k: Any, v: Any) -> Any:
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k)), v)


PROGRAMS = (
    (products, ((64, 256), (256, 1024), (1024, 256))),
    (products, ((96, 320), (320, 1024), (1024, 192))),
    (attention, ((8, 64, 32),) * 3),
)


def search(number: int, menus: Menus | None, memory_bytes: int | None) -> SearchOutcome:
    fn, shapes = PROGRAMS[number]
    traced = trace(fn, *(Shape(shape, jnp.bfloat16) for shape in shapes))
    options = Options(baselines=False, memory_bytes=memory_bytes)
    program = program_of(traced.graph, (), frozenset(), options)
    return Search(program, Request(parse_cluster("8xh100"), options), menus=menus).run()


@pytest.mark.parametrize("order", usual([(0, 1, 2), (2, 1, 0), (1, 0, 1)], [(2, 1, 0)]))
def test_what_other_programs_left_changes_nothing(order: tuple[int, ...]) -> None:
    shared = Menus()
    for memory_bytes in (None, 2_000_000):  # another room for reshards
        for number in order:
            alone = search(number, None, memory_bytes)
            found = search(number, shared, memory_bytes)
            assert found.best.mesh == alone.best.mesh
            assert found.best.decisions == alone.best.decisions
            assert found.best.account.step_s == alone.best.account.step_s
            assert found.lower_bound_s == alone.lower_bound_s
    assert len(shared.known) > len({mesh for mesh, _ in shared.known})


def test_programs_are_prepared_once_for_a_graph_and_what_is_asked_of_it() -> None:
    fn, shapes = PROGRAMS[0]
    made = [trace(fn, *(Shape(shape, jnp.bfloat16) for shape in shapes)) for _ in range(KEPT + 1)]
    first, *others = (traced.graph for traced in made)
    programs, free, pinned = Programs(), Options(), Options(pins=(("a", "[8,-]"),))
    known = programs.of(first, (), frozenset(), free)
    assert programs.of(first, (), frozenset(), Options(memory_bytes=1)) is known
    assert programs.of(first, (), frozenset({0}), free) is not known
    asked = programs.of(first, (), frozenset(), pinned)
    assert asked is not known
    assert asked.wishes.pins
    for graph in others:  # equal ones, but with lines of their own
        assert programs.of(graph, (), frozenset(), free).flat.graph is graph
    assert len(programs.known) == KEPT

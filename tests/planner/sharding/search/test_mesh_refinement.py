# pyright: basic
"""Joining axes of a mesh: what the coarser mesh can do, the finer one can at the same price."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct as Shape

from costmodel import parse_cluster
from ir.trace import trace
from planner import Options, plan
from planner.common.request import Request
from planner.sharding.cost.account import account
from planner.sharding.lower import Decided
from planner.sharding.problem.program import program_of
from planner.sharding.search.mesh_refinement import coarsened, coarser, finest, joined, refined
from planner.sharding.search.mesh_shapes import mesh_of, mesh_shapes
from planner.sharding.search.on_mesh import MeshSearch
from planner.sharding.search.over_meshes import Search

CLUSTERS = ("8xh100", "16xh100", "64xh100", "512xh100", "72xgb200")


def test_axes_join_where_their_product_is_the_axis() -> None:
    assert joined((2, 4, 8), (8, 8)) == ((0, 1), (2,))
    assert joined((2, 4, 8), (2, 32)) == ((0,), (1, 2))
    assert joined((2, 4, 8), (64,)) == ((0, 1, 2),)
    assert joined((2, 4, 8), (4, 16)) is None
    assert joined((2, 4), (8, 2)) is None


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_shape_is_on_a_finest_one(cluster: str) -> None:
    shapes = mesh_shapes(parse_cluster(cluster))
    kept = finest(shapes)
    for shape in shapes:
        assert shape in kept or any(joined(other, shape) for other in kept)
    for one, other in itertools.permutations(kept, 2):
        assert len(one) <= len(other) or joined(one, other) is None
    assert all(math.prod(s) == math.prod(shapes[0]) for s in kept)


def _mlp(w1: Any, w2: Any, x: Any) -> Any:
    return jnp.tanh(x @ w1) @ w2


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(scores - scores.max(-1, keepdims=True)), v)


PROGRAMS = {
    "mlp": (_mlp, ((256, 1024), (1024, 256), (64, 256))),
    "attention": (_attention, ((8, 64, 16, 32),) * 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    ("fine", "coarse"), [((2, 4), (8,)), ((2, 2, 2), (2, 4)), ((2, 2, 2), (4, 2))]
)
def test_a_finer_mesh_is_never_dearer(
    name: str, fine: tuple[int, ...], coarse: tuple[int, ...]
) -> None:
    fn, shapes = PROGRAMS[name]
    args = [Shape(shape, jnp.bfloat16) for shape in shapes]
    best = {
        mesh: plan(fn, *args, cluster="8xh100", mesh=mesh, baselines=False)
        for mesh in (fine, coarse)
    }
    assert best[fine].lower_bound_s <= best[coarse].step_s * (1 + 1e-9)
    assert best[fine].step_s <= best[coarse].step_s * (1 + 1e-3)


def test_a_plan_is_told_on_the_coarsest_mesh_that_can_say_it() -> None:
    """Rows of a product without weights to move are split over all devices: one axis says it."""
    found = plan(
        lambda x: jnp.tanh(x * 2), Shape((4096, 4096), jnp.float32), cluster="8xh100",
        options=Options(baselines=False),
    )  # fmt: skip
    assert found.mesh.sizes == (8,)
    assert found.gap <= 1e-3


def test_coarser_shapes_are_the_same_machine() -> None:
    assert coarser((2, 4, 8)) == ((64,), (2, 32), (8, 8))
    assert coarser((2, 2, 2, 2)) == ((16,), (2, 8), (4, 4), (8, 2))
    assert coarser((2, 4)) == ((8,),)
    assert coarser((8,)) == coarser(()) == ()
    assert all(joined((2, 4, 8), shape) for shape in coarser((2, 4, 8)))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("fine", "coarse"), [((2, 4), (8,)), ((2, 2, 2), (4, 2))])
def test_what_is_told_on_a_finer_mesh_costs_the_same(
    name: str, fine: tuple[int, ...], coarse: tuple[int, ...]
) -> None:
    """And told on the coarser one again, it is the same choice."""
    fn, shapes = PROGRAMS[name]
    traced = trace(fn, *(Shape(shape, jnp.bfloat16) for shape in shapes))
    options, machine = Options(baselines=False), parse_cluster("8xh100")
    program = program_of(traced.graph, (), frozenset(), options)
    search = Search(program, Request(machine, options))
    here, there = (MeshSearch(search.scope, mesh_of(shape)) for shape in (coarse, fine))
    places = joined(fine, coarse)
    assert places is not None
    names, groups = here.mesh.names, [tuple(there.mesh.names[a] for a in g) for g in places]
    (best,), _ = here.best()
    built = there.builder.build()
    choice = refined(best.built, best.solution.choice, built, names, tuple(groups))
    assert choice is not None
    assert account(Decided(there.builder, built, choice)).step_s == pytest.approx(
        best.account.step_s
    )
    again = coarsened(built, choice, best.built, names, tuple(groups))
    assert again == best.solution.choice[: len(best.built.refs)]

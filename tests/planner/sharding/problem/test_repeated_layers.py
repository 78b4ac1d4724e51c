# pyright: basic
"""Folded programs against the same programs as they are."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from costmodel import CollectiveModel, ComputeModel, ReshardModel, parse_cluster
from examples import gpt, llama
from ir.analysis import Classes, Kinds, Specs
from ir.analysis.flatten import flatten
from ir.trace import trace
from planner.sharding.cost.account import account
from planner.sharding.lower import Decided
from planner.sharding.problem.buffers import pieces
from planner.sharding.problem.build import Builder
from planner.sharding.problem.facts import Facts
from planner.sharding.problem.program import roles_of
from planner.sharding.problem.records import Built, MenuCache
from planner.sharding.problem.repeated_layers import repeats_of
from planner.sharding.problem.skeleton_builder import outline_of
from planner.sharding.search.mesh_shapes import mesh_of
from tests.helpers_exhaustive import usual

LAYERS = 4
NAMES = ("slice", "shift")
ROLES = ("parameter", "optimizer-state", "batch")


@cache
def facts(name: str = "gpt", layers: int = LAYERS) -> tuple[Facts, Kinds, tuple[str, ...]]:
    if name == "gpt":
        model = gpt.GPT(64, 16, 32, 4, layers, 8, "float32", False)
        fn, args, _ = model.target(jax.eval_shape, optax.adam(1e-3))
    else:
        fn, args, _ = llama.Llama(64, 16, 32, 8, 4, 64, layers, 8, "float32").target(jax.eval_shape)
    traced = trace(fn, *args, donate_argnums=(0, 1), roles=ROLES)
    flat = flatten(traced.graph)
    found = Facts(flat, traced.tied, frozenset(traced.donated))
    roles = roles_of([item.role for item in traced.graph.inputs], flat)
    specs = [found.spec(op) for op in flat.ops]
    kinds = Kinds(Classes(flat, specs), specs, roles.batch, roles.parameters, roles.states)
    return found, kinds, tuple(item.role for item in traced.graph.inputs)


def folding(layers: int = LAYERS, depth: int = 6):
    found, kinds, roles = facts("gpt", layers)
    role = dict(zip(found.flat.inputs, roles, strict=True))
    return repeats_of(found, kinds, role.get, depth)


def builder(mesh: tuple[int, ...], *, fold: bool) -> Builder:
    machine, named = parse_cluster("8xh100"), mesh_of(mesh)
    reshard = ReshardModel(machine, named, CollectiveModel(machine))
    menus = MenuCache(named, reshard, ComputeModel(machine))
    return Builder(facts()[0], menus, 1e18, outline_of(facts()[0], folding() if fold else None))


@cache
def built(mesh: tuple[int, ...], *, fold: bool) -> tuple[Builder, Built]:
    """A problem that tests share; none changes it."""
    made = builder(mesh, fold=fold)
    return made, made.build()


def lifted(folded: Built, whole: Built, choice: tuple[int, ...]) -> tuple[int, ...]:
    """A choice for classes as one for all their members."""
    found = [0] * whole.problem.size
    for i, node in whole.op_node.items():
        found[node] = choice[folded.op_node[i]]
    for v, node in whole.value_node.items():
        found[node] = choice[folded.value_node[v]]
    for position, node in whole.out_node.items():
        found[node] = choice[folded.out_node[position]]
    large, _ = built((8,), fold=False)
    large.settle(whole, found)
    return tuple(found)


def draw(folded: Built, rng: np.random.Generator) -> tuple[int, ...]:
    choice = [int(rng.integers(len(cost))) for cost in folded.problem.node_cost]
    small, _ = built((8,), fold=True)
    small.settle(folded, choice)
    return tuple(choice)


def test_layers_are_found_in_an_unrolled_program() -> None:
    """Nothing of a further layer is new, slices of the keys that begin elsewhere neither."""
    few, many = folding(6), folding(9)
    assert many.classes == few.classes
    assert many.classes < 0.6 * len(few.op)
    assert len(many.op) > 1.3 * len(few.op)


def test_ops_are_equal_wherever_they_slice_but_not_however_far_they_roll() -> None:
    def fn(x):
        return [x[:4], x[4:8], jnp.roll(x, 1), jnp.roll(x, 2), x[:3]]

    flat = flatten(trace(fn, jnp.zeros(16)).graph)
    specs = Specs(flat)
    of = {name: [specs.of(op) for op in flat.ops if op.node.op == name] for name in NAMES}
    first, second, other = of["slice"]
    assert first is second
    assert first is not other
    near, far = of["shift"]
    assert near is not far


@pytest.mark.parametrize("mesh", usual([(8,), (2, 4)], [(8,)]))
def test_a_folded_choice_costs_what_its_members_cost(mesh: tuple[int, ...]) -> None:
    (small, folded), (large, whole) = built(mesh, fold=True), built(mesh, fold=False)
    assert folded.problem.size < 0.7 * whole.problem.size
    rng = np.random.default_rng(0)
    for _ in range(3):
        choice = draw(folded, rng)[: len(folded.refs)]
        same = lifted(folded, whole, choice)
        cut = folded.problem.cost((*choice, *_followers(folded, choice)))
        assert cut == pytest.approx(whole.problem.cost(same), rel=1e-9)
        np.testing.assert_allclose(folded.live_intervals.memory(choice), whole.problem.memory(same))
        mine, theirs = Decided(small, folded, choice), Decided(large, whole, same)
        one, other = account(mine), account(theirs)
        assert one.step_s == pytest.approx(other.step_s, rel=1e-9)
        assert one.peak_bytes == pytest.approx(other.peak_bytes)
        assert one.argument_bytes == other.argument_bytes
        assert mine.plan == theirs.plan


def _followers(folded: Built, choice: tuple[int, ...]) -> list[int]:
    """Options of the nodes that only count memory: those of the node they are bound to."""
    at = {e.v: e.u for e in folded.problem.edges if e.v >= len(folded.work)}
    return [choice[at[n]] for n in range(len(folded.work), folded.problem.size)]


def test_watched_moments_show_the_memory_of_all_members() -> None:
    _, folded = built((8,), fold=True)
    rng = np.random.default_rng(1)
    assert folded.moments
    for _ in range(5):
        choice = draw(folded, rng)[: len(folded.refs)]
        full = (*choice, *_followers(folded, choice))
        seen = folded.problem.memory(full)
        real = folded.live_intervals.memory(choice)[list(folded.moments)]
        np.testing.assert_allclose(seen, real[: len(seen)])


def test_more_moments_can_be_watched() -> None:
    _, folded = built((8,), fold=True)
    assert folded.moments is not None
    more = folded.watching((*folded.moments, folded.moments[-1] + 1))
    work = len(folded.work)
    assert more.problem.node_cost[:work] == folded.problem.node_cost[:work]
    assert more.moments == (*folded.moments, folded.moments[-1] + 1)


@pytest.mark.parametrize(
    "row", [[0, 1, 1, 0], [1, 1, 3, 3, 1], [2, 0, 2], [1, 2, 3, 2, 1], [0, 0], []]
)
def test_pieces_add_up(row: list[int]) -> None:
    found = [0] * len(row)
    for start, end, height in pieces(row):
        assert height > 0
        found[start:end] = [n + height for n in found[start:end]]
    assert found == row


def test_a_mark_keeps_members_apart() -> None:
    found, kinds, _ = facts()
    plain = repeats_of(found, kinds, lambda v: None)
    some = next(v for v in found.flat.inputs if plain.value.count(plain.value[v]) > 1)
    marked = repeats_of(found, kinds, lambda v: v == some)
    assert plain.value[some] != some or plain.value.count(some) > 1
    assert marked.value.count(marked.value[some]) == 1


@pytest.mark.parametrize("mesh", usual([(8,), (2, 4), (2, 2, 2)], [(8,), (2, 4)]))
def test_no_mesh_needs_less_than_the_least_peak(mesh: tuple[int, ...]) -> None:
    least = facts()[0].least_peak(8)
    _, whole = built(mesh, fold=False)
    assert 0 < least <= whole.live_intervals.least_peak() * (1 + 1e-9)

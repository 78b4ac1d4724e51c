# pyright: basic
"""Rewrites and shardings chosen together inside a plan: equal, a chain of rules, and worth it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.taso_models import adapters
from costmodel import CollectiveModel, ComputeModel, parse_cluster
from ir.evaluate import plain_program
from ir.trace import trace
from planner import load, plan
from planner.sharding.rewrite import joint_extraction as together
from planner.sharding.rewrite.estimate import Estimator
from planner.sharding.rewrite.joint_extraction import JointBudget, Moves
from planner.sharding.rewrite.retrace import retraced
from planner.sharding.rewrite.search import RewriteSearch
from planner.sharding.rewrite.value_classes import ValueClasses
from substitutions import draft_of
from tests.planner.sharding.rewrite.programs import CELLS, added, cells, low_rank, numbers

S = jax.ShapeDtypeStruct


def layer():
    loss, params, batch = adapters()
    return loss, (params, batch)


def explored(fn, args):
    """All moves of a function on eight devices, where everything could pay."""
    machine = parse_cluster("8xh100")
    traced = trace(fn, *args)
    estimator = Estimator(machine, ComputeModel(machine), CollectiveModel(machine))
    draft = draft_of(traced.graph)
    rewrite_search = RewriteSearch(
        lambda _: float("inf"), estimator, 2 * estimator.seconds(draft.graph)
    )
    rewrite_search.first = rewrite_search.hopeful(draft, set())
    moves = Moves(rewrite_search)
    moves.explore(draft)
    return traced, draft, moves


def values_of(traced, draft, args):
    """Every value at the top of a program, each by its number."""
    after = retraced(traced, draft)
    program = after.program
    graph = program.graph
    whole = tuple(range(len(graph.inputs) + sum(len(n.outputs) for n in graph.nodes)))
    opened = type(graph)(graph.inputs, graph.nodes, whole)
    run = plain_program(type(program)(opened, program.bindings, program.consts))
    return run(*program.consts, *jax.tree.leaves(args))


PROGRAMS = {
    "adapters": (added, low_rank(64, 4, 16)),
    "projections": (
        lambda x, w, v, u: (x @ w, jnp.tanh(x @ v) + x @ u, (x @ w) @ u),
        (S((8, 16), jnp.float32), *[S((16, 16), jnp.float32)] * 3),
    ),
    "cells": (cells, CELLS),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_of_one_class_are_equal(name) -> None:
    fn, args = PROGRAMS[name]
    traced, draft, moves = explored(fn, args)
    assert moves.found
    given = numbers(args)
    held = {}
    for wanted in (set(), *({m} for m in range(len(moves.found)))):
        after, steps = moves.chain(draft, wanted)
        assert len(steps) == 0 or wanted
        seen = moves.classes.add(after, 0)
        found = values_of(traced, after, given)
        count = len(after.graph.inputs)
        for i, node in enumerate(after.graph.nodes):
            for k in range(len(node.outputs)):
                c = moves.classes.find(seen.outs[i,][k])
                value = np.asarray(found[count])
                scale = max(1e-3, float(np.abs(value).max(initial=0)))
                np.testing.assert_allclose(held.setdefault(c, value), value, atol=1e-4 * scale)
                count += 1


def test_an_unchanged_program_has_one_form_for_each_value() -> None:
    fn, args = PROGRAMS["projections"]
    draft = draft_of(trace(fn, *args).graph)
    classes = ValueClasses()
    classes.add(draft)
    classes.add(draft)
    assert [form.node for form in classes.forms()] == list(draft.graph.nodes)
    assert classes.made == []


@pytest.fixture(scope="module")
def both():
    fn, args = layer()
    chosen = plan(fn, *args, cluster="8xh100", overlap=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(together, "BUDGET", JointBudget(nodes=0))
        searched = plan(fn, *args, cluster="8xh100", overlap=False)
    return chosen, searched


def test_choosing_together_finds_what_the_search_does_not(both) -> None:
    chosen, searched = both
    plain = plan(*layer()[:1], *layer()[1], cluster="8xh100", substitutions=False, overlap=False)
    assert chosen.step_s < searched.step_s * 0.99
    assert searched.step_s <= plain.step_s
    assert plain.substitutions == {}


def test_the_choice_is_a_chain_of_rules_that_is_bound_again(both, tmp_path) -> None:
    fn, args = layer()
    both[0].save(tmp_path / "plan.json")
    bound = load(tmp_path / "plan.json").bind(fn, *args)
    assert bound.graph == both[0].graph
    assert bound.substitutions == both[0].substitutions
    bound.save(tmp_path / "again.json")
    assert (tmp_path / "plan.json").read_bytes() == (tmp_path / "again.json").read_bytes()


def test_the_chosen_program_computes_what_was_written(both) -> None:
    fn, args = layer()
    given = numbers(args)
    np.testing.assert_allclose(both[0].compile()(*given), jax.jit(fn)(*given), rtol=1e-4)


def test_a_program_above_the_limit_is_left_to_the_search(monkeypatch) -> None:
    fn, args = layer()
    _, draft, moves = explored(fn, args)
    assert len(moves.found) >= together.BUDGET.fewest
    budget = JointBudget(nodes=draft.graph.count_nodes() - 1)
    monkeypatch.setattr(together, "BUDGET", budget)
    assert (
        together.chosen_together(moves.rewrite_search, draft, lambda _: pytest.fail("planned"))
        is None
    )

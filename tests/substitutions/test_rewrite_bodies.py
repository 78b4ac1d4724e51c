# pyright: basic
"""Bodies that are equal: each has its places, and rewriting leaves what was found as it was."""

from __future__ import annotations

from itertools import groupby

import jax
import jax.numpy as jnp
import pytest

from ir import Graph
from ir.trace import trace
from substitutions import Draft, Mark, apply, draft_of, find, patterns
from substitutions.rewrite.alike import taken_over

LAYERS = 3


def layer(x, p):
    return jnp.tanh((x @ p["q"]) + (x @ p["k"])) @ p["out"]


def stacked(x, params):
    for p in params:
        x = jax.checkpoint(layer)(x, p)
    return x


def draft():
    struct = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    params = [{"q": struct, "k": struct, "out": struct} for _ in range(LAYERS)]
    return draft_of(trace(stacked, struct, params).graph)


def test_equal_bodies_have_the_same_places_each_at_its_own() -> None:
    whole = draft()
    bodies = [i for i, node in enumerate(whole.graph.nodes) if node.bodies]
    assert len(bodies) == LAYERS
    assert len({whole.graph.nodes[i].bodies[0].digest for i in bodies}) == 1
    found = find(whole, patterns())
    own = {i: [p for p in found if p.prefix == (i, 0)] for i in bodies}
    first = [(p.rule, p.root, p.number, p.kind, p.nodes) for p in own[bodies[0]]]
    assert first
    for i in bodies:
        assert [(p.rule, p.root, p.number, p.kind, p.nodes) for p in own[i]] == first
        alone = find(whole.body(i, 0), patterns())
        assert {(p.rule, p.root, p.number) for p in alone} == {p[:3] for p in first}


def test_rewriting_leaves_the_draft_as_it_was() -> None:
    whole, again = draft(), draft()
    found = find(whole, patterns())
    for place in found:
        alike = [p for p in found if (p.rule, p.kind) == (place.rule, place.kind)]
        once, twice = apply(whole, alike), apply(whole, alike)
        assert once == twice == apply(draft(), alike)
        assert whole == again
        assert find(whole, patterns()) == found


def test_equal_bodies_are_one_graph() -> None:
    bodies = [body for node in draft().graph.nodes for body in node.bodies]
    assert len(bodies) == LAYERS
    assert all(body is bodies[0] for body in bodies)


def test_equal_bodies_rewritten_together_are_as_rewritten_one_by_one() -> None:
    whole = draft()
    places = [place for place in find(whole, ["merge-projections"]) if place.prefix]
    assert len({place.prefix for place in places}) == LAYERS
    together, count = apply(whole, places)
    alone, total = whole, 0
    for _, members in groupby(places, key=lambda place: place.prefix):
        alone, found = apply(alone, list(members))
        total += found
    assert count == total == LAYERS
    assert together == alone


@pytest.mark.parametrize("second", [(1,), (2,)])
def test_marks_are_taken_over_where_a_place_goes_with_one_place(second: tuple[int, ...]) -> None:
    graph = Graph((), (), ())
    before = Draft(graph, (Mark((0,)), Mark((0,))))
    done = Draft(graph, (Mark((), (), (0,)), Mark((0,))))
    found = taken_over(done, before, Draft(graph, (Mark((1,)), Mark(second))))
    wanted = Draft(graph, (Mark((), (), (1,)), Mark((1,))))
    assert found == (wanted if second == (1,) else None)

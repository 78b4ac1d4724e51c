# pyright: basic
"""Rewrites tried on numbers: right ones pass on a few elements, wrong ones do not."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir import Graph, IRError, Literal, check, interpret
from ir.trace import trace
from planner import PlanError, load, plan
from substitutions import RuleError, Trial, apply, draft_of, find, patterns, worth_of_row
from substitutions.rewrite.region import Region
from substitutions.trial.compare import difference
from substitutions.trial.sizes import shortened
from substitutions.trial.trial import MOST_ELEMENTS
from tests.substitutions.rewritten_programs import PROGRAMS

S = jax.ShapeDtypeStruct


def region(rule: str, fn, args) -> Region:
    """What a rule changes at its first place."""
    seen: list[Region] = []
    draft = draft_of(trace(fn, *args).graph)
    apply(draft, find(draft, [rule])[:1], lambda found: bool(seen.append(found)))
    return seen[0]


def large(struct: S, rule: str) -> S:
    """The shape as models have it: 512 times as long, images of 224 by 224."""
    if "convolution" not in rule:
        return S(tuple(n if n == 1 else 512 * n for n in struct.shape), struct.dtype)
    sizes = {8: 224, 3: 3 if len(struct.shape) == 4 and struct.shape[2] == 3 else 96}
    shape = [sizes.get(n, 96) if k > 1 else 96 for k, n in enumerate(struct.shape)]
    return S(tuple(shape), struct.dtype)


# what is written for one size only: literal shapes
FIXED = ("cast-before-expand", "split-of-concat")


@pytest.mark.parametrize("rule", [rule for rule in PROGRAMS if rule not in FIXED])
def test_large_places_are_tried_on_few_elements(rule: str) -> None:
    fn, args = PROGRAMS[rule]
    found = region(rule, fn, [large(a, rule) for a in args])
    assert found.graph is not None
    small = shortened(found.graph)
    assert sum(t.size for t in small.types) < 10_000 < sum(t.size for t in found.graph.types)
    assert [n.op for n in small.nodes] == [n.op for n in found.graph.nodes]
    assert Trial()(found)


def mutants(graph: Graph):
    """The right side with one thing changed: operands, a place in an attribute, a literal."""
    half = len(graph.outputs) // 2
    needed = set(graph.outputs[half:])
    own = set()
    for i in reversed(range(len(graph.nodes))):
        if needed & set(graph.values_of(i)):
            needed |= {o for o in graph.nodes[i].inputs if not isinstance(o, Literal)}
            own.add(i)
    left = set(graph.outputs[:half])
    for i in reversed(range(len(graph.nodes))):
        if left & set(graph.values_of(i)):
            left |= {o for o in graph.nodes[i].inputs if not isinstance(o, Literal)}
            own.discard(i)
    for i in sorted(own):
        for node in changed(graph.nodes[i]):
            nodes = (*graph.nodes[:i], node, *graph.nodes[i + 1 :])
            try:
                yield check(replace(graph, nodes=nodes), after="mutation")
            except IRError:
                continue
    turned = graph.outputs[half:][::-1]
    if [graph.type_of(o) for o in turned] == [graph.type_of(o) for o in graph.outputs[:half]]:
        yield replace(graph, outputs=(*graph.outputs[:half], *turned))


def changed(node):
    """Nodes of the same type that do something else."""
    if len(node.inputs) > 1:
        yield replace(node, inputs=node.inputs[::-1])
    for other in {"add": ("mul", "max"), "mul": ("add",), "max": ("add",)}.get(node.op, ()):
        attrs = (("out_dtype", None),) if other == "mul" else ()
        yield replace(node, op=other, attrs=attrs)
    attrs = dict(node.attrs)
    if node.op == "slice":
        back = [(a - min(a, 1), b - min(a, 1)) for a, b in
                zip(attrs["start_indices"], attrs["limit_indices"], strict=True)]  # fmt: skip
        starts, limits = zip(*back, strict=True)
        attrs |= {"start_indices": starts, "limit_indices": limits}
    if node.op == "transpose":
        attrs["permutation"] = attrs["permutation"][1:] + attrs["permutation"][:1]
    if node.op == "gather":
        attrs["mode"] = "FILL_OR_DROP" if attrs["mode"] == "CLIP" else "CLIP"
    found = tuple((key, attrs[key]) for key, _ in node.attrs)
    if found != node.attrs:
        yield replace(node, attrs=found)


def truly_wrong(graph: Graph) -> bool:
    """Whether plain random numbers, in doubles as far as types go, tell the sides apart."""
    rng = np.random.default_rng(5)
    given = [
        rng.integers(-9, 20, i.type.shape).astype(i.type.dtype)
        if "int" in i.type.dtype
        else rng.standard_normal(i.type.shape).astype(i.type.dtype)
        for i in graph.inputs
    ]
    found = [np.asarray(x, np.float64) for x in interpret(graph, given)]
    pairs = zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True)
    return any(not np.allclose(a, b, rtol=1e-2, atol=1e-2, equal_nan=True) for a, b in pairs)


def test_changed_right_sides_are_refused() -> None:
    refused = 0
    for rule, (fn, args) in PROGRAMS.items():
        found = region(rule, fn, args)
        assert found.graph is not None
        for wrong in mutants(found.graph):
            if truly_wrong(wrong):
                refused += 1
                assert not Trial()(replace(found, graph=wrong)), (rule, wrong)
    assert refused > 80


def test_a_difference_is_the_same_every_time() -> None:
    found = region("cast-less-rows", *PROGRAMS["cast-less-rows"])
    assert found.graph is not None
    graph = next(g for g in mutants(found.graph) if truly_wrong(g))
    told = {difference(graph, worth_of_row("cast-less-rows")) for _ in range(3)}
    assert len(told) == 1
    assert " instead of " in told.pop()


def test_what_numpy_cannot_evaluate_is_refused() -> None:
    trial = Trial()
    args = (S((4, 2), jax.random.key(0).dtype), S((3,), jnp.int32))
    traced = trace(lambda t, i: (t[i], t[i + 1]), *args)
    graph = replace(traced.graph, outputs=traced.graph.outputs[:1] * 2)
    assert not trial(Region("merge-lookups", graph))
    assert "cannot be tried" in trial.warnings()[0]


def test_what_cannot_be_made_small_is_refused() -> None:
    graph = trace(jnp.cumsum, S((MOST_ELEMENTS,), jnp.float32)).graph
    trial = Trial()
    assert not trial(Region("transpose-twice", replace(graph, outputs=graph.outputs * 2)))
    assert "too large" in trial.warnings()[0]


@pytest.fixture
def lookups_that_lose_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups read as they once were: out of range, whatever the type."""
    monkeypatch.setattr("substitutions.ops.lookups.fills_alike", lambda *_, **__: True)


def taken(table, asked):
    return jnp.take(table.astype("float32"), asked, axis=0) * 0.5


TAKEN = (S((200_000, 256), jnp.int8), S((64,), jnp.int32))


@pytest.mark.usefixtures("lookups_that_lose_fills")
def test_a_wrong_rewrite_is_dropped_and_told() -> None:
    p = plan(taken, *TAKEN, cluster="host", baselines=False)
    assert p.substitutions == {}
    (told,) = p.warnings
    assert "cast-less-rows was not made" in told
    assert "instead of nan" in told
    assert "test_trial.py" in told


def test_a_wrong_rewrite_of_a_plan_file_is_refused(tmp_path, monkeypatch) -> None:
    clip = lambda t, i: jnp.take(t.astype("float32"), i, axis=0, mode="clip") * 0.5  # noqa: E731
    p = plan(clip, *TAKEN, cluster="host", baselines=False)
    assert p.substitutions == {"cast-less-rows": 1}
    p.save(tmp_path / "plan.json")
    monkeypatch.setattr("substitutions.trial.trial.difference", lambda *_: "1 instead of 0")
    with pytest.raises(PlanError, match="1 instead of 0"):
        load(tmp_path / "plan.json").bind(clip, *TAKEN)


def test_every_row_says_what_it_is_worth() -> None:
    assert {worth_of_row(name).integers for name in patterns()} == {"exact"}
    with pytest.raises(RuleError):
        worth_of_row("no-such-rule")

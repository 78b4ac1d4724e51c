# pyright: basic
"""Programs that keep everything, and programs that compute chosen values again."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from costmodel.compiler import analyse, lifetimes
from ir import Graph, runs_of
from ir.analysis import Place, flatten
from ir.evaluate import plain_program
from ir.trace import trace
from planner import PlanError, load, plan
from planner.sharding.recompute.again import with_recompute
from planner.sharding.recompute.frontier import Cuts, counted, frontier
from planner.sharding.recompute.keep import keeping_all, recomputes
from planner.sharding.recompute.kinds import chosen_by_kind
from planner.sharding.recompute.saved import layers_of
from tests.helpers_exhaustive import usual
from tests.planner.sharding.recompute.random_steps import check_step, random_values

WIDTH, LAYERS = 64, 3
PARAMS = {
    "a": jax.ShapeDtypeStruct((LAYERS, WIDTH, 4 * WIDTH), "float32"),
    "b": jax.ShapeDtypeStruct((LAYERS, 4 * WIDTH, WIDTH), "float32"),
}
BATCH = {k: jax.ShapeDtypeStruct((512, WIDTH), "float32") for k in "xy"}
FORMS = [(scan, policy) for scan in (True, False) for policy in ("", "full", "dots")]
POLICIES = {"full": None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}


def layer(x, w):
    hidden = jnp.tanh(x @ w["a"])
    return x + jax.nn.gelu(hidden @ w["b"]), None


def loss(params, batch, scan=True, policy=""):
    step = jax.checkpoint(layer, policy=POLICIES[policy]) if policy else layer
    x = batch["x"]
    if scan:
        x, _ = jax.lax.scan(step, x, params)
    else:
        for i in range(LAYERS):
            x, _ = step(x, jax.tree.map(lambda a, i=i: a[i], params))
    return jnp.mean((x - batch["y"]) ** 2)


def step(params, batch, scan=True, policy=""):
    found, grads = jax.value_and_grad(partial(loss, scan=scan, policy=policy))(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), found


def program(scan: bool, policy: str = ""):
    return trace(partial(step, scan=scan, policy=policy), PARAMS, BATCH).program


def values_of(run) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    args = [draw.normal(size=i.type.shape).astype("float32") * 0.1 for i in run.graph.inputs]
    return [np.asarray(x) for x in jax.jit(plain_program(run))(*args)]


@pytest.mark.parametrize(("scan", "policy"), FORMS)
def test_what_a_checkpoint_computes_twice_is_kept(scan: bool, policy: str) -> None:
    """The program is that of the same layers without `jax.checkpoint`, but for the order."""
    plain, written = program(scan), program(scan, policy)
    kept = keeping_all(written)
    assert recomputes(written) == bool(policy)
    assert not recomputes(kept)
    assert _ops(kept.graph) == _ops(plain.graph)
    for x, y in zip(values_of(kept), values_of(plain), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_what_the_forward_pass_computes_twice_is_found_once() -> None:
    """A region that merges equal nodes is matched with a forward pass that does not."""

    def narrow(x, w):
        square = jnp.square(x.astype("float32")).mean(-1, keepdims=True)
        y = (x.astype("float32") * jax.lax.rsqrt(square)).astype(x.dtype)
        return x + jnp.tanh(y @ w), None

    def step(w, x):
        y, _ = jax.lax.scan(jax.checkpoint(narrow), x, w)
        return y.astype("float32").sum()

    args = [jax.ShapeDtypeStruct(s, "bfloat16") for s in ((LAYERS, WIDTH, WIDTH), (8, WIDTH))]
    written = trace(jax.grad(step), *args).program
    kept = keeping_all(written)
    assert _ops(written.graph).count("dot_general") == 4
    assert _ops(kept.graph).count("dot_general") == 3


def nested(x, w):
    """A layer with a light part and a heavy one that are checkpointed themselves."""
    norm = jax.checkpoint(lambda x: x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True)))
    hidden = checkpoint_name(norm(x) @ w["a"], "hidden")
    return x + jax.checkpoint(lambda h, b: jnp.tanh(h) @ b)(hidden, w["b"]), None


NESTED = {
    **POLICIES,
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["hidden"],
        offload_src="device", offload_dst="pinned_host",
    ),
}  # fmt: skip


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("policy", NESTED)
def test_what_a_checkpoint_inside_of_another_computes_again_is_kept(
    scan: bool, policy: str
) -> None:
    """JAX leaves the inner region in the forward pass, and its nodes in the outer region."""

    def step(w, x, checkpoint=True):
        body = jax.checkpoint(nested, policy=NESTED[policy]) if checkpoint else nested

        def loss(w):
            y = x
            if scan:
                y, _ = jax.lax.scan(body, x, w)
            for i in range(0 if scan else LAYERS):
                y, _ = body(y, jax.tree.map(lambda a, i=i: a[i], w))
            return jnp.mean(y**2)

        return jax.value_and_grad(loss)(w)

    args = PARAMS, jax.ShapeDtypeStruct((8, WIDTH), "float32")
    kept = keeping_all(trace(step, *args, offload=policy == "offload").program)
    plain = keeping_all(trace(partial(step, checkpoint=False), *args).program)
    assert not recomputes(kept)
    assert not {"from_host", "to_host", "remat"} & set(_ops(kept.graph))
    for op in ("dot_general", "tanh", "rsqrt"):
        assert _ops(kept.graph).count(op) == _ops(plain.graph).count(op)
    wanted = values_of(trace(partial(step, checkpoint=False), *args).program)
    again = with_recompute(kept, chosen_by_kind(layers_of(kept), "full"))
    for program in (kept, again):
        for x, y in zip(values_of(program), wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def turned(x, angle):
    left, right = jnp.split(x, 2, axis=-1)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def with_tables(x, w, scale):
    """A layer with two tables that no iteration changes, one of them of an argument."""
    places = jnp.arange(x.shape[0])[:, None] * jnp.arange(WIDTH // 2)[None] / WIDTH
    one, two = turned(x @ w["a"], places), turned(x @ w["b"], places * scale)
    return x + jnp.tanh(one * two) @ w["c"], None


@pytest.mark.parametrize("policy", ["full", "dots"])
@pytest.mark.parametrize("change", ["", "places"])
def test_what_no_iteration_changes_is_kept_though_it_left_the_loop(
    policy: str, change: str
) -> None:
    """JAX moves it out of the loop of the forward pass, and leaves it in the region."""

    def step(w, x, scale, checkpoint=True):
        layer = partial(with_tables, scale=scale)
        body = jax.checkpoint(layer, policy=POLICIES[policy]) if checkpoint else layer

        def loss(w):
            return jnp.sum(jax.lax.scan(body, x, w)[0] ** 2)

        return jax.value_and_grad(loss)(w)

    shape = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), "float32")
    args = dict.fromkeys("abc", shape), jax.ShapeDtypeStruct((8, WIDTH), "float32")
    args = (*args, jax.ShapeDtypeStruct((8, 1) if change else (), "float32"))
    plain = trace(partial(step, checkpoint=False), *args).program
    written = trace(step, *args).program
    kept = keeping_all(written)
    assert recomputes(written)
    assert not recomputes(kept)
    assert _ops(kept.graph).count("dot_general") == _ops(plain.graph).count("dot_general")
    assert _ops(written.graph).count("sin") > _ops(kept.graph).count("sin")
    for x, y in zip(values_of(kept), values_of(plain), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    again = with_recompute(kept, chosen_by_kind(layers_of(kept), "full"))
    for x, y in zip(values_of(again), values_of(plain), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def _ops(graph) -> list[str]:
    own = [node.op for node in graph.nodes]
    return sorted(own + [op for node in graph.nodes for body in node.bodies for op in _ops(body)])


def test_a_loop_that_computes_all_again_is_what_a_checkpoint_makes() -> None:
    """It stacks up the inputs of the layers alone, and runs as many products as JAX's."""
    kept, written = program(scan=True), program(scan=True, policy="full")
    again = with_recompute(kept, chosen_by_kind(layers_of(kept), "full"))
    stacks = [[t for n in p.graph.nodes if n.op == "scan" for t in n.outputs]
              for p in (again, written)]  # fmt: skip
    assert stacks[0] == stacks[1]
    products = [_ops(p.graph).count("dot_general") for p in (again, written)]
    assert products[0] == products[1]


def test_gradients_of_weights_are_made_before_the_next_copies() -> None:
    """Else what they are made of would be kept until the end of a program that is written out."""
    kept = program(scan=False)
    again = with_recompute(kept, chosen_by_kind(layers_of(kept), "full"))
    flat = flatten(again.graph)
    found = lifetimes(flat, analyse(flat).stored, ())
    products = {
        v: begin for v, begin in flat.barriers
        if (op := flat.made_by(v)) is not None and op.node.op == "dot_general"
    }  # fmt: skip
    assert len(products) > 1
    assert all(found.made[v] <= begin for v, begin in products.items())


@pytest.mark.parametrize("scan", [True, False])
def test_the_frontier_trades_work_for_memory(scan: bool) -> None:
    """Each further choice keeps less and works more."""
    kept = program(scan)
    layers = layers_of(kept)
    found = frontier(layers, lambda place: float(sum(place) + 1), 8)
    assert len(found) > 3
    for one, two in pairwise(found):
        assert one.again_s <= two.again_s
        assert one.kept_bytes > two.kept_bytes


def _least_cost(layer, seconds, stops, price: float) -> float:
    """Seconds of the least choice of a body: the minimum cut of a graph, by another library."""
    graph: nx.DiGraph = nx.DiGraph()
    made = {v for node in layer.nodes for v in node.outs}
    for node in layer.nodes:
        free = node.again and not any((layer.place, v) in stops for v in node.outs)
        capacity = {"capacity": seconds((*layer.place, node.index))} if free else {}
        graph.add_edge("forward", node.index, **capacity)
        for v in node.outs:
            graph.add_edge(node.index, ("value", v), capacity=price * layer.nbytes(node, v))
            if v in node.read:
                graph.add_edge(("value", v), "backward")
        for v in made.intersection(node.reads):
            graph.add_edge(("value", v), node.index)
    return nx.minimum_cut_value(graph, "forward", "backward")


def _runs(graph: Graph) -> Counter[str]:
    """How often each operation runs."""
    found: Counter[str] = Counter()
    for node in graph.nodes:
        if node.op not in ("remat", "scan"):
            found[node.op] += 1
        times = int(runs_of(node)) if node.op == "scan" else 1
        for body in node.bodies:
            found.update({op: times * n for op, n in _runs(body).items()})
    return found


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_what_runs_again_is_counted(scan: bool, seed: int) -> None:
    """The program of a choice runs no others more often than the one that keeps all.

    Where only the backward pass reads a value, the forward pass need not make it any more.
    """
    kept = program(scan)
    layers = layers_of(kept)
    values = random_values(layers, seed)
    again: Counter[str] = Counter()
    for layer in layers:
        for node in layer.made_again(values)[0]:
            again[node.node.op] += int(layer.copies)
    made = with_recompute(kept, values)
    more = _runs(made.graph) - _runs(kept.graph)
    assert more <= again
    assert more["dot_general"] == again["dot_general"]


@pytest.mark.parametrize("scan", [True, False])
def test_counts_are_those_of_minimum_cuts(scan: bool) -> None:
    layers = layers_of(program(scan))

    def seconds(place: Place) -> float:
        return float(sum(place) + 1)

    for choice in frontier(layers, seconds, 8):
        found = counted(layers, seconds, choice.values)
        assert found.again_s <= choice.again_s * (1 + 1e-9)
        assert found.kept_bytes <= choice.kept_bytes * (1 + 1e-9)


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_choices_cost_what_minimum_cuts_do(scan: bool, seed: int) -> None:
    """At prices up and down, each solve beginning where the one before ended."""
    rng = np.random.default_rng(seed)
    layers = layers_of(program(scan))
    values = [(y.place, v) for y in layers for node in y.nodes for v in node.outs]
    stops = {values[i] for i in rng.choice(len(values), seed, replace=False)}
    table: dict[Any, float] = {
        (*y.place, n.index): float(rng.integers(0, 4) * rng.random()) for y in layers
        for n in y.nodes
    }  # fmt: skip
    for layer in layers:
        cuts = Cuts(layer, table.__getitem__, stops)
        even = cuts.work_s / max(cuts.read_bytes, 1.0)
        for price in even * 10.0 ** rng.uniform(-5, 5, 12):
            found = cuts.at(price)
            cost = found.again_s + price * found.kept_bytes
            wanted = _least_cost(layer, table.__getitem__, stops, price)
            assert cost == pytest.approx(wanted, rel=1e-6)


def test_where_the_solver_finds_no_cut_all_is_kept() -> None:
    """As where it is stopped."""
    (layer, *_) = layers_of(program(scan=False))
    cuts = Cuts(layer, lambda place: float(sum(place) + 1), ())
    some = cuts.at(cuts.work_s / cuts.read_bytes)
    cuts._solver.setOptionValue("simplex_iteration_limit", 0)
    cuts._solver.setOptionValue("presolve", "off")
    cuts._solver.clearSolver()
    none = cuts.at(cuts.work_s / cuts.read_bytes)
    assert some.again_s > 0.0 == none.again_s
    assert not none.values
    assert none.kept_bytes > some.kept_bytes


def test_settings_hold_and_a_file_knows_them(tmp_path: Path) -> None:
    """More recomputation takes less memory; a loaded plan is bound to the same program."""
    peaks = {}
    for kind in ("none", "selective", "full"):
        made = plan(
            step, PARAMS, BATCH, cluster="2xh100", recompute=kind, baselines=False,
            substitutions=False, donate_argnums=0, mesh=(2,),
        )  # fmt: skip
        peaks[kind] = made.peak_bytes
        path = tmp_path / f"{kind}.json"
        made.save(path)
        assert load(path).bind(step, PARAMS, BATCH).peak_bytes == made.peak_bytes
    assert peaks["none"] > peaks["selective"] > peaks["full"]
    with pytest.raises(PlanError, match="recompute"):
        plan(step, PARAMS, BATCH, cluster="2xh100", recompute="some")


@pytest.mark.parametrize("seed", usual([1, 3, 5], [5]))
def test_random_choices_are_the_unsharded_step(seed: int) -> None:
    check_step(seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(200))
def test_many_random_choices(seed: int) -> None:
    check_step(seed)

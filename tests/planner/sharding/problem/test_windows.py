# pyright: basic
"""Windows of overlap: which ops they hold, and beside which ops a collective may run."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from ir.analysis import FlatProgram
from planner import plan
from planner.sharding.problem.windows import BESIDE, GRAIN, Windows, windows_of
from tests.planner.programs import CASES, struct
from tests.planner.spaces import Space, space

# Programs without loops, branches and checkpoints.
FLAT = ("einsums", "gathers", "layouts", "prime_sizes", "sorts", "transforms")


def windows(found: Space) -> Windows:
    return windows_of(found.builder.facts, found.built.op_node)


def dependences(flat: FlatProgram) -> nx.DiGraph:
    """Ops, and values as ("value", v), in the order in which they need each other."""
    graph = nx.DiGraph()
    for i, op in enumerate(flat.ops):
        graph.add_node(i)
        graph.add_edges_from((("value", v), i) for v in op.reads)
        graph.add_edges_from((i, ("value", v)) for v in op.outputs)
    return graph


@pytest.mark.parametrize("name", FLAT)
def test_a_collective_runs_beside_what_it_has_no_dependence_with(name: str) -> None:
    found = space(CASES[name].fn, *CASES[name].args)
    flat, divided, graph = found.flat, windows(found), dependences(found.flat)
    node = found.built.op_node
    counted = divided.ops[divided.whole[0]] if flat.ops else ()
    large = {int(n) for n, count in zip(divided.nodes, counted, strict=True) if count}
    least_s = np.zeros(found.built.problem.size)
    least_s[sorted(large)] = np.random.default_rng(0).random(len(large))
    beside_s = divided.beside_s(least_s)
    for n, passage in enumerate(flat.passages):
        end: Any = passage.op if passage.site.at == "operand" else ("value", passage.value)
        begin = ("value", passage.value)
        before = nx.ancestors(graph, begin) if begin in graph else set()
        after = nx.descendants(graph, end) | {end} if end in graph else set()
        rest = sum(least_s[node[i]] for i in node if i not in before and i not in after)
        assert beside_s[n] <= rest * (1 + 1e-9) + 1e-12
        assert beside_s[n] * GRAIN >= rest * (1 - 1e-6) - 1e-9


def test_a_loss_divides_a_step_and_a_loop_has_a_window_of_its_own() -> None:
    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            y, _ = jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, w)
            return jnp.sum(y)

        value, gradient = jax.value_and_grad(loss)(w)
        return value, w - 0.1 * gradient

    found = space(step, struct(4, 64, 64), struct(8, 64))
    divided, flat = windows(found), found.flat
    bodies = [divided.body[w] for w in range(divided.count)]
    assert bodies.count(()) == 2  # what the loss needs, and the rest
    assert len(bodies) == 4  # forward and backward loop besides
    update = [i for i, op in enumerate(flat.ops) if op.place and op.node.op == "sub"]
    loss = [i for i, op in enumerate(flat.ops) if op.node.op == "reduce_sum"]
    assert {int(divided.op[i]) for i in update}.isdisjoint({int(divided.op[i]) for i in loss})


def test_communication_is_hidden_where_compute_allows_it() -> None:
    """Two products that do not need each other, and one that needs what was gathered."""

    def both(x: Any, a: Any, b: Any) -> Any:
        return x @ a, x @ b

    def chain(x: Any, a: Any, b: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ a) @ b)

    args = (struct(4096, 4096), struct(4096, 4096), struct(4096, 4096))
    settings: Any = {
        "mesh": (8,), "baselines": False, "substitutions": False,
        "pins": (("x", "[x,-]"), ("a", "[-,x]"), ("b", "[-,x]")),
    }  # fmt: skip
    apart, joined = (plan(f, *args, cluster="8xh100", **settings).program for f in (both, chain))
    for program in (apart, joined):
        assert program.step_s == pytest.approx(program.compute_s + program.exposed_s)
        assert 0.0 < program.exposed_s <= program.communication_s
    assert apart.exposed_s < apart.communication_s
    summed = plan(both, *args, cluster="8xh100", overlap=False, **settings).program
    assert summed.exposed_s == summed.communication_s
    assert apart.step_s < summed.step_s
    host = plan(both, *args, cluster="8xhost", **settings).program
    assert (host.exposed_s, host.overlap) == (host.communication_s, False)


def test_a_plan_costs_the_same_on_every_mesh_that_can_represent_it() -> None:
    def step(x: Any, a: Any) -> Any:
        return jnp.tanh(x), a @ a

    # 8 does not divide 5012, 4 and 2 do: a finer mesh has more options for some ops
    args = (struct(5012, 5012), struct(4096, 4096))
    settings: Any = {"cluster": "8xh100", "baselines": False, "substitutions": False}
    coarse, fine, finest = (
        plan(step, *args, mesh=m, **settings) for m in ((8,), (2, 4), (2, 2, 2))
    )
    assert fine.lower_bound_s <= coarse.step_s * (1 + 1e-9)
    assert finest.lower_bound_s <= fine.step_s * (1 + 1e-9)
    best = plan(step, *args, **settings)
    assert best.step_s <= min(coarse.step_s, fine.step_s, finest.step_s) * (1 + 1e-3)


def beside_of(found: Space, seconds: dict[int, float]) -> dict[str, float]:
    """Seconds beside the result of each op, by the name of the value, if some ops take so long."""
    divided, flat = windows(found), found.flat
    least_s = np.zeros(found.built.problem.size)
    for op, each in seconds.items():
        least_s[found.built.op_node[op]] = each
    beside_s = divided.beside_s(least_s)
    return {
        flat.values[passage.value].name: float(beside_s[n])
        for n, passage in enumerate(flat.passages)
        if passage.op >= 0 and passage.site.at == "result"
    }


def test_an_op_with_nothing_to_wait_for_is_beside_one_collective() -> None:
    """A chain of four products, and one that is only added at the end."""

    def step(x: Any, w: Any) -> Any:
        y = x
        for _ in range(4):
            y = jnp.tanh(y @ w)
        return y + x @ x

    found = space(step, struct(512, 512), struct(512, 512))
    products = [i for i, op in enumerate(found.flat.ops) if op.node.op == "dot_general"]
    (free,) = [i for i in products if found.flat.ops[i].reads == (0,)]
    chain = [i for i in products if i != free]
    alone = beside_of(found, {free: 1.0})
    handed_out = [alone[found.flat.values[found.flat.ops[i].outputs[0]].name] for i in chain]
    assert all(seconds > 0.0 for seconds in handed_out)
    assert sum(alone.values()) <= 1.0
    assert sum(alone.values()) >= 1.0 / GRAIN
    # the one that is not on the longest way has all of the chain beside it
    beside = beside_of(found, dict.fromkeys(chain, 1.0))
    made = found.flat.values[found.flat.ops[free].outputs[0]].name
    assert len(chain) / GRAIN <= beside[made] <= len(chain)
    assert all(beside[found.flat.values[found.flat.ops[i].outputs[0]].name] == 0.0 for i in chain)


def test_what_becomes_a_slice_of_a_result_is_sent_beside_the_next_round() -> None:
    """Gradients of the weights of a loop, in all rounds but the last."""
    rounds = 5

    def loss(w: Any, x: Any) -> Any:
        y, _ = jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, w)
        return jnp.sum(y)

    found = space(jax.grad(loss), struct(rounds, 64, 64), struct(8, 64))
    flat, divided = found.flat, windows(found)
    backward = max(op.place[:-1] for op in flat.ops if op.node.op == "dot_general")
    least_s = np.zeros(found.built.problem.size)
    inside = [i for i, op in enumerate(flat.ops) if op.place[:-1] == backward]
    products = [i for i in inside if flat.ops[i].node.op == "dot_general"]
    least_s[[found.built.op_node[i] for i in products]] = 1.0
    beside_s, ports = divided.beside_s(least_s), set(flat.stacked.values())
    returned = [
        (n, flat.links[p.link].target in ports)
        for n, p in enumerate(flat.passages)
        if p.site.at == "return" and p.site.place == backward
    ]
    sliced = [n for n, becomes_slice in returned if becomes_slice]
    assert 0 < len(sliced) < len(returned)
    for n in sliced:
        assert divided.rounds[n] == pytest.approx(1 - 1 / rounds)
        expected = float(divided.ops[divided.whole[n]] @ least_s[divided.nodes])
        assert 0.0 < expected / GRAIN <= beside_s[n] <= expected * (1 + 1e-9)
    # as carries nothing moves to the next round
    assert all(divided.rounds[n] == 1.0 for n, becomes_slice in returned if not becomes_slice)


def test_windows_hide_as_much_of_their_compute_as_schedules_do() -> None:
    results = Path(__file__).parents[4] / "benchmarks" / "results"
    newest = max(results.glob("*/scheduled-busy.json"))
    shares = json.loads(newest.read_text())["rows"][-1]["hidden_of_compute"]
    assert len(shares) >= 5
    assert min(shares) <= BESIDE <= statistics.median(shares) <= 1.0

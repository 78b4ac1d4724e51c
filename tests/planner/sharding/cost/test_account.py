# pyright: basic
"""The account adds up to the solver's objective, and its memory covers what is held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from msgspec import structs
from numpy.typing import NDArray

from costmodel import INTERFERENCE, KEPT_BYTES, Cluster
from planner import plan
from planner.sharding.cost.account import held_at
from planner.sharding.problem.build import Builder
from planner.sharding.problem.windows import BESIDE
from planner.solver.solve import solve
from planner.training.step_call import step_for
from tests.planner.programs import BATCH, CASES, PARAMS, X, mean_loss, slow_machine, struct
from tests.planner.spaces import Space, space

DRAWS = 6


def training(microbatches: int, mesh: tuple[int, ...] = (2, 4)) -> Space:
    call = step_for(
        mean_loss, (PARAMS, BATCH), optimizer=optax.adam(1e-3), microbatches=microbatches,
        loss_reduction="auto",
    )  # fmt: skip
    return space(call.fn, *call.args, mesh=mesh, donate=(0, 1))


def adds_up(found: Space, choice: tuple[int, ...]) -> None:
    problem = found.built.problem
    sums = found.account(choice)
    assert sums.step_s == pytest.approx(problem.cost(choice), rel=1e-9, abs=1e-18)
    assert sums.step_s == sums.compute_s + sums.exposed_s
    assert sums.exposed_s <= sums.communication_s * (1 + 1e-9)
    parts = sum(c.exposed_s for c in sums.collectives)
    assert parts == pytest.approx(sums.exposed_s, rel=1e-9, abs=1e-18)
    spent = sum(c.seconds for c in sums.collectives)
    assert spent == pytest.approx(sums.communication_s, rel=1e-9, abs=1e-18)
    assert np.all(sums.memory >= problem.memory(choice) * (1 - 1e-12))
    assert sums.peak_bytes >= sums.argument_bytes
    while_running = sums.memory[: found.flat.clock]
    assert np.all(while_running >= sums.argument_bytes * (1 - 1e-12))


@pytest.mark.parametrize("name", sorted(CASES))
def test_account_of_a_solution_is_its_objective(name: str) -> None:
    found = space(CASES[name].fn, *CASES[name].args)
    answer = solve(found.built.problem)
    assert found.account(answer.choice).step_s == pytest.approx(answer.cost, rel=1e-9, abs=1e-18)
    adds_up(found, answer.choice)


@pytest.mark.parametrize("name", sorted(CASES))
def test_account_of_any_choice_is_its_objective(name: str) -> None:
    found, rng = space(CASES[name].fn, *CASES[name].args), np.random.default_rng(0)
    for _ in range(DRAWS):
        choice = found.draw(rng)
        if np.isfinite(found.built.problem.cost(choice)):
            adds_up(found, choice)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_account_of_a_training_step(microbatches: int) -> None:
    found, rng = training(microbatches), np.random.default_rng(1)
    adds_up(found, solve(found.built.problem).choice)
    for _ in range(DRAWS):
        choice = found.draw(rng)
        if np.isfinite(found.built.problem.cost(choice)):
            adds_up(found, choice)


def test_a_window_with_more_communication_than_compute_hides_a_share_of_its_compute() -> None:
    """Independent products whose operands are gathered, of few rows: gathers take longer."""

    def products(x: Any, weights: Any) -> Any:
        return [x @ w for w in weights]

    weights = [struct(4096, 4096) for _ in range(4)]
    pins = tuple((f"weights/{i}", "[x,-]") for i in range(4))
    p = plan(products, struct(4096, 4096), weights, cluster="8xh100", mesh=(8,), overlap=True,
             baselines=False, substitutions=False, pins=(("x", "[x,-]"), *pins))  # fmt: skip
    sums = p.analysed.account
    full = [w for w in sums.windows if w.hideable_s > INTERFERENCE * w.compute_s]
    assert full
    for w in full:
        assert w.exposed_s == pytest.approx(w.communication_s - BESIDE * w.compute_s)
    assert sum(w.compute_s for w in sums.windows) == pytest.approx(sums.compute_s)


def test_plan_says_what_its_account_says() -> None:
    p = plan(mean_loss, PARAMS, BATCH, optimizer=optax.adam(1e-3), cluster=slow_machine(),
             baselines=False)  # fmt: skip
    assert p.step_s == pytest.approx(p.program.compute_s + p.program.exposed_s)
    assert p.program.communication_s == pytest.approx(sum(c.seconds for c in p.collectives))
    assert p.peak_bytes >= p.program.argument_bytes
    assert f"{p.program.argument_bytes:.0f} B" in str(p) or "arguments" in str(p)


def test_collectives_are_merged_by_kind_axes_and_cause_the_dearest_first() -> None:
    found = training(1)
    rows = found.account(solve(found.built.problem).choice).collectives
    keys = [(c.kind, c.axes, c.cause) for c in rows]
    assert len(set(keys)) == len(keys)
    assert [c.seconds for c in rows] == sorted((c.seconds for c in rows), reverse=True)
    for c in rows:
        assert c.group_size == found.mesh.product(c.axes)
        assert c.bytes >= 0
        assert c.count >= 1


def test_bytes_follow_the_ring_convention() -> None:
    """A reduce-scatter over eight devices sends 7/8 of the whole result from each."""

    def product(a, b):
        return a @ b

    p = plan(
        product, struct(256, 256), struct(256, 256), cluster="8xhost", mesh=(8,), baselines=False,
        pins=(("a", "[-,x]"), ("b", "[x,-]")),
    )  # fmt: skip
    (row,) = p.collectives
    assert (row.kind, row.axes, row.group_size, row.count) == ("reduce-scatter", ("x",), 8, 1)
    assert row.bytes == 7 / 8 * 256 * 256 * 4


def test_moves_inside_a_loop_count_every_iteration() -> None:
    case, rng = CASES["counted_loop"], np.random.default_rng(3)
    found = space(case.fn, *case.args)
    drawn = [r for _ in range(9) for r in found.decided(found.draw(rng)).plan.reshards]
    inner = {reshard.weight for reshard in drawn if reshard.cause.startswith("dot_general")}
    assert inner == {3.0}
    assert {reshard.weight for reshard in drawn} == {1.0, 3.0}


def test_donated_buffers_are_counted_once() -> None:
    def update(x):
        return x + 1

    kept, reused = space(update, X), space(update, X, donate=(0,))
    peaks = [each.account((0,) * each.built.problem.size).peak_bytes for each in (kept, reused)]
    assert peaks == [2 * X.size * 4, X.size * 4]


def test_what_a_loop_stacks_is_held() -> None:
    """Forward and backward over a loop: each iteration leaves its tanh for the backward loop."""
    ws_type = struct(12, 64, 64)

    def loss(ws, x):
        def body(h, w):
            return jnp.tanh(h @ w), None

        return jnp.sum(lax.scan(body, x, ws)[0])

    found = space(jax.grad(loss), ws_type, struct(32, 64))
    choice = (0,) * found.built.problem.size
    stacked = [v for v in found.flat.stacked if found.flat.values[v].type.shape == (12, 32, 64)]
    assert stacked
    held = found.account(choice).memory.max() - found.account(choice).argument_bytes
    assert held >= 12 * 32 * 64 * 4


@pytest.mark.parametrize("mesh", [(8,), (2, 4)])
def test_partial_results_wait_for_their_reader(mesh: tuple[int, ...]) -> None:
    """With clipping by global norm, raw gradients are there until the optimizer reads them."""
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    call = step_for(
        mean_loss, (PARAMS, BATCH), optimizer=clipped, microbatches=1, loss_reduction="auto"
    )
    found = space(call.fn, *call.args, mesh=mesh, donate=(0, 1))
    live_intervals, flat = found.builder.facts.lifetimes, found.flat
    counted, rng, waited = {node for node, _ in found.built.waits}, np.random.default_rng(2), 0
    usage = [0 * u if n in counted else u for n, u in enumerate(found.built.live_intervals.usage)]
    without = replace(found.built.live_intervals, usage=tuple(usage))
    for _ in range(2 * DRAWS):
        choice = found.draw(rng)
        held = without.memory(choice)
        for i, node in found.built.op_node.items():
            op = flat.ops[i]
            states = found.built.refs[node].menu[choice[node]].results
            for v, state in zip(op.outputs, states, strict=True):
                if state.partial and live_intervals.owns[v] and live_intervals.made[v] > op.time:
                    size = state.local_bytes(flat.values[v].type, found.mesh)
                    held[op.time : live_intervals.made[v]] += size
                    waited += 1
        problem = found.built.problem.memory(choice)
        np.testing.assert_allclose(held, problem)
        quiet = np.ones(len(held), dtype=np.bool_)
        moved = found.decided(choice).plan.reshards
        quiet[[held_at(found.builder.facts, reshard)[0] for reshard in moved]] = False
        np.testing.assert_allclose(found.account(choice).memory[quiet], problem[quiet])
    assert waited > 2 * DRAWS


def test_a_builder_with_less_room_counts_what_waits() -> None:
    """Menus and sizes are shared with the builder that has all room, tables of edges are not."""
    found = training(1)
    assert found.built.waits
    cache = found.builder.cache
    tight = replace(
        cache, reshard=cache.reshard.with_room(1e6), edges=dict[object, NDArray[np.float64]]()
    )
    again = Builder(found.builder.facts, tight, 1e18).build()
    assert again.waits == found.built.waits
    assert again.problem.intervals == found.built.problem.intervals


RATE = 1e6  # bytes per second at which memory is taken


def taking(count: int, rate: float | None = RATE) -> Cluster:
    machine = slow_machine(count, profile="")
    return replace(machine, device=structs.replace(machine.device, fresh_bytes_per_s=rate))


def test_new_results_cost_what_a_cpu_takes_to_get_memory() -> None:
    """Large blocks that are returned and overwrite no argument, in the state of the result."""

    def two(x, y):
        return x * 2, y + 1, x[:64] + 1

    n = 2 * KEPT_BYTES // 4 // 1024  # a half is kept by the C library
    one = space(two, struct(n, 1024), struct(n, 512), mesh=(4,), cluster=taking(4), donate=(1,))
    rng, sizes = np.random.default_rng(0), set[float]()
    for _ in range(DRAWS):
        choice = one.draw(rng)
        states = {k: one.built.refs[n].states[choice[n]] for k, n in one.built.out_node.items()}
        types = {k: one.flat.values[one.outputs[k]].type for k in states}
        new = [k for k in states if k not in {b for _, b in one.traced.tied}]
        blocks = [states[k].local_bytes(types[k], one.mesh) for k in new]
        size = sum(block for block in blocks if block > KEPT_BYTES)
        sums = one.account(choice)
        assert sums.taking_s == pytest.approx(size / RATE)
        if np.isfinite(one.built.problem.cost(choice)):
            adds_up(one, choice)
        sizes.add(size)
    assert len(sizes) > 1


def test_what_keeps_its_memory_takes_none() -> None:
    keeps, takes = (
        space(lambda x: x * 2, struct(4096, 4096), mesh=(1,), cluster=taking(1, rate))
        for rate in (None, RATE)
    )
    first, second = (one.account([0] * one.built.problem.size) for one in (keeps, takes))
    assert first.taking_s == 0.0
    assert second.step_s - first.step_s == pytest.approx(4096 * 4096 * 4 / RATE)


def test_partial_sums_that_are_added_as_they_are_do_not_wait() -> None:
    """Gradients of tables, summed over devices in the momentum: scattered into it, one by one."""
    tables = [struct(4096, 256)] * 4
    optimizer = optax.sgd(0.1, momentum=0.9)

    def loss(tables, ids):
        return sum(jnp.mean(jnp.tanh(table[ids[:, k]])) for k, table in enumerate(tables))

    def train(tables, state, ids):
        updates, state = optimizer.update(jax.grad(loss)(tables, ids), state, tables)
        return optax.apply_updates(tables, updates), state

    found = plan(
        train, tables, jax.eval_shape(optimizer.init, tables), struct(64, 4, dtype=jnp.int32),
        cluster="8xh100", mesh=(8,), baseline="data-parallel", donate_argnums=(0, 1),
        overlap=False,
    )  # fmt: skip
    one = 4096 * 256 * 4
    assert found.program.argument_bytes > 8 * one
    assert found.peak_bytes - found.program.argument_bytes < 3 * one


def stacked_step(size: int) -> tuple[Any, ...]:
    """A loss over two stacks of weights, which a split of the second dimension leaves in shards."""
    params = [struct(6, size, 4 * size), struct(6, 4 * size, size)]

    def loss(params, x):
        def body(x, pair):
            return x + jax.nn.relu(x @ pair[0]) @ pair[1], None

        return jnp.mean(lax.scan(jax.checkpoint(body), x, params)[0] ** 2)

    return loss, params, struct(8, size)


@pytest.mark.parametrize("split", [False, True])
def test_reshards_of_results_wait_for_each_other(split: bool) -> None:
    """Gathered parameters are there before the last one is copied to its place.

    Of one that stays in shards the gradient is there too: its update runs beside the gathers.
    """
    states = [(f"opt_state/0/{name}/{k}", "[-,x,-]") for name in ("mu", "nu") for k in range(2)]
    found = plan(
        *stacked_step(64), cluster="8xh100", optimizer=optax.adam(1e-3), mesh=(8,), pipeline="off",
        substitutions=False, baselines=False, padding=False,
        pins=(("params/0", "[-,-,-]"), ("params/1", "[-,x,-]" if split else "[-,-,-]"), *states),
    )  # fmt: skip
    results = [r for r in found._lowered.reshards if r.passage.op < 0 and r.passage.link < 0]
    gathered = [r for r in results if r.change.type.rank]
    one = 6 * 64 * 256 * 4
    assert [r.change.type.nbytes for r in gathered] == [one] * (1 if split else 2)
    assert {step.dim for r in gathered for step in r.change.steps} == {1}
    held = found.analysed.account.memory[found._lowered.flat.clock - 1]
    waits = one + one // 8 if split else 2 * one
    assert held == pytest.approx(found.program.argument_bytes + waits, rel=3e-3)

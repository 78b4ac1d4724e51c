# pyright: basic
"""What a program keeps in the memory of the host: values, memory, price, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from msgspec import structs

from costmodel import parse_cluster
from ir import FROM_HOST, HOST_COPIES, TO_HOST, IRError
from ir.analysis import flatten
from ir.trace import trace
from planner import load, plan, verify
from planner.common.compiler_options import WITHOUT_GRAPHS
from planner.common.errors import PlanError
from planner.emit.compilers import has_plugin
from planner.sharding.host_limit import HOST, USABLE
from planner.sharding.lower import lower_decisions
from planner.sharding.recompute.hosted import stacked_values
from planner.sharding.recompute.variants import (
    Variant,
    as_planned,
    kept_by,
    rows_of,
    with_values_on_host,
)

NAME = "hidden"
OFFLOADING = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=[NAME],
    offload_src="device",
    offload_dst="pinned_host",
)
LAUNCH_S = parse_cluster("8xh100").device.kernel_launch_s
LAYERS, ROWS, WIDTH = 4, 16, 32
SETTINGS: dict[str, Any] = {
    "cluster": "8xh100", "recompute": "written", "substitutions": False, "baselines": False,
}  # fmt: skip


def settings(**changed: Any) -> dict[str, Any]:
    return {**SETTINGS, **changed}


def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
    hidden = checkpoint_name(jnp.tanh(h @ w), NAME)
    return jnp.sin(hidden) @ w + h, None


def step(ws: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss(ws: jax.Array) -> jax.Array:
        y, _ = jax.lax.scan(jax.checkpoint(layer, policy=OFFLOADING), x, ws)
        return jnp.mean(y**2)

    return jax.value_and_grad(loss)(ws)


def written_out(ws: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss(ws: jax.Array) -> jax.Array:
        y = x
        for w in ws:
            y, _ = jax.checkpoint(layer, policy=OFFLOADING)(y, w)
        return jnp.mean(y**2)

    return jax.value_and_grad(loss)(ws)


def arguments() -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0))
    ws = jax.random.normal(keys[0], (LAYERS, WIDTH, WIDTH)) / WIDTH**0.5
    return ws, jax.random.normal(keys[1], (ROWS, WIDTH))


def test_what_a_program_sends_must_fit_the_host() -> None:
    """The refusal names the memory of the host; a byte more, and there is a plan."""
    machine = parse_cluster("8xh100")
    known = machine.device.host_link
    assert known is not None
    away = plan(step, *arguments(), mesh=(8,), **SETTINGS).program.host_bytes
    for more, fits in ((1e6, True), (-1.0, False)):
        needs = 1e6 if fits else away / USABLE + more
        link = structs.replace(known, memory_bytes=int(needs))
        device = structs.replace(machine.device, host_link=link)
        ask = settings(cluster=replace(machine, device=device), mesh=(8,))
        if fits:
            assert plan(step, *arguments(), **ask).program.host_bytes == away
            continue
        with pytest.raises(PlanError, match="of the host's memory are needed") as caught:
            plan(step, *arguments(), **ask)
        assert caught.value.where == HOST


def large() -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return jax.ShapeDtypeStruct((8, 4096, 4096), "bfloat16"), jax.ShapeDtypeStruct(
        (8192, 4096), "bfloat16"
    )


@pytest.mark.parametrize(("emission", "fn"), [
    ("shard_map", step), ("constraints", written_out),
    *(pytest.param(*more, marks=pytest.mark.exhaustive)
      for more in (("shard_map", written_out), ("constraints", step))),
])  # fmt: skip
def test_values_are_those_of_the_program(fn: Any, emission: str) -> None:
    found = plan(fn, *arguments(), emission=emission, **SETTINGS)
    assert found.program.host_bytes > 0
    got = found.compile()(*arguments())
    for ours, theirs in zip(got, jax.jit(fn)(*arguments()), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("fn", [step, written_out])
def test_the_host_holds_what_the_devices_do_not(fn: Any) -> None:
    away = plan(fn, *arguments(), mesh=(8,), **SETTINGS)
    here = plan(fn, *arguments(), mesh=(8,), offload="never", **SETTINGS)
    copies = away.analysed.decided.builder.host_copies
    flat, strategies = copies.flat, away.analysed.decided.plan.strategies
    out = [i for i, op in enumerate(flat.ops) if op.node.op == TO_HOST]
    sent = sum(
        float(copies.nbytes(i, (strategy,))[0]) * flat.ops[i].weight
        for i in out
        if (strategy := strategies[i]) is not None
    )
    assert away.program.host_bytes == sent > 0
    # a CUDA graph would run the copies one after the other with everything else
    assert WITHOUT_GRAPHS.items() <= away.compiler_options.items()
    assert not WITHOUT_GRAPHS.items() <= here.compiler_options.items()
    assert here.program.host_bytes == 0
    assert away.peak_bytes < here.peak_bytes


def test_never_keeps_all_on_the_devices_and_says_so() -> None:
    found = plan(step, *arguments(), offload="never", **SETTINGS)
    (warning,) = [w for w in found.warnings if "nothing is offloaded" in w]
    assert "test_offload.py" in warning


def test_without_a_known_link_nothing_is_offloaded() -> None:
    found = plan(step, *arguments(), **settings(cluster="8xv100-32gb"))
    assert found.program.host_bytes == 0
    assert any("nothing is offloaded" in w for w in found.warnings)


def test_what_is_left_on_the_host_is_not_offloaded() -> None:
    def leaves(x: jax.Array) -> jax.Array:
        return jax.device_put(jnp.tanh(x), jax.memory.Space.Host)

    found = plan(leaves, jnp.ones((8, 8)), **SETTINGS)
    assert any("nothing is offloaded" in w for w in found.warnings)


def test_keeping_everything_keeps_it_on_the_devices() -> None:
    found = plan(step, *arguments(), **settings(recompute="none"))
    assert found.program.host_bytes == 0
    assert not {n.op for n in found.graph.nodes} & {TO_HOST, FROM_HOST}


def test_a_copy_costs_what_no_compute_runs_beside() -> None:
    found = plan(step, *large(), **SETTINGS)
    sums = found.analysed.decided.builder
    account = found.analysed.account
    assert {copy.op for copy in account.host_copies} == {TO_HOST, FROM_HOST}
    rate = parse_cluster("8xh100").device.host_link
    assert rate is not None
    for copy in account.host_copies:
        launches_s = copy.count * LAUNCH_S
        assert copy.seconds == pytest.approx(launches_s + copy.nbytes / rate.to_host_bytes_per_s)
        beside = [s for s in sums.host_copies.beside_s.values() if s > 0]
        assert copy.exposed_s >= copy.seconds - max(beside) * copy.count - 1e-12
        assert 0 <= copy.exposed_s < copy.seconds
    alone = plan(step, *large(), overlap=False, **SETTINGS).analysed.account
    assert all(copy.exposed_s == copy.seconds for copy in alone.host_copies)
    assert "copies to and from the host" in found.explain()


def test_a_saved_plan_offloads_as_before(tmp_path: Path) -> None:
    found = plan(step, *arguments(), **SETTINGS)
    found.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json").bind(step, *arguments())
    assert again.program.host_bytes == found.program.host_bytes
    np.testing.assert_array_equal(
        np.asarray(again.compile()(*arguments())[1]), np.asarray(found.compile()(*arguments())[1])
    )


def test_an_export_that_cannot_offload_says_so(tmp_path: Path) -> None:
    found = plan(step, *arguments(), **SETTINGS)
    with pytest.raises(PlanError, match=r"memory of its host.*offload='never'"):
        found.export("jax", tmp_path / "exported.py")
    assert list(tmp_path.iterdir()) == []
    notes = found.export("torch", tmp_path / "exported.json").notes
    assert any("in the memory of its host" in note for note in notes)
    here = plan(step, *arguments(), offload="never", **SETTINGS)
    here.export("jax", tmp_path / "exported.py")


def test_a_value_on_the_host_cannot_be_resharded() -> None:
    found = plan(step, *arguments(), mesh=(8,), **SETTINGS)
    decided = found.analysed.decided
    flat, builder, lowered = decided.builder.flat, decided.builder, decided.plan
    back = next(op for op in flat.ops if op.node.op == FROM_HOST)
    chosen = lowered.strategies[flat.ops.index(back)]
    other = next(s.roles for s in builder.menu(back) if chosen and s.roles != chosen.roles)
    decisions = replace(lowered.decisions, ops={**lowered.decisions.ops, back.place: other})
    with pytest.raises(IRError, match="is in the host's memory and cannot go"):
        lower_decisions(flat, decisions, builder.cache.reshard, builder.tied_in)


def test_a_wrong_setting_is_one_clear_error() -> None:
    with pytest.raises(PlanError, match=r"offload.*auto or never"):
        plan(step, *arguments(), **settings(offload="always"))


@pytest.mark.skipif(not has_plugin(), reason="XLA's GPU compiler is not installed")
def test_xla_moves_the_bytes_that_are_predicted() -> None:
    found = verify(plan(step, *large(), **SETTINGS), compiler="gpu-aot")
    assert found.compiled.host_bytes == found.predicted_host_bytes > 0
    assert found.compiled.peak_bytes == pytest.approx(found.predicted_peak_bytes, rel=0.05)


def wide(ws: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss(ws: jax.Array) -> jax.Array:
        y, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)
        return jnp.mean(y**2)

    found, grads = jax.value_and_grad(loss)(ws)
    return ws - 0.1 * grads, found


@pytest.mark.exhaustive
def test_where_memory_binds_the_host_holds_what_compute_hides() -> None:
    def deep(ws: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(ws: jax.Array) -> jax.Array:
            y, _ = jax.lax.scan(layer, x, ws)
            return jnp.mean(y**2)

        found, grads = jax.value_and_grad(loss)(ws)
        return ws - 0.1 * grads, found

    shapes = (
        jax.ShapeDtypeStruct((16, 8192, 8192), "bfloat16"),
        jax.ShapeDtypeStruct((65536, 8192), "bfloat16"),
    )
    given = settings(recompute="search", donate_argnums=0, memory_bytes=8_000_000_000)
    here = plan(deep, *shapes, offload="never", **given)
    away = plan(deep, *shapes, **given)
    assert away.program.host_bytes > 0
    assert away.program.hosted
    assert away.peak_bytes <= 8_000_000_000
    assert away.step_s < 0.97 * here.step_s
    assert all(c.exposed_s < 0.01 * away.step_s for c in away.analysed.account.host_copies)


def test_copies_have_a_whole_iteration_beside_them() -> None:
    """They read what enters an iteration, and nothing of it reads what they bring back."""
    kept = kept_by(trace(wide, *arguments(), offload=True))
    keys = [one.key for one in stacked_values(kept.program)]
    hosted = with_values_on_host(Variant(kept, ()), keys).traced
    copies = 0
    for loop in (node for node in hosted.graph.nodes if node.op == "scan"):
        (body,) = loop.bodies
        entered = set(range(len(body.inputs)))
        for i, node in enumerate(body.nodes):
            if node.op in HOST_COPIES:
                copies += 1
                assert entered.issuperset(node.inputs)
                made = set(body.values_of(i))
                assert not any(made.intersection(other.inputs) for other in body.nodes)
    assert copies == 2 * len(keys) > 0


def test_a_file_says_what_is_on_the_host() -> None:
    traced = kept_by(trace(wide, *arguments(), offload=True))
    keys = [one.key for one in stacked_values(traced.program)]
    assert keys
    variant = with_values_on_host(Variant(traced, ()), keys)
    ops = [op.node.op for op in flatten(variant.traced.graph).ops]
    assert ops.count(TO_HOST) == ops.count(FROM_HOST) == len(keys)
    found = plan(wide, *arguments(), **settings(recompute="none"))
    again = as_planned(trace(wide, *arguments(), offload=True), (), rows_of(keys))
    assert again.graph == variant.traced.graph
    assert found.program.hosted == ()

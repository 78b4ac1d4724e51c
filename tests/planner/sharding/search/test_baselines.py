# pyright: basic
"""Hand-written plans do what their names say, and none beats the plan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from costmodel import CollectiveModel, ComputeModel, ReshardModel
from ir import ATTENTION, Sharding
from ir.analysis import Classes, Kinds
from ir.analysis.flatten import flatten
from ir.strategy import strategies
from ir.trace import trace
from planner import Plan, plan
from planner.sharding.problem.build import Builder
from planner.sharding.problem.facts import Facts
from planner.sharding.problem.program import roles_of
from planner.sharding.problem.records import MenuCache
from planner.sharding.search.baselines import SEQUENCE, Recipes
from planner.sharding.search.mesh_shapes import mesh_of
from planner.training.step_call import step_for
from tests.helpers_internals import attention
from tests.planner.programs import BATCH, PARAMS, mean_loss, mlp, slow_machine, struct

EXPERTS = {"router": struct(16, 8), "up": struct(8, 16, 32), "down": struct(8, 32, 16)}
TOKENS = struct(16, 8, 16)


def expert_loss(params: Any, batch: Any) -> Any:
    weight = jax.nn.softmax(batch @ params["router"])
    hidden = jax.nn.relu(jnp.einsum("btd,edf->ebtf", batch, params["up"]))
    return jnp.mean(jnp.einsum("ebtf,efd,bte->btd", hidden, params["down"], weight) ** 2)


def training(loss: Any, params: Any, batch: Any, **settings: Any) -> Plan:
    return plan(loss, params, batch, optimizer=optax.adam(1e-3), cluster=slow_machine(), **settings)


def recipes(loss: Any, params: Any, batch: Any, mesh: tuple[int, ...], *, every: bool = True,
            apart: bool = False, microbatches: int = 1):  # fmt: skip
    call = step_for(loss, (params, batch), optimizer=optax.adam(1e-3), microbatches=microbatches,
                    loss_reduction="mean" if microbatches > 1 else "auto")  # fmt: skip
    traced = trace(
        call.fn, *call.args, donate_argnums=(0, 1), roles=("parameter", "optimizer-state", "batch")
    )
    flat, named, machine = flatten(traced.graph), mesh_of(mesh), slow_machine()
    cache = MenuCache(
        named, ReshardModel(machine, named, CollectiveModel(machine)), ComputeModel(machine)
    )
    facts = Facts(flat, traced.tied, frozenset(traced.donated))
    builder = Builder(facts, cache, 1e18)
    roles = roles_of([item.role for item in traced.graph.inputs], flat)
    specs = [facts.spec(op) for op in flat.ops]
    kinds = Kinds(Classes(flat, specs), specs, roles.batch, roles.parameters, roles.states)
    maker = Recipes(builder, kinds, roles)
    return maker, {r.name: r for r in maker.recipes(every=every, apart=apart)}


# --- which there are ---------------------------------------------------------------------------


def test_a_training_step_has_all_the_usual_ones() -> None:
    p = training(mean_loss, PARAMS, BATCH)
    assert {"data-parallel", "zero-1", "zero-2", "fsdp", "megatron", "largest-dimension"} <= set(
        p.baselines
    )


def test_experts_are_found_by_their_batched_products() -> None:
    p = training(expert_loss, EXPERTS, TOKENS, mesh=(8,))
    assert "expert-parallel" in p.baselines
    assert "expert-parallel" not in training(mean_loss, PARAMS, BATCH, mesh=(8,)).baselines


def test_experts_are_found_in_layers_of_parts_of_a_batch() -> None:
    """Their matrices enter a loop over parts of the batch, and in it one over layers."""
    layers = jax.tree.map(lambda x: struct(2, *x.shape), EXPERTS)

    def loss(params: Any, batch: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            weight = jax.nn.softmax(x @ p["router"])
            hidden = jax.nn.relu(jnp.einsum("btd,edf->ebtf", x, p["up"]))
            return jnp.einsum("ebtf,efd,bte->btd", hidden, p["down"], weight), None

        return jnp.mean(jax.lax.scan(layer, batch, params)[0] ** 2)

    for microbatches in (1, 2):
        _, found = recipes(loss, layers, TOKENS, (8,), microbatches=microbatches)
        assert "expert-parallel" in found


def test_sequences_give_megatron_with_sequence_parallelism() -> None:
    assert "megatron-sp" in training(expert_loss, EXPERTS, TOKENS, mesh=(8,)).baselines


def test_a_function_without_parameters_has_no_megatron() -> None:
    p = plan(lambda x: jnp.tanh(x), struct(8, 16), cluster="8xhost")
    assert "megatron" not in p.baselines
    assert "fsdp" not in p.baselines


def test_an_inference_step_has_no_zero() -> None:
    p = plan(mlp, PARAMS, BATCH["x"], cluster="8xhost", roles=("parameter", "batch"))
    assert "megatron" in p.baselines
    assert "data-parallel" in p.baselines
    assert "zero-1" not in p.baselines


def test_one_axis_recipes_are_priced_on_the_flat_mesh() -> None:
    _, on_two = recipes(mean_loss, PARAMS, BATCH, (2, 4), every=False)
    assert "data-parallel" not in on_two
    assert "megatron" in on_two
    _, asked = recipes(mean_loss, PARAMS, BATCH, (2, 4))
    assert "data-parallel" in asked


def test_a_batch_that_does_not_divide_leaves_no_straw_man() -> None:
    few = {"x": struct(4, 16), "y": struct(4, 16)}
    _, flat = recipes(mean_loss, PARAMS, few, (8,))
    assert {"data-parallel", "zero-1", "zero-2", "fsdp"}.isdisjoint(flat)
    assert {"megatron", "largest-dimension"} <= flat.keys()
    _, two = recipes(mean_loss, PARAMS, few, (4, 2))
    assert {"megatron", "fsdp-tp"} <= two.keys()
    assert {"data-parallel", "fsdp", "hsdp"}.isdisjoint(two)
    p = training(mean_loss, PARAMS, few)
    assert p.step_s <= p.baselines["fsdp-tp"].step_s * (1 + 1e-9)
    said = "  left out     data-parallel, zero-1, zero-2, fsdp: a batch of 4 does not divide over 8"
    assert said in str(p)
    assert "left out" not in str(training(mean_loss, PARAMS, BATCH))


HEADS = {"q": struct(32, 4, 8), "k": struct(32, 4, 8), "v": struct(32, 4, 8), "o": struct(4, 8, 32)}
LONG = struct(2, 64, 32)


def attending_loss(params: Any, batch: Any) -> Any:
    q, k, v = (jnp.einsum("bsm,mhd->bshd", batch, params[name]) for name in "qkv")
    core = attention(q, k, v, mask="CAUSAL")
    return jnp.mean(jnp.einsum("bshd,hdm->bsm", core, params["o"]) ** 2)


def test_kernels_give_context_parallel_plans() -> None:
    """The sequence is split wherever it is, beside batch or features; states over all devices."""
    for mesh, name, roles in (
        ((8,), "context-parallel", (SEQUENCE,)),
        ((2, 4), "context-parallel", ("batch", SEQUENCE)),
        ((4, 2), "context-parallel-tp", (SEQUENCE, "")),
        ((2, 2, 2), "context-parallel-tp", ("batch", SEQUENCE, "")),
    ):
        maker, found = recipes(attending_loss, HEADS, LONG, mesh)
        limits, kernels = maker.limits(found[name]), 0
        for v in (*maker.roles.parameters, *maker.roles.states):
            full = set(maker.mesh.names) if maker.flat.values[v].type.rank else set[str]()
            assert all(set(s.axes) == full for s in allowed(maker, found[name], v))
        for i, op in enumerate(maker.flat.ops):
            spec = maker.builder.spec(op)
            kinds = dict(zip(spec.names, maker.kinds.of_op(i), strict=True))
            if op.node.op in ATTENTION:
                kernels += 1
                menu = limits.op(i, spec, strategies(spec, maker.mesh))  # pyright: ignore
                assert menu
                assert all(tuple(kinds.get(r, "") for r in s.roles) == roles for s in menu)
        assert kernels == 2
    assert not any(
        name.startswith("context") for name in recipes(mean_loss, PARAMS, BATCH, (8,))[1]
    )


def test_a_plan_is_no_slower_than_context_parallelism() -> None:
    p = training(attending_loss, HEADS, LONG)
    for name in ("context-parallel", "context-parallel-tp"):
        assert p.step_s <= p.baselines[name].step_s * (1 + 1e-9)


def test_several_islands_give_hybrid_plans() -> None:
    maker, found = recipes(mean_loss, PARAMS, BATCH, (2, 4), apart=True)
    for v in maker.roles.parameters:
        assert {s.axes for s in allowed(maker, found["hsdp"], v)} == {("y",)}
        assert {frozenset(s.axes) for s in allowed(maker, found["fsdp-tp"], v)} == {frozenset("xy")}
    _, near = recipes(mean_loss, PARAMS, BATCH, (2, 4))
    assert {"hsdp", "fsdp-tp"}.isdisjoint(near)


# --- what they mean ----------------------------------------------------------------------------


def allowed(maker: Recipes, recipe: Any, v: int) -> list[Sharding]:
    return [s for s in maker.builder.states(v, partial=False) if recipe.state(v, s)]


def test_data_parallel_keeps_parameters_whole() -> None:
    maker, found = recipes(mean_loss, PARAMS, BATCH, (8,))
    for v in (*maker.roles.parameters, *maker.roles.states):
        assert all(s.is_replicated for s in allowed(maker, found["data-parallel"], v))


def test_zero_splits_the_state_and_fsdp_the_parameters_too() -> None:
    maker, found = recipes(mean_loss, PARAMS, BATCH, (8,))
    big = [v for v in maker.roles.states if maker.flat.values[v].type.rank == 2]
    for v in big:
        assert all(s.axes for s in allowed(maker, found["zero-1"], v))
    for v in maker.roles.parameters:
        assert all(s.is_replicated for s in allowed(maker, found["zero-1"], v))
        assert all(s.axes for s in allowed(maker, found["fsdp"], v))


def test_largest_dimension_is_the_one_that_is_split() -> None:
    maker, found = recipes(mean_loss, PARAMS, BATCH, (8,))
    for v in maker.roles.parameters:
        shape = maker.flat.values[v].type.shape
        (state,) = {s.dims for s in allowed(maker, found["largest-dimension"], v)}
        assert state[shape.index(max(shape))] == ("x",)


def test_data_axes_split_the_batch_and_nothing_else() -> None:
    maker, found = recipes(mean_loss, PARAMS, BATCH, (8,))
    limits = maker.limits(found["data-parallel"])
    for i, op in enumerate(maker.flat.ops):
        spec = maker.builder.spec(op)
        menu = maker.builder.menu(op)
        assert limits.op is not None
        kept = limits.op(i, spec, menu)
        assert kept
        for strategy in kept:
            for role in strategy.roles:
                split = role in spec.names
                assert not split or maker.kinds.of_factor(i, role) == "batch"


# --- what they cost ----------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", [(8,), (2, 4)])
@pytest.mark.parametrize(
    ("loss", "params", "batch"), [(mean_loss, PARAMS, BATCH), (expert_loss, EXPERTS, TOKENS)]
)
def test_none_beats_the_plan(loss: Any, params: Any, batch: Any, mesh: tuple[int, ...]) -> None:
    p = training(loss, params, batch, mesh=mesh)
    assert p.baselines
    for name, b in p.baselines.items():
        assert b.fits, name
        assert p.step_s <= b.step_s * (1 + 1e-9), name
        assert p.lower_bound_s <= b.step_s * (1 + 1e-9), name
        assert b.peak_bytes > 0


def test_sharded_state_takes_less_memory() -> None:
    found = training(mean_loss, PARAMS, BATCH, mesh=(8,)).baselines
    assert found["fsdp"].peak_bytes < found["data-parallel"].peak_bytes
    assert found["zero-1"].peak_bytes < found["data-parallel"].peak_bytes


def test_what_does_not_fit_says_so() -> None:
    free = training(mean_loss, PARAMS, BATCH, mesh=(8,))
    limit = int(free.baselines["data-parallel"].peak_bytes * 0.7)
    p = training(mean_loss, PARAMS, BATCH, mesh=(8,), memory_bytes=limit)
    assert not p.baselines["data-parallel"].fits
    assert p.peak_bytes <= limit
    assert "does not fit" in str(p)


def test_pins_hold_for_baselines_too() -> None:
    p = training(mean_loss, PARAMS, BATCH, mesh=(8,), pins=(("params/w1", "[-,-]"),))
    assert p.input_shardings()["params/w1"].is_replicated
    assert all(p.step_s <= b.step_s * (1 + 1e-9) for b in p.baselines.values())


def test_baselines_can_be_left_out() -> None:
    assert training(mean_loss, PARAMS, BATCH, mesh=(8,), baselines=False).baselines == {}

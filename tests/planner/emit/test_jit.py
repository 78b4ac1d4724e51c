# pyright: basic
"""The compiled plan as a function: signature, placement, donation, meshes, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ir import IRError, Mesh, Sharding
from ir.analysis.decisions import Decisions
from ir.trace import trace
from planner.common import compiler_options
from planner.emit import build_mesh, compile_plan, partition_spec
from tests.helpers_numerics import check_numerics
from tests.planner.emit.models import MODELS
from tests.planner.emit.plans import CUBE, LINE, decisions_by, lowered, random_decisions

ROWS = Sharding((("x",), ()))


def step(state, batch):
    """Carries a dictionary from call to call."""
    w = state["w"] - 0.1 * (batch["x"].T @ (batch["x"] @ state["w"]))
    return {"w": w, "count": state["count"] + 1}, {"norm": jnp.sum(w * w)}


RNG = np.random.default_rng(0)
STATE = {"w": RNG.normal(size=(16, 8)).astype(np.float32), "count": np.int32(3)}
BATCH = {"x": RNG.normal(size=(8, 16)).astype(np.float32)}


def plan_of_step(**options):
    traced = trace(step, STATE, BATCH, **options)
    rows = tuple(
        ROWS if len(item.type.shape) == 2 else Sharding(()) for item in traced.graph.inputs
    )
    ties = dict(traced.tied)
    outputs = [Sharding(((),) * traced.graph.type_of(o).rank) for o in traced.graph.outputs]
    for argument, result in ties.items():
        outputs[result] = rows[argument]
    decisions = decisions_by(
        traced.graph, LINE, rows, outputs, lambda types, op, menu: menu[0], lambda raw: raw
    )
    return traced, decisions


def test_a_loop_is_compiled_once_wherever_its_state_begins() -> None:
    traced, decisions = plan_of_step()
    on_no_mesh = jax.tree.map(jnp.asarray, STATE)
    for state in (STATE, on_no_mesh, jax.device_put(STATE, jax.devices()[3])):
        planned = compile_plan(traced, lowered(traced, decisions))
        for count in (4, 5, 6):
            state, _ = planned(state, BATCH)
            assert state["count"] == count
        assert planned.jitted._cache_size() == 1


def test_results_of_numbers_stay_weakly_typed() -> None:
    def counting(count, x):
        return count + 1, x * count, jnp.full((8,), 2.0)

    args = 3, np.ones(8, np.float32)
    traced = trace(counting, *args)
    places = [Sharding(((),) * item.type.rank) for item in traced.graph.inputs]
    outs = [Sharding(((),) * traced.graph.type_of(o).rank) for o in traced.graph.outputs]
    decisions = decisions_by(
        traced.graph, LINE, places, outs, lambda types, op, menu: menu[0], lambda raw: raw
    )
    found = compile_plan(traced, lowered(traced, decisions))(*args)
    for mine, theirs in zip(found, jax.jit(counting)(*args), strict=True):
        assert (mine.dtype, mine.weak_type) == (theirs.dtype, theirs.weak_type)
        np.testing.assert_array_equal(mine, theirs)


def test_same_signature_and_trees() -> None:
    traced, decisions = plan_of_step()
    planned = compile_plan(traced, lowered(traced, decisions))
    state, out = planned(STATE, BATCH)
    expected_state, expected = jax.jit(step)(STATE, BATCH)
    np.testing.assert_allclose(state["w"], expected_state["w"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out["norm"], expected["norm"], rtol=1e-5)
    assert state["count"] == 4
    assert state["w"].sharding.is_equivalent_to(planned.out_shardings[0]["w"], 2)
    assert planned.in_shardings[0]["w"].spec == PartitionSpec("x", None)
    assert jax.tree.structure(planned.in_shardings) == jax.tree.structure((STATE, BATCH))
    assert planned.out_shardings[1]["norm"].spec == PartitionSpec()
    planned(state, BATCH)  # what comes out goes in again


def test_donated_arguments_give_their_buffers() -> None:
    traced, decisions = plan_of_step(donate_argnums=(0,))
    planned = compile_plan(traced, lowered(traced, decisions))
    program = planned.lower(STATE, BATCH)
    memory = program.compile().memory_analysis()
    assert memory.alias_size_in_bytes == 16 * 8 * 4 // 8 + 4  # a row block of w, and the count
    w = jax.device_put(STATE["w"], planned.in_shardings[0]["w"])
    planned({"w": w, "count": STATE["count"]}, BATCH)
    assert w.is_deleted()


def test_arrays_that_lie_otherwise_are_moved() -> None:
    traced, decisions = plan_of_step()
    planned = compile_plan(traced, lowered(traced, decisions))
    columns = NamedSharding(planned.mesh, PartitionSpec(None, "x"))
    state = {"w": jax.device_put(STATE["w"], columns), "count": STATE["count"]}
    (moved, _), (expected, _) = planned(state, BATCH), planned(STATE, BATCH)
    np.testing.assert_array_equal(moved["w"], expected["w"])


def test_other_structure_is_refused() -> None:
    traced, decisions = plan_of_step()
    planned = compile_plan(traced, lowered(traced, decisions))
    with pytest.raises(TypeError, match="plan it again"):
        planned(STATE, BATCH, BATCH)
    with pytest.raises(TypeError, match="planned for arguments"):
        planned.lower({"w": STATE["w"]}, BATCH)


def test_decisions_of_another_program_are_refused() -> None:
    traced, _ = plan_of_step()
    other = trace(lambda x: x + 1.0, BATCH["x"])
    plan = lowered(other, random_decisions(other.graph, LINE, 0))
    with pytest.raises(IRError, match="another program: argument 'x' of the plan is missing"):
        compile_plan(traced, plan)
    right = plan_of_step()[1]
    lacking = Decisions(LINE, {}, right.values, right.inputs, right.outputs)
    with pytest.raises(IRError, match="no strategy for"):
        compile_plan(traced, lowered(traced, lacking)).lower(STATE, BATCH)


def test_unknown_emission_is_refused() -> None:
    traced, decisions = plan_of_step()
    with pytest.raises(ValueError, match="'gspmd' is not one of"):
        compile_plan(traced, lowered(traced, decisions), emission="gspmd")


def test_mesh_is_row_major_over_the_devices() -> None:
    mesh = build_mesh(CUBE)
    ids = [[[device.id for device in row] for row in plane] for plane in mesh.devices]
    assert ids == np.arange(8).reshape(2, 2, 2).tolist()
    assert mesh.axis_names == ("a", "b", "c")
    part = build_mesh(Mesh((("x", 2),)), jax.devices()[4:])
    assert [device.id for device in part.devices] == [4, 5]


def test_too_few_devices() -> None:
    remedy = "--xla_force_host_platform_device_count=512"
    with pytest.raises(IRError, match=remedy) as error:
        build_mesh(Mesh((("x", 512),)))
    assert "needs 512 devices" in str(error.value)


def test_partition_spec() -> None:
    state = Sharding((("c", "a"), (), ("b",)))
    assert partition_spec(state) == PartitionSpec(("c", "a"), None, "b")
    with pytest.raises(IRError, match="waits for a reduction"):
        partition_spec(Sharding(((),), (("a", "sum"),)))


@pytest.mark.parametrize("name", ["branches", "momentum", "remat_policy", "scan", "while_loop"])
def test_constraints_compute_the_same(name: str) -> None:
    function, args = MODELS[name]
    traced = trace(function, *args)
    decisions = plain(random_decisions(traced.graph, CUBE, 0))
    report = check_numerics(
        traced, lowered(traced, decisions), args, rtol=2e-5, emission="constraints"
    )
    assert report.ok, str(report)


@pytest.mark.parametrize("seed", range(2, 6))
def test_branches_with_other_states_inside_give_one(seed: int) -> None:
    """XLA refuses a conditional whose branches end in different shardings."""

    def nested(x):
        def step(carry, _):
            turned = lambda x: jax.lax.fori_loop(0, 2, lambda _, y: jnp.flip(y), x)  # noqa: E731
            carry = jax.lax.cond(carry[-1] > 0, lambda x: x + 1, turned, carry)
            return carry, carry.min()

        return jax.lax.scan(step, x, None, length=2)

    mesh, x = Mesh((("x", 2),)), np.arange(16)
    traced = trace(nested, x)
    decisions = random_decisions(traced.graph, mesh, seed)
    report = check_numerics(traced, lowered(traced, decisions), (x,), emission="constraints")
    assert report.ok, str(report)


def plain(decisions: Decisions) -> Decisions:
    """The same decisions with arguments alone split, which the partitioner handles well."""
    values = {
        key: state if key[0] == () and key[1] < len(decisions.inputs)
        else Sharding(((),) * len(state.dims))
        for key, state in decisions.values.items()
    }  # fmt: skip
    return Decisions(decisions.mesh, decisions.ops, values, decisions.inputs, decisions.outputs)


def test_options_are_set_on_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, decisions = plan_of_step()
    plan, unknown = lowered(traced, decisions), {"xla_gpu_no_such_option": True}
    compile_plan(traced, plan, gpu_options=unknown).lower(STATE, BATCH).compile()
    monkeypatch.setattr(compiler_options, "GPU_PLATFORMS", ("cpu",))
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_gpu_no_such_option"):
        compile_plan(traced, plan, gpu_options=unknown).lower(STATE, BATCH).compile()


def test_the_compiler_knows_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every backend reads the options of all, so that one for CPUs refuses what none has."""
    traced, decisions = plan_of_step()
    monkeypatch.setattr(compiler_options, "GPU_PLATFORMS", ("cpu",))
    options = compiler_options.compiler_options(overlap=True, copies=True, rings=True, on_host=True)
    assert len(options) == 6
    compile_plan(traced, lowered(traced, decisions), gpu_options=options).lower(
        STATE, BATCH
    ).compile()
    assert compiler_options.compiler_options(overlap=False) == {}

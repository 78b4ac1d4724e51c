# pyright: basic
"""Shardings that a program is written with: told in warnings, or pinned and kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ir import Graph, Sharding, asks
from ir.trace import trace
from planner import Options, Plan, PlanError, load, plan
from planner.common.stop import PART
from planner.sharding.wished import with_asked
from tests.planner.pipeline.unproved import without_proof
from tests.planner.programs import BATCH, PARAMS, array, mean_loss, slow_machine

AUTO = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
X, W = array(16, 8), array(8, 32, seed=1)
constrained = lax.with_sharding_constraint


def on(*spec: Any, mesh: Any = AUTO, memory: str | None = None) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*spec), memory_kind=memory)


def product(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def with_constraint(x: Any, w: Any) -> Any:
    return constrained(x @ w, on("data", "model")) * 2.0


def in_a_scan(x: Any, w: Any) -> Any:
    def body(carry: Any, _: Any) -> Any:
        carry = constrained(jnp.tanh(carry), on(None, ("data", "model")))
        return carry, constrained(carry, on(PartitionSpec.UNCONSTRAINED, "data")).sum(1)

    return lax.scan(body, x @ w, None, length=3)


def in_a_branch(x: Any, w: Any) -> Any:
    return lax.cond(x[0, 0] > 0, lambda y: constrained(y, on("data")) + 1.0, jnp.sin, x @ w)


def with_a_gradient(x: Any, w: Any) -> Any:
    return jax.grad(lambda w: (constrained(x @ w, on("model", "data")) ** 2).sum())(w)


def of_a_jit(x: Any, w: Any) -> Any:
    inner = jax.jit(
        product, in_shardings=(on("data"), None), out_shardings=on(None, "data")
    )  # fmt: skip
    return inner(x, w) + 1.0


def explicit(x: Any, w: Any) -> Any:
    y = jnp.dot(x, w, out_sharding=on("data", "model", mesh=EXPLICIT))
    return jax.sharding.reshard(jnp.sin(y), on(None, "model", mesh=EXPLICIT)) * 2.0


def put(x: Any, w: Any) -> Any:
    return jax.device_put(x @ w, on("data")) + 1.0


@dataclass(frozen=True)
class Case:
    """A function, its arguments, what a warning says, and the states that are asked for."""

    fn: Callable[..., Any]
    warning: str
    inside: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ("", "")
    outputs: tuple[str, ...] = ()
    args: tuple[Any, ...] = (X, W)


GIVEN = jax.jit(product, in_shardings=(None, on(None, "model")), out_shardings=on("data"))
SHARDED = jax.ShapeDtypeStruct(W.shape, W.dtype, sharding=on(None, "model"))

CASES = {
    "constraint": Case(
        with_constraint, r"1 sharding constraint is not .* \[data,model\] on data=4,model=2 at "
        r"test_asked.py:\d+: shardings='warn'", ("[data,model]",)
    ),
    "scan": Case(in_a_scan, "2 sharding constraints are not", ("[-,data*model]", "[?,data]")),
    "branch": Case(in_a_branch, "1 sharding constraint is not", ("[data,-]",)),
    "gradient": Case(with_a_gradient, "2 sharding constraints are not", ("[model,data]",) * 2),
    "inner jit": Case(
        of_a_jit, "2 shardings of jitted functions are not", ("[data,-]", "[-,data]")
    ),
    "outer jit": Case(
        GIVEN, r"1 sharding of an argument is not .* at w:|1 sharding of a jitted function is "
        "not .* at result out:", ("[data,-]",), ("", "[-,model]"), ("[data,-]",)
    ),
    "explicit": Case(
        explicit, "2 reshards and explicit shardings are not", ("[data,model]", "[-,model]")
    ),
    "device_put": Case(put, "1 device_put is not", ("[data,-]",)),
    "arguments": Case(
        product, r"2 shardings of arguments are not .* \[data\] on data=4,model=2 at x:",
        (), ("[data,-]", "[-,model]"), (), (jax.device_put(X, on("data")), SHARDED)
    ),
    "explicit arguments": Case(
        lambda x, w: jnp.sin(x) @ w, "1 sharding of an argument is not", (), ("[data,-]", ""), (),
        (jax.device_put(X, on("data", mesh=EXPLICIT)), W)
    ),
}  # fmt: skip
each_case = pytest.mark.parametrize(
    "case", CASES.values(), ids=[name.replace(" ", "-") for name in CASES]
)


def planned(case: Case, **settings: Any) -> Plan:
    return plan(
        case.fn,
        *case.args,
        cluster=slow_machine(),
        baselines=False,
        substitutions=False,
        **settings,
    )


@each_case
def test_a_warning_counts_what_is_not_followed_and_names_the_first(case: Case) -> None:
    _, found = with_asked(Options(shardings="warn"), trace(case.fn, *case.args), slow_machine())
    wanted = case.warning.split("|1")
    for text in (wanted[0], *(f"1{rest}" for rest in wanted[1:])):
        assert [line for line in found if re.match(text, line)], found
    assert len(found) == len(wanted)


@each_case
def test_pins_are_kept_and_the_values_are_the_same(case: Case) -> None:
    emission = "constraints" if case.fn in (in_a_scan, explicit) else "shard_map"
    found = planned(case, emission=emission)
    assert {*found.warnings} <= {PART}  # of which a gradient says it
    assert found.mesh.axes == (("data", 4), ("model", 2))
    states = [str(state) for state in inside(found)]
    assert len(states) == len(case.inside)
    for asked, state in (
        *zip(case.inside, states, strict=True),
        *zip(case.inputs, map(str, found.decisions.inputs), strict=True),
        *zip(case.outputs, map(str, found.decisions.outputs), strict=False),
    ):
        assert re.fullmatch(re.escape(asked).replace(r"\?", "[^,]*") or ".*", state)
    with jax.set_mesh(EXPLICIT if case.fn is explicit else AUTO):
        want = jax.jit(case.fn)(X, W)
    got = found.compile()(X, W)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


def inside(found: Plan) -> Iterator[Sharding]:
    """States of the values that operations of the program ask for, in program order."""

    def of(graph: Graph, place: tuple[int, ...]) -> Iterator[Sharding]:
        for i, node in enumerate(graph.nodes):
            if list(asks(node)):
                yield found.decisions.values[place, graph.first_value[i]]
            for b, body in enumerate(node.bodies):
                yield from of(body, (*place, i, b))

    return of(found.graph, ())


def test_a_pinned_plan_is_saved_bound_explained_and_refused_elsewhere(tmp_path: Path) -> None:
    found = plan(GIVEN, X, W, cluster=slow_machine())
    found.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json").bind(GIVEN, X, W)
    np.testing.assert_allclose(again.compile()(X, W), GIVEN(X, W), rtol=1e-5)
    assert "pinned as [data] on data=4,model=2 by" in again.explain("sharding_constraint")
    assert again.what_if(memory_bytes=10**9).decisions.outputs == found.decisions.outputs
    with pytest.raises(PlanError, match="pins on a mesh of 8 devices"):
        again.what_if(devices=4)
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"[data,-]"', '"[-,data]"'))
    with pytest.raises(PlanError):
        load(tmp_path / "plan.json")


def test_axes_without_one_usable_name_are_called_by_letters() -> None:
    turned = jax.make_mesh((4, 2), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2)
    dashed = jax.make_mesh((4, 2), ("data-parallel", "model"), axis_types=(AxisType.Auto,) * 2)
    for first, second, axis in ((AUTO, turned, "rows"), (dashed, dashed, "data-parallel")):
        w = jax.device_put(W, on(first.axis_names[1], mesh=first))
        x = jax.device_put(X, on(axis, mesh=second))
        found = plan(product, x, w, cluster=slow_machine(), baselines=False)
        assert found.mesh.axes == (("x", 4), ("y", 2))
        assert [str(state) for state in found.decisions.inputs] == ["[x,-]", "[y,-]"]


def other_order(x: Any) -> Any:
    return constrained(x, on(("model", "data"))) + 1.0


def on_one_device(x: Any) -> Any:
    return jax.device_put(x, jax.devices()[1]) + 1.0


def six(*shape: int) -> Any:
    return jax.sharding.AbstractMesh(shape, ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def two_meshes(x: Any) -> Any:
    x = constrained(x, on("a", mesh=six(3, 2)))
    return constrained(x + 1.0, on("a", mesh=six(2, 3))) + 1.0


def six_parts(x: Any) -> Any:
    return constrained(x, on(None, "data")) * 2.0


REFUSED = {
    "order": (other_order, X, {}, r"\.py:\d+: asks for \[model\*data\].* order of the mesh"),
    "device": (
        on_one_device, jax.device_put(X, on("data")), {},
        r"\.py:\d+: asks for device .* uses the whole mesh",
    ),
    "meshes": (
        two_meshes, array(12, 6), {"cluster": slow_machine(6)},
        r"no cuts of one .* \(3, 2\) .* and \(2, 3\) .*asked",
    ),
    "sizes": (
        six_parts, array(16, 6), {},
        r"test_asked.py:\d+: asks for \[-,data\] on data=4,model=2 of a value of shape 16x6: "
        "dimension 1 of 6 does not divide 4 ways",
    ),
    "devices": (six_parts, X, {"cluster": slow_machine(4)}, "over 8 devices, the cluster has 4"),
    "mesh": (six_parts, X, {"mesh": (2, 4)}, r"mesh \(2, 4\) was asked for, .* for \(4, 2\)"),
    "pin": (
        lambda x: x * 2.0, jax.device_put(X, on("data")), {"pins": (("x", "[-,-]"),)},
        r"no sharding of 'x' satisfies 'x=-,-' and 'x=data,-'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_pinned_is_one_error_that_says_where(name: str) -> None:
    fn, x, more, message = REFUSED[name]
    settings = {"cluster": slow_machine()} | more
    with pytest.raises(PlanError, match=message) as found:
        plan(fn, x, **settings)
    assert found.value.kind in ("bad-pin", "bad-option")
    assert found.value.remedy


def test_memories_are_named_however_they_are_asked_for() -> None:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["kept"],
        offload_src="device", offload_dst="pinned_host",
    )  # fmt: skip

    def layer(w: Any, x: Any) -> Any:
        return jnp.sin(checkpoint_name(jnp.tanh(x @ w), "kept"))

    def offloaded(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: jax.checkpoint(layer, policy=policy)(w, x).sum())(w)

    def moved(w: Any, x: Any) -> Any:
        return jax.device_put(x @ w, jax.memory.Space.Host)

    for fn, memory in ((offloaded, "host"), (moved, "host")):
        for mode in ("warn", "pin"):
            found = plan(fn, W, X, cluster=slow_machine(), shardings=mode, recompute="written")
            (line,) = found.warnings
            assert re.match(
                rf"1 value is asked to be in memory '{memory}', the first at test_a", line
            )
    given = jax.device_put(X, on("data", memory="pinned_host"))
    found = plan(product, given, W, cluster=slow_machine())
    (line,) = found.warnings
    assert re.match("1 value is asked to be in memory 'pinned_host', the first at x", line)


def test_an_offload_in_a_loop_is_named_by_the_line_that_computes_its_value() -> None:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["kept"],
        offload_src="device", offload_dst="pinned_host",
    )  # fmt: skip

    def body(x: Any, w: Any) -> Any:
        return jnp.sin(checkpoint_name(jnp.tanh(x @ w), "kept")), None

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return lax.scan(jax.checkpoint(body, policy=policy), x, w)[0].sum()

        return jax.grad(loss)(w)

    line_number = body.__code__.co_firstlineno + 1
    found = plan(step, array(4, 8, 8), array(16, 8), cluster=slow_machine(), baselines=False)
    (line,) = [text for text in found.warnings if "memory" in text]
    assert f"the first at test_asked.py:{line_number}:" in line


def test_a_training_step_is_pinned_by_its_parameters_and_a_tied_result_by_its_argument() -> None:
    params = dict(PARAMS)
    params["w1"] = jax.ShapeDtypeStruct((16, 32), "float32", sharding=on(None, "model"))
    found = plan(
        mean_loss, params, BATCH, cluster=slow_machine(), optimizer=optax.adam(1e-3),
        baselines=False,
    )  # fmt: skip
    assert str(found.input_shardings()["params/w1"]) == "[-,model]"
    assert str(found.decisions.outputs[1]) == "[-,model]"  # the new w1

    def update(params: Any, x: Any) -> Any:
        return {"w": params["w"] - x.T @ x @ params["w"]}

    stepped = jax.jit(update, out_shardings={"w": on("model")}, donate_argnums=0)
    kept = plan(stepped, {"w": W}, X, cluster=slow_machine())
    assert str(kept.input_shardings()["params/w"]) == "[model,-]"
    assert str(kept.decisions.outputs[0]) == "[model,-]"


def test_axes_of_one_mesh_are_made_of_those_of_another() -> None:
    flat = jax.make_mesh((8,), ("all",), axis_types=(AxisType.Auto,))
    turned = jax.make_mesh((2, 4), ("model", "data"), axis_types=(AxisType.Auto,) * 2)
    x, w = jax.device_put(X, on("all", mesh=flat)), jax.device_put(W, on("data", mesh=turned))

    def fn(x: Any, w: Any) -> Any:
        return constrained(jnp.tanh(x @ w), on("data", "model"))

    found = plan(fn, x, w, cluster=slow_machine(), baselines=False)
    assert found.mesh.axes == (("x", 2), ("y", 2), ("z", 2))
    assert [str(state) for state in found.decisions.inputs] == ["[x*y*z,-]", "[y*z,-]"]
    assert [str(state) for state in inside(found)] == ["[x*y,z]"]
    np.testing.assert_allclose(found.compile()(x, w), fn(X, W), rtol=1e-5, atol=1e-6)


def test_what_is_for_one_device_only_is_named() -> None:
    (line,) = plan(on_one_device, X, cluster=slow_machine()).warnings
    assert re.match(r"1 device_put is not followed, .*: a plan uses the whole mesh", line)


@without_proof()
def test_stages_tell_what_they_do_not_follow() -> None:
    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = constrained(jnp.tanh(x @ w), on("data"))
        return jnp.mean(x**2)

    params, x = [array(16, 16, seed=k) for k in range(4)], array(8, 16)
    settings: Any = {"cluster": slow_machine(2), "optimizer": optax.sgd(0.1), "baselines": False}
    free = settings | {"shardings": "warn"}
    found = plan(loss, params, x, pipeline=2, microbatches=2, **free)
    assert [w for w in found.warnings if w.startswith("4 sharding constraints are not followed")]
    with pytest.raises(PlanError, match="shardings applies to a single program"):
        plan(loss, params, x, pipeline=2, **settings)


def test_arguments_without_effect_are_named() -> None:
    def fn(params: Any, x: Any, key: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:  # what is carried beside the sum serves nobody
            return (carry[0] + params["w"].sum(), carry[1] * 2.0), None

        return lax.scan(body, (x, params["idle"]), None, length=2)[0][0]

    params = {"w": W, "idle": array(4)}
    found = plan(fn, params, X, jax.random.key(0), cluster=slow_machine())
    assert found.warnings == ("2 arguments are not used: no result depends on params/idle, key",)
    assert plan(product, X, W, cluster=slow_machine()).warnings == ()

# pyright: basic
"""The axes of a plan's mesh have the names that the user gives them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ir import Sharding
from meshwright import Options, PlanError, load, plan
from planner.inspect.export import FORMATS
from tests.planner.programs import array, slow_machine

P = PartitionSpec
MACHINE = slow_machine(8)
NAMED = {"tensor": 4, "data": 2}  # not in the order of the alphabet
X = array(16, 8)
PARAMS = {"up": array(8, 32, seed=1), "down": array(32, 8, seed=2), "scale": array(8, seed=3)}
PINS = (("params/up", P("data", "tensor")), ("params/down", P(("tensor", "data"))), ("x", P()))


def step(params: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ params["up"])
    loss = jnp.mean((hidden @ params["down"] * params["scale"]) ** 2)
    return jax.tree.map(lambda p: p - loss, params), loss


planned = functools.partial(plan, step, PARAMS, X, cluster=MACHINE, baselines=False)


def assert_runs(step_: Any) -> None:
    found, expected = step_(PARAMS, X), jax.jit(step)(PARAMS, X)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected
    )


def renamed(state: Sharding, names: dict[str, str]) -> Sharding:
    dims = tuple(tuple(names[axis] for axis in axes) for axes in state.dims)
    return Sharding(dims, tuple((names[axis], kind) for axis, kind in state.partial))


@pytest.mark.parametrize("pins", [False, True])
def test_a_name_is_a_name(pins: bool) -> None:
    """The plan is the one without names, in other words."""
    letters = (("params/up", "[y,x]"), ("params/down", "[x*y,-]"), ("x", "[-,-]"))
    plain = planned(mesh=(4, 2), pins=letters if pins else ())
    named = planned(mesh=NAMED, pins=PINS if pins else ())
    names = {"x": "tensor", "y": "data"}
    assert named.mesh.axes == (("tensor", 4), ("data", 2))
    assert (named.step_s, named.peak_bytes) == (plain.step_s, plain.peak_bytes)
    assert named.lower_bound_s == plain.lower_bound_s
    assert named.decisions.ops == plain.decisions.ops
    assert named.decisions.values == {
        place: renamed(state, names) for place, state in plain.decisions.values.items()
    }
    axes = {axis for c in named.collectives for axis in c.axes}
    assert axes == {names[axis] for c in plain.collectives for axis in c.axes}
    assert "tensor=4" in str(named).replace(" ", "")
    assert_runs(named.compile())


def test_pins_in_the_words_of_jax_are_in_the_program_and_in_the_file(tmp_path: Path) -> None:
    found = planned(mesh=NAMED, pins=PINS)
    assert found.specs[0]["up"] == P("data", "tensor")
    assert found.specs[0]["down"] == P(("tensor", "data"), None)
    assert found.specs == found.in_shardings
    mesh = found.shardings[0]["up"].mesh
    assert dict(mesh.shape) == NAMED
    placed = jax.device_put(PARAMS, found.shardings[0])
    assert found.compile().mesh == mesh
    assert placed["up"].sharding.spec == P("data", "tensor")
    path = tmp_path / "plan.json"
    found.save(path)
    again = load(path)
    assert again.mesh.axes == tuple(NAMED.items())
    assert str(again.input_shardings()["params/up"]) == "[data,tensor]"
    assert str(again.what_if(memory_bytes=10**9).input_shardings()["params/up"]) == "[data,tensor]"
    assert "data" in again.explain("params/up")
    assert_runs(again.bind(step, PARAMS, X).compile())


@pytest.mark.parametrize("to", sorted(FORMATS))
def test_exports_of_named_axes(to: str, tmp_path: Path) -> None:
    plain, named = planned(mesh=(4, 2)), planned(mesh=NAMED)

    def outcome(found: Any, name: str) -> tuple[str, Any]:
        try:
            return "written", len(found.export(to, tmp_path / name).files)
        except PlanError as error:
            return "refused", error.kind

    assert outcome(named, "a") == outcome(plain, "b")


def test_a_mesh_of_jax() -> None:
    mesh = jax.make_mesh((2, 1, 4), ("data", "stage", "tensor"))
    pins = (
        ("params/up", NamedSharding(mesh, P(None, ("tensor", "stage")))),
        ("params/down", "[tensor*stage,-]"),
        ("x", P(("data", "stage"), P.UNCONSTRAINED)),
    )
    found = planned(mesh=mesh, pins=dict(pins))
    assert found.mesh.axes == (("data", 2), ("tensor", 4))  # nothing is split over one device
    assert found.program.pins == (
        ("params/up", "[-,tensor,...]"), ("params/down", "[tensor,-]"), ("x", "[data,*,...]"),
    )  # fmt: skip
    assert found.specs[0]["up"] == P(None, "tensor")
    turned = jax.sharding.Mesh(mesh.devices[::-1].copy(), mesh.axis_names)
    compiled = found.compile(devices=turned)
    assert compiled.mesh == jax.sharding.Mesh(turned.devices, mesh.axis_names)
    for context in (mesh, turned, found.compile().mesh):
        with jax.set_mesh(context):
            assert_runs(found.compile())
            assert_runs(compiled)
    other = found.compile(devices=jax.make_mesh((4, 2), ("data", "tensor")))
    assert other.mesh.shape_tuple == (("data", 2), ("tensor", 4))
    assert planned(mesh=mesh.abstract_mesh).mesh == found.mesh


def test_results_within_a_mesh_that_is_set() -> None:
    auto = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    pins = {"params/up": P("data", "tensor")}
    made = planned(mesh=auto, pins=pins).compile(devices=auto)
    expected = step(PARAMS, X)[0]["up"]
    with jax.set_mesh(auto):
        params, loss = made(PARAMS, X)
        assert params["up"].sharding == NamedSharding(auto, pins["params/up"])
        both = params["up"] - loss, jax.jit(lambda x: made(PARAMS, x)[0]["up"] - loss)(X)
    for found in both:
        np.testing.assert_allclose(found, expected - loss, rtol=1e-5, atol=1e-6)
    explicit = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        up = jax.sharding.reshard(made(PARAMS, X)[0]["up"], P("data"))
        np.testing.assert_allclose(up * 2, expected * 2, rtol=1e-5, atol=1e-6)


def test_a_training_step_of_the_planner() -> None:
    def loss(params: Any, x: Any) -> Any:
        return step(params, x)[1]

    found = plan(
        loss, PARAMS, X, cluster=MACHINE, optimizer=optax.sgd(0.1), mesh={"fsdp": 8},
        pins={"params/up": P("fsdp")}, microbatches=1, baselines=True,
    )  # fmt: skip
    assert found.mesh.names == ("fsdp",)
    assert {b.mesh for b in found.baselines.values()} == {"fsdp=8"}
    params, _, value = found.compile()(PARAMS, optax.sgd(0.1).init(PARAMS), X)
    assert params["up"].sharding.spec == P("fsdp", None)
    np.testing.assert_allclose(value, loss(PARAMS, X), rtol=1e-5)


def test_settings_are_read_once() -> None:
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    for given in (mesh, {"a": 2, "b": 4}, (("a", 2), ("b", 4)), [["a", 2], ["b", 4]]):
        assert Options(mesh=given).mesh == (("a", 2), ("b", 4))
    assert Options(mesh={"a": 2, "b": 4}).axes == ("a", "b")
    assert Options(mesh=(2, 4)).axes[:2] == ("x", "y")
    assert (Options().shape, Options(mesh={"a": 1, "b": 8}).shape) == (None, (8,))
    assert Options(mesh={"a": 1}).shape == (1,)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "product": ({"mesh": {"data": 4}}, r"\('data', 4\).* has 4 devices .* the cluster 8 devices"),
    "axes": ({"mesh": dict.fromkeys("abcde", 2)}, "in 5 axes.* at most 4 axes"),
    "unknown": ({"mesh": NAMED, "pins": (("x", P("model")),)},
                r"no mesh axis 'model'; axes are called tensor, data"),
    "letter": ({"mesh": NAMED, "pins": (("x", "[x,-]"),)}, "no mesh axis 'x'"),
    "without names": ({"mesh": (8,), "pins": (("x", P("data")),)}, "unless mesh= names them"),
    "rank": ({"mesh": NAMED, "pins": (("x", P(None, None, "data")),)}, "has 3 dimensions"),
    "twice": ({"mesh": (("a", 2), ("a", 4))}, "the axis 'a' occurs twice"),
    "name": ({"mesh": {"data-parallel": 8}}, "named with letters, digits"),
    "size": ({"mesh": {"data": 8.0}}, "whole numbers from 1, or names with them"),
    "other mesh": ({"mesh": NAMED, "pins": (("x", NamedSharding(jax.make_mesh((8,), ("data",)),
                                                                 P("data"))),)},
                   r"over {'data': 8}, which is not mesh="),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_together(name: str) -> None:
    settings, message = REFUSED[name]
    with pytest.raises(PlanError, match=message):
        planned(**settings)

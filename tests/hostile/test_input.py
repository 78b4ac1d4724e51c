# pyright: basic
"""Bad input to `plan`: one clear error with its kind, place and remedy, or a plan that warns."""

from __future__ import annotations

import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ir import TraceError
from planner import PlanError, plan
from profiles import ProfileError
from tests.planner.programs import BATCH, PARAMS, X, array, filled, mean_loss, mlp, struct

IDLE = "nothing is split over"


def infer(params: Any, x: Any) -> Any:
    return mlp(params, x)


def planned(fn: Any = infer, *args: Any, **settings: Any) -> Any:
    given = {"cluster": "8xhost", "baselines": False} | settings
    return plan(fn, *(args or (PARAMS, X)), **given)


def refused(kind: str, *args: Any, **settings: Any) -> PlanError:
    with pytest.raises(PlanError) as found:
        planned(*args, **settings)
    error = found.value
    assert error.kind == kind
    assert error.where
    assert error.remedy
    assert "\n" not in str(error)
    return error


# --- sizes that do not divide, devices that are too many ---------------------------------------


def test_batch_of_a_prime_size_is_planned() -> None:
    p = planned(infer, PARAMS, struct(7, 16))
    params, x = filled(PARAMS), array(7, 16)
    np.testing.assert_allclose(p.compile()(params, x), infer(params, x), rtol=1e-5, atol=1e-6)


def test_all_sizes_prime_leaves_devices_idle_and_says_so() -> None:
    p = planned(lambda x, w: x @ w, struct(7, 13), struct(13, 5))
    assert any(IDLE in w and "1 of 8" in w for w in p.warnings)
    assert IDLE in str(p)


def test_more_devices_than_the_program_can_use() -> None:
    p = planned(lambda x: jnp.tanh(x), struct(2), cluster="64xh100:8")
    assert any(IDLE in w and "of 64" in w for w in p.warnings)


def test_prime_batch_divides_into_no_micro_batches() -> None:
    batch = {"x": struct(7, 16), "y": struct(7, 16)}
    found = refused("bad-batch", mean_loss, PARAMS, batch, optimizer=optax.sgd(0.1), microbatches=2)
    assert "7" in found.message


def test_prime_batch_that_does_not_fit_says_so() -> None:
    batch = {"x": struct(7, 16), "y": struct(7, 16)}
    rule = optax.sgd(0.1)
    found = refused("does-not-fit", mean_loss, PARAMS, batch, optimizer=rule, memory_bytes=100)
    assert "does not fit" in found.message


# --- functions ---------------------------------------------------------------------------------


def untraceable(x: Any) -> Any:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("fn", "args", "words"),
    [
        (lambda x: x @ jnp.ones((3,)), (X,), ("fails to trace", "eval_shape")),
        (lambda x: 1 / 0, (X,), ("ZeroDivisionError",)),
        (untraceable, (X,), ("'untraceable'", "TracerBoolConversionError")),
        (infer, (PARAMS,), ("'infer'", "missing 1 required")),
        (infer, (PARAMS, X, X), ("takes 2 positional",)),
        (3, (X,), ("callable", "int")),
        (infer, (PARAMS, "hello"), ("'x'", "a str", "functools.partial")),
        (infer, (PARAMS, object()), ("'x'", "object")),
        (lambda x: x, (np.zeros(3, dtype=[("a", "i4")]),), ("'x'", "cannot hold")),
        (lambda x: x, (np.array(["a"]),), ("'x'", "cannot hold")),
        (lambda x: x, (2**70,), ("'x'", "too large")),
        (lambda x: "text", (X,), ("fails to trace",)),
    ],
)
def test_what_cannot_be_traced(fn: Any, args: tuple[Any, ...], words: tuple[str, ...]) -> None:
    found = refused("trace", fn, *args)
    assert isinstance(found, TraceError)
    for word in words:
        assert word in str(found)


def test_an_exception_of_the_traced_function_is_the_cause() -> None:
    found = refused("trace", lambda x: 1 / 0, X)
    assert isinstance(found.__cause__, ZeroDivisionError)
    assert traceback.extract_tb(found.__cause__.__traceback__)[-1].filename == __file__


@pytest.mark.parametrize("args", [(), (None,), ({},), ((), [])], ids=str)
def test_nothing_to_plan(args: tuple[Any, ...]) -> None:
    with pytest.raises(PlanError) as found:
        plan(lambda *_: None, *args, cluster="8xhost")
    assert found.value.kind == "bad-argument"
    assert "no arguments" in str(found.value)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: x, (X,)),
        (lambda x: None, (X,)),
        (lambda x: 3.0, (X,)),
        (lambda x: (x, {"x": x}, 1, jnp.zeros(3)), (X,)),
        (lambda: jnp.ones((4, 4)), ()),
        (lambda x: x @ x.T, (struct(0, 16),)),
        (lambda x: x.sum(0), (struct(0, 16),)),
    ],
)
def test_degenerate_functions_are_planned_and_run(fn: Any, args: tuple[Any, ...]) -> None:
    p = plan(fn, *args, cluster="8xhost", baselines=False)
    arrays = [jnp.ones(arg.shape, arg.dtype) for arg in args]
    found, expected = p.compile()(*arrays), fn(*arrays)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert str(p)
    assert p.explain()
    assert p.step_s >= 0


def test_wide_arrays_are_planned_as_jax_runs_them() -> None:
    p = planned(lambda x, i: x[i], np.zeros((8, 16)), np.arange(4))
    assert any("'x' is float64 and is planned as float32" in w for w in p.warnings)
    assert any("'i' is int64 and is planned as int32" in w for w in p.warnings)
    assert p.compile()(np.ones((8, 16)), np.arange(4)).dtype == jnp.float32


# --- wishes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pins": (("params/w1", "[-,8]"), ("params/w1", "[8,-]"))}, ("params/w1=-,8", "8,-")),
        ({"pins": (("params/w1", "[-,8]"),), "forbidden": (("params/w1", 1),)}, ("dimension 1",)),
        ({"pins": (("params/w1", "[-,3]"),)}, ("params/w1=-,3", "divide")),
        ({"pins": (("x", "[x*y*z,-]"),), "mesh": (2, 4)}, ("x*y*z", "x=2,y=4")),
        ({"pins": (("zz", "[-,8]"),)}, ("'zz'", "params/b1")),
        ({"pins": (("params/w1", "[8]"),)}, ("1 dimensions", "has 2")),
        ({"pins": (("params/w1", "[-,q]"),)}, ("'q'",)),
        ({"forbidden": (("params/w1", 7),)}, ("dimension 7",)),
    ],
)
def test_wishes_that_cannot_be_met(settings: dict[str, Any], words: tuple[str, ...]) -> None:
    found = refused("bad-pin", **settings)
    for word in words:
        assert word in str(found)


def test_pins_are_met() -> None:
    p = planned(pins=(("params/w1", "[-,8]"), ("x", "[*,-]")), forbidden=(("params/w2", 0),))
    specs = p.input_shardings()
    assert p.mesh.product(specs["params/w1"].dims[1]) == 8
    assert specs["x"].dims[1] == ()
    assert specs["params/w2"].dims[0] == ()


# --- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "where", "words"),
    [
        ({"foo": 1}, "plan", ("unknown setting foo", "settings are")),
        ({"pin": ()}, "plan", ("did you mean pins?",)),
        ({"options": {"mesh": (8,)}}, "plan", ("a dict",)),
        ({"mesh": (2, 2)}, "Options.mesh", ("4 devices", "the cluster 8", "(2, 4)")),
        ({"mesh": (16,)}, "Options.mesh", ("16 devices",)),
        ({"mesh": (2, 2, 2, 1, 1)}, "Options.mesh", ("at most 4 axes",)),
        ({"microbatches": 2}, "microbatches", ("only with optimizer=",)),
        ({"has_aux": True}, "has_aux", ("only with optimizer=",)),
        ({"batch_axis": 1}, "batch_axis", ("only with optimizer=",)),
        ({"loss_reduction": "sum"}, "loss_reduction", ("only with optimizer=",)),
    ],
)
def test_wrong_setting(settings: dict[str, Any], where: str, words: tuple[str, ...]) -> None:
    found = refused("bad-option", **settings)
    assert found.where == where
    for word in words:
        assert word in str(found)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"cluster": None}, "cluster"),
        ({"cluster": 8}, "cluster"),
        ({"roles": "batch"}, "roles"),
        ({"roles": ("parameter", "batch", "batch")}, "roles"),
        ({"donate_argnums": "x"}, "donate_argnums"),
    ],
)
def test_wrong_argument(settings: dict[str, Any], where: str) -> None:
    assert refused("bad-argument", **settings).where == where


@pytest.mark.parametrize(
    "settings", [{"roles": ("weights",)}, {"donate_argnums": (5,)}, {"donate_argnums": -1}]
)
def test_argument_that_tracing_refuses(settings: dict[str, Any]) -> None:
    found = refused("trace", **settings)
    assert isinstance(found, TraceError)
    assert found.where == next(iter(settings))


@pytest.mark.parametrize(
    ("args", "settings", "kind"),
    [
        ((mean_loss, PARAMS, BATCH), {"optimizer": "adam"}, "bad-optimizer"),
        ((mean_loss, PARAMS, BATCH, BATCH), {}, "bad-argument"),
        ((mean_loss, PARAMS), {}, "bad-argument"),
        ((infer, PARAMS, X), {}, "bad-loss"),
        ((mean_loss, PARAMS, BATCH), {"has_aux": True}, "bad-loss"),
        ((mean_loss, PARAMS, BATCH), {"microbatches": 3}, "bad-batch"),
        ((mean_loss, PARAMS, BATCH), {"microbatches": 2, "batch_axis": 7}, "bad-batch"),
        ((mean_loss, PARAMS, BATCH), {"donate_argnums": (0,)}, "bad-option"),
        ((mean_loss, PARAMS, BATCH), {"roles": ("parameter",)}, "bad-option"),
    ],
)
def test_wrong_training(args: tuple[Any, ...], settings: dict[str, Any], kind: str) -> None:
    found = refused(kind, *args, **({"optimizer": optax.sgd(0.1)} | settings))
    assert found.kind == kind


@pytest.mark.parametrize(
    "name",
    ["", "8xfoo", "0xh100", "-1xh100", "8xh100:3", "axh100", "8h100", "8xh100:0", "missing.yaml",
     "/tmp", "8xh100x4", "9" * 40 + "xh100", "8xh100:", "__class__", "8xh100\0"],
)  # fmt: skip
def test_wrong_cluster(name: str) -> None:
    found = refused("profile", cluster=name)
    assert isinstance(found, ProfileError)
    assert len(str(found)) > 20


# --- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [None, optax.adam(1e-3)])
def test_memory_that_is_too_small_says_by_how_much(optimizer: Any) -> None:
    args = (infer, PARAMS, X) if optimizer is None else (mean_loss, PARAMS, BATCH)
    extra = {} if optimizer is None else {"optimizer": optimizer}
    found = refused("does-not-fit", *args, memory_bytes=100, **extra)
    for word in ("needs", "more than the limit of 100 B", "at least"):
        assert word in str(found)


def test_every_plan_is_within_its_limit() -> None:
    args = lambda x, w: jnp.tanh(x @ w), struct(8, 16), struct(16, 32)
    peak = planned(*args, mesh=(8,)).peak_bytes
    for part in (0.8, 0.6, 0.4):
        p = planned(*args, mesh=(8,), memory_bytes=int(peak * part))
        assert p.fits
        assert p.peak_bytes <= int(peak * part)
    refused("does-not-fit", *args, mesh=(8,), memory_bytes=int(peak * 0.01))

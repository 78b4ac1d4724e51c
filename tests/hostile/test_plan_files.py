# pyright: basic
"""Plan files that were changed: one clear error, or a plan that can be used without a crash."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ir import digest, parse
from planner import PlanError, load, plan
from tests.planner.programs import PARAMS, X, array, filled, mlp, slow_machine
from tests.planner.sealing import resealed, with_program

HELD = array(8, 16, seed=9)
NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 3, 10**6, 10**30, 1.5, -0.5, 1e300, "", "__class__", "x", "[x,x]", "[y*x]",
    "[-,x]+sum(y)", "\u001b[31m\n", "../../etc", [], [[]], [0], {}, {"a": {"__reduce__": []}},
)  # fmt: skip


def program(params: Any, x: Any) -> Any:
    """With a captured constant, a loop, a branch and a partial sum."""

    def step(carry: Any, _: Any) -> Any:
        return jax.lax.cond(carry.sum() > 0, jnp.tanh, jnp.sin, carry), carry.sum(0)

    carry, sums = jax.lax.scan(step, mlp(params, x) + HELD, None, length=2)
    return x + carry, sums


def made(**settings: Any) -> Any:
    return plan(program, PARAMS, X, cluster=slow_machine(), mesh=(2, 4), baselines=False,
                donate_argnums=(1,), **settings)  # fmt: skip


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    made().save(path)
    return json.loads(path.read_text())


@pytest.fixture(name="raw")
def _raw(whole: dict[str, Any]) -> dict[str, Any]:
    """The plan of the program."""
    (program,) = whole["programs"]
    return program


@pytest.fixture(name="refused")
def _refused(whole: dict[str, Any], tmp_path: Path) -> Callable[..., str]:
    def check(**keys: Any) -> str:
        path = tmp_path / "plan.json"
        own = {key: keys.pop(key) for key in ("stages", "pipeline", "programs") if key in keys}
        path.write_text(json.dumps(resealed(with_program(whole, **keys) | own)))
        with pytest.raises(PlanError) as found:
            load(path)
        assert found.value.kind == "plan-file"
        assert found.value.where == str(path)
        assert found.value.remedy
        return str(found.value)

    return check


def test_the_plan_itself_is_accepted_and_right(whole: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(whole))
    step = load(tmp_path / "plan.json").bind(program, PARAMS, X).compile()
    x = array(8, 16)
    expected = program(filled(PARAMS), x)
    for a, b in zip(step(filled(PARAMS), x), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# --- numbers -----------------------------------------------------------------------------------

NUMBERS = ("step_s", "compute_s", "communication_s", "peak_bytes", "argument_bytes", "limit_bytes",
           "lower_bound_s", "exposed_s")  # fmt: skip


@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_are_finite_and_not_negative(refused: Any, key: str) -> None:
    for value in (-1.0, 1e300, "1.0", None, True):
        assert key in refused(**{key: value})
    for value in (float("nan"), float("inf"), -float("inf")):
        assert "malformed" in refused(**{key: value})


def test_counts_are_bounded(refused: Any) -> None:
    assert "microbatches" in refused(microbatches=0)
    assert "microbatches" in refused(microbatches=10**12)
    assert "mesh" in refused(mesh=[["x", 10**18], ["y", 4]])
    assert "mesh" in refused(mesh=[["x", 0], ["y", 8]])
    assert "mesh" in refused(mesh=[])
    assert "mesh" in refused(mesh=[[f"a{i}", 2] for i in range(9)])


# --- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["stop", "emission", "loss_reduction"])
def test_words_are_known_ones(refused: Any, key: str) -> None:
    for value in ("os.system", "__class__", "", 3, None):
        assert key in refused(**{key: value})


# --- mesh and cluster --------------------------------------------------------------------------


def test_mesh_is_that_of_the_cluster(refused: Any, raw: dict[str, Any]) -> None:
    assert "16 devices, the cluster 8" in refused(mesh=[["x", 4], ["y", 4]])
    assert "different names" in refused(mesh=[["x", 2], ["x", 4]])
    assert "['x']" in refused(mesh=[["__class__", 2], ["y", 4]])
    assert "letters" in refused(mesh=[["x y", 2], ["y", 4]])
    other = raw["cluster"] | {"num_devices": 64}
    assert "the cluster 64" in refused(cluster=other)
    assert "cluster" in refused(
        cluster=raw["cluster"] | {"num_devices": 10**30, "devices_per_host": 1}
    )
    million = [["x", 10**6], ["y", 10**6]]
    assert "devices" in refused(mesh=million, cluster=raw["cluster"] | {"num_devices": 10**12})


def test_cluster_is_a_cluster(refused: Any, raw: dict[str, Any]) -> None:
    assert "missing" in refused(cluster={})
    assert "unknown field" in refused(cluster=raw["cluster"] | {"__class__": "Cluster"})
    assert "device" in refused(cluster=raw["cluster"] | {"device": {}})
    assert "profile" in refused(
        cluster=raw["cluster"] | {"collectives": {"shipped": "x", "digest": "y"}}
    )
    deep: Any = 1
    for _ in range(500):
        deep = {"a": deep}
    assert "cluster" in refused(cluster=raw["cluster"] | {"device": deep})


# --- graph -------------------------------------------------------------------------------------


def test_graph_is_the_one_of_the_digest(refused: Any, raw: dict[str, Any]) -> None:
    assert "digest" in refused(graph_digest="0" * 64)
    assert "digest" in refused(graph=raw["graph"].replace("8,16", "8,32"))
    assert "line 1" in refused(graph="hello")
    assert "return" in refused(graph="")
    assert refused(graph="body 0 {\n" * 200)
    assert refused(graph=raw["graph"] + "\x00")


@pytest.mark.parametrize(
    ("old", "new"),
    [("f32[16,32]", "f32[16,33]"), ("tanh", "sin %0"), ("dot_general", "dot_particular"),
     ("length=2", "length=3"), ("num_carry=1", "num_carry=7"), ("return", "return %0")],
)  # fmt: skip
def test_graph_that_is_not_sound_is_refused_with_its_own_digest(
    refused: Any, raw: dict[str, Any], old: str, new: str
) -> None:
    assert old in raw["graph"]
    text = raw["graph"].replace(old, new)
    try:
        name = digest(parse(text))
    except ValueError:
        name = raw["graph_digest"]
    assert refused(graph=text, graph_digest=name)


# --- decisions ---------------------------------------------------------------------------------


def test_roles_are_legal(refused: Any, raw: dict[str, Any]) -> None:
    def with_roles(change: Callable[[list[str]], list[Any]]) -> list[Any]:
        return [[place, change(roles)] for place, roles in raw["ops"]]

    assert "3 roles" in refused(ops=with_roles(lambda r: [*r, ""]))
    assert "1 roles" in refused(ops=with_roles(lambda r: r[:1]))
    assert "'__class__'" in refused(ops=with_roles(lambda _: ["__class__", ""]))
    assert "'@9'" in refused(ops=with_roles(lambda _: ["@9", ""]))
    assert "ops" in refused(ops=with_roles(lambda _: [1, 2]))


def test_every_op_has_one_decision(refused: Any, raw: dict[str, Any]) -> None:
    assert "no decision for the op at 2" in refused(ops=[raw["ops"][i] for i in (0, 1)])
    assert "999/1/2" in refused(ops=[*raw["ops"], [[999, 1, 2], ["", ""]]])
    assert "occurs 2 times" in refused(ops=[*raw["ops"], raw["ops"][0]])
    assert "ops" in refused(ops=[[[-1], ["", ""]]])
    assert "ops" in refused(ops=[[[10**12], ["", ""]]])
    assert "no decision" in refused(ops=[])


def test_every_value_has_one_state(refused: Any, raw: dict[str, Any]) -> None:
    assert "no decision for the value" in refused(values=raw["values"][:3])
    assert "which is not there" in refused(values=[*raw["values"], [[], 10**6, "[-]"]])
    assert "occurs 2 times" in refused(values=[*raw["values"], raw["values"][0]])
    swapped = [[p, n, s.replace("y", "q")] for p, n, s in raw["values"]]
    assert "['q']" in refused(values=swapped)
    assert "cannot be kept" in refused(values=[[p, n, "[-,-,-,-,x]"] for p, n, _ in raw["values"]])
    assert "not a sharding" in refused(
        values=[[p, n, "__import__('os')"] for p, n, _ in raw["values"]]
    )
    assert "used twice" in refused(values=[[p, n, "[x]+sum(x)"] for p, n, _ in raw["values"]])
    assert "+avg(x)" in refused(values=[[p, n, "[-]+avg(x)"] for p, n, _ in raw["values"]])


def test_arguments_and_results_have_one_state_each(refused: Any, raw: dict[str, Any]) -> None:
    count = len(raw["inputs"])
    assert f"1 arguments, its graph has {count}" in refused(inputs=raw["inputs"][:1])
    assert "0 results" in refused(outputs=[])
    assert "cannot be kept" in refused(inputs=["[x]"] * count)
    assert "cannot be kept as" in refused(outputs=["[-,-,-]"] * len(raw["outputs"]))
    assert "cannot be kept" in refused(
        inputs=[f"{s.replace('y', '-')}+sum(y)" for s in raw["inputs"]]
    )
    assert "at once" in refused(inputs=["[-,-]" if s.count(",") else "[-]" for s in raw["inputs"]])


def test_donation_and_ties_are_of_arguments(refused: Any, raw: dict[str, Any]) -> None:
    assert raw["ties"]
    assert "donated" in refused(donated=[55])
    assert "donated" in refused(donated=[-1])
    assert "occurs 2 times" in refused(donated=[0, 0])
    assert "no such argument" in refused(ties=[[99, 0]])
    assert "no such argument" in refused(ties=[[0, 99]])
    assert "types differ" in refused(ties=[[1, 0]])
    assert "occurs 2 times" in refused(ties=[*raw["ties"], *raw["ties"]])
    assert "roles" in refused(roles=[])
    assert "roles" in refused(roles=["batch"] * len(raw["roles"]))


def test_the_stage_is_that_of_the_program(refused: Any, whole: dict[str, Any]) -> None:
    (stage,), (program,) = whole["stages"], whole["programs"]
    assert "stage" in refused(stages=[])
    assert "2 stages" in refused(stages=[stage, stage])
    assert "programs" in refused(programs=[])
    assert "2 programs" in refused(programs=[program, program])
    for changed in (
        {"devices": [0, 9]}, {"step_s": 2 * stage["step_s"]}, {"recompute": "full"}, {"program": 1},
        {"params": ["w"]}, {"layers": [1, 2]},
    ):  # fmt: skip
        assert "its stage is" in refused(stages=[stage | changed])
    assert "its peak is" in refused(stages=[stage | {"peak_bytes": 1.0}])
    pipeline = {
        key: program[key]
        for key in ("name", "cluster", "step_s", "lower_bound_s", "limit_bytes", "microbatches",
                    "loss_reduction", "baselines", "warnings")
    }  # fmt: skip
    pipeline |= {"bubble": 0.0, "schedule": "1f1b", "chunks": 1}
    assert "no cost" in refused(pipeline=pipeline)


def test_collectives_are_of_the_mesh(refused: Any) -> None:
    row = {"kind": "all-reduce", "axes": ["x"], "group_size": 2, "bytes": 1.0, "count": 1.0,
           "seconds": 1.0, "cause": "", "exposed_s": 1.0}  # fmt: skip
    assert "no axis 'q'" in refused(collectives=[row | {"axes": ["q"]}])
    assert "members" in refused(collectives=[row | {"group_size": 8}])
    assert "bytes" in refused(collectives=[row | {"bytes": -1.0}])


# --- all of it ---------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to every part of a JSON value, of lists only the first two elements."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value[:2]):
            yield from places(item, (*path, i))


def replaced(raw: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    found = copy.copy(raw)
    found[path[0]] = replaced(raw[path[0]], path[1:], value)
    return found


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error if that is one of the planner's."""
    try:
        return call()
    except PlanError as error:
        return error


def use(path: Path) -> None:
    """Everything that reads the plan."""
    p = load(path)
    assert str(p).replace("\n", "").isprintable()
    json.dumps(p.summary())
    for explain in (p.explain, lambda: p.explain("x")):
        assert str(attempt(explain)).replace("\n", "").isprintable()
    q = attempt(lambda: p.bind(program, PARAMS, X))
    if isinstance(q, PlanError):
        assert q.where == str(path)
        return
    assert q.in_shardings
    assert q.out_shardings
    q.compile().lower(PARAMS, X)


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 8))]
)
def test_no_change_of_one_part_crashes_anything(
    whole: dict[str, Any], tmp_path: Path, number: int
) -> None:
    path = tmp_path / "plan.json"
    every = list(itertools.product(sorted(places(whole), key=str), NASTY))
    loaded = 0
    for place, value in every[number::8]:
        text = json.dumps(resealed(replaced(whole, place, value)))
        path.write_text(text)
        found = attempt(lambda: load(path))
        if isinstance(found, PlanError):
            assert found.where == str(path)
            assert len(str(found)) < 2000
            continue
        loaded += 1
        if loaded <= 12:  # explaining and lowering take their time
            use(path)
    assert loaded


def test_trained_plan_survives_the_same(tmp_path: Path) -> None:
    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean(mlp(params, batch) ** 2)

    path = tmp_path / "plan.json"
    plan(loss, PARAMS, X, optimizer=optax.adam(1e-3), microbatches=2, cluster=slow_machine(),
         mesh=(8,), baselines=False).save(path)  # fmt: skip
    raw = json.loads(path.read_text())
    for place, value in list(itertools.product(sorted(places(raw), key=str), NASTY))[::31]:
        path.write_text(json.dumps(resealed(replaced(raw, place, value))))
        found = attempt(lambda: load(path))
        if isinstance(found, PlanError):
            assert found.where == str(path)
        else:
            assert str(found)
            json.dumps(found.summary())

# pyright: basic
"""The surface: `plan`, what a plan says, and how it runs on eight host devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding

from costmodel import Cluster
from planner import Baseline, Collective, Options, Plan, Stage, Stop, load, plan
from tests.planner.programs import (
    BATCH,
    PARAMS,
    X,
    array,
    filled,
    mean_loss,
    mlp,
    slow_machine,
)  # fmt: skip

ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    "step_s", "peak_bytes", "fits", "lower_bound_s", "gap", "stop", "mesh", "microbatches",
    "schedule", "stages", "baselines", "collectives", "substitutions", "warnings", "seconds",
}  # fmt: skip
PINS = (("params/w1", "[-,y]"), ("x", "[x,-]"))


def infer(params, x):
    return mlp(params, x)


def planned(**settings) -> Plan:
    return plan(infer, PARAMS, X, cluster="8xhost", mesh=(2, 4), pins=PINS, **settings)


def trained(loss=mean_loss, optimizer=None, **settings) -> Plan:
    rule = optimizer or optax.adamw(1e-2)
    settings = {"cluster": slow_machine(), "mesh": (2, 4), "baselines": False} | settings
    return plan(loss, PARAMS, BATCH, optimizer=rule, **settings)


# --- what a plan says --------------------------------------------------------------------------


def test_plan_of_a_function_says_what_the_design_promises() -> None:
    p = planned()
    assert p.step_s > 0
    assert p.peak_bytes > 0
    assert p.fits
    assert 0 < p.lower_bound_s <= p.step_s
    assert 0 <= p.gap < 1
    assert isinstance(p.stop, Stop)
    assert p.mesh.axes == (("x", 2), ("y", 4))
    assert p.schedule == "none"
    assert p.microbatches == 1
    assert all(isinstance(c, Collective) for c in p.collectives)
    assert all(isinstance(b, Baseline) for b in p.baselines.values())
    (stage,) = p.stages
    assert isinstance(stage, Stage)
    assert stage.devices == (0, 8)
    assert stage.mesh == {"x": 2, "y": 4}
    assert p.cluster.name == "8xhost"


def test_no_baseline_beats_the_plan() -> None:
    p = trained(baselines=True, mesh=None)
    assert {"data-parallel", "fsdp", "megatron", "largest-dimension", "zero-1"} <= set(p.baselines)
    assert all(p.step_s <= b.step_s * (1 + 1e-9) for b in p.baselines.values() if b.fits)


def test_page_names_everything() -> None:
    text = str(trained(baselines=True))
    for part in (
        "mean_loss", "8xslow", "mesh", "step", "memory", "lower bound", "hand-written plans",
        "collectives", "arguments are split", "params/w1", "planned in",
    ):  # fmt: skip
        assert part in text
    assert text == text.strip()
    assert all(line.isprintable() for line in text.splitlines())


def test_summary_has_the_contract_s_keys_and_is_json() -> None:
    p = planned()
    found = p.summary()
    assert set(found) >= KEYS
    assert json.loads(json.dumps(found)) == found
    assert found["mesh"] == {"x": 2, "y": 4}
    assert set(found["stages"][0]) == {
        "layers", "devices", "mesh", "step_s", "peak_bytes", "recompute"
    }  # fmt: skip
    assert set(found["seconds"]) == {"trace", "substitute", "build", "solve", "inter", "total"}
    for row in found["collectives"]:
        assert set(row) == {"kind", "axes", "group_size", "bytes", "count", "seconds", "cause",
                            "exposed_s"}  # fmt: skip
    for row in found["baselines"].values():
        assert set(row) >= {"step_s", "peak_bytes", "fits"}


def test_shardings_are_pytrees_for_jit() -> None:
    p = planned(baselines=False)
    args_specs = p.in_shardings
    assert args_specs[0]["w1"] == jax.sharding.PartitionSpec(None, "y")
    assert args_specs[1] == jax.sharding.PartitionSpec("x", None)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), p.mesh.names)
    ins = jax.tree.map(lambda s: NamedSharding(mesh, s), args_specs)
    outs = jax.tree.map(lambda s: NamedSharding(mesh, s), p.out_shardings)
    jitted = jax.jit(infer, in_shardings=ins, out_shardings=outs)
    params, x = filled(PARAMS), array(8, 16)
    np.testing.assert_allclose(jitted(params, x), infer(params, x), rtol=1e-5, atol=1e-6)


def test_progress_is_told() -> None:
    lines: list[str] = []
    planned(progress=lines.append, baselines=True)
    assert lines[0] == "trace"
    assert any(line.startswith("mesh ") for line in lines)
    assert any(line.startswith("baseline ") for line in lines)


def test_options_and_settings_join() -> None:
    p = plan(infer, PARAMS, X, cluster="8xhost", options=Options(baselines=False), mesh=(4, 2))
    assert not p.baselines
    assert p.mesh.sizes == (4, 2)


@pytest.mark.parametrize("given", ["name", "path", "cluster"])
def test_cluster_may_be_a_name_a_file_or_a_record(given: str, tmp_path: Path) -> None:
    cluster: str | Path | Cluster = "4xa100"
    if given == "path":
        cluster = tmp_path / "mine.yaml"
        cluster.write_text("device: a100\ndevices: 4\n")
    elif given == "cluster":
        cluster = slow_machine(4)
    p = plan(infer, PARAMS, X, cluster=cluster, baselines=False)
    assert p.mesh.num_devices == 4


# --- files -------------------------------------------------------------------------------------


def test_loaded_plan_says_the_same_and_runs(tmp_path: Path) -> None:
    p = trained()
    p.save(tmp_path / "plan.json")
    q = load(tmp_path / "plan.json")
    assert replace(q, seconds=p.seconds).summary() == p.summary()
    assert str(q) in str(p)
    assert q.explain("params/w1") == p.explain("params/w1")
    assert q.graph == p.graph
    bound = q.bind(mean_loss, PARAMS, BATCH, optimizer=optax.adamw(1e-2))
    assert bound.in_shardings == p.in_shardings
    args = filled(PARAMS), optax.adamw(1e-2).init(filled(PARAMS)), filled(BATCH)
    _, _, found = bound.compile()(*args)
    np.testing.assert_allclose(found, mean_loss(filled(PARAMS), filled(BATCH)), rtol=1e-5)


def test_loaded_plan_keeps_roles_donation_and_captured_constants(tmp_path: Path) -> None:
    held = array(8, 16, seed=3)

    def fn(a, b):
        return a + held, b * 2

    p = plan(
        fn, X, X, cluster="8xhost", donate_argnums=(0,), roles=("optimizer-state", "batch"),
        baselines=False,
    )  # fmt: skip
    p.save(tmp_path / "plan.json")
    q = load(tmp_path / "plan.json").bind(fn, X, X)
    x = q.shard(array(8, 16), argnum=0)
    found, _ = q.compile()(x, array(8, 16))
    np.testing.assert_allclose(found, array(8, 16) + held, rtol=1e-6)
    assert x.is_deleted()
    assert q.graph == p.graph


def test_two_plans_have_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        trained(baselines=True).save(tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


SCRIPT = """
import sys, optax
from planner import plan
from tests.planner.programs import BATCH, PARAMS, mean_loss, slow_machine
p = plan(mean_loss, PARAMS, BATCH, optimizer=optax.adamw(1e-2), cluster=slow_machine())
p.save(sys.argv[1])
"""


def test_another_process_with_other_hashes_writes_the_same_bytes_and_prints_nothing(
    tmp_path: Path,
) -> None:
    mine, other = tmp_path / "mine.json", tmp_path / "other.json"
    trained(mesh=None, baselines=True).save(mine)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(other)], check=True, cwd=ROOT, capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == (b"", b"")
    assert mine.read_bytes() == other.read_bytes()


def test_replacing_a_plan_is_all_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    planned(baselines=False).save(target)
    before = target.read_bytes()
    planned(baselines=False).save(target)
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    planned(baselines=False).save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load(tmp_path / "real.json").mesh.sizes == (2, 4)


def test_a_plan_may_be_read_by_whom_the_folder_s_owner_lets(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        planned(baselines=False).save(tmp_path / "plan.json")
    finally:
        os.umask(umask)
    assert (tmp_path / "plan.json").stat().st_mode & 0o777 == 0o644


def test_a_batch_of_transforms_is_split_and_right() -> None:
    def filtered(x, gain):
        return jnp.fft.irfft(jnp.fft.rfft(x) * gain)

    rng = np.random.default_rng(0)
    x, gain = (rng.normal(size=shape).astype(np.float32) for shape in ((16, 64), (33,)))
    p = plan(filtered, x, gain, cluster="8xhost", mesh=(8,), pins=(("x", "[x,-]"),))
    assert not p.program.warnings
    assert not p.collectives
    np.testing.assert_allclose(p.compile()(x, gain), filtered(x, gain), rtol=1e-5, atol=1e-5)

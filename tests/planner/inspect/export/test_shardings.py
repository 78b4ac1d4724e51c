# pyright: basic
"""`shardings` on a Flax model of its own, in a process without the planner."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from planner import plan
from planner.inspect.export.specs import parameters, patterns
from tests.planner.inspect.export import plans
from tests.planner.inspect.export.fresh import run_fresh
from tests.planner.programs import slow_machine, struct

PROGRAM = """
import json
import flax.linen as nn
import jax, jax.numpy as jnp, numpy as np
import optax
from jax.sharding import NamedSharding
import exported

{model}

rng = np.random.default_rng(0)
batch = {{"x": jnp.asarray(rng.standard_normal((32, 24)), jnp.float32),
         "y": jnp.asarray(rng.integers(0, 16, 32))}}
params = Classifier().init(jax.random.key(1), batch["x"])["params"]

{loss}

value, grads = jax.value_and_grad(loss)(params, batch)
mesh = exported.make_mesh()
placed = jax.device_put(params, exported.shardings(params, mesh))
where = {{k: NamedSharding(mesh, exported.argument_spec(f"batch/{{k}}")) for k in batch}}
split = jax.device_put(batch, where)
got, slopes = jax.jit(jax.value_and_grad(loss))(placed, split)
np.testing.assert_allclose(got, value, rtol=1e-5)
for a, b in zip(jax.tree.leaves(slopes), jax.tree.leaves(grads), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
shown = {{
    jax.tree_util.keystr(p, simple=True, separator="/"): list(leaf.sharding.shard_shape(leaf.shape))
    for p, leaf in jax.tree_util.tree_flatten_with_path(placed)[0]
}}
rules = exported.logical_axis_rules()
flax = {{
    path: [list(e) if isinstance(e, tuple) else e for e in nn.logical_to_mesh_axes(names, rules)]
    for path, names in exported.PLAN["logical_axes"].items()
}}
print(json.dumps({{"shown": shown, "flax": flax}}))
"""


def test_a_flax_model_runs_sharded_as_planned(tmp_path: Path) -> None:
    found = plans.trained()
    found.export("shardings", tmp_path / "exported.json")
    program = PROGRAM.format(
        model=inspect.getsource(plans.Classifier), loss=inspect.getsource(plans.loss)
    )
    said = json.loads(run_fresh(program, tmp_path, devices=4))
    planned = {
        path: list(state.local_shape(found.graph.inputs[n].type.shape, found.mesh))
        for path, (n, state) in parameters(found.analysed).items()
    }
    assert said["shown"] == planned
    assert any(state.axes for _, state in parameters(found.analysed).values())
    data = json.loads((tmp_path / "exported.json").read_text(encoding="utf-8"))
    wrong = [p for p in planned if _whole(said["flax"][p]) != _whole(data["parameters"][p])]
    noted = " ".join(data["not_expressed"])
    assert all(path in noted or "more" in noted for path in wrong)


def _whole(spec: list) -> list:
    while spec and spec[-1] is None:
        spec = spec[:-1]
    return spec


@pytest.mark.parametrize("kind", plans.PLANS)
def test_patterns_give_the_specs(kind: str) -> None:
    states = {path: state for path, (_, state) in parameters(plans.PLANS[kind]().analysed).items()}
    rules = patterns(states)
    for path, state in states.items():
        assert next(s for pattern, s in rules if re.fullmatch(pattern, path)) == state


def test_patterns_join_layers_that_are_alike() -> None:
    found = plans.trained()
    state = found.decisions.inputs[0]
    many = {f"layers/{n}/w": state for n in range(24)}
    assert patterns(many) == [("layers/[0-9]+/w", state)]


EVIL = '"""\nimport os; os.mkdir("pwned")\n# \\'


def test_names_stay_data_in_the_module(tmp_path: Path) -> None:
    found = plan(
        lambda params, x: (x @ params[EVIL]).sum(), {EVIL: struct(16, 16)}, struct(8, 16),
        cluster=slow_machine(2), roles=("parameter", "batch"), baselines=False,
    )  # fmt: skip
    found.export("shardings", tmp_path / "exported.json")
    names = json.loads((tmp_path / "exported.json").read_text(encoding="utf-8"))["parameters"]
    space: dict[str, Any] = {}
    exec((tmp_path / "exported.py").read_text(encoding="utf-8"), space)
    assert list(space["PLAN"]["parameters"]) == list(names) == [EVIL]
    assert space["spec"](EVIL) is not None
    assert not (Path.cwd() / "pwned").exists()

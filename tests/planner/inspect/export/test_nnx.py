# pyright: basic
"""`nnx` on a Flax model, in a process without the planner."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax
import pytest

from planner import parallelize
from planner.inspect.export.specs import parameters, spec_of
from tests.planner.inspect.export.fresh import run_fresh
from tests.planner.programs import slow_machine, struct

nnx = pytest.importorskip("flax.nnx", reason="needs Flax: pip install 'meshwright[flax]'")


class Model(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.layers = nnx.List([nnx.Linear(32, 32, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.head = nnx.Linear(32, 16, use_bias=False, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return self.head(self.norm(x))


def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    loss, slope = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
    optimizer.update(model, slope)
    return loss


def made() -> Any:
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


PROGRAM = """
import json
import jax, numpy as np
from typing import Any
from flax import nnx
import exported

{model}

mesh = exported.make_mesh()
model, plain = exported.create(lambda: Model(nnx.Rngs(0)), mesh), Model(nnx.Rngs(0))
exported.annotate(plain)
specs = nnx.get_partition_spec(nnx.state(plain, nnx.Param))
found = {{}}
for (path, made), (_, spec), (_, there) in zip(
    *map(nnx.to_flat_state, (nnx.state(model, nnx.Param), specs, nnx.state(plain, nnx.Param))),
    strict=True,
):
    made, there = made.get_value(), there.get_value()
    np.testing.assert_array_equal(np.asarray(made), np.asarray(there))
    assert made.sharding.is_equivalent_to(
        jax.sharding.NamedSharding(mesh, spec.get_value()), made.ndim
    ), path
    entries = [list(e) if isinstance(e, tuple) else e for e in spec.get_value()]
    found["/".join(map(str, path))] = [entries, list(made.sharding.shard_shape(made.shape))]
print(json.dumps(found))
"""


def test_variables_lie_as_planned(tmp_path: Path) -> None:
    step: Any = parallelize(train, cluster=slow_machine(8), baseline="fsdp")
    found = step.plan_for(*nnx.eval_shape(made), struct(16, 32), struct(16, 16))
    found.export("nnx", tmp_path / "exported.py")
    said = json.loads(run_fresh(PROGRAM.format(model=inspect.getsource(Model)), tmp_path))
    planned = parameters(found.analysed)
    assert any(state.axes for _, state in planned.values())
    for path, (entries, shard) in said.items():
        n, state = planned[path]
        assert entries == spec_of(state)
        assert shard == list(state.local_shape(found.graph.inputs[n].type.shape, found.mesh))
    assert planned.keys() - said.keys() == {"norm/mean", "norm/var"}  # no `nnx.Param`


def test_other_models_are_refused(tmp_path: Path) -> None:
    step: Any = parallelize(train, cluster=slow_machine(8), baseline="fsdp")
    found = step.plan_for(*nnx.eval_shape(made), struct(16, 32), struct(16, 16))
    found.export("nnx", tmp_path / "exported.py")
    space: dict[str, Any] = {}
    exec((tmp_path / "exported.py").read_text(encoding="utf-8"), space)
    other = nnx.eval_shape(lambda: nnx.Linear(4, 4, rngs=nnx.Rngs(0)))
    with pytest.raises(KeyError, match="no parameter"):
        space["annotate"](other)
    assert "out_sharding" not in other.kernel.get_metadata()

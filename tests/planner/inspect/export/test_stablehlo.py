# pyright: basic
"""`stablehlo` reloaded in a process without the planner: the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from planner import load
from tests.helpers_exhaustive import usual
from tests.planner.inspect.export import plans
from tests.planner.inspect.export.fresh import run_fresh
from tests.planner.programs import filled

PROGRAM = """
import json
import jax, numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.helpers_exhaustive import usual

call = json.load(open("step.call.json"))
program = export.deserialize(bytearray(open("step.jaxexport", "rb").read()))
sizes = [size for _, size in call["mesh"]]
count = int(np.prod(sizes))
mesh = Mesh(np.array(jax.devices()[:count]).reshape(sizes), [name for name, _ in call["mesh"]])
held = np.load("arguments.npz")

def place(n, item):
    spec = PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in item["sharding"]))
    return jax.device_put(held[str(n)], NamedSharding(mesh, spec))

arguments = [place(n, item) for n, item in enumerate(call["arguments"])]
results = program.call(*arguments)
np.savez("results.npz", **{str(n): np.asarray(x) for n, x in enumerate(results)})
"""


@pytest.mark.parametrize("kind", usual(["layered", "tensor-parallel"], ["tensor-parallel"]))
def test_a_fresh_process_computes_the_same(kind: str, tmp_path: Path) -> None:
    found = plans.PLANS[kind]()
    found.export("stablehlo", tmp_path / "step.mlir")
    text = (tmp_path / "step.mlir").read_text(encoding="utf-8")
    assert "sdy.mesh" in text
    assert "sdy.manual_computation" in text
    traced = found._one()
    args, _ = jax.tree.unflatten(traced.in_tree, list(traced.args_info))
    args = jax.tree.map(lambda x, leaf: x.astype(leaf.dtype), filled(args), args)
    leaves = jax.tree.leaves(args)
    held: dict[str, Any] = {str(n): np.asarray(x) for n, x in enumerate(leaves)}
    np.savez(tmp_path / "arguments.npz", **held)
    run_fresh(PROGRAM, tmp_path)
    got = np.load(tmp_path / "results.npz")
    expected = jax.tree.leaves(found.compile()(*args))
    assert len(got.files) == len(expected)
    for n, x in enumerate(expected):
        np.testing.assert_allclose(got[str(n)], x, rtol=1e-5, atol=1e-7)


def test_a_bound_plan_exports_what_the_first_one_did(tmp_path: Path) -> None:
    found = plans.tensor_parallel()
    found.save(tmp_path / "plan.json")
    bound = load(tmp_path / "plan.json").bind(
        plans.mlp_loss, plans.MLP, plans.PAIRS, optimizer=optax.adam(1e-2)
    )
    bound.export("stablehlo", tmp_path / "a.mlir")
    found.export("stablehlo", tmp_path / "b.mlir")
    for ending in (".mlir", ".jaxexport", ".call.json"):
        assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()

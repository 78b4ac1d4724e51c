# pyright: basic
"""References that a function makes (`jax.new_ref`) become values; all others are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from ir import TraceError
from ir.trace import trace
from planner import plan
from tests.planner.programs import array, slow_machine

X, W = array(16, 32), array(32, 32, seed=1) / 4
TOLD: list[float] = []


def written(w: Any, x: Any) -> Any:
    ref = jax.new_ref(x)
    ref[4:8] = ref[0:4] * 2
    ref[::2] += 1.0
    return jnp.tanh(ref[...] @ w), jax.freeze(ref)


def around_a_loop(w: Any, x: Any) -> Any:
    total = jax.new_ref(jnp.zeros_like(x))

    def step(carry: Any, _: Any) -> Any:
        total[...] = total[...] * 0.9 + carry
        return jnp.tanh(carry @ w), total[0, 0]

    last, seen = lax.scan(step, x, None, length=3)
    return last, seen, total[...]


def inside_a_loop(w: Any, x: Any) -> Any:
    def step(carry: Any, _: Any) -> Any:
        ref = jax.new_ref(carry)
        ref[0] = ref[1]
        return jnp.tanh(ref[...] @ w), None

    return lax.scan(step, x, None, length=3)[0]


def in_branches(w: Any, x: Any) -> Any:
    ref = jax.new_ref(x)

    def one() -> None:
        ref[...] = ref[...] @ w

    def other() -> None:
        ref[...] += 1

    lax.cond(x.sum() > 0, one, other)
    jax.jit(lambda r: r.__setitem__(0, r[1]))(ref)
    lax.fori_loop(0, 4, lambda i, c: (ref.__setitem__(i, ref[i + 1]), c)[1], 0)
    return ref[...]


def mapped(w: Any, x: Any) -> Any:
    def row(v: Any) -> Any:
        ref = jax.new_ref(v)
        ref[2:4] = ref[0:2] * 2
        return ref[...] @ w

    return jax.vmap(row)(x)


def beside_a_callback(w: Any, x: Any) -> Any:
    ref = jax.new_ref(x @ w)
    jax.debug.callback(lambda v: TOLD.append(float(v)), ref[0, 0], ordered=True)
    ref[...] += 1
    jax.debug.callback(lambda v: TOLD.append(float(v)), ref[0, 0], ordered=True)
    return ref[...]


def loss(w: Any, x: Any) -> Any:
    ref = jax.new_ref(x)
    for _ in range(3):
        ref[...] += jax.nn.gelu(ref[...] @ w)
    return jnp.mean(jax.freeze(ref) ** 2)


FORMS = (written, around_a_loop, inside_a_loop, in_branches, mapped, beside_a_callback,
         jax.value_and_grad(loss))  # fmt: skip


@pytest.mark.parametrize("fn", FORMS, ids=lambda fn: fn.__name__)
def test_equals_jit(fn: Callable[..., Any]) -> None:
    expected = jax.jit(fn)(W, X)
    jax.effects_barrier()
    told, TOLD[:] = list(TOLD), []
    found = plan(fn, W, X, cluster=slow_machine(8), baselines=False).compile()(W, X)
    jax.effects_barrier()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5), found, expected)
    np.testing.assert_allclose(TOLD, told, 1e-5)
    TOLD.clear()


@pytest.mark.parametrize(
    "settings", [{"pipeline": "off"}, {"pipeline": 2}], ids=["one program", "stages"]
)
def test_losses_run_in_micro_batches(settings: dict[str, Any]) -> None:
    optimizer = optax.sgd(0.1)
    layers = {"a": W, "b": W + 0.1}

    def whole(layers: Any, x: Any) -> Any:
        return loss(layers["b"], jnp.tanh(x @ layers["a"]))

    gradients = jax.grad(whole)(layers, X)
    expected = jax.tree.map(lambda p, g: p - 0.1 * g, layers, gradients)
    planned = plan(whole, layers, X, optimizer=optimizer, microbatches=4, baselines=False,
                   cluster=slow_machine(8), **settings)  # fmt: skip
    found = planned.compile()(jax.tree.map(jnp.array, layers), optimizer.init(layers), X)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), found, expected)


def test_operations_keep_their_lines() -> None:
    lines = {node.source for node in trace(written, W, X).graph.nodes if node.op == "tanh"}
    assert [line.partition(":")[0] for line in lines] == ["test_references.py"]


def test_those_of_the_caller_are_refused() -> None:
    outer = jax.new_ref(jnp.asarray(X))

    def captured(x: Any) -> Any:
        outer[...] = x
        return x * 2

    def captured_beside_its_own(x: Any) -> Any:
        own = jax.new_ref(x)
        own[0] = outer[0]
        return own[...]

    for fn in captured, captured_beside_its_own:
        with pytest.raises(TraceError, match="captures a reference"):
            plan(fn, X, cluster="host")
    with pytest.raises(TraceError, match="argument 'ref': is a reference"):
        plan(lambda ref: ref[...] * 2, outer, cluster="host")


def test_a_written_module_says_that_it_cannot_constrain_them(tmp_path: Path) -> None:
    planned = plan(around_a_loop, W, X, cluster=slow_machine(8), mesh=(2, 4), baselines=False)
    path = tmp_path / "exported.py"
    planned.export("jax", path)
    module: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), module)
    assert module["CONSTRAINTS"]
    with pytest.raises(ValueError, match="has references"):
        module["shard"](around_a_loop, W, X).lower(W, X)

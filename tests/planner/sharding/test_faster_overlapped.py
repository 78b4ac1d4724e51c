# pyright: basic
"""A plan that was found and runs faster with collectives beside compute is named."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from planner import Options, Plan, plan

WIDTH, LAYERS, EXAMPLES = 4096, 4, 32768


def train_step(params, batch):
    def loss(params):
        x = batch
        for w in params:
            x = jax.nn.relu(x @ w)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda w, g: w - (0.1 * g).astype(w.dtype), params, grads)


def planned(**settings) -> Plan:
    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16)] * LAYERS
    batch = jax.ShapeDtypeStruct((EXAMPLES, WIDTH), jnp.bfloat16)
    return plan(train_step, params, batch, cluster="8xh100", options=Options(**settings))


def overlapped_s(found: Plan) -> float:
    return found.file.programs[0].overlapped_s


def test_the_warning_names_a_plan_that_is_faster_overlapped() -> None:
    found, fsdp = planned(), planned(baseline="fsdp")
    (warning,) = found.file.whole.warnings
    assert found.step_s < fsdp.step_s
    assert overlapped_s(fsdp) < overlapped_s(found)
    assert "the hand-written plan 'fsdp' on x=8 is predicted faster" in warning
    assert "Options(baseline='fsdp')" in warning


def test_no_warning_without_overlap_or_for_the_faster_plan() -> None:
    assert planned(overlap=False).file.whole.warnings == ()
    assert planned(baseline="fsdp").file.whole.warnings == ()

# pyright: basic
"""The first lines of a plan's page: known layouts, rates and parts of the step."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

from costmodel import ComputeModel, parse_cluster
from planner import Options, Plan, plan
from planner.inspect.at_a_glance import at_a_glance

EXAMPLES, WIDTH, LAYERS = 64, 256, 2


def train_step(params, batch):
    def loss(params):
        x = batch
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x * x)

    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))


def planned(baseline: str | None, rows: int = EXAMPLES) -> Plan:
    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    batch = jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32)
    options = Options(baseline=baseline, mesh=(8,))
    return plan(train_step, params, batch, cluster="8xh100", options=options)


@pytest.mark.parametrize(
    ("baseline", "layout"),
    [
        ("data-parallel", "data parallel over 8 devices (x)"),
        ("fsdp", "fully sharded data parallel over 8 devices (x)"),
        ("megatron", "tensor parallel over 8 devices (x)"),
    ],
)
def test_well_known_plans_are_called_by_their_names(baseline: str, layout: str) -> None:
    assert at_a_glance(planned(baseline).analysed).layout == layout


def test_figures_follow_from_the_plan() -> None:
    found = planned("data-parallel", 1024)
    glance, step_s = at_a_glance(found.analysed), found.step_s
    products = 3 * LAYERS - 1  # forward, and backward of both operands; none of the first input
    peak = ComputeModel(parse_cluster("8xh100")).peak_flops("float32", tensor=True)
    at_peak_s = products * 2 * 1024 * WIDTH * WIDTH / peak / 8
    assert glance.peak_share == pytest.approx(at_peak_s / step_s)
    assert glance.examples_per_s == pytest.approx(1024 / step_s)
    assert glance.tokens_per_s == 0.0  # the batch holds no ids
    assert sum(share for _, share in glance.limits) == pytest.approx(1.0)
    assert glance.memory_left == pytest.approx(found.file.whole.limit_bytes - found.peak_bytes)
    fitting = [(b.step_s, name) for name, b in found.baselines.items() if b.fits]
    assert (glance.times_as_fast * step_s, glance.other) == pytest.approx(min(fitting))


def test_the_page_and_the_summary_say_it() -> None:
    found = planned(None)
    glance = at_a_glance(found.analysed)
    assert all(line in str(found) for line in glance.lines())
    assert found.summary()["at_a_glance"] == glance.record()


def test_equal_layers_are_one_row() -> None:
    text = str(planned("fsdp"))
    assert f"of {LAYERS + 1} arguments are split" in text
    assert re.search(r"^    params/\*\s+2 x  \[x,-\]$", text, re.MULTILINE)

# pyright: basic
"""The first lines of a plan's page: known layouts, rates and parts of the step."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest

from costmodel import ComputeModel, parse_cluster
from planner import Options, Plan, load, plan
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


def test_what_is_computed_again_is_no_model_flop() -> None:
    def again(params, batch):
        def loss(params):
            layer = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))
            return jnp.mean(layer(layer(batch, params[0]), params[1]) ** 2)

        return jax.grad(loss)(params)

    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    batch = jax.ShapeDtypeStruct((EXAMPLES, WIDTH), jnp.float32)
    options = Options(baseline="data-parallel", mesh=(8,), recompute="written")
    found = plan(again, params, batch, cluster="8xh100", options=options)
    assert "HFU" in str(found)
    assert "MFU" not in str(found)
    assert "MFU" in str(planned("data-parallel"))


def test_the_page_and_the_summary_say_it() -> None:
    found = planned(None)
    glance = at_a_glance(found.analysed)
    assert all(line in str(found) for line in glance.lines())
    assert found.summary()["at_a_glance"] == glance.record()


PRICED = """
device: v100-16gb
devices: 8
prices: {dollars_per_device_hour: 3.6, watts_per_device: 300, source: a test}
"""


def test_prices_of_the_cluster_file_become_those_of_a_step(tmp_path: Path) -> None:
    (tmp_path / "priced.yaml").write_text(PRICED, encoding="utf-8")
    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    batch = jax.ShapeDtypeStruct((EXAMPLES, WIDTH), jnp.float32)
    free, found = (
        plan(train_step, params, batch, cluster=cluster)
        for cluster in ("8xv100-16gb", tmp_path / "priced.yaml")
    )
    glance = found.summary()["at_a_glance"]
    assert glance["dollars"] == pytest.approx(8 * found.step_s * 3.6 / 3600)
    assert glance["kwh"] == pytest.approx(8 * found.step_s * 300 / 3.6e6)
    assert "  cost         $" in str(found)
    assert found.step_s == free.step_s
    assert "prices" not in free.file.whole.cluster
    assert "  cost  " not in str(free)
    assert free.summary()["at_a_glance"]["dollars"] is None
    found.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json").cluster.prices == found.cluster.prices


def test_the_first_lines_say_what_it_is_how_good_and_how_sure(tmp_path: Path) -> None:
    found = planned(None)
    glance, page = at_a_glance(found.analysed), str(found).splitlines()
    assert page[1] == f"  in short     {glance.sentence()}"
    for word in (glance.layout, glance.other, f"{glance.times_as_fast:.2f} times", "limited by"):
        assert word in glance.sentence()
    assert any(line == f"  how sure     {glance.accuracy}" for line in page)
    assert found.summary()["at_a_glance"]["sentence"] == glance.sentence()
    found.report(tmp_path / "plan.html")
    html = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert glance.sentence() in html
    command = glance.what_next.split("`")[1]
    assert f"<code>{command}</code>" in html


def test_a_plan_in_stages_has_a_glance_too() -> None:
    def loss(params, batch):
        for w in params:
            batch = jnp.tanh(batch @ w)
        return jnp.mean(batch * batch)

    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * 4
    batch = jax.ShapeDtypeStruct((EXAMPLES, WIDTH), jnp.float32)
    found = plan(loss, params, batch, cluster="4xv100-16gb:2", optimizer=optax.sgd(0.1), pipeline=2)
    glance = found.summary()["at_a_glance"]
    assert glance["layout"].startswith("a pipeline of 2 stages")
    assert glance["memory_left"] == found.file.whole.limit_bytes - found.peak_bytes
    assert f"  in short     {glance['sentence']}" in str(found)
    assert glance["examples_per_s"] == pytest.approx(EXAMPLES / found.step_s)
    products = 3 * 4 - 1  # forward, and backward of both operands; none of the first input
    peak = ComputeModel(parse_cluster("4xv100-16gb:2")).peak_flops("float32", tensor=True)
    at_peak_s = products * 2 * EXAMPLES * WIDTH * WIDTH / peak / 4
    # A rule may write the sum of squares as a product, a thousandth of the whole.
    assert glance["peak_share"] == pytest.approx(at_peak_s / found.step_s, rel=2e-3)


def test_equal_layers_are_one_row() -> None:
    text = str(planned("fsdp"))
    assert f"of {LAYERS + 1} arguments are split" in text
    assert re.search(r"^    params/\*\s+2 x  \[x,-\]$", text, re.MULTILINE)

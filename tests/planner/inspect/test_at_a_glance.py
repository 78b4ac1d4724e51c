# pyright: basic
"""The first lines of a plan's page: known layouts, rates and parts of the step."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
from msgspec import structs

from costmodel import ComputeModel, parse_cluster
from planner import Options, Plan, load, plan
from planner.common.stop import NO_STAGES, PART, REWRITTEN, Stop, stop_text
from planner.common.units_text import share_text
from planner.inspect.analysed_plan import AnalysedPlan
from planner.inspect.at_a_glance import at_a_glance
from tests.planner.pipeline.unproved import without_proof

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
    assert glance.mfu == pytest.approx(at_peak_s / step_s)
    assert glance.examples_per_s == pytest.approx(1024 / step_s)
    assert glance.tokens_per_s == 0.0  # the batch holds no ids
    assert sum(share for _, share in glance.limits) == pytest.approx(1.0)
    assert glance.memory_left == pytest.approx(found.file.whole.limit_bytes - found.peak_bytes)
    fitting = [(b.step_s, name) for name, b in found.baselines.items() if b.fits]
    assert (glance.times_as_fast * step_s, glance.other) == pytest.approx(min(fitting))


@pytest.mark.parametrize(
    ("scanned", "recompute"), [(False, "written"), (True, "written"), (True, "full")]
)
def test_what_is_computed_again_is_no_model_flop(scanned: bool, recompute: str) -> None:
    def again(params, batch):
        layer = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))

        def loss(params):
            if scanned:
                x = jax.lax.scan(lambda x, w: (layer(x, w), None), batch, params)[0]
            else:
                x = layer(layer(batch, params[0]), params[1])
            return jnp.mean(x * x)

        return jax.grad(loss)(params)

    params = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    batch = jax.ShapeDtypeStruct((EXAMPLES, WIDTH), jnp.float32)
    options = Options(baseline="data-parallel", mesh=(8,), recompute=recompute, substitutions=False)
    found = plan(again, params, batch, cluster="8xh100", options=options)
    glance = at_a_glance(found.analysed)
    # forward, and backward of both operands (written out, none of the first input)
    once = 3 * LAYERS - (not scanned)
    assert glance.hfu / glance.mfu == pytest.approx((once + LAYERS) / once)
    assert f"HFU {share_text(glance.hfu)}" in str(found)
    assert f"MFU {share_text(glance.mfu)}" in str(found)
    rows = found.analysed.reason("").summary()["computed_again"]
    assert sum(row["count"] for row in rows) == LAYERS
    assert sum(row["nbytes"] for row in rows) == LAYERS * EXAMPLES * WIDTH * 4 / 8
    assert 0 < sum(row["seconds"] for row in rows) < found.step_s / 3
    assert "computed again in the backward pass" in found.explain("")
    assert "HFU" not in str(planned("data-parallel"))


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
    html = unescape((tmp_path / "plan.html").read_text(encoding="utf-8"))
    for text in (glance.what(), glance.how_good(), glance.accuracy):
        assert text[1:] in html  # the first letter is large there
    command = glance.what_next.split("`")[1]
    assert f"<code>{command}</code>" in re.sub("</?span>", "", html)


@without_proof()
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
    assert glance["mfu"] == pytest.approx(at_peak_s / found.step_s, rel=2e-3)


def test_equal_layers_are_one_row() -> None:
    text = str(planned("fsdp"))
    assert f"of {LAYERS + 1} arguments are split" in text
    assert re.search(r"^    params/\*\s+2 x  \[x,-\]$", text, re.MULTILINE)


def test_a_step_of_tiny_kernels_waits_for_their_launches() -> None:
    tiny, large = (planned("data-parallel", rows) for rows in (EXAMPLES, 2**20))
    parts = dict(at_a_glance(tiny.analysed).limits)
    assert parts["starting kernels"] > 0.5 * tiny.file.programs[0].compute_s / tiny.step_s
    assert "starting kernels" not in dict(at_a_glance(large.analysed).limits)
    assert "says little" in at_a_glance(tiny.analysed).accuracy
    assert "says little" not in at_a_glance(large.analysed).accuracy


def test_axes_that_work_together_are_named_together() -> None:
    """Parameters split over one of two data axes, and over an axis that splits the sequence."""

    def loss(table, ids):
        return jnp.mean((table[ids] @ table.T) ** 2)

    table = jax.ShapeDtypeStruct((512, 64), jnp.float32)
    ids = jax.ShapeDtypeStruct((64, 4096), jnp.int32)

    def said(pin: str, rows: str, mesh: tuple[int, ...]) -> str:
        options = Options(mesh=mesh, pins={"table": pin, "ids": rows}, substitutions=False)
        step = lambda table, ids: table - jax.grad(loss)(table, ids)  # noqa: E731
        roles = ("parameter", "batch")
        found = plan(step, table, ids, cluster="8xh100", roles=roles, options=options)
        return at_a_glance(found.analysed).layout

    assert said("[y,-]", "[x*y,-]", (2, 4)) == (
        "hybrid sharded data parallel over 8 devices (x*y), parameters split over 4 devices (y)"
    )
    assert said("[x*y,-]", "[x*y,-]", (2, 4)) == "fully sharded data parallel over 8 devices (x*y)"
    assert said("[x*y,-]", "[x,y]", (2, 4)) == (
        "fully sharded data parallel over 2 devices (x), context parallel over 4 devices (y), "
        "parameters split over 8 devices (x*y)"
    )


def test_images_may_be_split_in_space() -> None:
    def loss(kernels, images):
        for kernel in kernels:
            numbers = ("NHWC", "HWIO", "NHWC")
            images = jax.lax.conv_general_dilated(
                images, kernel, (1, 1), "SAME", dimension_numbers=numbers
            )
        return jnp.mean(images**2)

    kernels = [jax.ShapeDtypeStruct((3, 3, 16, 16), jnp.float32)] * 2
    image = jax.ShapeDtypeStruct((1, 4096, 4096, 16), jnp.float32)
    options = Options(mesh=(8,), substitutions=False, baselines=False)
    found = plan(jax.grad(loss), kernels, image, cluster="8xh100", options=options)
    assert at_a_glance(found.analysed).layout == "spatial partitioning over 8 devices (x)"


def test_examples_and_tokens_are_of_the_same_argument() -> None:
    def step(w, batch):
        x = w[batch["ids"]].sum(1)
        return (
            w
            - jax.grad(lambda w: jnp.mean((x @ w.T) ** 2))(w)
            + batch["table"].sum() * batch["weights"].sum()
        )

    w = jax.ShapeDtypeStruct((512, 64), jnp.float32)
    batch = {
        "ids": jax.ShapeDtypeStruct((64, 16), jnp.int32),
        "weights": jax.ShapeDtypeStruct((64,), jnp.float32),
        "table": jax.ShapeDtypeStruct((999, 3), jnp.int32),
    }
    found = plan(step, w, batch, cluster="8xh100", roles=("parameter", "batch"), baselines=False)
    glance = at_a_glance(found.analysed)
    assert glance.examples_per_s == pytest.approx(64 / found.step_s)
    assert glance.tokens_per_s == pytest.approx(64 * 16 / found.step_s)


def test_the_sentence_says_how_far_the_bound_is() -> None:
    found = planned("data-parallel")

    def said(share: float, stop: str = "GAP") -> str:
        program = structs.replace(
            found.program, lower_bound_s=share * found.step_s, stop=stop, warnings=()
        )
        analysed = AnalysedPlan(program, found.decisions, found.cluster, "here")
        return at_a_glance(analysed).sentence()

    assert "; no plan of the search space is faster, by proof; limited" in said(1.0)
    assert "; no plan of the search space is more than 30% faster, by a lower bound;" in said(0.7)
    assert "search space" not in said(0.0)
    ended = said(1.0, "TIME_LIMIT")
    assert "no plan that was looked at before the search ended is faster, by proof" in ended
    some = structs.replace(found.program, lower_bound_s=found.step_s, warnings=(PART,))
    analysed = AnalysedPlan(some, found.decisions, found.cluster, "here")
    words = "with choices of recomputation that were planned"
    assert f"; no plan {words} is faster, by proof; limited" in at_a_glance(analysed).sentence()
    assert f"proved optimal (the bound is of plans {words})" in stop_text(Stop.OPTIMAL, (PART,))
    assert stop_text(Stop.OPTIMAL, (NO_STAGES,)).endswith("(the bound is of plans in one program)")
    assert f"plans in one program {words})" in stop_text(Stop.OPTIMAL, (PART, NO_STAGES))
    of = "plans of the rewritten program in one program)"
    assert of in stop_text(Stop.OPTIMAL, (NO_STAGES, REWRITTEN))

# pyright: basic
"""Plans of the examples against hand-written ones, and plans that everybody knows."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

import jax
import optax
import pytest

from examples.gpt import ADAMW, GPT, Block
from ir.analysis.dimension_classes import Classes
from planner import Plan, plan
from planner.sharding.search.context import Candidate
from planner.sharding.search.over_meshes import Search, SearchOutcome

# Examples as small as theirs are best left on every device; with this batch they are worth
# splitting.
BATCH = 4096
TARGETS = (
    "encoder_decoder:small", "gpt:block", "gpt:small", "gpt:small_scanned", "llama:small",
    "lstm:small", "moe:small", "recommender:small", "unet:small", "vit:small", "wide_resnet:small",
)  # fmt: skip
# One layer says as much as two, in half the time.
SHALLOW = ("encoder_decoder:small", "moe:small", "vit:small")
# One mesh each; `test_two_sequences_are_no_dearer_than_megatron` searches them all.
CLUSTERS = {"4xb200": (4,), "8xh100": (2, 4), "8xv100-16gb:4": (2, 4)}


@dataclass(frozen=True)
class Searched:
    """A plan and all that was looked at on the way to it."""

    plan: Plan
    found: SearchOutcome

    def state(self, name: str) -> str:
        return str(self.plan.input_shardings()[name])


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`plan` of programs as they are written, with the search that it made."""
    runs: list[SearchOutcome] = []
    original = Search.run

    def run(search: Search) -> SearchOutcome:
        runs.append(original(search))
        return runs[-1]

    monkeypatch.setattr(Search, "run", run)

    def call(target: Any, cluster: str, **settings: Any) -> Searched:
        fn, args, options = target
        made = plan(fn, *args, cluster=cluster, substitutions=False, **options, **settings)
        return Searched(made, runs[-1])

    return call


@functools.cache
def example(target: str) -> Any:
    """A small example with a large batch, as shapes."""
    module, name = target.split(":")
    made = getattr(importlib.import_module(f"examples.{module}"), name)
    method = made.func if isinstance(made, functools.partial) else made
    settings = made.keywords if isinstance(made, functools.partial) else {}
    depth = {"layers": 1} if target in SHALLOW else {}
    return method.__self__._replace(batch=BATCH, **depth).target(jax.eval_shape, **settings)


# Products, experts and lookups, each on a cluster; the other examples are larger programs of the
# same ops.
ALWAYS = {"gpt:small": "4xb200", "moe:small": "8xv100-16gb:4", "recommender:small": "8xh100"}


def cells() -> list[Any]:
    """Every example on every cluster; some of the smallest are always run."""
    found: list[Any] = []
    for target in TARGETS:
        for cluster in sorted(CLUSTERS):
            always = ALWAYS.get(target) == cluster
            marks = [] if always else [pytest.mark.exhaustive]
            found.append(pytest.param(target, cluster, marks=marks, id=f"{target} {cluster}"))
    return found


@pytest.mark.parametrize(("target", "cluster"), cells())
def test_a_plan_is_never_above_a_hand_written_one(searched: Any, target: str, cluster: str) -> None:
    result = searched(example(target), cluster, mesh=CLUSTERS[cluster])
    made, candidates = result.plan, result.found.candidates
    fitting = [row.step_s for row in made.baselines.values() if row.fits]
    assert fitting
    assert made.step_s <= min(fitting) * (1 + 1e-9)
    assert made.lower_bound_s <= made.step_s * (1 + 1e-9)
    own = next(c for c in candidates if c.name == "search")
    for candidate in candidates:
        sums = candidate.account
        # The search does not lean on the baselines: what it finds itself is as good.
        assert own.account.step_s <= sums.step_s * (1 + 1e-3)
        assert made.lower_bound_s <= sums.step_s * (1 + 1e-9)
        assert sums.step_s == pytest.approx(candidate.solution.cost, rel=1e-9)
        assert sums.step_s == pytest.approx(sums.compute_s + sums.exposed_s, rel=1e-9)
        assert sums.communication_s == pytest.approx(sum(c.seconds for c in sums.collectives))
        assert sums.peak_bytes >= sums.argument_bytes > 0


# --- plans that everybody knows ----------------------------------------------------------------


def batch_shares(candidate: Candidate) -> list[int]:
    """For every product that has the batch: into how many parts its batch is split."""
    builder, built = candidate.builder, candidate.built
    flat = builder.flat
    specs = [builder.spec(op) for op in flat.ops]
    classes = Classes(flat, specs)
    tokens = [v for v in flat.inputs if flat.values[v].type.shape[:1] == (BATCH,)]
    batch = {classes.of_dim(v, 0) for v in tokens}
    found: list[int] = []
    for i, node in sorted(built.op_node.items()):
        if flat.ops[i].node.op != "dot_general":
            continue
        mine = {f for f in specs[i].names if classes.of_factor(i, f) in batch}
        strategy = built.refs[node].menu[candidate.solution.choice[node]]
        split = strategy.factor_axes(builder.mesh)
        if mine:
            found.append(max(builder.mesh.product(split.get(f, ())) for f in mine))
    return found


BLOCK = Block(*GPT(256, 2048, 8192, 64, 1, 1, "bfloat16", False))


def test_megatron_is_found(searched: Any) -> None:
    """One sequence cannot be split over the batch: columns first, rows second."""
    target = BLOCK.target(jax.eval_shape, optax.sgd(1e-2))
    result = searched(target, "8xh100", overlap=False, mesh=(8,))
    made = result.plan
    assert result.found.best.name == "search"
    assert result.state("params/qkv") == "[-,-,x,-]"
    assert result.state("params/out") == "[x,-,-]"
    assert result.state("params/up") == "[-,x]"
    assert result.state("params/down") == "[x,-]"
    # The norms between the halves are split along the sequence: each half gathers what it reads
    # and scatters the sum that it makes, once forward and once backward.
    whole = BLOCK.seq * BLOCK.hidden * 2
    large = [c for c in made.collectives if c.bytes > whole / 2]
    sent = {"all-gather": 0.0, "reduce-scatter": 0.0}
    for c in large:
        sent[c.kind] += c.count
    assert sent == {"all-gather": 4.0, "reduce-scatter": 4.0}
    assert made.step_s <= made.baselines["megatron-sp"].step_s * (1 + 1e-9)
    assert made.step_s < made.baselines["data-parallel"].step_s


@pytest.mark.exhaustive
def test_two_sequences_are_no_dearer_than_megatron(searched: Any) -> None:
    target = BLOCK._replace(batch=2).target(jax.eval_shape, optax.sgd(1e-2))
    result = searched(target, "8xh100")
    assert result.found.best.name == "search"
    rows = result.plan.baselines
    assert result.plan.step_s <= min(rows["megatron"].step_s, rows["megatron-sp"].step_s)


def test_parameters_are_split_over_all_devices_where_memory_forces_it(searched: Any) -> None:
    model = GPT(51200, 2048, 4096, 32, 1, 64, "bfloat16", False)
    target = model.target(jax.eval_shape, ADAMW)
    settings = {"overlap": False}  # else activations are exchanged beside products
    loose = searched(target, "8xh100", mesh=(8,), **settings)
    least = loose.plan.baselines["data-parallel"].peak_bytes
    tight = searched(target, "8xh100", mesh=(8,), memory_bytes=int(least * 0.85),
                     baselines=False, **settings)  # fmt: skip
    assert tight.plan.peak_bytes <= least * 0.85
    for made in (loose, tight):
        states = made.plan.input_shardings()
        kernels = [n for n in states if n.startswith("params") and len(states[n].dims) > 1]
        assert len(kernels) == 4 + 2
        for name in kernels:
            assert made.plan.mesh.product(states[name].axes) == 8
        sent = dict.fromkeys(("all-gather", "all-reduce", "all-to-all", "reduce-scatter"), 0.0)
        for row in made.plan.collectives:
            sent[row.kind] += row.bytes
        # Weights are gathered and gradients scattered, that of the tokens after an exchange of the
        # slopes that make it; only scalars and norms are all-reduced.
        assert sent["all-reduce"] < 0.01 * min(sent["all-gather"], sent["reduce-scatter"])


def test_a_small_model_with_a_large_batch_is_data_parallel(searched: Any) -> None:
    model = GPT(512, 128, 256, 8, 1, BATCH, "bfloat16", False)
    target = model.target(jax.eval_shape, ADAMW)
    # With exchanges beside products updates are worth splitting.
    result = searched(target, "8xh100", overlap=False, mesh=(8,))
    shares = batch_shares(result.found.best)
    ops = result.found.best.builder.flat.ops
    assert len(shares) == sum(op.node.op == "dot_general" for op in ops)
    assert set(shares) == {8}
    states = result.plan.input_shardings()
    assert all(states[name].is_replicated for name in states if name.startswith("params"))
    assert result.plan.step_s == pytest.approx(
        result.plan.baselines["data-parallel"].step_s, rel=0.01
    )

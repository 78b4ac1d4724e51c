# pyright: basic
"""Plans and measured steps with and without substitutions.

    python -m benchmarks substitutions [--quick] [--shared] [--only NAME,NAME]

Planned: predicted step of each model on 8 H100s as written and rewritten, and what the search for
rewrites costs beside planning (processor seconds of one process). Measured: a step on one CPU
device of this machine, as the fastest of several runs taken in turns, of plain `jax.jit`, of the
plan without rewrites and of the plan with them; the ratios are to plain `jax.jit`. Plans for the
CPU are priced by what `meshwright profile` measured, or it is measured first. With `--shared` both
are processor seconds over the cores, for a machine that others use at the same time. `products`
are those of the program as traced, as XLA compiles it, and of the rewritten one as traced: where
the second is smaller than the first, XLA joins products by itself. Results are compared with those
of the model run operation by operation: `jit differs` is the difference of plain `jax.jit`, `most
differs` the most of all runs. With jaxlib 0.10.2 `jax.jit` itself is wrong on CPUs for some sums of
products (github.com/jax-ml/jax/issues/39103); XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=
turns off what does it.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.host_steps import cluster_of
from benchmarks.taso_models import MODELS, step_of
from costmodel import Cluster
from planner import Plan, plan
from planner.cli.target import load_target
from profiles.measure import cores_s, wall_s

EXAMPLES = (
    ("examples/llama.py:llama3_8b", "8xh100"),
    ("examples/lstm.py:gnmt_like", "8xh100"),
    ("examples/recommender.py:dlrm", "8xh100"),
    ("examples/gpt.py:gpt_1_3b_scanned", "8xh100"),
    ("examples/wide_resnet.py:wrn_50_2", "8xh100"),
)
ROUNDS = 15


def both(fn: Any, args: Any, settings: dict[str, Any]) -> tuple[Plan, Plan, float, float]:
    """Plans without and with rewrites, and the processor seconds of each."""
    spent: list[float] = []
    plans: list[Plan] = []
    for on in (False, True):
        start = time.process_time()
        plans.append(plan(fn, *args, substitutions=on, **settings))
        spent.append(time.process_time() - start)
    return plans[0], plans[1], spent[0], spent[1]


def planned(name: str, fn: Any, args: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """A row of the first table."""
    plain, rewritten, before_s, after_s = both(fn, args, settings)
    row = {
        "model": name, "cluster": settings["cluster"], "nodes": plain.graph.count_nodes(),
        "step_s": plain.step_s, "rewritten_step_s": rewritten.step_s,
        "substitutions": rewritten.substitutions, "plan_cpu_s": before_s,
        "plan_rewritten_cpu_s": after_s, "substitute_s": rewritten.seconds["substitute"],
    }  # fmt: skip
    print(
        f"| {name} | {row['nodes']} | {plain.step_s * 1e3:.4g} | {rewritten.step_s * 1e3:.4g} | "
        f"{plain.step_s / rewritten.step_s:.3f} | {before_s:.1f} | {after_s:.1f} | "
        f"{_rules(rewritten)} |", flush=True,
    )  # fmt: skip
    return row


def _rules(p: Plan) -> str:
    return ", ".join(f"{rule} {count}" for rule, count in p.substitutions.items()) or "none"


def arrays(params: Any, batch: Any) -> Any:
    """Random arrays of the given shapes; parameters keep the scale of what they are applied to."""
    rng = np.random.default_rng(0)

    def one(s: Any, scale: float) -> Any:
        if np.issubdtype(s.dtype, np.integer):
            return jax.numpy.asarray(rng.integers(0, 1024, s.shape), s.dtype)
        return jax.numpy.asarray(rng.standard_normal(s.shape) * scale, s.dtype)

    weights = jax.tree.map(lambda s: one(s, max(np.prod(s.shape[:-1]), 1) ** -0.5), params)
    return weights, jax.tree.map(lambda s: one(s, 1.0), batch)


def measured(
    name: str, fn: Any, args: Any, rounds: int, cluster: Cluster, clock: Callable[[], float]
) -> dict[str, Any]:
    """A row of the second table."""
    plain, rewritten, _, _ = both(fn, args, {"cluster": cluster, "baselines": False})
    values = arrays(*args)
    device = jax.devices()[:1]
    runs: dict[str, Any] = {"jit": jax.jit(fn), "plain": plain.compile(devices=device)}
    if rewritten.substitutions:
        runs["rewritten"] = rewritten.compile(devices=device)
    results = {key: jax.block_until_ready(run(*values)) for key, run in runs.items()}
    with jax.disable_jit():
        expected = fn(*values)
    differs = {key: _difference(expected, found) for key, found in results.items()}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for key, run in runs.items():
            start = clock()
            jax.block_until_ready(run(*values))
            best[key] = min(best[key], clock() - start)
    compiled = jax.jit(fn).lower(*args).compile().as_text() or ""
    products = (_products(plain), len(re.findall(PRODUCT, compiled)), _products(rewritten))
    row = {
        "model": name, "seconds": best, "predicted_s": plain.step_s,
        "predicted_rewritten_s": rewritten.step_s, "substitutions": rewritten.substitutions,
        "differences": differs, "products": products,
    }  # fmt: skip
    ratio = f"{best['rewritten'] / best['jit']:.2f}" if "rewritten" in best else "as written"
    print(
        f"| {name} | {best['jit'] * 1e3:.2f} | {plain.step_s * 1e3:.2f} | "
        f"{best['plain'] / best['jit']:.2f} | {ratio} | "
        f"{rewritten.step_s / plain.step_s:.2f} | {differs['jit']:.1e} | "
        f"{max(differs.values()):.1e} | {products} | {_rules(rewritten)} |",
        flush=True,
    )  # fmt: skip
    return row


# Products and convolutions in XLA's text, those that are calls of a library included.
PRODUCT = r"= \S+ (?:dot|convolution)\(|custom_call_target=\"__onednn\$(?:matmul|conv)"


def _products(p: Plan) -> int:
    """Products and convolutions of a program without loops."""
    return sum(node.op in ("dot_general", "conv_general_dilated") for node in p.graph.nodes)


def _difference(left: Any, right: Any) -> float:
    """Largest difference, relative to the largest element of the same array."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return max(float(abs(a - b).max() / max(abs(a).max(), 1e-6)) for a, b in pairs)


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints both tables and returns their rows."""
    names = ("nasrnn", "linear-attention") if quick else tuple(MODELS)
    shared, only = "--shared" in sys.argv, "--only" in sys.argv
    if only:
        names = tuple(sys.argv[sys.argv.index("--only") + 1].split(","))
    print("| model | nodes | step ms | rewritten ms | gain | plan cpu s | with | rules |")
    print("|" + "---|" * 8)
    rows: list[dict[str, Any]] = []
    for name in names:
        for train in (False, True):
            fn, args = step_of(name, train=train)
            label = f"{name} {'training' if train else 'inference'}"
            rows.append(planned(label, fn, args, {"cluster": "8xh100"}))
    for target, cluster in () if quick or only else EXAMPLES:
        loaded = load_target(target)
        settings = {**loaded.settings, "cluster": cluster}
        rows.append(planned(target.rpartition(":")[2], loaded.fn, loaded.args, settings))
    print(
        "\n| model | jit ms | predicted ms | plan / jit | rewritten / jit | predicted | "
        "jit differs | most differs | products | rules |"
    )
    print("|" + "---|" * 10)
    host, clock = cluster_of(1, shared=shared), cores_s if shared else wall_s
    for name in names:
        for train in (False, True):
            fn, args = step_of(name, train=train)
            label = f"{name} {'training' if train else 'inference'}"
            rows.append(measured(label, fn, args, 5 if quick else ROUNDS, host, clock))
    return rows

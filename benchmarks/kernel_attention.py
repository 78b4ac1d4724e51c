# pyright: basic
"""Llama-3 8B whose attention is cuDNN's kernel, planned, priced, compiled for GPUs and run.

    python -m benchmarks kernel-attention

Training steps of one and of eight sequences of 8,192 tokens on eight H100s, layers recomputed,
AdamW, attention by `jax.nn.dot_product_attention(..., implementation="cudnn")`. Columns:

    split     roles of the kernels and their devices
    forward   seconds of a kernel in the plan, over those of the table's own timing of 32 causal
              heads of 128 over 8,192 keys, for as many heads as a device has; so `backward`
    scores    values of the program with two dimensions as long as the sequence
    error     the decisions of the plan, taken for a small model of the same form, run on eight host
              devices: the largest difference of a result from that of `jax.jit` on one device with
              the reference form of the kernel, over its largest magnitude
    rounding  the same of that one device from the model in float32 with attention written out:
              what 16-bit numbers alone make of it

`whole` has the scores of attention in memory, under the same settings. Where XLA's compiler for
GPUs is installed (extra `gpu-aot`), what it makes of the plan follows the row, with the kernel's
calls: a device has no workspace of cuDNN in it, which is chosen on the GPU.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.long_context import LLAMA_3
from benchmarks.published_model import Transformer
from costmodel import AttentionWork, ComputeModel, parse_cluster
from ir import ATTENTION
from ir.analysis import flatten, operand_types
from ir.host_kernels import cudnn_assumed
from ir.trace import trace
from planner import PlanError, plan, verify
from planner.emit import compile_plan
from planner.sharding.lower import lower_decisions
from planner.training.step_call import step_for

CLUSTER, TOKENS = "8xh100", 8192
MODEL = replace(LLAMA_3, seq=TOKENS)
SMALL = replace(MODEL, layers=8, hidden=512, ffn=512, vocab=512, seq=64)
OPTIMIZER = optax.adamw(1e-4)
HEAD = ("sequences", "step ms", "whole", "peak GB", "whole", "split", "forward ms", "of table",
        "backward ms", "of table", "scores", "whole", "error",
        "rounding")  # fmt: skip


def _planned(model: Transformer, sequences: int) -> Any:
    return plan(
        model.loss, model.parameters(), model.batch(sequences), optimizer=OPTIMIZER,
        cluster=CLUSTER, pipeline="off", baselines=False, substitutions=False, padding=False,
        attention="written", recompute="written",
    )  # fmt: skip


def _kernels(found: Any) -> tuple[str, dict[str, tuple[float, float]]]:
    """Roles of the kernels, and of each kernel its seconds and their ratio to the table's."""
    lowered, cluster = found._lowered, parse_cluster(CLUSTER)
    compute, table = ComputeModel(cluster), cluster.attention
    roles, prices = set[str](), dict[str, tuple[float, float]]()
    for op, strategy in zip(lowered.flat.ops, lowered.strategies, strict=True):
        if op.node.op not in ATTENTION or strategy is None:
            continue
        parts = {
            role: float(lowered.mesh.product(axes))
            for role, axes in strategy.factor_axes(lowered.mesh).items()
        }
        roles.add(", ".join(f"{role} {n:.0f}" for role, n in parts.items()))
        ways = {role: np.array([n]) for role, n in parts.items()}
        work = AttentionWork(op.node, operand_types(lowered.flat, op), ways)
        seconds, heads = float(work.seconds(compute)[0]), float(np.ravel(work.heads)[0])
        assert table is not None
        timings = [
            row
            for row in table.kernels
            if (row.head_dim, row.heads, row.keys, row.pairs)
            == (128, heads, TOKENS, TOKENS * TOKENS // 2)
        ]
        assert timings, f"h100.json has no timing of attention with {heads:.0f} heads"
        own = timings[0]  # those of an H100 come before those of an H200
        backward = op.node.op == ATTENTION[1]
        timed = own.backward_s if backward else own.seconds
        prices["backward" if backward else "forward"] = seconds, seconds / timed
    return " and ".join(sorted(roles)), prices


def _scores(found: Any) -> int:
    """Values with two dimensions as long as the sequence."""
    values = found._lowered.flat.values
    return sum(value.type.shape.count(TOKENS) > 1 for value in values)


def _step(model: Transformer, sequences: int) -> Any:
    return step_for(
        model.loss, (model.parameters(), model.batch(sequences)), optimizer=OPTIMIZER,
        microbatches=1, loss_reduction="auto",
    )  # fmt: skip


def _errors(found: Any, sequences: int) -> tuple[float, float]:
    """Differences on the small model: of the plan from one device, and of that from float32."""
    step, rng = _step(SMALL, sequences), np.random.default_rng(0)

    def drawn(type_: Any) -> Any:
        if jnp.issubdtype(type_.dtype, jnp.integer):
            return jnp.asarray(rng.integers(0, SMALL.vocab, type_.shape), type_.dtype)
        scale = SMALL.hidden**-0.5 if len(type_.shape) > 1 else 1.0
        return jnp.asarray(rng.normal(size=type_.shape) * scale, type_.dtype)

    params, state, batch = jax.tree.map(drawn, step.args)
    args = params, jax.tree.map(jnp.zeros_like, state), batch
    with cudnn_assumed():
        traced = trace(step.fn, *args)
        lowered = lower_decisions(
            flatten(traced.graph), found.decisions, found.analysed.reshard, {}
        )
        here, one = compile_plan(traced, lowered)(*args), jax.jit(step.fn)(*args)
    wide = _step(replace(SMALL, dtype="float32", flash=False), sequences)
    given = jax.tree.map(lambda x, type_: x.astype(type_.dtype), args, wide.args)
    return _difference(here, one), _difference(one, jax.jit(wide.fn)(*given))


def _difference(found: Any, wanted: Any) -> float:
    """The largest difference of a leaf, over the largest magnitude in it."""
    error = 0.0
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        mine, theirs = (np.asarray(v, np.float64) for v in (x, y))
        error = max(error, float(np.abs(mine - theirs).max() / max(np.abs(theirs).max(), 1e-30)))
    return error


def _compiled(found: Any) -> str:
    """What XLA's compiler for GPUs makes of a plan, or why it makes nothing."""
    try:
        return str(verify(found, compiler="gpu-aot"))
    except PlanError as error:
        return f"not compiled: {error}"


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints the table, and what the compiler says of each plan.

    Args:
        quick: without the compiler.
    """
    rows: list[dict[str, Any]] = []
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    for sequences in (1, 8):
        found = _planned(MODEL, sequences)
        written = _planned(replace(MODEL, flash=False), sequences)
        split, prices = _kernels(found)
        error, rounding = _errors(found, sequences)
        row: dict[str, Any] = {
            "sequences": sequences, "step_s": found.step_s, "peak_bytes": found.peak_bytes,
            "split": split, "kernels": prices, "scores": _scores(found), "gap": found.gap,
            "written": {"step_s": written.step_s, "peak_bytes": written.peak_bytes,
                        "scores": _scores(written)},
            "error": error, "rounding": rounding, "compiled": "" if quick else _compiled(found),
        }  # fmt: skip
        cells = [f"{sequences}", f"{found.step_s * 1e3:.1f}", f"{written.step_s * 1e3:.1f}"]
        cells += [f"{found.peak_bytes / 1e9:.2f}", f"{written.peak_bytes / 1e9:.2f}", split]
        for way in ("forward", "backward"):
            cells += [f"{prices[way][0] * 1e3:.3f}", f"{prices[way][1]:.3f}"]
        cells += [
            f"{row['scores']}",
            f"{row['written']['scores']}",
            f"{error:.1e}",
            f"{rounding:.1e}",
        ]
        print(f"| {' | '.join(cells)} |", row["compiled"], sep="\n", flush=True)
        rows.append(row)
    return rows

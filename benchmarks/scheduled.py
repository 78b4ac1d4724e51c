# pyright: basic
"""Exposed seconds that plans predict, beside those of the schedule that XLA's GPU compiler makes.

    python -m benchmarks scheduled [--quick] [--only gpt]

Thirty plans of eight models, with layers in loops and written out, for eight H100: chosen freely
on given meshes, or within hand-written layouts. No GPU is needed
(`pip install 'meshwright[gpu-aot]'`). A difference is given as a share of the step that the plan
predicts, and by collectives: those that expose more than predicted must have a note.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax

from benchmarks.models import UnrolledLlama
from examples.encoder_decoder import T5
from examples.gpt import GPT
from examples.llama import Llama
from examples.moe import MoE
from examples.recommender import DLRM
from examples.vit import VIT_L_16
from planner import PlanError, plan, verify

LLAMA = Llama(32000, 2048, 4096, 32, 8, 14336, 4, 8, "bfloat16")
DATA, FSDP, TENSOR = ("data-parallel", (8,)), ("fsdp", (8,)), ("megatron", (2, 4))
FREE, ONE_AXIS = (None, (2, 4)), (None, (8,))
# Model, and layouts with their meshes.
Plans = Mapping[str, tuple[Any, tuple[tuple[str | None, tuple[int, ...]], ...]]]
PLANS: Plans = {
    "gpt scanned": (
        GPT(51200, 1024, 2048, 32, 4, 32, "bfloat16", True), (FREE, DATA, FSDP, TENSOR)),
    "gpt written out": (
        GPT(51200, 1024, 2048, 32, 3, 32, "bfloat16", False),
        (FREE, DATA, FSDP, TENSOR, ("zero-2", (8,)))),
    "llama scanned": (LLAMA, (FREE, DATA, FSDP, ("megatron-sp", (2, 4)))),
    "llama written out": (UnrolledLlama(*LLAMA._replace(layers=2)), (FREE, FSDP, DATA, TENSOR)),
    "moe": (
        MoE(32000, 1024, 1536, 16, 8, 8 * 1536, 2048, 4, 64, "bfloat16"),
        (FREE, ONE_AXIS, ("expert-parallel", (8,)), FSDP)),
    "t5": (T5(32128, 512, 128, 768, 12, 3072, 2, 128, "bfloat16"), (FREE, DATA, FSDP)),
    "vit": (VIT_L_16._replace(layers=4, batch=512), (FREE, DATA, FSDP)),
    "dlrm": (
        DLRM(26, 100_000, 128, 13, (512, 256), (1024, 1024, 512, 256), 8192, "bfloat16"),
        (FREE, DATA, ONE_AXIS)),
}  # fmt: skip
HEAD = (
    "| model | plan | mesh | predicted ms | scheduled ms | of communication ms | step ms "
    "| difference | notes |\n|" + "---|" * 9
)


def one(model: Any, baseline: str | None, mesh: tuple[int, ...]) -> dict[str, Any]:
    """Plans, compiles and compares."""
    fn, args, settings = partial(model.target, jax.eval_shape)()
    start = time.process_time()
    found = plan(fn, *args, cluster="8xh100", mesh=mesh, baseline=baseline,
                 baselines=baseline is not None, recompute="written",
                 **settings)  # fmt: skip
    verified = verify(found, compiler="gpu-aot")
    overlap = verified.overlap
    assert overlap is not None
    more = [c.scheduled_exposed_s - c.predicted_exposed_s for c in overlap.collectives]
    without = [
        max(d / found.step_s, 0.0) for d, c in zip(more, overlap.collectives, strict=True)
        if not c.note
    ]  # fmt: skip
    return {
        "step_s": found.step_s, "notes": len(overlap.notes),
        "predicted_count": sum(c.predicted_count for c in verified.collectives),
        "compiled_count": sum(c.compiled_count for c in verified.collectives),
        "worst_without_a_note": max(without, default=0.0),
        "difference": (overlap.scheduled_exposed_s - overlap.predicted_exposed_s) / found.step_s,
        "cpu_s": time.process_time() - start, **overlap.summary(),
    }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    name = f"| {row['model']} | {row['plan']} | {row['mesh']} "
    if "error" in row:
        return f"{name}| {row['error']} |"
    predicted, scheduled = row["predicted_exposed_s"], row["scheduled_exposed_s"]
    return (
        f"{name}| {predicted * 1e3:.2f} | {scheduled * 1e3:.2f} "
        f"| {row['scheduled_communication_s'] * 1e3:.2f} | {row['step_s'] * 1e3:.1f} "
        f"| {row['difference']:+.1%} | {row['notes']} |"
    )


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors over all plans, as shares of the predicted step and of the communication."""
    good = [row for row in rows if "error" not in row]
    off = [abs(row["difference"]) for row in good]
    sent = [
        abs(row["scheduled_exposed_s"] - row["predicted_exposed_s"])
        / max(row["predicted_communication_s"], 1e-12)
        for row in good
    ]
    return {
        "plans": len(good), "failed": len(rows) - len(good),
        "median_of_step": statistics.median(off) if off else None,
        "worst_of_step": max(off, default=None),
        "median_of_communication": statistics.median(sent) if sent else None,
        "worst_of_communication": max(sent, default=None),
        "scheduled_exposes_more": sum(row["difference"] > 0 for row in good),
        "collectives_predicted": sum(row["predicted_count"] for row in good),
        "collectives_compiled": sum(row["compiled_count"] for row in good),
        "worst_of_step_without_a_note": max(
            (row["worst_without_a_note"] for row in good), default=None
        ),
    }  # fmt: skip


def main(quick: bool) -> list[dict[str, Any]]:
    """Prints the table and its summary, which is the last row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scheduled")
    parser.add_argument("--only", default="", help="models whose name contains this")
    only = parser.parse_known_args()[0].only
    layouts = {
        name: (model, given[: 1 if quick else None])
        for name, (model, given) in PLANS.items() if only in name
    }  # fmt: skip
    rows = rows_of(layouts)
    rows.append({"summary": summary(rows)})
    print(rows[-1])
    return rows


def rows_of(layouts: Plans) -> list[dict[str, Any]]:
    """Prints a table of plans and returns its rows."""
    print(HEAD, flush=True)
    rows: list[dict[str, Any]] = []
    for name, (model, given) in layouts.items():
        for baseline, mesh in given:
            row: dict[str, Any] = {"model": name, "plan": baseline or "chosen", "mesh": mesh}
            try:
                row |= one(model, baseline, mesh)
            except PlanError as error:
                row["error"] = str(error)
            rows.append(row)
            print(line(row), flush=True)
    return rows

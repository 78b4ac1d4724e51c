# pyright: basic
"""Plans chosen with overlap, plans chosen by the sum, and hand-written plans, all priced alike.

    python -m benchmarks overlap [--quick] [--only llama-8b]

Every model is planned for 8, 64 and 512 H100 twice: by the step with collectives beside compute,
and by the sum of both (`overlap=False`), whose plan is then priced with overlap. Every row is a
fresh process; rows that fit on no plan say so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import msgspec

from benchmarks.apart import row_apart
from benchmarks.models import GPT_175B, LLAMA_70B, MIXTRAL
from examples.encoder_decoder import T5
from examples.gpt import LARGE
from examples.llama import LLAMA_8B
from examples.lstm import GNMT_LIKE
from examples.moe import MOE_10B
from examples.recommender import PUBLISHED
from examples.vit import VIT_L_16
from planner import PlanError, plan
from planner.files.plan_file import one_stage
from planner.result.reprice import reprice

# Model, and examples of a batch for each device.
MODELS: dict[str, tuple[Any, int]] = {
    "llama-8b seq 4096": (LLAMA_8B._replace(seq=4096), 1),
    "llama-70b seq 4096": (LLAMA_70B._replace(seq=4096), 1),
    "mixtral-8x7b": (MIXTRAL, 4),
    "gpt-175b": (GPT_175B, 1),
    "gpt-1.3b scanned": (LARGE._replace(scan=True), 4),
    "t5-base": (T5(32128, 512, 128, 768, 12, 3072, 12, 128, "bfloat16"), 16),
    "lstm": (GNMT_LIKE, 16),
    "moe-10b": (MOE_10B, 4),
    "dlrm": (PUBLISHED, 256),
    "vit-l-16": (VIT_L_16, 64),
}
DEVICES = (8, 64, 512)
HEAD = (
    "| model | H100 | chosen with overlap s | by the sum s | best by hand s | which | gap "
    "| exposed | cpu s |\n|" + "---|" * 9
)


def one(name: str, devices: int) -> dict[str, Any]:
    """Plans one row in this process."""
    model, each = MODELS[name]
    fn, args, settings = partial(model._replace(batch=each * devices).target, jax.eval_shape)()
    settings = {"cluster": f"{devices}xh100", "recompute": "written"} | settings
    try:
        chosen = plan(fn, *args, **settings)
        cpu_s = time.process_time()
        summed = plan(fn, *args, overlap=False, baselines=False, **settings)
    except PlanError as error:
        return {"error": str(error)}
    program = msgspec.structs.replace(summed.program, overlap=True, lower_bound_s=0.0)
    file = one_stage(program, len(summed.graph.nodes))
    by_hand = {n: b.step_s for n, b in chosen.baselines.items() if b.fits}
    return {
        "step_s": chosen.step_s, "gap": chosen.gap, "mesh": str(chosen.mesh),
        "exposed_s": chosen.program.exposed_s, "communication_s": chosen.program.communication_s,
        "by_sum_s": reprice(replace(summed, file=file)).step_s, "by_hand_s": by_hand,
        "cpu_s": cpu_s,
    }  # fmt: skip


def line(name: str, devices: int, found: dict[str, Any]) -> str:
    """A row of the table."""
    if "error" in found:
        return f"| {name} | {devices} | {found['error'][:100]} |"
    hand = found["by_hand_s"]
    best = min(hand, key=hand.__getitem__, default="none fits")
    step = found["step_s"]
    sent = found["communication_s"]
    return (
        f"| {name} | {devices} | {step:.4g} | {found['by_sum_s']:.4g} "
        f"| {hand.get(best, float('nan')):.4g} | {best} | {found['gap']:.2%} "
        f"| {found['exposed_s'] / sent if sent else 0.0:.0%} | {found['cpu_s']:.1f} |"
    )


def main(quick: bool) -> list[dict[str, Any]]:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks overlap")
    parser.add_argument("--only", default="", help="models whose name contains this")
    only = parser.parse_known_args()[0].only
    print(HEAD, flush=True)
    rows: list[dict[str, Any]] = []
    for name in MODELS:
        for devices in DEVICES[1:2] if quick else DEVICES:
            if only not in name:
                continue
            answer = row_apart("overlap", name, str(devices))
            found = {"error": answer} if isinstance(answer, str) else answer
            rows.append({"model": name, "devices": devices, **found})
            print(line(name, devices, found), flush=True)
    return rows


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1], int(sys.argv[2]))))

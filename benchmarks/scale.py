# pyright: basic
"""Planning at scale: published models on 8 to 4,096 devices, scanned and unrolled.

    python -m benchmarks scale [--quick] [--only llama-70b] [--limit 300] [--written]

Every row is a fresh process. `cpu s` is its processor time with imports, `wall s` its wall time,
which `--limit` (60 s) limits: give more where other work shares the machine. `ops` counts
operations of the flat program, `decided` those with a decision of their own. With `--written` a
second process plans each row as it is written (`recompute="written"`, `offload="never"`), and a
line gives the processor time with the decision as a multiple of that without.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from typing import Any

import jax

from benchmarks.apart import row_apart
from benchmarks.models import GPT_39B, target
from examples.gpt import ADAMW
from planner import plan
from planner.common.errors import PlanError

# model, cluster, unrolled, sequences in a step (0: as published), layers (0: as published)
Row = tuple[str, str, bool, int, int]
ROWS: tuple[Row, ...] = (
    ("llama-8b", "8xh100", False, 8, 0),
    ("llama-8b", "64xh100", False, 64, 0),
    ("llama-8b", "512xh100", False, 512, 0),
    ("llama-8b", "4096xh100", False, 4096, 0),
    ("llama-8b", "64xh100", True, 64, 0),
    ("llama-70b", "64xh100", False, 32, 0),
    ("llama-70b", "512xh100", False, 512, 0),
    ("llama-70b", "4096xh100", False, 4096, 0),
    ("llama-70b", "64xh100", True, 16, 0),
    ("llama-405b", "512xh100", False, 128, 0),
    ("llama-405b", "4096xh100", False, 1024, 0),
    ("gpt-175b", "1024xa100-80gb", False, 1536, 0),
    ("gpt-175b", "1024xa100-80gb", True, 256, 12),
    ("gpt-175b", "1024xa100-80gb", True, 256, 96),
    ("mixtral-8x7b", "64xh100", False, 256, 0),
    ("gpt-39b", "64xv100-16gb:8", False, 0, 0),
)
QUICK = ROWS[:2]
HEAD = (
    "| model | layers | cluster | written | ops | decided | trace s | build s | solve s | cpu s "
    "| wall s | peak GB | mesh | step s | gap | best by hand |\n|" + "---|" * 16
)


AS_WRITTEN: dict[str, Any] = {"recompute": "written", "offload": "never"}


def one(row: Row, limit_s: float = 60.0, *, written: bool = False) -> dict[str, Any]:
    """Plans one row in this process."""
    name, cluster, unrolled, batch, layers = row
    asked: dict[str, Any] = AS_WRITTEN if written else {}
    begin = time.monotonic()
    try:
        if name == "gpt-39b":  # with micro-batches that the planner counts
            params, data = jax.eval_shape(GPT_39B.init, jax.random.key(0))
            p = plan(
                GPT_39B.loss, params, data, cluster=cluster, optimizer=ADAMW, pipeline="off",
                time_limit_s=limit_s, **asked,
            )  # fmt: skip
        else:
            fn, args, settings = target(name, unrolled=unrolled, batch=batch, layers=layers)
            p = plan(fn, *args, cluster=cluster, time_limit_s=limit_s, **settings, **asked)
    except PlanError as error:
        return {"error": str(error)}
    facts = p.summary()
    by_hand = [b.step_s for b in p.baselines.values() if b.fits]
    return {
        "seconds": p.seconds, "wall_s": time.monotonic() - begin, "cpu_s": time.process_time(),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "step_s": p.step_s, "gap": p.gap, "stop": p.stop.name, "mesh": str(p.mesh),
        "ops": facts["operations"], "decided": facts["decided_operations"],
        "microbatches": p.microbatches, "by_hand_s": min(by_hand, default=None),
    }  # fmt: skip


def line(row: Row, found: dict[str, Any]) -> str:
    """A row of the table."""
    name, cluster, unrolled, _, layers = row
    head = f"| {name} | {layers or 'all'} | {cluster} | {'out' if unrolled else 'scan'} |"
    if "error" in found:
        return f"{head} {found['error']} |"
    s, hand = found["seconds"], found["by_hand_s"]
    none = "none in time" if found["stop"] == "TIME_LIMIT" else "none fits"
    ratio = f"{hand / found['step_s']:.2f}x" if hand else none
    return (
        f"{head} {found['ops']} | {found['decided']} | {s['trace']:.1f} | {s['build']:.1f} "
        f"| {s['solve']:.1f} | {found['cpu_s']:.1f} | {found['wall_s']:.1f} "
        f"| {found['peak_gb']:.2f} | {found['mesh']} | {found['step_s']:.4g} "
        f"| {found['gap']:.2%} | {ratio} |"
    )


def _apart(row: Row, limit_s: float, *, written: bool) -> dict[str, Any]:
    """A row, in a process of its own."""
    arguments = [json.dumps(row), str(limit_s), *(["written"] if written else [])]
    found = row_apart("scale", *arguments)
    return {"error": found} if isinstance(found, str) else found


def main(quick: bool) -> list[dict[str, Any]]:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale")
    parser.add_argument("--only", default="", help="rows whose model or cluster is called so")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each plan")
    parser.add_argument("--written", action="store_true", help="plan as written too")
    given = parser.parse_known_args()[0]
    only = given.only
    print(HEAD, flush=True)
    rows: list[dict[str, Any]] = []
    for row in QUICK if quick else ROWS:
        if only and only not in row[:2]:
            continue
        found = _apart(row, given.limit, written=False)
        rows.append({"row": row, **found})
        print(line(row, found), flush=True)
        if given.written:
            beside = _apart(row, given.limit, written=True)
            rows[-1]["as_written"] = beside
            if "cpu_s" in found and "cpu_s" in beside:
                times = f"{found['cpu_s']:.1f} s with the decision, {beside['cpu_s']:.1f} s without"
                print(f"  {times}: {found['cpu_s'] / beside['cpu_s']:.2f} times", flush=True)
    return rows


if __name__ == "__main__":
    target_row, seconds, *words = sys.argv[1:]
    print(
        json.dumps(one(tuple(json.loads(target_row)), float(seconds), written="written" in words))
    )

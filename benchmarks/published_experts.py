# pyright: basic
"""Published training steps of mixtures of experts, beside the planner's price of the same degrees.

    python -m benchmarks published-experts [--quick] [--only "qwen3-30b gb200"]

Rows of benchmarks/data/megatron_bridge_experts.csv, with their source: experts are sorted, no token
is dropped, and tokens are forced to be balanced (`imbalance=0`). Degrees are limits of the search,
as in `published`: experts over the devices of tensor parallelism and of data parallelism, rows of
grouped products where their matrices are, states of the optimizer split over data parallelism.
Layers keep what they compute or, where that does not fit, recompute it, as the source says neither.
What is priced is what a plan would run: grouped products in tiles, at about twice the time of fused
experts. No constant was fitted to these rows.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.experts_model import QWEN, QWEN_LARGE
from benchmarks.published import rank_correlation, usable_bytes
from benchmarks.published_limits import Degrees
from benchmarks.published_plan import Price, price
from costmodel import parse_cluster

DATA = Path(__file__).parent / "data" / "megatron_bridge_experts.csv"
MODELS = {"qwen3-30b": QWEN, "qwen3-235b": QWEN_LARGE}
HEAD = (
    "| row | degrees | recomputed | published tokens/s and GPU | predicted | ratio of seconds "
    "| exposed | GB | cpu s |\n|" + "---|" * 9
)


def rows() -> list[dict[str, str]]:
    """Published rows, in order."""
    lines = DATA.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def name_of(row: dict[str, str]) -> str:
    return f"{row['model']} {row['device']} {row['gpus']} {row['release']}"


def one(number: int) -> dict[str, Any]:
    """Prices a row in this process."""
    row, start = rows()[number], time.process_time()
    gpus, tensor, pipeline = (int(row[name]) for name in ("gpus", "tensor", "pipeline"))
    degrees = Degrees(
        data=gpus // (tensor * pipeline), micro_batch=int(row["micro_batch"]), tensor=tensor,
        pipeline=pipeline, chunks=int(row["chunks"]), expert=int(row["expert"]), shard="zero1",
        sequence=tensor > 1, sums="bfloat16",
    )  # fmt: skip
    cluster = replace(parse_cluster(f"{gpus}x{row['device']}"), imbalance=0.0)
    limit = usable_bytes(cluster)
    best: tuple[Price, str] | None = None
    for recompute in ("none", "full"):
        model = MODELS[row["model"]]
        dense = replace(model.dense, recompute=recompute, dtype=row["dtype"])
        model = replace(model, dense=dense, form="ragged", balance=0.0)
        found = price(model, degrees, int(row["batch"]), cluster, limit)
        if best is None or (not found.fits, found.step_s) < (not best[0].fits, best[0].step_s):
            best = found, recompute
        if found.fits:
            break  # what is recomputed takes longer
    assert best is not None
    found, recompute = best
    tokens = int(row["batch"]) * MODELS[row["model"]].dense.seq
    return {
        "row": name_of(row), "degrees": str(degrees), "recompute": recompute,
        "published_s": tokens / (float(row["tokens_s"]) * gpus), "step_s": found.step_s,
        "tokens_s": tokens / (found.step_s * gpus), "published_tokens_s": float(row["tokens_s"]),
        "exposed_s": found.exposed_s, "peak_gb": found.peak_bytes / 1e9, "fits": found.fits,
        "cpu_s": time.process_time() - start,
    }  # fmt: skip


def main(quick: bool) -> list[dict[str, object]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="rows whose name begins with one of these")
    only = parser.parse_known_args(sys.argv[2:])[0].only.split(",")
    wanted = [n for n, row in enumerate(rows()) if name_of(row).startswith(tuple(only))]
    found: list[dict[str, Any]] = []
    print(HEAD)
    for number in wanted[:1] if quick else wanted:
        command = [sys.executable, "-m", "benchmarks.published_experts", str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["no output"])[-1]
            found.append({"row": name_of(rows()[number]), "why": why})
            print(f"| {name_of(rows()[number])} | {why} |" + " - |" * 7, flush=True)
            continue
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(_text(found[-1], rows()[number]), flush=True)
    priced = [row for row in found if "step_s" in row]
    if len(priced) > 2:
        pairs = [[row[key] for row in priced] for key in ("published_s", "step_s")]
        print(f"\nrank correlation of seconds {rank_correlation(*pairs):.2f}")
    return found


def _text(found: dict[str, Any], row: dict[str, str]) -> str:
    plan = f"t{row['tensor']} p{row['pipeline']}x{row['chunks']} e{row['expert']}"
    peak = f"{found['peak_gb']:.1f}" + ("" if found["fits"] else " (no room)")
    cells = [
        found["row"], f"{plan} b{row['micro_batch']}", found["recompute"],
        f"{found['published_tokens_s']:.0f}", f"{found['tokens_s']:.0f}",
        f"{found['step_s'] / found['published_s']:.2f}",
        f"{found['exposed_s'] / found['step_s']:.0%}", peak, f"{found['cpu_s']:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(json.dumps(one(int(sys.argv[1]))))

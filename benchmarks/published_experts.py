# pyright: basic
"""Published training steps of mixtures of experts, beside the planner's price of the same degrees.

    python -m benchmarks published-experts [--quick] [--only "qwen3-30b gb200"]

Rows of benchmarks/data/megatron_bridge_experts.csv, with their source: no token is dropped, and
tokens are forced to be balanced (`imbalance=0`). Degrees are limits of the search, as in
`published`: experts over the devices of tensor parallelism and of data parallelism, states of the
optimizer split over data parallelism. As few layers of a device as fit recompute what they need, as
the source does not say which do (`least_recomputed`; Megatron's `recompute_num_layers`). Gradients
are summed in products, weights cast once a step, and layers are written out, as in `published`.

Every row is priced twice, with experts in two forms of the same function: rows sorted by expert,
whose grouped products run in tiles, at about twice the time of fused experts, and are where their
matrices are; and slots with a capacity of 1, which balanced tokens fill without one being dropped,
whose products are batched. In both, rows are looked up and never scattered. Sorted rows are in
blocks where experts are over part of the devices that the batch is split over. No constant was
fitted to these rows, but the form of the models (lookups, products of slots in fp8), the domain of
64 devices of a rack and the share of layers that recompute were set after rows were seen.
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

from benchmarks.experts_model import DEEPSEEK_LATENT, GPT_OSS, QWEN, QWEN_LARGE
from benchmarks.published import rank_correlation, usable_bytes
from benchmarks.published_limits import Degrees
from benchmarks.published_plan import Price, least_recomputed, price
from costmodel import parse_cluster

DATA = Path(__file__).parent / "data" / "megatron_bridge_experts.csv"
MODELS = {
    "qwen3-30b": QWEN, "qwen3-235b": QWEN_LARGE, "deepseek-v3": DEEPSEEK_LATENT,
    "gpt-oss-120b": GPT_OSS,
}  # fmt: skip
SEQ = 4096
RACK = 64  # devices that jobs over several racks of 72 take of each, so that groups lie within one
FORMS = ("slots", "ragged")
HEAD = (
    "| row | degrees | published tokens/s and GPU "
    "| slots: tokens/s | ratio of seconds | recomputed | exposed | GB "
    "| sorted: tokens/s | ratio of seconds | recomputed | exposed | GB | cpu s |\n|" + "---|" * 14
)


def rows() -> list[dict[str, str]]:
    """Published rows, in order."""
    lines = DATA.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def name_of(row: dict[str, str]) -> str:
    return f"{row['model']} {row['device']} {row['gpus']} {row['release']}"


def one(number: int, form: str) -> dict[str, Any]:
    """Prices a row in this process, with experts in a form."""
    row, start = rows()[number], time.process_time()
    gpus, tensor, pipeline = (int(row[name]) for name in ("gpus", "tensor", "pipeline"))
    degrees = Degrees(
        data=gpus // (tensor * pipeline), micro_batch=int(row["micro_batch"]), tensor=tensor,
        pipeline=pipeline, chunks=int(row["chunks"]), expert=int(row["expert"]), shard="zero1",
        sequence=tensor > 1, sums="bfloat16", in_kernels=True,
    )  # fmt: skip
    cluster = parse_cluster(f"{gpus}x{row['device']}")
    cluster = replace(cluster, imbalance=0.0, loop_copies=False)
    if gpus > cluster.domain > RACK:
        cluster = replace(cluster, domain=RACK)
    limit = usable_bytes(cluster)
    model = MODELS[row["model"]]
    layers = model.layers // pipeline

    def priced(recompute: str) -> Price:
        dense = replace(model.dense, recompute=recompute, dtype=row["dtype"])
        asked = replace(model, dense=dense, form=form, capacity=1.0, balance=0.0, gathers=True)
        return price(asked, degrees, int(row["batch"]), cluster, limit)

    found, count = priced("none"), 0
    if not found.fits:
        found, count = least_recomputed(found, priced("full"), layers, limit)
    recompute = f"{count} of {layers}"
    tokens = int(row["batch"]) * SEQ
    return {
        "degrees": str(degrees), "recompute": recompute, "step_s": found.step_s,
        "tokens_s": tokens / (found.step_s * gpus),
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
        row = rows()[number]
        published_s = int(row["batch"]) * SEQ / (float(row["tokens_s"]) * int(row["gpus"]))
        both = {form: _apart(number, form) for form in FORMS}
        found.append({"row": name_of(row), "published_s": published_s, **both})
        print(_text(found[-1], row), flush=True)
    for form in FORMS:
        priced = [row for row in found if "step_s" in row[form]]
        if len(priced) > 2:
            pairs = [row["published_s"] for row in priced], [row[form]["step_s"] for row in priced]
            ratios = sorted(b / a for a, b in zip(*pairs, strict=True))
            print(
                f"\n{form}: rank correlation of seconds {rank_correlation(*pairs):.2f}, median "
                f"ratio {ratios[len(ratios) // 2]:.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}"
            )
    return found


def _apart(number: int, form: str) -> dict[str, Any]:
    """A row in a process of its own, or why it has no price."""
    command = [sys.executable, "-m", "benchmarks.published_experts", str(number), form]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"why": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def _text(found: dict[str, Any], row: dict[str, str]) -> str:
    plan = f"t{row['tensor']} p{row['pipeline']}x{row['chunks']} e{row['expert']}"
    cells = [found["row"], f"{plan} b{row['micro_batch']}", row["tokens_s"]]
    for each in (found[form] for form in FORMS):
        if "why" in each:
            cells += ["-"] * 5
            continue
        peak = f"{each['peak_gb']:.1f}" + ("" if each["fits"] else " (no room)")
        cells += [
            f"{each['tokens_s']:.0f}", f"{each['step_s'] / found['published_s']:.2f}",
            each["recompute"], f"{each['exposed_s'] / each['step_s']:.0%}", peak,
        ]  # fmt: skip
    cells.append(f"{sum(found[form].get('cpu_s', 0.0) for form in FORMS):.0f}")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(json.dumps(one(int(sys.argv[1]), sys.argv[2])))

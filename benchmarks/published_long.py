# pyright: basic
"""Published TFLOP/s of long sequences with and without context parallelism, and those predicted.

    python -m benchmarks published-long [--quick] [--only 131072]

Rows of benchmarks/data/nemo_long_sequence.csv, with their source: Llama 2 7B in 8 bits. With
context parallelism degrees are those published. Without, the source has the best of other settings,
here the best over tensor parallelism of 1 to 32 devices that fits, with the rest data parallel.
Each rank of data parallelism has one sequence (a pipeline 8). Layers recompute as little as fits:
nothing, or everything. Products are in 8 bits, attention is a kernel in 16.

TFLOP/s count 6 N flops a token for N parameters, and 12 layers hidden tokens for attention, as
Megatron does, which counts the whole square of a causal mask.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.long_context import LLAMA_2
from benchmarks.published import usable_bytes
from benchmarks.published_limits import Degrees
from benchmarks.published_model import FP8, Transformer
from benchmarks.published_plan import price
from costmodel import parse_cluster

DATA = Path(__file__).parent / "data" / "nemo_long_sequence.csv"
IN_PIPELINE = 8  # micro-batches
HEAD = (
    "| tokens | H100 | degrees | TFLOP/s published | predicted | of published | without: degrees "
    "| published | predicted | ratio published | ratio predicted | cpu s |\n|" + "---|" * 12
)


def rows() -> list[dict[str, str]]:
    """Published rows, in order."""
    lines = DATA.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def flops_of_token(model: Transformer) -> float:
    """Model flops of a token, forward and backward."""
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model.parameters()))
    return 6.0 * parameters + 12.0 * model.layers * model.hidden * model.seq


def given(row: dict[str, str]) -> Degrees:
    """The published degrees."""
    tensor, pipeline, data, context = (
        int(row[k]) for k in ("tensor", "pipeline", "data", "context")
    )
    return Degrees(
        data=data, tensor=tensor, pipeline=pipeline, context=context, shard="zero1",
        sequence=tensor > 1, sums="bfloat16",
    )  # fmt: skip


def others(row: dict[str, str]) -> Iterator[Degrees]:
    """Degrees without context parallelism."""
    gpus, heads = int(row["gpus"]), LLAMA_2.heads
    for tensor in (1, 2, 4, 8, 16, 32):
        if tensor <= min(gpus, heads):
            yield Degrees(
                data=gpus // tensor, tensor=tensor, shard="zero1", sequence=tensor > 1,
                sums="bfloat16",
            )  # fmt: skip


def fastest(row: dict[str, str], every: Iterator[Degrees]) -> dict[str, Any]:
    """The best TFLOP/s of a GPU of some degrees that fit; none where none does."""
    cluster = parse_cluster(f"{row['gpus']}xh100")
    limit, best = usable_bytes(cluster), dict[str, Any]()
    for degrees in every:
        batch = degrees.data * (IN_PIPELINE if degrees.pipeline > 1 else 1)
        for recompute in ("none", "full"):
            model = replace(LLAMA_2, seq=1024 * int(row["seq_k"]), dtype=FP8, recompute=recompute)
            found = price(model, degrees, batch, cluster, limit)
            if not found.fits:
                continue
            flops = flops_of_token(model) * batch * model.seq
            rate = flops / found.step_s / int(row["gpus"]) / 1e12
            if rate > best.get("tflops", 0.0):
                best = {
                    "tflops": rate, "degrees": f"t{degrees.tensor} p{degrees.pipeline} "
                    f"d{degrees.data} c{degrees.context}", "recompute": recompute,
                    "step_s": found.step_s, "peak_gb": found.peak_bytes / 1e9,
                    "exposed_s": found.exposed_s,
                }  # fmt: skip
            break  # what is recomputed takes longer
    return best


def one(number: int) -> dict[str, Any]:
    """Prices a row in this process."""
    row, start = rows()[number], time.process_time()
    return {
        "tokens": 1024 * int(row["seq_k"]), "gpus": int(row["gpus"]),
        "with_tflops": float(row["with_tflops"]), "without_tflops": float(row["without_tflops"]),
        "with": fastest(row, iter((given(row),))), "without": fastest(row, others(row)),
        "cpu_s": time.process_time() - start,
    }  # fmt: skip


def main(quick: bool) -> list[dict[str, object]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="numbers of tokens")
    only = parser.parse_known_args(sys.argv[2:])[0].only
    found: list[dict[str, object]] = []
    print(HEAD)
    for number, row in enumerate(rows()[:2] if quick else rows()):
        if only and str(1024 * int(row["seq_k"])) not in only.split(","):
            continue
        command = [sys.executable, "-m", "benchmarks.published_long", str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["no output"])[-1]
            found.append({"tokens": 1024 * int(row["seq_k"]), "why": why})
            print(f"| {1024 * int(row['seq_k'])} | {why} |" + " - |" * 10, flush=True)
            continue
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(_text(found[-1]), flush=True)
    return found


def _text(row: Any) -> str:
    mine, other = row["with"], row["without"]
    both = bool(mine and other)
    cells = [
        row["tokens"], row["gpus"], mine.get("degrees", "no room"), f"{row['with_tflops']:g}",
        f"{mine['tflops']:.0f}" if mine else "-",
        f"{mine['tflops'] / row['with_tflops']:.2f}" if mine else "-",
        other.get("degrees", "no room"), f"{row['without_tflops']:g}",
        f"{other['tflops']:.0f}" if other else "-",
        f"{row['with_tflops'] / row['without_tflops']:.2f}",
        f"{mine['tflops'] / other['tflops']:.2f}" if both else "-", f"{row['cpu_s']:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    print(json.dumps(one(int(sys.argv[1]))))

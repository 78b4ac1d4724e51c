# pyright: basic
"""Published TFLOP/s of long sequences with and without context parallelism, and those predicted.

    python -m benchmarks published-long [--quick] [--only 131072]

Rows of benchmarks/data/nemo_long_sequence.csv, with their source: Llama 2 7B in 8 bits. With
context parallelism degrees are those published, with one sequence for each rank of data parallelism
(8 in a pipeline). Without, the source has the best of other settings: here the best tensor and
pipeline degrees up to 32 with as many sequences. As few layers as fit recompute what they need
(`least_recomputed`). Products are in 8 bits, attention is a kernel in 16.

Which kernel of attention ran is not said. Rows are priced with that of our table, and with
FlashAttention-2 (`flash_kernels.py`), which is what the published rates of the longest rows, nearly
all attention, come to: 536 TFLOP/s of a whole square are 313 of the 3.5 times half a square that
are computed, and one timing of FlashAttention-2 has 284 forward and 287 backward.

TFLOP/s count 6 N flops a token for N parameters, and 12 layers hidden tokens for attention, as
Megatron does, which counts the whole square of a causal mask.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.apart import row_apart
from benchmarks.flash_kernels import with_kernel
from benchmarks.long_context import LLAMA_2
from benchmarks.published import usable_bytes
from benchmarks.published_limits import Degrees
from benchmarks.published_model import FP8, Transformer
from benchmarks.published_plan import least_recomputed, price
from costmodel import parse_cluster

DATA = Path(__file__).parent / "data" / "nemo_long_sequence.csv"
IN_PIPELINE = 8  # micro-batches
POWERS = (1, 2, 4, 8, 16, 32)
KERNELS = {"table": "", "flash_2": "second"}
COLUMNS = (
    "with: degrees | recomputed | TFLOP/s (of published) | without: degrees | recomputed "
    "| TFLOP/s (of published) | ratio"
)
HEAD = (
    f"| tokens | H100 | published: with | without | ratio | {COLUMNS} "
    f"| FlashAttention-2: {COLUMNS} | cpu s |\n|" + "---|" * 20
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
    return degrees_of(tensor, pipeline, data, context)


def degrees_of(tensor: int, pipeline: int, data: int, context: int = 1) -> Degrees:
    return Degrees(
        data=data, tensor=tensor, pipeline=pipeline, context=context, shard="zero1",
        sequence=tensor > 1, sums="bfloat16", in_kernels=True,
    )  # fmt: skip


def sequences(row: dict[str, str]) -> int:
    """Sequences of a step."""
    return int(row["data"]) * (IN_PIPELINE if int(row["pipeline"]) > 1 else 1)


def others(row: dict[str, str]) -> Iterator[Degrees]:
    """Degrees without context parallelism, on all devices."""
    gpus, batch = int(row["gpus"]), sequences(row)
    for tensor, pipeline in itertools.product(POWERS, POWERS):
        data = gpus // (tensor * pipeline)
        whole = data * tensor * pipeline == gpus and tensor <= LLAMA_2.heads
        if whole and 0 < data <= batch and batch % data == 0:
            yield degrees_of(tensor, pipeline, data)


def fastest(row: dict[str, str], every: Iterator[Degrees], kernel: str) -> dict[str, Any]:
    """The best TFLOP/s of a GPU of some degrees that fit; none where none does."""
    cluster = replace(parse_cluster(f"{row['gpus']}xh100"), loop_copies=False)
    limit, best, batch = usable_bytes(cluster), dict[str, Any](), sequences(row)
    if kernel:
        cluster = with_kernel(cluster, kernel)
    model = replace(LLAMA_2, seq=1024 * int(row["seq_k"]), dtype=FP8)
    flops = flops_of_token(model) * batch * model.seq
    for degrees in every:
        layers = model.layers // degrees.pipeline
        found, count = price(replace(model, recompute="none"), degrees, batch, cluster, limit), 0
        if not found.fits:
            full = price(replace(model, recompute="full"), degrees, batch, cluster, limit)
            found, count = least_recomputed(found, full, layers, limit)
        rate = flops / found.step_s / int(row["gpus"]) / 1e12
        if found.fits and rate > best.get("tflops", 0.0):
            best = {
                "tflops": rate, "degrees": f"t{degrees.tensor} p{degrees.pipeline} "
                f"d{degrees.data} c{degrees.context}", "recompute": f"{count} of {layers}",
                "step_s": found.step_s, "peak_gb": found.peak_bytes / 1e9,
                "exposed_s": found.exposed_s,
            }  # fmt: skip
    return best


def one(number: int) -> dict[str, Any]:
    """Prices a row in this process."""
    row, start = rows()[number], time.process_time()
    found = {
        name: {
            "with": fastest(row, iter((given(row),)), kernel),
            "without": fastest(row, others(row), kernel),
        }
        for name, kernel in KERNELS.items()
    }
    return {
        "tokens": 1024 * int(row["seq_k"]), "gpus": int(row["gpus"]),
        "with_tflops": float(row["with_tflops"]), "without_tflops": float(row["without_tflops"]),
        **found, "cpu_s": time.process_time() - start,
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
        answer = row_apart("published_long", str(number))
        if isinstance(answer, str):
            found.append({"tokens": 1024 * int(row["seq_k"]), "why": answer})
            print(f"| {1024 * int(row['seq_k'])} | {answer} |" + " - |" * 10, flush=True)
            continue
        found.append(answer)
        print(_text(found[-1]), flush=True)
    return found


def _text(row: Any) -> str:
    published, without = row["with_tflops"], row["without_tflops"]
    cells = [row["tokens"], row["gpus"], f"{published:g}", f"{without:g}"]
    cells.append(f"{published / without:.2f}")
    for name in KERNELS:
        mine, other = row[name]["with"], row[name]["without"]
        for each, there in ((mine, published), (other, without)):
            if not each:
                cells += ["no room", "-", "-"]
                continue
            again = f"{each['tflops']:.0f} ({each['tflops'] / there:.2f})"
            cells += [each["degrees"], each["recompute"], again]
        cells.append(f"{mine['tflops'] / other['tflops']:.2f}" if mine and other else "-")
    return f"| {' | '.join(map(str, cells))} | {row['cpu_s']:.0f} |"


if __name__ == "__main__":
    print(json.dumps(one(int(sys.argv[1]))))

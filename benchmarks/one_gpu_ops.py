# pyright: basic
"""Predicted beside measured seconds of single operations on one GPU.

    python -m benchmarks one-gpu-ops [--only NAME]

Each operation is planned for the GPU that it ran on, an H100 or (attention) an H200. Its predicted
step is printed beside the time of its kernels (`benchmarks/data/one_gpu_h*_kernels.csv`). Arrays
that fit a cache are faster there than in a step, and a plan counts the start of a kernel, which
their times leave out. On a machine with a GPU `--measure FILE` writes times of the same operations.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from benchmarks.one_gpu import DATA, FULL_CLOCK, kernel_seconds, random_values
from benchmarks.one_gpu_cases import Case, cases
from costmodel import Cluster, parse_cluster
from planner import plan

MEASURED: dict[Path, Cluster] = {
    DATA / "one_gpu_h100_kernels.csv": FULL_CLOCK,
    DATA / "one_gpu_h200_kernels.csv": parse_cluster("1xh200"),
}
FAR = 0.25  # operations further off are printed
LONG_US = 10.0  # of those whose start does not count


def _asked(only: str) -> Iterator[tuple[dict[str, str], Case, Cluster]]:
    """Rows of operations whose names contain `only`, with their function and what they ran on."""
    for path, cluster in MEASURED.items():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
        for row, found in cases(rows):
            if only in row["op"]:
                yield row, found, cluster


def measure(path: Path, only: str) -> list[dict[str, Any]]:
    """Runs the operations of all files on the first GPU."""
    rows: list[dict[str, Any]] = []
    for row, (fn, args, limit), _ in _asked(only):
        compiled, given = jax.jit(fn).lower(*args).compile(), random_values(args, limit)
        jax.block_until_ready(compiled(*given))
        seconds, kernels = kernel_seconds(lambda given, run=compiled: run(*given), given)
        rows.append({**row, "kernel_us": 1e6 * seconds, "kernels": kernels})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return rows


def compared(only: str) -> list[dict[str, Any]]:
    """What each operation was said to take, and took."""
    rows: list[dict[str, Any]] = []
    for row, (fn, args, _), cluster in _asked(only):
        found = plan(
            fn, *args, cluster=cluster, baselines=False, substitutions=False, padding=False,
            attention="written",
        )  # fmt: skip
        took = 1e-6 * float(row["kernel_us"])
        rows.append({
            "op": row["op"], "dtype": row["dtype"], "sizes": row["sizes"],
            "cluster": cluster.name, "predicted_s": found.step_s, "measured_s": took,
            "difference": found.step_s / took - 1,
        })  # fmt: skip
    return rows


def main(quick: bool) -> list[dict[str, Any]]:
    """Prints the operations that are far off, or measures."""
    del quick
    parser = argparse.ArgumentParser(prog="python -m benchmarks one-gpu-ops")
    parser.add_argument("--only", default="", help="operations whose names contain this")
    parser.add_argument("--measure", type=Path, help="file to write")
    given = parser.parse_known_args()[0]
    if given.measure:
        return measure(given.measure, given.only)
    rows = compared(given.only)
    print("| op | dtype | sizes | predicted us | measured us | difference |")
    print("|---|---|---|---|---|---|")
    for r in (r for r in rows if abs(r["difference"]) > FAR):
        print(f"| {r['op']} | {r['dtype']} | {r['sizes']} | {1e6 * r['predicted_s']:.1f} "
              f"| {1e6 * r['measured_s']:.1f} | {r['difference']:+.0%} |")  # fmt: skip
    long = [abs(r["difference"]) for r in rows if 1e6 * r["measured_s"] >= LONG_US]
    print(f"\n{len(rows)} operations; of the {len(long)} that take {LONG_US:g} us or more the "
          f"median difference is {statistics.median(long):.1%}")  # fmt: skip
    return rows

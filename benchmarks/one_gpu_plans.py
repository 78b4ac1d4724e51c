# pyright: basic
"""Plans that ran on one GPU: predicted beside measured steps, and XLA's memory.

    python -m benchmarks one-gpu-plans [--only NAME] [--unmeasured]

Plans are made for one H100, some within less memory than it has. They may compute again, keep
values in the memory of the host, run attention in kernels and experts in tiles. Their steps were
measured as they are emitted, and so was the function under `jax.jit`
(`benchmarks/data/one_gpu_h100_plans.csv`). No constant is fitted to these steps. On a machine with
a GPU `--measure FILE` runs both from equal values. `--unmeasured` prints the plans that have no
measured step, beside the memory that XLA's GPU compiler reserves for them; it needs that compiler
(the extra `gpu-aot`), and no GPU.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import jax

from benchmarks.one_gpu import donated, measured_rows, run, write_measured
from benchmarks.one_gpu_programs import PROGRAMS
from costmodel import parse_cluster
from planner import plan, verify

CLUSTER = parse_cluster("1xh100")
MEASURED = Path(__file__).parent / "data" / "one_gpu_h100_plans.csv"
# Name of a plan: its program, the memory it may take [byte] if less than the device has, and what
# it may compute again.
PLANS: dict[str, tuple[str, int | None, str]] = {
    "llama-1b": ("llama-1b", None, "auto"),
    "llama-1b in 24 GB": ("llama-1b", 24_000_000_000, "auto"),
    "llama-1b in 18 GB": ("llama-1b", 18_000_000_000, "auto"),
    "llama-1b in 14 GB": ("llama-1b", 14_000_000_000, "auto"),
    "llama-1b full": ("llama-1b full", None, "auto"),
    "llama-1b full in 30 GB": ("llama-1b full", 30_000_000_000, "auto"),
    "llama-1b full in 24 GB": ("llama-1b full", 24_000_000_000, "auto"),
    "llama-1b full in 12 GB": ("llama-1b full", 12_000_000_000, "auto"),
    "llama-1b full in 10 GB": ("llama-1b full", 10_000_000_000, "auto"),
    "llama-8b full": ("llama-8b full", None, "auto"),
    "llama-8b full in 24 GB": ("llama-8b full", 24_000_000_000, "auto"),
    "llama written": ("llama written", None, "auto"),
    **{name: (name, None, "written") for name in (
        "llama-1b offload", "experts ragged", "experts slots", "gpt dropout", "moe", "lstm", "dlrm",
        "llama-1b decode", "stencil",
    )},
    **{f"{name}, light values again": (name, None, "auto") for name in (
        "experts ragged", "experts slots", "gpt dropout",
    )},
}  # fmt: skip
COLUMNS: tuple[str, ...] = (
    "plan", "seconds", "kernel_s", "kernels", "argument_bytes", "temporary_bytes", "loss",
    "written_s", "written_loss",
)  # fmt: skip


def planned(name: str) -> tuple[Any, tuple[Any, ...], int, tuple[int, ...]]:
    """A plan, the shapes of its arguments, the limit of integers, and what is donated."""
    program, memory, recompute = PLANS[name]
    fn, args, limit = PROGRAMS[program]()
    reused = donated(program, args)
    made = plan(
        fn, *args, cluster=CLUSTER, donate_argnums=reused, baselines=False, memory_bytes=memory,
        recompute=recompute,
    )  # fmt: skip
    return made, args, limit, reused


def measure(name: str) -> dict[str, Any]:
    """Runs a plan on the first GPU, and the function that was planned under `jax.jit`."""
    made, args, limit, reused = planned(name)
    emitted = made.compile(devices=jax.devices("gpu")[:1])
    memory: Any = emitted.lower_as_planned().compile().memory_analysis()
    seconds, kernel_s, kernels, loss = run(emitted, args, limit, bool(reused))
    written = jax.jit(PROGRAMS[PLANS[name][0]]()[0], donate_argnums=reused)
    written_s, *_, written_loss = run(written, args, limit, bool(reused))
    return dict(zip(COLUMNS, (
        name, seconds, kernel_s, kernels, memory.argument_size_in_bytes,
        memory.temp_size_in_bytes, loss, written_s, written_loss,
    ), strict=True))  # fmt: skip


def compared(row: dict[str, Any]) -> dict[str, Any]:
    """What a plan was said to take, and took."""
    made, _, _, reused = planned(row["plan"])
    types, results = made.graph.types, made.graph.outputs
    own = 0 if reused else sum(types[n].nbytes for n in results if isinstance(n, int))
    took = row["argument_bytes"] + row["temporary_bytes"] + own
    return {
        "plan": row["plan"], "predicted_s": made.step_s, "measured_s": row["seconds"],
        "difference": made.step_s / row["seconds"] - 1, "written_s": row["written_s"] or None,
        "predicted_peak_bytes": made.peak_bytes, "compiled_bytes": took,
        "peak_difference": made.peak_bytes / took - 1,
    }  # fmt: skip


def print_unmeasured(only: str) -> list[dict[str, Any]]:
    """Prints plans that were not measured, beside the memory that XLA's GPU compiler reserves."""
    measured = {row["plan"] for row in measured_rows(MEASURED)}
    print("| plan | predicted ms | predicted GB | XLA's GB |\n|---|---|---|---|")
    found: list[dict[str, Any]] = []
    for name in (n for n in PLANS if only in n and n not in measured):
        made = planned(name)[0]
        memory = verify(made, compiler="gpu-aot").summary()["memory"]
        row = {
            "plan": name, "predicted_s": made.step_s, "predicted_peak_bytes": made.peak_bytes,
            "compiled_bytes": memory["compiled_peak_bytes"],
        }  # fmt: skip
        found.append(row)
        print(f"| {name} | {made.step_s * 1e3:.1f} | {made.peak_bytes / 1e9:.2f} "
              f"| {row['compiled_bytes'] / 1e9:.2f} |", flush=True)  # fmt: skip
    return found


def main(quick: bool) -> list[dict[str, Any]]:
    """Prints the table, or measures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks one-gpu-plans")
    parser.add_argument("--only", default="", help="plans whose names contain this")
    parser.add_argument("--measure", type=Path, help="file to write")
    parser.add_argument("--unmeasured", action="store_true", help="plans without a measured step")
    given = parser.parse_known_args()[0]
    if given.unmeasured:
        return print_unmeasured(given.only)
    if given.measure:
        names = [name for name in PLANS if given.only in name]
        write_measured(given.measure, COLUMNS, map(measure, names))
        return measured_rows(given.measure)
    print("| plan | predicted ms | measured ms | difference | as written, ms | predicted GB "
          "| XLA's GB |\n|---|---|---|---|---|---|---|")  # fmt: skip
    found: list[dict[str, Any]] = []
    for row in (r for r in measured_rows(MEASURED) if given.only in r["plan"]):
        r = compared(row)
        found.append(r)
        written = f"{r['written_s'] * 1e3:.1f}" if r["written_s"] else ""
        print(f"| {r['plan']} | {r['predicted_s'] * 1e3:.1f} | {r['measured_s'] * 1e3:.1f} "
              f"| {r['difference']:+.1%} | {written} | {r['predicted_peak_bytes'] / 1e9:.2f} "
              f"| {r['compiled_bytes'] / 1e9:.2f} |", flush=True)  # fmt: skip
        if quick and len(found) == 3:
            break
    for what, key in (("step", "difference"), ("memory", "peak_difference")):
        sizes = [abs(r[key]) for r in found]
        print(f"\n{what}: median difference {statistics.median(sizes):.1%}, at most "
              f"{max(sizes):.1%}, of {len(sizes)} plans")  # fmt: skip
    return found

# pyright: basic
"""One long sequence: plans with attention split along it, and with attention that is not.

    python -m benchmarks long-context [--quick] [--only "llama-2-7b 131072"] [--verify]

Llama 3 8B trains on one sequence on 8 H100, Llama 2 7B on the cells of NeMo's table: 1,024 tokens a
GPU, and as many sequences as its degree of data parallelism. Layers are recomputed; weights have
optimizer state in float32 beside them. Without the sequence, attention is split over batch and
heads only, and everything else as before. Every row is a process of its own.

With `--verify` XLA for GPUs compiles each plan (extra `gpu-aot`), whose memory and schedule are
printed below the row.

Source of the cells: NVIDIA, NeMo, docs/source/performance/performance_long_sequence.md (0aa2671,
Apache-2.0): Llama 2 7B in 8 bits on DGX H100.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import optax

from benchmarks.published_model import Transformer
from ir import ATTENTION
from ir.ops import attention
from planner import PlanError, plan, verify

LLAMA_3 = Transformer(32, 4096, 32, 8, 14336, True, 128256, 0, recompute="full")
LLAMA_2 = Transformer(32, 4096, 32, 32, 11008, True, 32000, 0, recompute="full")
# Tokens and GPUs; sequences, of Llama 2 the published degree of data parallelism; published ratio.
CELLS: dict[str, tuple[Transformer, int, int, int, float]] = {
    **{f"llama-3-8b {n}": (LLAMA_3, n, 8, 1, 0.0) for n in (8192, 32768, 131072, 262144)},
    **{
        f"llama-2-7b {k * 1024}": (LLAMA_2, k * 1024, k, data, ratio)
        for k, data, ratio in (
            (4, 4, 1.0), (8, 4, 1.0), (16, 8, 1.0), (32, 8, 1.03), (64, 8, 1.07), (128, 8, 1.31),
            (256, 8, 1.4), (512, 4, 5.28), (1024, 4, 20.23),
        )
    },
}  # fmt: skip
HEAD = (
    "| model, tokens | H100 | sequences | step s | peak GB | attention | without s | its peak GB "
    "| ratio | published | cpu s |\n|" + "---|" * 11
)


def one(name: str, *, without: bool, compiled: bool) -> dict[str, Any]:
    """Plans one row in this process."""
    model, tokens, devices, sequences, _ = CELLS[name]
    if without:  # the records of attention ask this of every kernel
        setattr(attention, "_splits_queries", lambda *_: False)  # noqa: B010
    model, start = replace(model, seq=tokens), time.process_time()
    try:
        found = plan(
            model.loss, model.parameters(), model.batch(sequences), optimizer=optax.adamw(1e-4),
            cluster=f"{devices}xh100", pipeline="off", baselines=False, substitutions=False,
            recompute="written",
        )  # fmt: skip
    except PlanError as error:
        return {"why": str(error).splitlines()[0]}
    checked = verify(found, compiler="gpu-aot") if compiled and not without else None
    return {
        "compiled": "" if checked is None else str(checked), "step_s": found.step_s,
        "peak_gb": found.peak_bytes / 1e9, "ways": _ways(found),
        "gap": found.gap, "cpu_s": time.process_time() - start,
    }  # fmt: skip


def _ways(found: Any) -> str:
    """Devices of each role of the backward kernel, such as `zigzag 4, g 2`."""
    lowered, ways = found._lowered, {}
    for op, strategy in zip(lowered.flat.ops, lowered.strategies, strict=True):
        if strategy is not None and op.node.op == ATTENTION[1]:
            ways = {role: lowered.mesh.product(axes)
                    for role, axes in strategy.factor_axes(lowered.mesh).items()}  # fmt: skip
    return ", ".join(f"{role} {n}" for role, n in ways.items())


def main(quick: bool) -> list[dict[str, object]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="cells, such as 'llama-3-8b 131072'")
    parser.add_argument("--count", type=int, default=1024, help="most devices")
    parser.add_argument("--verify", action="store_true", help="compile with XLA for GPUs")
    asked = parser.parse_known_args(sys.argv[2:])[0]
    only, count = asked.only, asked.count
    names = [n for n in CELLS if (not only or n in only.split(",")) and CELLS[n][2] <= count]
    rows: list[dict[str, object]] = []
    print(HEAD)
    for name in names[:3] if quick else names:
        both = [_apart(name, without=w, compiled=asked.verify) for w in (False, True)]
        _, _, devices, sequences, published = CELLS[name]
        row = {
            "name": name, "devices": devices, "sequences": sequences, "published": published,
            "with": both[0], "without": both[1],
        }  # fmt: skip
        rows.append(row)
        print(_text(row), both[0].get("compiled", ""), sep="\n", flush=True)
    return rows


def _apart(name: str, *, without: bool, compiled: bool) -> dict[str, Any]:
    flags = [str(int(flag)) for flag in (without, compiled)]
    command = [sys.executable, "-m", "benchmarks.long_context", name, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"why": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def _text(row: Any) -> str:
    mine, other = row["with"], row["without"]
    cells = [row["name"], row["devices"], row["sequences"]]
    for each in (mine, other):
        if "why" in each:
            cells += [each["why"], *("-",) * (2 if each is mine else 1)]
        else:
            cells += [f"{each['step_s']:.3g}", f"{each['peak_gb']:.1f}"]
            cells += [each["ways"]] if each is mine else []
    both = "why" not in mine and "why" not in other
    cells += [f"{other['step_s'] / mine['step_s']:.2f}" if both else "-"]
    cells += [row["published"] or "-", f"{mine.get('cpu_s', 0) + other.get('cpu_s', 0):.0f}"]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1], without=sys.argv[2] == "1", compiled=sys.argv[3] == "1")))

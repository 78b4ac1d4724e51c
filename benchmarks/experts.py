# pyright: basic
"""Mixtures of experts: which exchange plans choose, and what hand-written ones would take.

    python -m benchmarks experts [--quick] [--only "qwen3-30b 64 slots"] [--count 64]

Two layers of each model train, recomputed, with optimizer state in float32: Mixtral 8x7B, one like
DeepSeek-V3 (256 experts, 8 active, one shared; attention without low ranks) and Qwen3-30B-A3B on a
sequence of 4,096 tokens a GPU, and the model that marin trains on 64 GB200 on 16. Experts are
reached through slots with a capacity of 1.25, or sorted without one. Columns: what the products of
experts are split by and over how many devices; rows of the busiest device against the mean, where
there is no capacity; all-to-alls and gathers of the whole step, in brackets what of them is
exposed; milliseconds of a step if all products of experts are split by one kind of their
dimensions, over as many devices as they can be, and all else is planned around that (`meshwright
explain PLAN.JSON experts`); hand-written plans by the same account. Every row is a process of its
own.

Hand-written: experts over all devices and tokens sent to them (expert-parallel), weights gathered
and tokens kept (fsdp), experts or features split on one axis (megatron, megatron-sp).

Published: marin measured the first against the second on 64 GB200, 316,473 against 235,125
tokens/s, a ratio of 1.35, with 10 % of the tokens dropped by the first (pull request 7981).
Megatron-Bridge trains Qwen3-30B-A3B on 16 H100 with experts over 8 (25.09 to 26.02.01).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.apart import row_apart
from benchmarks.experts_model import DEEPSEEK, GRUG, MIXTRAL, QWEN, Experts, cut
from benchmarks.published_model import adam
from costmodel.grouped import load
from planner import PlanError, plan
from planner.inspect.expert_products import EXPERTS
from planner.inspect.experts import expert_rows

MODELS: dict[str, Experts] = {
    "mixtral-8x7b": MIXTRAL, "deepseek-v3-like": DEEPSEEK, "qwen3-30b": QWEN, "grug-360b": GRUG,
}  # fmt: skip
LAYERS = 2
SEQUENCES = {"grug-360b": 16}  # of a device; else one
GPUS = {"grug-360b": "gb200"}  # else h100
CELLS = (
    *(
        f"{name} {devices} {form}"
        for form in ("slots", "ragged")
        for devices in (8, 64, 256)
        for name in ("mixtral-8x7b", "deepseek-v3-like", "qwen3-30b")
    ),
    "qwen3-30b 16 slots",
    "grug-360b 64 slots",
)
BY_HAND = ("expert-parallel", "fsdp", "megatron", "megatron-sp", "data-parallel")
HEAD = (
    "| model, GPUs, form | step ms | tokens/s and GPU | peak GB | experts' products | busiest "
    "| all-to-all ms | gathers ms | all of them by | expert-parallel | fsdp | megatron | gap "
    "| cpu s |\n|" + "---|" * 14
)


def one(cell: str) -> dict[str, Any]:
    """Plans one row in this process."""
    name, devices, form = cell.split()
    model, start = cut(MODELS[name], LAYERS, form), time.process_time()
    batch, gpu = model.batch(_sequences(name) * int(devices)), GPUS.get(name, "h100")
    try:
        found = plan(
            model.loss, model.parameters(), batch, optimizer=adam(copies=True),
            cluster=f"{devices}x{gpu}", pipeline="off", substitutions=False,
            recompute="written",
        )  # fmt: skip
    except PlanError as error:
        return {"why": str(error).splitlines()[0]}
    splits = [dict(row.split) for row in expert_rows(found.analysed)]
    ways = [each for n, each in enumerate(splits) if each not in splits[:n]]
    return {
        "step_s": found.step_s, "peak_gb": found.peak_bytes / 1e9, "gap": found.gap, "ways": ways,
        "busiest": max([1.0, *(_load(each) for each in ways if form == "ragged")]),
        "instead": _instead(found),
        "chunks": max([1, *(row.count for row in found.analysed.program.in_chunks)]),
        "exchanges": _spent(found, "all-to-all"), "gathers": _spent(found, "all-gather"),
        "by_hand": {
            name: {"step_s": each.step_s, "fits": each.fits, "mesh": each.mesh}
            for name, each in found.baselines.items() if name in BY_HAND
        },
        "cpu_s": time.process_time() - start,
    }  # fmt: skip


def _sequences(name: str) -> int:
    """Of a device, in a step."""
    return SEQUENCES.get(name, 1)


def _load(split: Mapping[str, int]) -> float:
    """Rows of the busiest device against the mean."""
    return float(load(np.array(float(split.get(EXPERTS, 1)))))


def _instead(found: Any) -> dict[str, dict[str, Any]]:
    """All products of experts split by one kind of their dimensions: seconds that this adds."""
    (experts,) = found.analysed.reason("experts").matches
    return {
        each.option.split(",")[0].removeprefix("all by "): {
            "added_s": each.added_s, "gap": each.gap, "added_bytes": each.added_bytes
        }
        for each in experts.alternatives
    }  # fmt: skip


def _spent(found: Any, kind: str) -> tuple[float, float]:
    """Seconds of a kind of collective in a step, and how many of them are exposed."""
    rows = [row for row in found.collectives if row.kind == kind]
    return sum(row.seconds for row in rows), sum(row.exposed_s for row in rows)


def main(quick: bool) -> list[dict[str, object]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="cells, such as 'qwen3-30b 64 slots'")
    parser.add_argument("--count", type=int, default=1024, help="most devices")
    asked = parser.parse_known_args(sys.argv[2:])[0]
    cells = [
        cell for cell in CELLS
        if (not asked.only or cell in asked.only.split(","))
        and int(cell.split()[1]) <= (8 if quick else asked.count)
    ]  # fmt: skip
    rows: list[dict[str, object]] = []
    print(HEAD)
    for cell in cells:
        found = row_apart("experts", cell)
        rows.append({"cell": cell, **({"why": found} if isinstance(found, str) else found)})
        print(_text(rows[-1]), flush=True)
    return rows


def _text(row: Any) -> str:
    if "why" in row:
        return f"| {row['cell']} | {row['why']} |" + " - |" * 12
    hand = row["by_hand"]
    by_hand = [hand.get(name) for name in ("expert-parallel", "fsdp")]
    tensor = [hand[name] for name in ("megatron", "megatron-sp") if name in hand]
    by_hand.append(min(tensor, key=lambda b: (not b["fits"], b["step_s"]), default=None))
    ways = "; ".join(
        ", ".join(f"{use} {n}" for use, n in each.items()) or "whole" for each in row["ways"]
    )
    instead = ", ".join(
        f"{what} {_ms(row['step_s'] + each['added_s'])}" for what, each in row["instead"].items()
        if each["added_s"] is not None
    )  # fmt: skip
    rate = 4096 * _sequences(row["cell"].split()[0]) / row["step_s"]
    cells = [
        row["cell"], _ms(row["step_s"]), f"{rate:.0f}",
        f"{row['peak_gb']:.1f}", _in_chunks(ways, row["chunks"]), f"{row['busiest']:.2f}",
        *(f"{_ms(a)} ({_ms(b)})" for a, b in (row["exchanges"], row["gathers"])),
        instead, *map(_by_hand, by_hand),
        f"{100 * row['gap']:.1f} %", f"{row['cpu_s']:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _in_chunks(ways: str, chunks: int) -> str:
    return f"{ways}; exchange in {chunks} chunks" if chunks > 1 else ways


def _by_hand(found: Any) -> str:
    return "-" if found is None else _ms(found["step_s"]) + ("" if found["fits"] else " (no room)")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds else "-"


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1])))

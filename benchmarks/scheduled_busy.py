# pyright: basic
"""How much of a window's compute XLA's schedules run collectives beside, where these take longer.

    python -m benchmarks scheduled-busy

Plans for eight H100 with few tokens, compiled as `scheduled` compiles its own. Of each window whose
collectives could fill the share of compute that plans count on: seconds of collectives that the
schedule does not expose over those of compute. The last row has all of them and their median, which
is where that share comes from (`planner/sharding/problem/windows.py`).
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.models import UnrolledLlama
from benchmarks.scheduled import DATA, FREE, FSDP, LLAMA, PLANS, Plans, rows_of
from costmodel import INTERFERENCE
from examples.gpt import GPT
from planner.sharding.problem.windows import BESIDE

SHORT, SMALL = LLAMA._replace(seq=1024), GPT(51200, 1024, 2048, 32, 4, 8, "bfloat16", True)
BUSY: Plans = {
    "llama scanned": (LLAMA, (FREE, ("megatron-sp", (2, 4)))),
    "llama scanned, 1024 tokens": (SHORT, (FREE, FSDP)),
    "llama scanned, 4096 tokens": (LLAMA._replace(seq=4096), (FSDP,)),
    "llama written out, 1024 tokens": (UnrolledLlama(*SHORT), (FSDP,)),
    "gpt scanned, 8 sequences": (SMALL, (FREE, FSDP)),
    "dlrm": (PLANS["dlrm"][0], (DATA,)),
}


def hidden_of_compute(row: dict[str, Any]) -> list[float]:
    """Hidden seconds over compute, of windows with as much to hide as counts."""
    return [
        w["scheduled_hidden_s"] / w["compute_s"] for w in row.get("windows", ())
        if w["hideable_s"] > INTERFERENCE * BESIDE * w["compute_s"] > 0.0
    ]  # fmt: skip


def main(quick: bool) -> list[dict[str, Any]]:
    """Prints the table, and what the windows hide.

    Args:
        quick: the first model only.
    """
    rows = rows_of(dict(list(BUSY.items())[: 1 if quick else None]))
    shares = sorted(share for row in rows for share in hidden_of_compute(row))
    found = {"hidden_of_compute": shares, "median": statistics.median(shares) if shares else None}
    print(found)
    return [*rows, found]

# pyright: basic
"""GPT-2 with its vocabulary of 50,257 words on eight H100s, with and without padded dimensions.

    python -m benchmarks uneven [--quick]

Twelve layers under `lax.scan`, hidden size 768, twelve heads, 1,024 tokens a row, bfloat16 weights
of float32 parameters, AdamW. The batch is the number of rows of all devices together.
"""

from __future__ import annotations

import time
from typing import Any

import jax

from examples.gpt import GPT
from planner import plan

BATCHES = (1, 2, 4, 6, 8, 12, 32)


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Plans each batch twice and prints a table.

    Args:
        quick: the smallest batch only.
    """
    rows: list[dict[str, Any]] = []
    print("| batch | without ms | padded ms | saved | padded to | peak GB | cpu s |")
    print("|---|---|---|---|---|---|---|")
    for batch in BATCHES[:1] if quick else BATCHES:
        plain, padded = (_planned(batch, padding=padding) for padding in (False, True))
        saved = 1 - padded["step_s"] / plain["step_s"]
        sizes = ", ".join(f"{was:,} to {size:,}" for was, size in padded["padded"]) or "none"
        print(
            f"| {batch} | {plain['step_s'] * 1e3:.2f} | {padded['step_s'] * 1e3:.2f} "
            f"| {saved:.1%} | {sizes} | {plain['peak_bytes'] / 1e9:.2f}, "
            f"{padded['peak_bytes'] / 1e9:.2f} | {plain['cpu_s']:.0f}, {padded['cpu_s']:.0f} |",
            flush=True,
        )
        rows.append({"batch": batch, "plain": plain, "padded": padded, "saved": saved})
    return rows


def _planned(batch: int, *, padding: bool) -> dict[str, Any]:
    model = GPT(50257, 1024, 768, 12, 12, batch, "bfloat16", True)
    step, args, _ = model.target(jax.eval_shape)
    start = time.process_time()
    found = plan(
        step, *args, cluster="8xh100", padding=padding, baselines=False, donate_argnums=(0, 1)
    )
    program = found.file.programs[0]
    return {
        "step_s": program.step_s, "compute_s": program.compute_s, "exposed_s": program.exposed_s,
        "peak_bytes": program.peak_bytes, "argument_bytes": program.argument_bytes,
        "mesh": program.mesh, "padded": [(row.was, row.size) for row in program.padded],
        "cpu_s": time.process_time() - start,
    }  # fmt: skip

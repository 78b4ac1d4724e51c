# pyright: basic
"""Attention that models write out, planned as it is written and with the kernel of the devices.

    python -m benchmarks written-attention [--quick]

The examples in bfloat16 on eight H100s: GPT (1.3 B, layers in a loop, dropout on the residual
stream), Llama-3 8B (a sequence of 8,192, grouped heads, layers recomputed), ViT-L and T5-base
(where T5 adds learned biases in float32 to its scores). `by the kernel` counts the places that the
kernel runs, `as written` those that it does not, with the reasons below the table.
"""

from __future__ import annotations

import time
from typing import Any

from examples import encoder_decoder, gpt, llama, vit
from planner import plan

CLUSTER = "8xh100"
MODELS = {
    "GPT 1.3B": gpt.gpt_1_3b_scanned,
    "Llama-3 8B": llama.llama3_8b,
    "ViT-L/16": vit.vit_l_16,
    "T5-base": encoder_decoder.t5_base,
}


def _planned(target: Any, attention: str) -> dict[str, Any]:
    fn, args, settings = target()
    begun = time.process_time()
    found = plan(fn, *args, cluster=CLUSTER, baselines=False, attention=attention, **settings)
    rows = found.file.programs[0].attention
    return {
        "step_s": found.step_s,
        "peak_bytes": found.peak_bytes,
        "fits": found.file.fits,
        "cpu_s": time.process_time() - begun,
        "kernel": [row.what for row in rows if not row.why],
        "written": [f"{row.line}: {row.why}" for row in rows if row.why],
    }


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Plans each model twice and prints a table.

    Args:
        quick: the GPT only.
    """
    rows: list[dict[str, Any]] = []
    once = "as written"
    head = ("model", "step ms", once, "peak GB", once, "by the kernel", once, "cpu s", once)
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for name, target in MODELS.items():
        if quick and name != "GPT 1.3B":
            continue
        written, kernel = (_planned(target, how) for how in ("written", "auto"))
        sides = [f"{each['step_s'] * 1e3:.1f}" for each in (kernel, written)]
        sides += [f"{each['peak_bytes'] / 1e9:.2f}" for each in (kernel, written)]
        sides += [f"{len(kernel[each])}" for each in ("kernel", "written")]
        sides += [f"{each['cpu_s']:.0f}" for each in (kernel, written)]
        print(f"| {' | '.join([name, *sides])} |", flush=True)
        rows.append({"model": name, "kernel": kernel, "written": written})
    for row in rows:
        for line in (*row["kernel"]["kernel"], *row["kernel"]["written"]):
            print(f"{row['model']}: {line}")
    return rows

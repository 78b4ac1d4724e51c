"""Published shares of activation memory beside those of the planner's stages.

Korthikanti et al., MLSys'23, Figure 7: activations of a layer under sequence parallelism and
recomputation, as a share of the tensor-parallel baseline's: "about half" for one technique, "under
20 %" for both, and 10 % for full recomputation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.published_model import Transformer
from benchmarks.published_plan import Degrees, activation_bytes
from costmodel import parse_cluster

# Layers, width, heads and sequences of a micro-batch; two layers of each are planned.
MODELS = {"22B": (48, 6144, 64, 4), "175B": (96, 12288, 96, 1), "530B": (105, 20480, 128, 1),
          "1T": (128, 25600, 160, 1)}  # fmt: skip
# Changes to the degrees, to the model, and the published range.
SHARES: dict[str, tuple[dict[str, Any], str, float, float]] = {
    "sequence parallel": ({"sequence": True}, "none", 0.4, 0.7),
    "selective": ({}, "selective", 0.4, 0.7),
    "both": ({"sequence": True}, "selective", 0.14, 0.21),
    "full": ({}, "full", 0.07, 0.11),
}


def shares(name: str) -> dict[str, float]:
    """Share of the baseline's activations of each technique."""
    _, hidden, heads, micro = MODELS[name]
    model = Transformer(
        2, hidden, heads, heads, 4 * hidden, gated=False, vocab=1024, seq=2048, dtype="float16",
        flash=False, bias=True, dropout=0.1,
    )  # fmt: skip
    cluster = parse_cluster("8xa100")

    def layer_bytes(recompute: str, degrees: Degrees) -> float:
        one, two = (
            activation_bytes(replace(model, recompute=recompute, layers=n), degrees, cluster)
            for n in (1, 2)
        )
        return two - one

    plain = Degrees(tensor=8, micro_batch=micro)
    base = layer_bytes("none", plain)
    return {
        technique: layer_bytes(recompute, replace(plain, **changes)) / base
        for technique, (changes, recompute, _, _) in SHARES.items()
    }


def memory_rows() -> list[dict[str, object]]:
    """Prints the shares beside the published ranges; returns them as rows."""
    rows: list[dict[str, object]] = []
    print("| model | technique | share of the baseline | published |\n|---|---|---|---|")
    for name in MODELS:
        for technique, share in shares(name).items():
            _, _, low, high = SHARES[technique]
            print(f"| {name} | {technique} | {share:.2f} | {low:.2f} to {high:.2f} |")
            rows.append({"source": "sequence parallelism Figure 7", "case": f"{name} {technique}",
                         "share": share, "right": low <= share <= high})  # fmt: skip
    return rows

# pyright: basic
"""Alpa's three families on 8 to 64 V100s, weak scaling: our pipelines beside what it published.

    python -m benchmarks alpa [--quick] [--only NAME]

Models, batches and machine are those of Zheng et al., OSDI 2022, tables 5 to 8: p3.16xlarge hosts,
16 GB of memory a device, 25 Gb/s between hosts. Rates are its own: useful operations of a step by
its formula, recomputation counted whether a plan needs it or not, over seconds and devices.
`published` are rates measured on that machine (its artifact, `results_e2e_ref.tsv`), ours are
predicted; the same prices hold for every other plan that is printed:

* Megatron's: stages of equal numbers of layers, tensor and data parallel inside, the best of a few
  numbers of stages and micro-batches;
* equal layers and equal operations: as many sub-meshes and micro-batches as ours has, each stage
  with our best shardings.

A row says whether it `fits` the memory, and has no step if not; `beside` are hand-written plans of
one program or in stages, of which those in `beside_too_large` do not fit.

`--only` takes a part of a row's name, such as "GPT" or "on 16"; `--quick` the smallest of each.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.models import GPT_39B
from benchmarks.pipeline_plans import (
    MEMORY_BYTES,
    decoder_layers,
    equal_layers,
    equal_operations,
    fixed,
    ours,
)
from examples.moe import MoE
from examples.wide_resnet import WideResNet
from planner import PlanError

GPT = {  # devices: hidden, layers, heads
    8: (2560, 32, 32), 16: (4096, 32, 32), 32: (5120, 48, 32), 64: (8192, 48, 64),
}  # fmt: skip
MIXTURES = {  # devices: hidden, layers, heads, experts
    8: (1024, 16, 16, 16), 16: (1536, 16, 16, 32), 32: (2048, 16, 32, 48), 64: (2048, 32, 32, 64),
}  # fmt: skip
RESNETS = {  # devices: blocks, base channels, width
    8: ((3, 4, 6, 3), 448, 2), 16: ((3, 4, 6, 3), 640, 2), 32: ((3, 4, 6, 3), 320, 16),
    64: ((3, 4, 23, 3), 320, 16),
}  # fmt: skip
# Teraflops a second and device of GPT: Megatron-LM's best of a grid, and Alpa.
PUBLISHED = {8: (50.44, 61.61), 16: (56.59, 60.0), 32: (58.24, 59.9), 64: (57.84, 57.0)}
BATCH = 1024


def cluster(devices: int) -> str:
    """The machine."""
    return f"{devices}xv100-16gb:8"


def gpt(devices: int) -> Any:
    """The decoder for as many devices."""
    hidden, layers, heads = GPT[devices]
    return GPT_39B._replace(
        vocab=51200, seq=1024, hidden=hidden, layers=layers, heads=heads, batch=BATCH,
        dtype="float16",
    )  # fmt: skip


def gpt_flops(devices: int) -> float:
    """Operations of a step as Alpa counts them, with every layer computed twice."""
    m = gpt(devices)
    layers = 96 * m.batch * m.seq * m.layers * m.hidden**2 * (1 + m.seq / (6 * m.hidden))
    return layers + 6 * m.batch * m.seq * m.hidden * m.vocab


def mixture(devices: int) -> Any:
    """The mixture of experts for as many devices."""
    hidden, layers, heads, experts = MIXTURES[devices]
    return MoE(32000, 1024, hidden, heads, experts, 8 * hidden, 2048, layers, BATCH, "float16")


def resnet(devices: int) -> Any:
    """The Wide-ResNet for as many devices."""
    blocks, channels, width = RESNETS[devices]
    return WideResNet(224, blocks, channels, width, 1024, 1536, "float32")


def _row(find: Any, *args: Any, **more: Any) -> dict[str, Any]:
    try:
        return find(*args, **more)
    except PlanError as error:
        return {"step_s": None, "fits": error.kind != "does-not-fit", "error": str(error)}


def _megatron(devices: int) -> dict[str, Any]:
    """The fastest of Megatron's pipelines that fits."""
    model, best = gpt(devices), dict[str, Any](step_s=None)
    for stages in sorted({max(devices // 8, 2), devices // 4}):
        for count in (128, 256):
            row = _row(
                fixed, model, cluster(devices), count, decoder_layers(stages, model.layers),
                (devices // stages,) * stages, "megatron",
            )  # fmt: skip
            step_s = row["step_s"]
            if step_s and (not best["step_s"] or step_s < best["step_s"]):
                best = {**row, "stages": stages, "microbatches": count}
    return best


def family(name: str, devices: int) -> list[dict[str, Any]]:
    """Rows of one model: ours, and what it is compared with."""
    model = {"GPT": gpt, "MoE": mixture, "Wide-ResNet": resnet}[name](devices)
    found = _row(ours, model, cluster(devices), MEMORY_BYTES)
    rows = [{"plan": "ours", **found}]
    sizes = [size for _, _, size, _ in found.get("stages", ())]
    # where stages take turns on their groups, there are as many sub-meshes as devices allow
    groups, count = len(sizes) * devices // max(sum(sizes), 1), found.get("microbatches", 1)
    if name == "GPT":
        rows.append({"plan": "Megatron's", **_megatron(devices)})
    if groups > 1 and devices % groups == 0:
        cuts = decoder_layers(groups, model.layers) if name == "GPT" else equal_layers(groups)
        for plan, places in (
            ("equal layers", cuts),
            ("equal operations", equal_operations(groups)),
        ):
            equal = (devices // groups,) * groups
            rows.append(
                {"plan": plan, **_row(fixed, model, cluster(devices), count, places, equal, None)}
            )
    for row in rows:
        step_s = row["step_s"]
        if step_s and rows[0]["step_s"]:
            row["over_ours"] = step_s / rows[0]["step_s"]
        if step_s and name == "GPT":
            row["tflops"] = gpt_flops(devices) / step_s / devices / 1e12
    if name == "GPT":
        for plan, rate in zip(("Megatron-LM", "Alpa"), PUBLISHED[devices], strict=True):
            step_s = gpt_flops(devices) / (rate * 1e12 * devices)
            rows.append({"plan": f"{plan}, published", "step_s": step_s, "tflops": rate})
    return [{"model": f"{name} on {devices}", **row} for row in rows]


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints and returns the rows of every model."""
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    rows: list[dict[str, Any]] = []
    for name in ("GPT", "Wide-ResNet", "MoE"):
        for devices in (8,) if quick else (8, 16, 32, 64):
            if only in f"{name} on {devices}":
                for row in family(name, devices):
                    rows.append(row)
                    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows

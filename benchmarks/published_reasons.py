"""Likely causes of a price that is far from its published step.

They follow from what a source states of its run and from what the planner does not model; none was
isolated by a measurement.
"""

from __future__ import annotations

import math

from benchmarks.published_model import Transformer
from benchmarks.published_plan import Degrees

FIRST_KERNEL = (
    "Ran the first flash attention in Triton, whose kernels are priced by the range that "
    "FlashAttention-2's authors give, not as measured"
)
EAGER = "PyTorch without a compiler reads and writes memory between elementwise operations"
ALONE = (
    "Products are priced as XLA's steps ran them on one H100 of 700 W; long steps may run at a "
    "lower clock by their power"
)
APART = (
    "Query, key and value, and gate and up, are products apart here: each sends the gathered "
    "operand round on its own, and the sum of their gradients is reduced after them. That "
    "implementation makes one product of them, with its collectives inside"
)
MEGATRON = ("Megatron-Bridge", "Megatron-LM README", "MLPerf", "NeMo")
REASONS: dict[str, str] = {
    "Megatron-LM SC'21, ZeRO-3": (
        "DeepSpeed of early 2021 gathered parameters one by one into lists with an entry for each "
        "device; the same 66.7 s were measured on 768 and on 1536 devices"
    ),
    "JAX-Toolbox MaxText": ALONE,
    "torchtitan": ALONE,
    "Alpa logical shapes": (
        "Two mesh axes on one host of V100s, whose links form a hypercube: a group of two or four "
        "has fewer links than the all-to-all network that is priced"
    ),
    "Alpa end to end, inter only": "GPU kernels of float16 on V100 are priced by cubes only",
}


def reason(source: str, cluster: str, degrees: Degrees, model: Transformer) -> str:
    """The likely causes of a large error, or that there is none.

    Args:
        source: of the case.
        cluster: name of the machine.
        degrees: how the step was spread.
        model: what was trained.
    """
    found: list[str] = []
    if degrees.tensor > 1 and source.startswith(MEGATRON):
        found.append(APART)
    sizes = model.hidden, model.ffn, model.vocab
    coprime = all(math.gcd(size, degrees.data) == 1 for size in sizes)
    if degrees.shard != "none" and degrees.data > 1 and coprime:
        found.append(
            f"No dimension divides by {degrees.data}, so optimizer states stay whole, where "
            "Megatron splits one flat buffer"
        )
    if source == "MosaicML llm-foundry":
        found.extend([FIRST_KERNEL, EAGER])
        if "h100" in cluster and not model.dtype.startswith("float8"):
            found.append(ALONE)
    elif source.startswith("torchtitan"):
        found.append(REASONS["torchtitan"])
    elif source in REASONS:
        found.append(REASONS[source])
    return ". ".join(found) + "." if found else "Unexplained."


def memory_reason(
    source: str, cluster: str, degrees: Degrees, peak_bytes: float, limit_bytes: float
) -> str:
    """The likely cause of a verdict on memory that is not the published one.

    Args:
        source: of the case.
        cluster: name of the machine.
        degrees: how the step was spread.
        peak_bytes: predicted memory of a device.
        limit_bytes: memory that it was held against.
    """
    off = peak_bytes / limit_bytes - 1.0
    if peak_bytes <= limit_bytes:
        return f"Ran out of memory where {-off:.0%} are predicted to be left."
    if source.startswith("Megatron-Bridge") and "gb" in cluster and degrees.shard == "zero3":
        layers = 40 if "gb200" in cluster else 20
        return (
            f"Its recipe keeps the activations of {layers} of 80 layers on the host "
            "(cpu_offloading_num_layers), which this row does not price: `offload` of plans moves "
            "values of one program, not of stages."
        )
    if degrees.pipeline > 1 == degrees.chunks:
        return (
            (
                f"{off:.0%} above the limit. Settings as the table prints them; its recipe has "
                "micro-batches of one sequence and five stages on each device."
            )
            if "gb300" in cluster
            else f"{off:.0%} above the limit."
        )
    return f"{off:.0%} above the limit."


def peak_reason(source: str, model: Transformer, wide_bytes: float) -> str:
    """The likely cause of a published peak of memory that is not the predicted one.

    Args:
        source: of the case.
        model: what is trained.
        wide_bytes: float32 logits of a micro-batch on one device.
    """
    if not source.startswith("torchtitan"):
        return "Unexplained."
    kept = (
        " Its policy keeps every second product as it is called, so also the values, and the "
        "output of the last product of a layer, which no backward pass reads"
    )
    return (
        "Its figure is what PyTorch's allocator has reserved (max_reserved_gib), free blocks "
        "included. Its loss holds the log-probabilities and two gradients of them in float32, "
        f"{3 * wide_bytes / 1e9:.1f} GB at once, where XLA holds one such array."
        + (f"{kept}." if model.recompute == "alternate" else "")
    )

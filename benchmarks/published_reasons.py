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
    "Products are priced at the rate that one GPU of 700 W lasts; a host of eight may run at a "
    "lower clock by its heat"
)
POWER = (
    "H100 of 500 W, whose lasting rate of products is that of 700 W times the cube root of "
    "500/700, not measured"
)
FULL = 0.95  # of memory, above which PyTorch's allocator frees and allocates blocks anew
NEARLY_FULL = (
    "The step takes {share:.0%} of memory; PyTorch's allocator then frees blocks, for which the "
    "device waits, and allocates them anew"
)
APART = (
    "Query, key and value, and gate and up, are products apart here: each sends the gathered "
    "operand round on its own, and the sum of their gradients is reduced after them. That "
    "implementation makes one product of them, with its collectives inside"
)
OTHER_SETTINGS = (
    "By the settings that its table prints the step does not fit; its recipe has others "
    "(micro-batches of one sequence, five stages on each device, or activations on the host)"
)
PYTORCH = ("MosaicML", "torchtitan")
MEGATRON = ("Megatron-Bridge", "Megatron-LM README", "MLPerf", "NeMo")
REASONS: dict[str, str] = {
    "Megatron-LM SC'21, ZeRO-3": (
        "DeepSpeed of early 2021 gathered parameters one by one into lists with an entry for each "
        "device; the same 66.7 s were measured on 768 and on 1536 devices"
    ),
    "JAX-Toolbox MaxText": ALONE,
    "Alpa logical shapes": (
        "Two mesh axes on one host of V100s, whose links form a hypercube: a group of two or four "
        "has fewer links than the all-to-all network that is priced"
    ),
    "Alpa end to end, inter only": "GPU kernels of float16 on V100 are priced by cubes only",
}


def reason(
    source: str, cluster: str, degrees: Degrees, model: Transformer, memory_share: float
) -> str:
    """The likely causes of a large error, or that there is none.

    Args:
        source: of the case.
        cluster: name of the machine.
        degrees: how the step was spread.
        model: what was trained.
        memory_share: predicted peak as a share of what a framework can use.
    """
    found: list[str] = []
    if memory_share > FULL and source.startswith(PYTORCH):
        found.append(NEARLY_FULL.format(share=memory_share))
    if memory_share > FULL and "gb300" in cluster:
        found.append(OTHER_SETTINGS)
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
        found.append(POWER if "hbm2e" in cluster else ALONE)
    elif source == "Megatron-LM README":
        found.append(EAGER)
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

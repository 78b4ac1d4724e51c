"""Likely causes of a price that is far from its published step.

They follow from what a source states of its run and from what the planner does not model; none was
isolated by a measurement.
"""

from __future__ import annotations

from benchmarks.published_model import Transformer
from benchmarks.published_plan import Degrees

FIRST_KERNEL = (
    "Ran the first flash attention in Triton; priced is the current kernel, which is several times "
    "faster on long sequences"
)
EAGER = "PyTorch without a compiler reads and writes memory between elementwise operations"
ALONE = (
    "bfloat16 products are priced at the rate that the power limit lets last, 679 TFLOP/s at "
    "700 W; attention and products below that rate keep the clock at which they were timed one at "
    "a time"
)
REASONS: dict[str, str] = {
    "JAX-Toolbox MaxText": ALONE,
    "torchtitan": f"{ALONE}; its collectives of tensor parallelism run between the products",
    "Alpa logical shapes": (
        "Two mesh axes on one host of V100s, whose links form a hypercube: a group of two or four "
        "has fewer links than the all-to-all network that is priced"
    ),
    "Alpa end to end, inter only": "GPU kernels of float16 on V100 are priced by cubes only",
    "MLPerf Training 4.1": (
        "Chunks of a pipeline are priced with exposed tensor-parallel collectives; that "
        "implementation hides them inside its products"
    ),
    "NeMo 25.02": "As MLPerf's: collectives of tensor parallelism are hidden inside products there",
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
    if degrees.data & (degrees.data - 1):
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

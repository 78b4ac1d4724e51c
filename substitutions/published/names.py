"""How the published sets name ops and parameters, and what their inputs are."""

from __future__ import annotations

from collections.abc import Mapping

# TASO's numbers of op types and parameters; FlexFlow's names.
TASO_OPS: Mapping[int, str] = {
    3: "conv",
    6: "maxpool",
    7: "avgpool",
    8: "relu",
    12: "concat",
    13: "split",
    16: "add",
    17: "mul",
    18: "matmul",
    19: "scale",
    20: "enlarge",
}
TASO_PARAMETERS: Mapping[int, str] = {
    1: "inputs",
    2: "outputs",
    3: "group",
    4: "kernel_h",
    5: "kernel_w",
    6: "stride_h",
    7: "stride_w",
    8: "padding",
    9: "activation",
    10: "rank",
    11: "axis",
}
FLEXFLOW_OPS: Mapping[str, str] = {
    "OP_PARTITION": "partition",
    "OP_COMBINE": "combine",
    "OP_REPLICATE": "replicate",
    "OP_REDUCE": "reduce",
    "OP_LINEAR": "linear",
    "OP_EW_ADD": "add",
    "OP_EW_MUL": "mul",
    "OP_RELU": "relu",
    "OP_CONCAT": "concat",
    "OP_SPLIT": "split",
}
FLEXFLOW_PARAMETERS: Mapping[str, str] = {
    "PM_PARALLEL_DIM": "dim",
    "PM_PARALLEL_DEGREE": "degree",
    "PM_ACTI": "activation",
    "PM_AXIS": "axis",
    "PM_NUM_INPUTS": "inputs",
    "PM_NUM_OUTPUTS": "outputs",
    "PM_NUMDIM": "rank",
}


def taso_rank(number: int) -> int:
    """Dimensions of input `-number` in TASO's generator: matrices, images and kernels, a scalar."""
    return 2 if number <= 6 else 0 if number == 20 else 4

"""Attention in a ring of 8 devices against published iterations a second, priced as plans are.

    python -m benchmarks ring-blocks

Rows are shares of an ideal: 8 kernels of a device's own block, one after the other. The published
ones are of flash_attn 2 on 8,192 tokens a device, 5 heads of 128, causal, batch 1, whose order of
zigzag is there before the measurement, so that the permutes that bring chunks there and back are
left out here. Kernels of the H100 table are twice as fast as those of the H800 rows, hops are not.

Source: long-context-attention README (0228a2b, MIT), from zhuzilin, ring-flash-attention.
"""

from __future__ import annotations

import numpy as np

from costmodel import (
    AttentionWork,
    CollectiveModel,
    ComputeModel,
    Hops,
    group_for,
    parse_cluster,
)
from ir import ATTENTION, RING, ZIGZAG, Node, TensorType

COUNT, TOKENS, HEADS, FEATURES = 8, 8192, 5, 128
FORWARD = ATTENTION[:1]
# Cluster here, theirs, kernels, their iterations a second: ideal, ring, zigzag.
PUBLISHED = (
    ("8xh100", "8xH800", FORWARD, 302.3, 208.0, 283.0),
    ("8xh100", "8xH800", ATTENTION, 88.2, 54.3, 75.7),
    ("8xa100-80gb", "8xA100", FORWARD, 193.2, 124.4, 179.0),
    ("8xa100-80gb", "8xA100", ATTENTION, 58.8, 33.3, 49.5),
)
HEAD = "| devices | pass | way | share here | published |\n|" + "---|" * 5


def work(op: str, way: str) -> AttentionWork:
    """A kernel split over the devices in a way."""
    length = COUNT * TOKENS
    each, none = TensorType((1, length, HEADS, FEATURES), "bfloat16"), TensorType((0,), "bfloat16")
    operands = (each,) * 3 + (none,) * 7
    if op == ATTENTION[1]:
        operands += (TensorType((1, HEADS, length), "float32"), each, each)
    attrs = (
        ("mask_type", "CAUSAL"), ("layout", 0), ("sliding_window_length", None),
        ("variadic_args", (False, False)), ("dropout_rate", 0.0),
    )  # fmt: skip
    node = Node(op, tuple(range(len(operands))), (each,), attrs, ())
    return AttentionWork(node, operands, {way: np.array([float(COUNT)])})


def share(cluster: str, kernels: tuple[str, ...], way: str) -> float:
    """Seconds of the ideal over those of a way."""
    machine = parse_cluster(cluster)
    compute, model = ComputeModel(machine), CollectiveModel(machine)
    hops = Hops(model, (group_for(machine, (COUNT,), (0,)),), overlap=True)
    ideal = took = 0.0
    for op in kernels:
        ideal += COUNT * float(work(op, way).blocks_s(compute)[0][0])
        took += float(work(op, way).seconds(compute)[0])
        took += float(work(op, way).exchange(compute, hops).exposed_s[0])
        took -= float(work(op, way).turning_s(hops)[0])  # theirs begin and end in its order
    return ideal / took


def main(quick: bool = False) -> list[dict[str, object]]:
    del quick
    rows: list[dict[str, object]] = []
    print(HEAD)
    for here, there, kernels, ideal, ring, zigzag in PUBLISHED:
        passes = "forward" if kernels == FORWARD else "forward and backward"
        for way, published in ((RING, ring), (ZIGZAG, zigzag)):
            found = share(here, kernels, way)
            rows.append({"devices": there, "pass": passes, "way": way, "share": found,
                         "published": published / ideal})  # fmt: skip
            print(f"| {there} | {passes} | {way} | {found:.2f} | {published / ideal:.2f} |")
    return rows

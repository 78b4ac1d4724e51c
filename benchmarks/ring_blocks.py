# pyright: basic
"""Attention in a ring of 8 devices against published iterations a second, priced as plans are.

    python -m benchmarks ring-blocks

Rows are shares of an ideal: 8 kernels of a device's own block, one after the other. The published
ones are of flash_attn 2 on 8,192 tokens a device, 5 heads of 128, causal, batch 1, whose order of
zigzag is there before the measurement, so that the permutes that bring chunks there and back are
left out here.

Each row is priced twice. As a plan is: with the kernels of our table, which on H100 take 0.37 of
the time of those of the H800 rows, and permutes by copy engines where plans have these. And as
theirs ran: with kernels that are so much slower or faster that the ideal is the published one, and
permutes by NCCL. In the second, shares differ by hops and by what merges blocks, in the ring also
by blocks without a mask: they took 1.4 to 1.5 times as long as those on the diagonal, not 1.8.

Source: long-context-attention README (0228a2b, MIT), from zhuzilin, ring-flash-attention.
"""

from __future__ import annotations

from typing import Any

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
HEAD = "| devices | pass | way | share of a plan | with their kernels | published |\n|" + "---|" * 6


class Scaled:
    """Prices of a device with attention slower by a factor."""

    def __init__(self, compute: ComputeModel, times: float) -> None:
        self.compute, self.times, self.launch_s = compute, times, compute.launch_s

    def attention_s(self, *sizes, **options):
        return self.times * self.compute.attention_s(*sizes, **options)

    def memory_s(self, moved_bytes):
        return self.compute.memory_s(moved_bytes)


class ByNccl:
    """Prices of collectives whose permutes no copy engine sends."""

    def __init__(self, model: CollectiveModel) -> None:
        self.seconds = model.seconds

    def permute_s(self, group, nbytes):
        return self.seconds("collective-permute", group, nbytes)


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


def share(cluster: str, kernels: tuple[str, ...], way: str, ideal_s: float = 0.0) -> float:
    """Seconds of the ideal over those of a way.

    Args:
        cluster: the devices.
        kernels: forward, or forward and backward.
        way: the ring or zigzag.
        ideal_s: what the ideal took where it was measured, with permutes by NCCL; 0 for kernels and
            permutes of a plan.
    """
    machine = parse_cluster(cluster)
    compute: Any = ComputeModel(machine)
    model: Any = CollectiveModel(machine)
    mine_s = _ideal_s(compute, kernels)
    if ideal_s:
        compute, model = Scaled(compute, ideal_s / mine_s), ByNccl(model)
    hops = Hops(model, (group_for(machine, (COUNT,), (0,)),), overlap=True)
    took = 0.0
    for op in kernels:
        took += float(work(op, way).seconds(compute)[0])
        took += float(work(op, way).exchange(compute, hops).exposed_s[0])
        took -= float(work(op, way).turning_s(hops)[0])  # theirs begin and end in its order
    return _ideal_s(compute, kernels) / took


def _ideal_s(compute: Any, kernels: tuple[str, ...]) -> float:
    return sum(COUNT * float(work(op, RING).blocks_s(compute)[0][0]) for op in kernels)


def main(quick: bool = False) -> list[dict[str, object]]:
    del quick
    rows: list[dict[str, object]] = []
    print(HEAD)
    for here, there, kernels, ideal, ring, zigzag in PUBLISHED:
        passes = "forward" if kernels == FORWARD else "forward and backward"
        for way, published in ((RING, ring), (ZIGZAG, zigzag)):
            found, theirs = share(here, kernels, way), share(here, kernels, way, 1.0 / ideal)
            rows.append({"devices": there, "pass": passes, "way": way, "share": found,
                         "with_their_kernels": theirs, "published": published / ideal})  # fmt: skip
            print(
                f"| {there} | {passes} | {way} | {found:.2f} | {theirs:.2f} "
                f"| {published / ideal:.2f} |"
            )
    return rows

"""Sorts and cumulative ops: prices against timings on one H100, and how they grow."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel import ComputeModel, parse_cluster
from costmodel.sorting import LEAST_RADIX, ordering_s
from ir import Node, TensorType

H100 = ComputeModel(parse_cluster("1xh100"))
# Op, shapes and dtype of operands, microseconds (benchmarks/data/one_gpu_h100_kernels.csv).
TIMED = (
    ("sort", (4096, 4096), ("bfloat16",), 700.76), ("sort", (4096, 4096), ("float32",), 1143.90),
    ("sort", (131_072,), ("int32", "int32"), 41.61),
    ("sort", (2_097_152,), ("int32", "int32"), 91.06),
    ("top_k", (16384, 64), ("float32",), 47.33), ("top_k", (16384, 256), ("float32",), 146.92),
    ("cumsum", (16384, 4096), ("bfloat16",), 398.0),
    ("cumsum", (16384, 4096), ("float32",), 457.75),
)  # fmt: skip


def seconds(
    op: str, shape: tuple[int, ...], dtypes: tuple[str, ...], share: float = 1.0,
    compute: ComputeModel = H100,
) -> float | None:  # fmt: skip
    operands = tuple(TensorType(shape, dtype) for dtype in dtypes)
    node = Node(op, (), operands, (("dimension", len(shape) - 1),))
    moved = compute.memory_s(np.array([2.0 * share * operands[0].nbytes]))
    found = ordering_s(node, operands, np.array([share]), moved, compute)
    return None if found is None else float(found[0])


@pytest.mark.parametrize(("op", "shape", "dtypes", "timed_us"), TIMED)
def test_timings_are_met(
    op: str, shape: tuple[int, ...], dtypes: tuple[str, ...], timed_us: float
) -> None:
    found = seconds(op, shape, dtypes)
    assert found is not None
    assert 1e6 * found == pytest.approx(timed_us, rel=0.32)


def test_a_share_of_the_rows_takes_a_share_of_the_time() -> None:
    whole, half = (seconds("sort", (4096, 4096), ("float32",), share) for share in (1.0, 0.5))
    assert whole is not None
    assert half == pytest.approx(whole / 2)


def test_longer_arrays_take_longer_also_where_the_way_of_sorting_changes() -> None:
    lengths = [LEAST_RADIX // 4, LEAST_RADIX - 1, LEAST_RADIX, 10 * LEAST_RADIX]
    found = [seconds("sort", (n,), ("int32",)) for n in lengths]
    assert found == sorted(s for s in found if s is not None)


def test_others_and_cpus_are_priced_by_what_they_move() -> None:
    assert seconds("add", (64,), ("float32",)) is None
    assert seconds("sort", (64,), ("float32",), compute=ComputeModel(parse_cluster("host"))) is None

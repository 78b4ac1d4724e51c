from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from costmodel import ComputeModel, item_bytes, parse_cluster
from costmodel.compute import CONV_EFFICIENCY
from profiles import OpTable, convert, load_profile

DEVICES = ("h100", "b200", "gb200", "a100", "v100-16gb", "l4", "host")
MEASURED = Path(__file__).parents[2] / "benchmarks" / "data" / "one_gpu_h100_kernels.csv"
DTYPES = ("bfloat16", "float32", "float16", "float8_e4m3fn", "float64", "int8", "bool", "complex64")


@cache
def model(device: str) -> ComputeModel:
    return ComputeModel(parse_cluster(device))


sizes = st.integers(1, 40_000)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(DEVICES),
    st.sampled_from(DTYPES),
    st.tuples(st.integers(1, 64), sizes, sizes, sizes),
    st.integers(0, 3),
    st.integers(1, 8),
)
def test_a_larger_product_never_takes_less(
    device: str, dtype: str, shape: tuple[int, int, int, int], axis: int, factor: int
) -> None:
    larger = list(shape)
    larger[axis] *= factor
    less = float(model(device).gemm_s(*shape, dtype=dtype))
    more = float(model(device).gemm_s(*larger, dtype=dtype))
    assert 0.0 < less <= more * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(DEVICES),
    st.sampled_from((128, 16384, 2**21)),
    st.tuples(*[st.integers(1, 31)] * 3),
)
def test_small_products_are_never_dearer_than_the_vector_unit(
    device: str, batch: int, sides: tuple[int, int, int]
) -> None:
    m, n, k = sides
    priced = model(device)
    elements = batch * (m * k + k * n + m * n)
    flops = 2.0 * batch * m * n * k
    vector_s = max(
        float(priced.flops_s(flops, "float32")), flops / priced.peak_flops("float32", tensor=True)
    )
    most_s = max(priced.launch_s + vector_s, float(priced.memory_s(4 * elements)))
    assert float(priced.gemm_s(batch, m, n, k, "float32")) <= most_s * (1 + 1e-9)


@pytest.mark.parametrize("device", ["a100", "h100", "h200", "b200", "gb200"])
def test_a_batch_is_priced_as_rows(device: str) -> None:
    m, n, k = 512, 1024, 2048
    batched = model(device).gemm_s(np.array([2, 8, 64]), m, n, k, "bfloat16")
    rows = model(device).gemm_s(1, m * np.array([2, 8, 64]), n, k, "bfloat16")
    np.testing.assert_allclose(batched, rows, rtol=0.05)  # memory may bind the batch


@pytest.mark.parametrize("device", ["a100", "h100", "h200", "b200", "gb200"])
def test_the_measured_grid_is_met(device: str) -> None:
    table = load_profile(device).gemm
    assert table is not None
    for dtype in sorted({row.dtype for row in table.rows}):
        rows = [row for row in table.rows if row.dtype == dtype]
        sizes = np.array([(r.batch, r.m, r.n, r.k) for r in rows], dtype=np.float64)
        batch, m, n, k = sizes[:, 0], sizes[:, 1], sizes[:, 2], sizes[:, 3]
        seconds = np.array([r.seconds for r in rows])
        limit = model(device).device.sustained(dtype) or np.inf
        seconds = np.maximum(seconds, 2 * batch * m * n * k / limit)
        errors = np.abs(model(device).gemm_s(batch, m, n, k, dtype) / seconds - 1)
        assert np.median(errors) < 0.05
        assert np.quantile(errors, 0.95) < 0.4


@pytest.mark.parametrize("device", ["h100", "b200", "gb200"])
def test_the_sustained_rate_is_that_of_the_longest_products(device: str) -> None:
    table = load_profile(device).gemm
    assert table is not None
    long = [r for r in table.rows if r.dtype == "bfloat16" and r.seconds >= 0.064]
    rates = [2 * r.batch * r.m * r.n * r.k / r.seconds for r in long]
    sustained = model(device).device.sustained("bfloat16")
    assert sustained == pytest.approx(float(np.median(rates)), rel=0.01)
    assert sustained is not None
    found = model(device).gemm_s(1, 8192, 8192, 8192, "bfloat16")
    assert float(found) == pytest.approx(2 * 8192**3 / sustained, rel=1e-9)


def test_beyond_the_grid_the_rate_of_the_border_goes_on() -> None:
    border = float(model("h100").gemm_s(1, 4096, 4096, 4096, "bfloat16"))
    larger = float(model("h100").gemm_s(2, 8192, 4096, 16384, "bfloat16"))
    assert larger == pytest.approx(16 * border, rel=0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_product_beats_the_peak(device: str, dtype: str) -> None:
    seconds = float(model(device).gemm_s(1, 8192, 8192, 8192, dtype))
    rate = 2 * 8192**3 / seconds
    peak = model(device).peak_flops(dtype, tensor=True)
    assert 0.3 * peak < rate <= peak


def test_a_thin_product_waits_for_memory() -> None:
    seconds = float(model("h100").gemm_s(1, 1, 16384, 16384, "bfloat16"))
    assert seconds == pytest.approx(2 * 16384**2 / (3.35e12 * 0.89), rel=0.01)


def test_a_tiny_product_costs_a_launch() -> None:
    assert float(model("a100").gemm_s(1, 8, 8, 8, "float32")) >= model("a100").launch_s


def test_products_broadcast_and_empty_ones_are_free() -> None:
    m = np.array([0, 256, 1024])[:, None]
    found = model("h100").gemm_s(1, m, np.array([512, 4096]), 1024, "bfloat16")
    assert found.shape == (3, 2)
    assert not found[0].any()
    assert float(model("h100").gemm_s(1, 256, 512, 1024, "bfloat16")) == found[1, 0]


def test_the_v100_table_is_used() -> None:
    seconds = float(model("v100-16gb").gemm_s(1, 8064, 8064, 8064, "float16"))
    assert seconds == pytest.approx(0.01003, rel=0.01)


def test_memory_and_other_arithmetic() -> None:
    assert float(model("h100").memory_s(3.35e12)) == pytest.approx(1 / 0.89)
    np.testing.assert_allclose(
        model("h100").flops_s(np.array([67e12, 0]), "bfloat16"), [1 / 0.48, 0]
    )
    assert float(model("l4").flops_s(1e9, "float64")) > float(model("l4").flops_s(1e9, "int32"))


@pytest.mark.parametrize(
    ("dtype", "want"),
    [("bool", 1), ("int4", 0.5), ("float8_e5m2", 1), ("bfloat16", 2), ("uint32", 4),
     ("complex64", 8), ("float4_e2m1fn", 0.5)],
)  # fmt: skip
def test_item_bytes(dtype: str, want: float) -> None:
    assert item_bytes(dtype) == want


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="sizes must be at least 0"):
        model("h100").gemm_s(1, -1, 2, 3, "bfloat16")
    with pytest.raises(ValueError, match="'half' is not a dtype name"):
        model("h100").gemm_s(1, 1, 2, 3, "half")


def test_a_convolution_is_its_product_and_one_channel_a_vector_loop() -> None:
    h100 = model("h100")
    side = np.cbrt(32.0 * 56 * 56 * 256 * 9 * 256)
    product = float(h100.gemm_s(1, side, side, side, "bfloat16"))
    full = float(h100.convolution_s(1, 32 * 56 * 56, 256, 9 * 256, "bfloat16"))
    assert full == pytest.approx(product / CONV_EFFICIENCY)
    depthwise = float(h100.convolution_s(256, 32 * 56 * 56, 1, 9, "bfloat16"))
    assert depthwise < float(h100.gemm_s(256, 32 * 56 * 56, 1, 9, "bfloat16"))


def measured(**ops: tuple[tuple[int, int, float], ...]) -> ComputeModel:
    """A host whose ops took (flops, bytes, seconds)."""
    rows = [[op, "float32", *row] for op, some in ops.items() for row in some]
    table = {"name": "t", "source": "test", "date": "2026", "licence": "none", "rows": rows}
    return ComputeModel(replace(parse_cluster("2xhost"), ops=convert(table, OpTable, "test")))


def test_measured_operations_are_met() -> None:
    host = measured(
        gather=((0, 1000, 5e-6), (0, 100_000, 50e-6)),
        elementwise=((32_000, 8000, 32e-6),),
        transcendental=((1000, 8000, 10e-6),),
        convolution=((1_000_000, 8000, 1e-3), (2_000_000, 8000, 2e-3)),
    )
    moved = host.moving_s("gather", np.array([100_000.0]))
    assert moved is not None
    np.testing.assert_allclose(moved, 50e-6)
    assert host.moving_s("reduce", np.array([1.0])) is None
    assert float(host.flops_s(1e6, "float32")) == pytest.approx(1e-3)
    assert host.transcendental_flops == pytest.approx(10.0)
    assert float(host.convolution_s(1, 1000, 10, 75, "float32")) == pytest.approx(1.5e-3)


def test_a_measured_bandwidth_is_taken_whole() -> None:
    base = parse_cluster("2xhost")
    rate = base.device.memory_bandwidth_bytes_per_s
    found = ComputeModel(replace(base, device=structs.replace(base.device, evidence="measured")))
    assert float(found.memory_s(rate)) == pytest.approx(1.0)
    assert float(ComputeModel(base).memory_s(rate)) == pytest.approx(1 / 0.89)


def test_convolutions_are_near_those_measured() -> None:
    """Of an H100: convolutions of at least 64 channels, and both their gradients."""
    compute, errors = model("h100"), list[float]()
    with MEASURED.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    for row in rows:
        if not row["op"].startswith("conv"):
            continue
        batch, side, channels, outputs, window, stride, groups = map(int, row["sizes"].split("x"))
        if channels < 64:
            continue
        left = -(-side // stride)
        product = batch * left**2, outputs // groups, channels // groups * window**2
        item = 2 if row["dtype"] == "bfloat16" else 4
        whole = channels * side**2 * batch + outputs * left**2 * batch
        moved = item * (whole + window**2 * channels * outputs / groups)
        found = float(compute.convolution_s(groups, *product, row["dtype"]))
        found = max(found, float(compute.memory_s(moved)))
        errors.append(abs(found / (1e-6 * float(row["kernel_us"])) - 1.0))
    assert len(errors) == 41
    assert np.median(errors) <= 0.3

# pyright: basic
from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest
from msgspec.structs import replace

from profiles import CollectiveRow, GemmRow, OpRow, ProfileError, load_profile
from profiles import measure as door
from profiles.measure import measure, present, profile_name
from profiles.measure_cases import collective_cases, local_cases, passing_cases


def few(cases, ops):
    """The smallest case of each op."""
    return [next(c for c in cases if c.op == op) for op in ops]


@pytest.fixture(scope="module")
def found():
    ops = ("product", "copy", "elementwise", "transcendental", "reduce", "gather", "scatter",
           "attention", "convolution", "optimizer")  # fmt: skip
    local = few(list(local_cases(True)), ops)
    shared = few(
        list(collective_cases(2, True)),
        ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"),
    )
    patched = pytest.MonkeyPatch()
    patched.setattr(door, "local_cases", lambda quick, **_: local)
    patched.setattr(door, "collective_cases", lambda count, quick: shared)
    patched.setattr(door, "RUN_S", 2e-4)
    patched.setitem(door.RUNS, "quick", (3, 0.05))
    yield measure("host", load_profile("host"), jax.devices("cpu")[:2], quick=True)
    patched.undo()


def test_every_case_yields_a_row_and_a_spread(found) -> None:
    profile = found.profile
    assert len(profile.gemm.rows) == 1
    ops = [row.op for row in profile.ops.rows]
    assert len(set(ops)) == 10
    assert ops.count("copy") == ops.count("transpose") == len(list(passing_cases())) / 2
    assert all(row.seconds > 0 for row in profile.ops.rows)
    assert {row.kind for row in profile.collectives.rows} == {
        "all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter",
    }  # fmt: skip
    assert len(found.samples) == len(profile.gemm.rows) + len(ops) + 5
    for s in found.samples:
        assert 0.0 < s.low_s <= s.median_s <= s.high_s
        assert s.repeats >= 3


def test_the_profile_says_what_was_measured_and_where(found) -> None:
    device = found.profile.device
    assert device.evidence == "measured"
    assert "2 devices at once" in device.source
    assert found.profile.devices_per_host == found.profile.domain == found.devices == 2


def test_a_quick_run_covers_a_full_grid_and_both_axes() -> None:
    rows = [c.row(1e-3) for c in local_cases(True)]
    grid = {
        (r.batch, r.m, r.n, r.k) for r in rows if isinstance(r, GemmRow) and r.dtype == "float32"
    }
    assert len(grid) == 2 * 3**3
    assert all(r.moved_bytes > 0 for r in rows if isinstance(r, OpRow))
    shared = [c.row(1e-3) for c in collective_cases(4, True)]
    assert {(r.group_size, r.stride) for r in shared if isinstance(r, CollectiveRow)} == {
        (4, 1), (2, 1), (2, 2),
    }  # fmt: skip


def test_accelerators_are_filled() -> None:
    rows = [c.row(1e-3) for c in local_cases(True, accelerator=True)]
    for dtype in ("bfloat16", "float32"):
        grid = {(r.m, r.n, r.k) for r in rows if isinstance(r, GemmRow) and r.dtype == dtype}
        assert (8192, 8192, 8192) in grid
        assert len(grid) == 3**3 + 2
    largest = max(r.moved_bytes for r in rows if isinstance(r, OpRow) and r.op == "elementwise")
    assert largest >= 256 << 20  # beyond every cache


def test_an_iteration_runs_its_bodies_one_after_the_other() -> None:
    copy = next(c for c in local_cases(True) if c.op == "copy")
    devices = jax.devices("cpu")[:1]
    alone, four = door._program(copy, devices, 1), door._program(copy, devices, 4)
    assert jnp.allclose(alone(12), four(3))
    assert jnp.allclose(alone(12) - alone(0), 12.0)


def test_products_stay_numbers_however_often_they_run() -> None:
    """Products of infinities take less power, and run faster."""
    devices, seen = jax.devices("cpu")[:1], set[bool]()
    for case in local_cases(True):
        row = case.row(1e-3)
        if isinstance(row, GemmRow) and row.n == row.k and row.m * row.n * row.k < 1e6:
            seen.add(row.m == row.k)
            assert jnp.isfinite(door._program(case, devices, 1)(300)).all(), case.sizes
    assert seen == {True, False}


def test_a_product_carries_its_smaller_operand() -> None:
    for case in local_cases(True, accelerator=True):
        if case.op == "product":
            row = case.row(1e-3)
            assert isinstance(row, GemmRow)
            carried, other = map(math.prod, case.shapes)
            assert carried <= other
            assert carried * other == row.batch**2 * row.m * row.n * row.k**2


def test_the_rate_that_lasts_is_that_of_the_largest_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "WARM_S", 0.05)
    small, large = (GemmRow("bfloat16", 1, n, n, n, 1e-9) for n in (32, 64))
    devices = jax.devices("cpu")[:1]
    ((dtype, rate),) = door._sustained([small, large], devices)
    assert dtype == "bfloat16"
    assert 1e6 < rate < 2 * 64**3 / 1e-9
    slow = replace(small, seconds=10.0), replace(large, seconds=10.0)
    assert door._sustained(list(slow), devices) == ()  # none where timed ones were no faster


def test_the_devices_present() -> None:
    assert len(present("host", 4)) == 4
    assert profile_name(present("host", 1)) == "host"
    if not any(d.platform == "gpu" for d in jax.devices()):
        with pytest.raises(ProfileError, match=r"JAX finds no gpu.*--device host"):
            present("gpu")


@pytest.mark.gpu
def test_a_gpu_is_measured_at_a_believable_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    side = [c for c in local_cases(True, accelerator=True) if c.op in ("product", "copy")][-6:]
    monkeypatch.setattr(door, "local_cases", lambda quick, **_: side)
    gpus = present("gpu")[:1]
    found = measure(profile_name(gpus), load_profile("h100"), gpus, quick=True).profile
    assert 1e11 < max(rate for _, rate in found.device.peak_flops) < 1e16
    assert 1e11 < found.device.memory_bandwidth_bytes_per_s < 2e13

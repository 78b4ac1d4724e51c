"""Lowered plans on logical devices: read from text, run beside their program."""

from __future__ import annotations

import numpy as np
import pytest

from ir import IRError, Mesh, ReshardStep, interpret, interpret_lowered, parse_plan, parse_sharding
from ir.logical_devices import LogicalDevices
from tests.ir.test_lowered_text import LOOP, PRODUCT


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "shapes"), [(PRODUCT, ((8, 16), (16, 32))), (LOOP, ((4, 8), (8,)))]
)
def test_a_plan_means_its_program(text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    plan, arrays = parse_plan(text), [floats(*shape) for shape in shapes]
    (expected,) = interpret(plan.flat.graph, arrays)
    (found,) = interpret_lowered(plan, arrays)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('  @ operand 0: [x,-] slice(y) to 1 [x,y] for "x"\n', "", "comes as .* asks for"),
        ("all-reduce(y) sum [x,-]", "mask(y) sum [x,-]", "devices hold different values"),
    ],
)
def test_a_wrong_plan_is_found(old: str, new: str, error: str) -> None:
    assert old in PRODUCT
    plan, arrays = parse_plan(PRODUCT.replace(old, new)), [floats(8, 16), floats(16, 32)]
    with pytest.raises(IRError, match=error):
        interpret_lowered(plan, arrays)


@pytest.mark.parametrize(
    ("kind", "axes", "dim", "to_dim", "before", "after"),
    [
        ("all-gather", ("y",), 0, -1, "[x*y,-]", "[x,-]"),
        ("slice", ("y",), -1, 1, "[x,-]", "[x,y]"),
        ("all-to-all", ("y",), 0, 1, "[x*y,-]", "[x,y]"),
        ("collective-permute", ("x", "y"), 0, 0, "[x*y,-]", "[y*x,-]"),
        ("all-reduce", ("x",), -1, -1, "[-,y]+sum(x)", "[-,y]"),
        ("reduce-scatter", ("x",), -1, 1, "[-,y]+sum(x)", "[-,y*x]"),
        ("mask", ("x",), -1, -1, "[-,y]", "[-,y]+sum(x)"),
    ],
)
def test_a_step_keeps_the_value(
    kind: str, axes: tuple[str, ...], dim: int, to_dim: int, before: str, after: str
) -> None:
    devices = LogicalDevices(Mesh((("x", 2), ("y", 3))))
    start, end, whole = parse_sharding(before), parse_sharding(after), floats(12, 6)
    reduction = "sum" if kind in ("all-reduce", "reduce-scatter", "mask") else ""
    step = ReshardStep(kind, axes, dim, to_dim, reduction, start, end)  # type: ignore[arg-type]
    found = devices.run(devices.cut(whole, start), step)
    for x, y in zip(found, devices.cut(whole, end), strict=True):
        np.testing.assert_array_equal(x, y)

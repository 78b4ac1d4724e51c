"""What partial sums may pass: held against all numbers of short types, and adversarial terms."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from ir import Literal, Node, TensorType, numpy_dtype, passing_groups

SHORT = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
LONG = ("float32", "float64")
# Whatever is largest, least, or has the most digits in one of the types.
HARD = [
    sign * x for sign in (1.0, -1.0) for x in (
        3.4028234663852886e38, 1.1754943508222875e-38, 65504.0, 448.0, 57344.0, 2.0**-14,
        1 + 2.0**-23, 1 + 2.0**-10, 1 + 2.0**-7, 1e300, 2.0**-1022, 1 + 2.0**-52,
    )
]  # fmt: skip
FACTORS = (
    0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 1e39, 1e20, 0.5, -1 / 3, 3.0, 1024.0, 2.0**-30,
)  # fmt: skip

Numbers = np.ndarray[Any, np.dtype[Any]]


def numbers(name: str) -> Numbers:
    """Every finite number of a short type; of a long one those that are hard to hold."""
    dtype = numpy_dtype(name)
    bits = 8 * dtype.itemsize
    with np.errstate(over="ignore", invalid="ignore"):
        every = (
            np.frombuffer(np.arange(2**bits, dtype=f"uint{bits}").tobytes(), dtype)
            if name in SHORT
            else np.array(HARD, dtype)
        )
        return every[np.isfinite(np.asarray(every, np.float64))]


def cast(before: str, after: str) -> Node:
    return Node("convert_element_type", (0,), (TensorType((8,), after),),
                (("new_dtype", after), ("sharding", None), ("weak_type", False)))  # fmt: skip


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations((*SHORT, *LONG), 2)))
def test_a_cast_passes_where_it_keeps_every_number(before: str, after: str) -> None:
    x = numbers(before)
    with np.errstate(over="ignore", invalid="ignore"):
        kept = x.astype(numpy_dtype(after)).astype(np.float64)
    holds = bool((kept == x.astype(np.float64)).all())
    groups = passing_groups(cast(before, after), (TensorType((8,), before),))
    assert groups == (((0,),) if holds else ((),))


def scaled(op: str, factor: float, dtype: str, place: int = 1) -> tuple[tuple[int, ...], ...]:
    value, number = TensorType((8,), dtype), Literal(factor, TensorType((), dtype))
    inputs = (0, number) if place == 1 else (number, 0)
    types = (value, number.type) if place == 1 else (number.type, value)
    attrs = (("out_dtype", None),) if op == "mul" else ()
    return passing_groups(Node(op, inputs, (value,), attrs), types)


@pytest.mark.parametrize("op", ["div", "mul"])
@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_passes_only_if_no_terms_go_wrong(op: str, factor: float) -> None:
    """Terms of any size up to 1e28, whose sum is as large as they are or far less."""
    (group, *_) = scaled(op, factor, "float32")
    sizes = np.array([0.0, 1e-20, 1.0, 3e8, 1e28], np.float32)
    terms = np.concatenate([sizes, -sizes])
    with np.errstate(all="ignore"):
        c = np.float32(factor)
        made = terms / c if op == "div" else terms * c
        each = made[:, None] + made[None, :]
        sums = terms[:, None] + terms[None, :]
        whole = sums / c if op == "div" else sums * c
    same = np.isclose(each, whole, rtol=1e-5, atol=0, equal_nan=True)
    usual = 1e-10 < abs(factor) < 1e10
    assert same.all() or not group
    assert (group == (0,)) == usual


def test_only_literals_scale() -> None:
    value = TensorType((8,), "float32")
    for op, types in (("mul", (value, value)), ("div", (value, TensorType((), "float32")))):
        groups = passing_groups(Node(op, (0, 1), (value,), ()), types)
        assert not any(groups)
    assert scaled("mul", 0.5, "float32", place=0) == ((), (1,))
    assert scaled("mul", 0.5, "float32", place=1) == ((0,), ())
    assert scaled("mul", 0.5, "bfloat16", place=1) == ((0,), ())


def test_terms_of_few_exponents_are_not_scaled() -> None:
    assert not any(scaled("div", 1024.0, "float16"))
    assert not any(scaled("mul", 1024.0, "float16"))


def test_whole_numbers_wrap() -> None:
    """A product of whole numbers modulo a power of two is the sum of those of its terms."""
    value = TensorType((8,), "int8")
    assert passing_groups(Node("mul", (0, 1), (value,), ()), (value, value)) == ((0,), (1,))
    rng = np.random.default_rng(0)
    a, b, c = rng.integers(-128, 128, (3, 1000)).astype(np.int8)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(a * c + b * c, (a + b) * c)

# pyright: basic
"""Values held against annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.common.fitting import fits

RIGHT = [
    (3, Any), (3, int), (3, float), (np.int64(3), int), (np.float32(3), float), (None, None),
    (None, int | None), ("x", str | Path), ({"a": 1}, Mapping[str, int]), ({}, Mapping[str, int]),
    (len, Callable[..., Any]), ((1, 2), Sequence[int]), ([1], tuple[int, ...]),
    (np.arange(3), Sequence[int]), (range(3), Sequence[Any]),
    ([("a", "b")], tuple[tuple[str, str], ...]),
]  # fmt: skip
WRONG = [
    ("3", int), (3.5, int), ("3", float), (3, None), ("3", int | None), (b"x", str | Path),
    ({1: 1}, Mapping[str, int]), ({"a": "1"}, Mapping[str, int]), ((("a", 1),), Mapping[str, int]),
    (3, Callable[..., Any]), ("ab", Sequence[str]), ({1}, Sequence[int]), (["a"], Sequence[int]),
    (3, Sequence[int]), (("a",), tuple[str, str]), ([("a", 1)], tuple[tuple[str, str], ...]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "wanted"), RIGHT, ids=str)
def test_fits(value: object, wanted: Any) -> None:
    assert fits(value, wanted)


@pytest.mark.parametrize(("value", "wanted"), WRONG, ids=str)
def test_does_not_fit(value: object, wanted: Any) -> None:
    assert not fits(value, wanted)

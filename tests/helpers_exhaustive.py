"""Parameters of tests that repeat a check: a covering part always, all by `make exhaustive`."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def usual(values: Iterable[Any], wanted: Container[Any]) -> list[Any]:
    """Parameters for `parametrize`, of which `make test` runs the wanted ones alone.

    Args:
        values: every value of the parameter.
        wanted: those that are always run; the others are marked `exhaustive`.
    """
    return [
        value if value in wanted else pytest.param(value, marks=pytest.mark.exhaustive)
        for value in values
    ]

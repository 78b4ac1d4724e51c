"""The collector is as it was after planning, however that ends."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from planner import plan
from planner.common.garbage_collection import YOUNG, seldom_collected
from profiles import ProfileError


@pytest.fixture(autouse=True)
def as_it_was():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("given", [(700, 10, 10), (2 * YOUNG, 5, 7), (0, 10, 10)])
def test_the_users_thresholds_come_back(given: tuple[int, int, int]) -> None:
    gc.set_threshold(*given)
    with seldom_collected():
        first = gc.get_threshold()[0]
        assert first >= YOUNG if given[0] else first == 0
        with seldom_collected():
            assert gc.get_threshold()[0] == first
        assert gc.get_threshold()[0] == first
    assert gc.get_threshold() == given


def test_they_come_back_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(ProfileError, match="cluster"):
        plan(max, cluster="no such machine")
    assert gc.get_threshold() == before


def test_modules_are_loaded_without_collections() -> None:
    code = """
import gc
import planner
before = gc.get_stats()[0]["collections"]
planner.plan
print(gc.get_stats()[0]["collections"] - before, gc.get_threshold()[0])
"""
    run = [sys.executable, "-c", code]
    found = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    assert int(found[0]) < 10  # 379 at the usual threshold
    assert int(found[1]) < YOUNG

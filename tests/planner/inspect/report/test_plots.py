"""Memory over the step is drawn against its limit, unless that would leave nothing to see."""

from __future__ import annotations

import re

from planner.inspect.report.plots import HEIGHT, draw_memory

POINTS = [(0.0, 40.0), (0.5, 80.0), (1.0, 20.0)]


def highest(drawn: str) -> float:
    """Share of the plot's height that its area reaches."""
    area = re.search(r'<path d="([^"]*)" class="area"', drawn)
    assert area is not None
    heights = [float(y) for y in re.findall(r"L[\d.]+ ([\d.]+)", area[1])]
    return 1.0 - min(heights) / HEIGHT


def test_memory_is_drawn_against_its_limit() -> None:
    drawn = str(draw_memory(POINTS, 1.0, 100.0, 10.0))
    assert abs(highest(drawn) - 0.8) < 0.01
    assert "The dashed line is the limit" in drawn
    assert 'class="limit"' in drawn


def test_a_limit_far_above_is_only_named() -> None:
    drawn = str(draw_memory(POINTS, 1.0, 1e9, 10.0))
    assert highest(drawn) > 0.99
    assert "The limit, 1.00 GB, is far above" in drawn
    assert 'class="limit"' not in drawn

"""Names of repeated layers become one."""

from __future__ import annotations

import pytest

from planner.common.layer_names import common_name, without_numbers


@pytest.mark.parametrize(
    ("names", "common"),
    [
        (["params/layers/0/up", "params/layers/1/up"], "params/layers/*/up"),
        (["opt_state/1/0/mu/layers/0", "opt_state/1/0/mu/layers/7"], "opt_state/1/0/mu/layers/*"),
        (["block_3.conv", "block_12.conv"], "block_*.conv"),
        (["layers/0/w1"], "layers/0/w1"),
    ],
)
def test_numbers_that_differ_become_a_star(names: list[str], common: str) -> None:
    assert common_name(names) == common


def test_a_number_inside_a_word_is_part_of_it() -> None:
    assert without_numbers("layers/0/w1") == "layers/*/w1"
    assert without_numbers("conv2d/w") == "conv2d/w"

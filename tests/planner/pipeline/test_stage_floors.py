# pyright: basic
"""Lower bounds of stages."""

from __future__ import annotations

import numpy as np
import optax
import pytest

from planner.common.options import Options
from planner.common.request import Request
from planner.pipeline.cut import scaled
from planner.pipeline.search import PipelineSearch
from planner.training.training import Training
from tests.planner.pipeline.cut.test_scaled import dropout
from tests.planner.programs import slow_machine


def floors():
    loss, params, batch = dropout(5)
    training = Training(loss, (params, batch), optax.adam(1e-3), False, 0, "step")
    request = Request(slow_machine(), Options(loss_reduction="mean"))
    return PipelineSearch(training, request).floors


def test_layers_that_slice_one_array_are_bounded_as_each_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = floors()
    found = {
        (count, size): together.least(count, size) for count in (2, 4, 8) for size in together.sizes
    }
    monkeypatch.setattr(scaled, "anywhere", lambda rows: rows)
    alone = floors()
    for (count, size), least in found.items():
        other = alone.least(count, size)
        for name in least.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(least, name), getattr(other, name), name)
    assert len(together.planner.known) < len(alone.planner.known)

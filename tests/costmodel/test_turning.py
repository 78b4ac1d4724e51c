"""What a collective puts in another order costs a measured transpose, on paths and in tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel import Cluster, CollectiveModel, ReshardModel, parse_cluster
from ir import Mesh, Shape, Sharding, TensorType
from profiles import OpRow, OpTable

RATE = 1e9  # bytes read and written per second
MESH = Mesh((("x", 2), ("y", 2)))
WHOLE, FIRST, SECOND = ((), ()), (("x",), ()), ((), ("x",))


def machine(*, measured: bool) -> Cluster:
    rows = tuple(OpRow("transpose", "float32", 0, n, n / RATE) for n in (1 << 4, 1 << 24))
    table = OpTable(name="t", source="test", date="2026", licence="own", rows=rows)
    return replace(parse_cluster("4xhost"), ops=table if measured else None)


def model(*, measured: bool = True) -> ReshardModel:
    cluster = machine(measured=measured)
    return ReshardModel(cluster, MESH, CollectiveModel(cluster))


def direct_s(found: ReshardModel, shape: Shape, start: Sharding, end: Sharding) -> float:
    """Seconds of the single collective between two states."""
    (step,) = (s for _, _, s in found.steps(shape) if (s.before, s.after) == (start, end))
    return found.step_s(step, TensorType(shape, "float32"))


@pytest.mark.parametrize(
    ("shape", "before", "after", "turned_bytes"),
    [
        ((64, 32), FIRST, WHOLE, 0),  # one device's part after the other
        ((64, 32), SECOND, WHOLE, 64 * 32 * 4 * 1.5),  # a half is sent, all comes
        ((1, 32), SECOND, WHOLE, 0),
        ((64, 32), SECOND, FIRST, 64 * 32 * 4 * 0.5),  # joined along the second dimension
        ((64, 32), FIRST, SECOND, 64 * 32 * 4 * 0.5),  # split along it
    ],
)
def test_what_is_turned(
    shape: Shape,
    before: tuple[tuple[str, ...], ...],
    after: tuple[tuple[str, ...], ...],
    turned_bytes: float,
) -> None:
    ends = Sharding(before), Sharding(after)
    plain, priced = (direct_s(model(measured=on), shape, *ends) for on in (False, True))
    assert priced - plain == pytest.approx(2 * turned_bytes / RATE, abs=1e-12)


@pytest.mark.parametrize("measured", [False, True])
def test_tables_say_what_paths_cost(measured: bool) -> None:
    """Shapes that a table is shared between are alike in what is turned."""
    shared = model(measured=measured)
    shapes = ((4, 4), (2, 8), (8, 2), (1, 16), (4, 2, 2), (2, 4, 2), (2, 2, 4), (1, 4, 4))
    for shape in shapes:
        type_, alone = TensorType(shape, "float32"), model(measured=measured)
        table = shared.matrix(type_)
        np.testing.assert_array_equal(table, alone.matrix(type_))
        states = shared.space(shape).states
        for i, start in enumerate(states):
            for j, end in enumerate(states):
                if i != j and np.isfinite(table[i, j]):
                    cost = sum(shared.step_s(s, type_) for s in shared.path(type_, start, end))
                    assert cost == pytest.approx(table[i, j], rel=1e-9, abs=1e-15)

# pyright: basic
"""Rows that devices exchange: what is sent, how long it takes, and memory."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel import (
    CollectiveModel,
    ComputeModel,
    Hops,
    RowExchange,
    group_for,
    parse_cluster,
)
from ir import EXCHANGE, Node, TensorType

TOKENS, COPIES, WIDTH = 32768, 8, 2048
TABLE = TensorType((TOKENS, WIDTH), "bfloat16")
ROWS = TensorType((TOKENS * COPIES, WIDTH), "bfloat16")
INDICES = TensorType((TOKENS * COPIES, 1), "int32")
GATHER = Node("gather", (0, 1), (ROWS,), (), ())
ADD = Node("scatter-add", (0, 1, 2), (TABLE,), (), ())
FORMS = ((GATHER, (TABLE, INDICES)), (ADD, (TABLE, INDICES, ROWS)))
WAYS = {EXCHANGE: np.array([1.0, 8.0, 64.0]), "w1": np.array([1.0, 2.0, 1.0])}


@pytest.mark.parametrize(("node", "operands"), FORMS, ids=["gather", "add"])
def test_a_device_sends_its_rows_and_their_numbers_once(
    node: Node, operands: tuple[TensorType, ...]
) -> None:
    cluster = parse_cluster("64xh100")
    groups = (None, group_for(cluster, (8, 8), (1,)), group_for(cluster, (64,), (0,)))
    hops = Hops(CollectiveModel(cluster), groups, overlap=True)
    work = RowExchange(node, operands, WAYS)
    kinds, (counts, numbers, rows) = zip(*work.exchange(hops), strict=True)
    assert kinds == ("all-gather", "all-to-all", "all-to-all")
    n = WAYS[EXCHANGE]
    share = (n - 1) / n * TOKENS * COPIES / n
    np.testing.assert_allclose(rows.sent_bytes, share * 2.0 * WIDTH / WAYS["w1"])
    np.testing.assert_allclose(numbers.sent_bytes, share * 4.0)
    np.testing.assert_allclose(counts.sent_bytes, (n - 1) * n * 4.0)
    total = counts.seconds + numbers.seconds + rows.seconds
    np.testing.assert_allclose(work.exposed_s(hops), total)
    assert total[0] == 0.0 < total[1]
    held = work.held_bytes()
    assert held[0] == 0.0
    assert np.all(held[1:] > 2.0 * ROWS.nbytes / n[1:] / WAYS["w1"][1:])
    compute = ComputeModel(cluster)
    busy = work.seconds(compute)
    assert busy[0] == 0.0
    assert np.all(busy[1:] > compute.memory_s(4.0 * ROWS.nbytes / n[1:] / WAYS["w1"][1:]))

# pyright: basic
"""Published steps of experts: rows, degrees, and what those limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import published_plan
from benchmarks.experts_model import grouped, small
from benchmarks.published_experts import MODELS, rows
from benchmarks.published_limits import Degrees
from benchmarks.published_plan import price
from costmodel import parse_cluster
from ir import GROUPED

GIB = 1 << 30


def test_every_row_has_degrees_that_divide() -> None:
    for row in rows():
        tensor, pipeline, expert = (int(row[k]) for k in ("tensor", "pipeline", "expert"))
        data = int(row["gpus"]) // (tensor * pipeline)
        degrees = Degrees(
            data=data, tensor=tensor, pipeline=pipeline, expert=expert,
            micro_batch=int(row["micro_batch"]), chunks=int(row["chunks"]),
        )  # fmt: skip
        sizes = dict(degrees.axes)
        assert degrees.devices == int(row["gpus"])
        assert np.prod(list(sizes.values())) * pipeline == degrees.devices
        assert sizes.get("expert", 1) * tensor == expert
        assert MODELS[row["model"]].experts % expert == 0
        assert degrees.microbatches(int(row["batch"])) > 0


def test_experts_over_parts_of_a_degree_are_refused() -> None:
    with pytest.raises(ValueError, match="whole degrees"):
        _ = Degrees(data=6, expert=4).axes


def test_rows_are_where_their_experts_are(monkeypatch: Any) -> None:
    """Grouped products are split by rows and experts alike; imbalance makes a step longer."""
    found: list[Any] = []

    def noting(*args: Any, inner: Any = published_plan._planned) -> Any:
        found.append(inner(*args))
        return found[-1]

    monkeypatch.setattr(published_plan, "_planned", noting)
    model = replace(small("ragged"), balance=0.0)
    degrees = Degrees(data=8, expert=8, shard="zero1")
    even, uneven = (
        price(model, degrees, 8, replace(parse_cluster("8xh100"), imbalance=each), GIB)
        for each in (0.0, 0.2)
    )
    assert even.step_s < uneven.step_s
    for candidate, _ in found:
        lowered, kinds = candidate.decided.plan, 0
        for op, strategy in zip(candidate.builder.flat.ops, lowered.strategies, strict=True):
            if op.node.op == GROUPED and strategy is not None:
                kinds += 1
                assert strategy.roles == ("near",)
        assert kinds >= 9  # three products with two gradients each
        matrices = [
            state for v, state in zip(candidate.builder.flat.inputs, lowered.arguments, strict=True)
            if candidate.builder.flat.values[v].type.shape[:2] == (1, 8)
        ]  # fmt: skip
        assert matrices
        assert all("expert" in state.dims[1] for state in matrices)


def test_products_in_8_bits_are_near_those_in_32() -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(32, 16)), jnp.float32)
    w = jnp.asarray(rng.normal(size=(4, 16, 8)), jnp.float32)
    sizes = jnp.asarray([3, 9, 0, 20], jnp.int32)

    def total(fp8: bool) -> Any:
        return jax.value_and_grad(
            lambda x, w: jnp.sum(jnp.sin(grouped(fp8, x, sizes, w)[0])), (0, 1)
        )(x, w)

    for a, b in zip(*(jax.tree.leaves(total(fp8)) for fp8 in (False, True)), strict=True):
        assert a.shape == b.shape
        assert float(jnp.linalg.norm(a - b)) < 0.5 * max(float(jnp.linalg.norm(a)), 4.0)

# pyright: basic
"""Published steps of experts: rows, degrees, and what those limit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import published_plan
from benchmarks.experts_model import DEEPSEEK_LATENT, Latent, grouped, small
from benchmarks.published_experts import MODELS, rows
from benchmarks.published_limits import Degrees
from benchmarks.published_plan import price
from costmodel import parse_cluster
from ir import GROUPED
from planner.inspect.expert_products import split_of, words_of

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


@pytest.mark.exhaustive
def test_slots_are_where_their_experts_are(monkeypatch: Any) -> None:
    """Products of slots are split by experts over part of data parallelism, by tokens elsewhere."""
    found: list[Any] = []

    def noting(*args: Any, inner: Any = published_plan._planned) -> Any:
        found.append((args[0].kinds, inner(*args)))
        return found[-1][1]

    monkeypatch.setattr(published_plan, "_planned", noting)
    model = replace(small("slots"), balance=0.0, gathers=True)
    price(model, Degrees(data=8, expert=4, shard="zero1"), 8, parse_cluster("8xh100"), GIB)
    ((kinds, (candidate, _)),) = found
    decided, splits = candidate.decided, list[Any]()
    flat = decided.builder.flat
    for i, (op, strategy) in enumerate(zip(flat.ops, decided.plan.strategies, strict=True)):
        if strategy is not None and op.node.op == "dot_general":
            words = words_of(flat, i, decided.builder.spec(op), kinds)
            if words:
                splits.append(split_of(words, strategy.roles, decided.plan.mesh))
    assert len(splits) >= 9  # three products with two gradients each
    assert all(split == {"experts": 4, "tokens": 2} for split in splits)


def test_low_ranks_have_the_published_number_of_weights() -> None:
    """DeepSeek-V3's technical report, arXiv:2412.19437, section 4.2: the sizes of its attention."""
    layers = DEEPSEEK_LATENT.parameters()["layers"]
    names = ("q_down", "q", "kv_down", "k_turned", "k", "v", "o")
    count = sum(math.prod(layers[name].shape[1:]) for name in names)
    hidden, heads = 7168, 128
    expected = hidden * 1536 + 1536 * heads * 192 + hidden * (512 + 64)
    assert count == expected + 512 * heads * (128 + 128) + heads * 128 * hidden


def test_heads_of_low_rank_share_the_keys_with_positions() -> None:
    """Equal to attention with the queries and keys of each head written out."""
    model = replace(small("slots"), latent=Latent(6, 5, 4, 2), head=4)
    dense, rng = model.dense, np.random.default_rng(1)
    p = {
        name: jnp.asarray(rng.normal(size=shape.shape[1:]) / 2, jnp.float32)
        for name, shape in model.parameters()["layers"].items()
    }
    y = jnp.asarray(rng.normal(size=(2, dense.seq, dense.hidden)), jnp.float32)

    @jax.jit
    def by_heads(y: Any) -> Any:
        q = jnp.einsum("bsr,rhd->bhsd", dense.norm(y @ p["q_down"], p["q_norm"], None), p["q"])
        down = dense.norm(y @ p["kv_down"], p["kv_norm"], None)
        turned = dense.rotary((y @ p["k_turned"])[:, :, None])[:, :, 0]
        turn = jax.vmap(lambda x: dense.rotary(x[:, :, None])[:, :, 0], 1, 1)
        q = jnp.concatenate([q[..., :4], turn(q[..., 4:])], axis=-1)

        def head(q: Any, up: Any, values: Any) -> Any:
            k = jnp.concatenate([down @ up, turned], axis=-1)
            scores = jnp.where(
                jnp.tril(jnp.ones((dense.seq, dense.seq), bool)),
                jnp.einsum("bqd,bkd->bqk", q, k) * 6**-0.5, -jnp.inf,
            )  # fmt: skip
            return jax.nn.softmax(scores, axis=-1) @ (down @ values)

        return jax.vmap(head, (1, 1, 1), 2)(q, p["k"], p["v"])

    found = jax.jit(lambda y: model.low_rank(y, p, Latent(6, 5, 4, 2)))(y)
    np.testing.assert_allclose(found, by_heads(y), 1e-4, 1e-5)

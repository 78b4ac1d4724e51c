# pyright: basic
from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.published import cases, predict, rank_correlation
from benchmarks.published_memory import MODELS, SHARES, shares
from benchmarks.published_model import FP8, Transformer, adam
from benchmarks.published_plan import Degrees, cuts_of, price
from costmodel import parse_cluster
from planner.pipeline.cut.opened_loss import opened

SMALL = Transformer(
    2, 64, 4, 2, 128, gated=True, vocab=64, seq=16, dtype="float32", flash=False
)  # fmt: skip
LIMIT = 80_000_000_000


def made(model: Transformer) -> tuple[object, object]:
    """Parameters and a batch with values."""
    keys = iter(jax.random.split(jax.random.key(0), 64))
    params = jax.tree.map(
        lambda s: 0.05 * jax.random.normal(next(keys), s.shape, jnp.float32), model.parameters()
    )
    tokens = jax.random.randint(next(keys), (2, model.seq), 0, model.vocab)
    return params, {"tokens": tokens, "labels": tokens[:, ::-1]}


@pytest.mark.parametrize(
    "changes",
    [
        {"recompute": "alternate", "wide_gradients": True},
        {"recompute": "selective", "bias": True, "gated": False, "kv_heads": 4},
    ],
)  # fmt: skip
def test_recomputation_and_precision_keep_the_gradients(changes: dict[str, object]) -> None:
    model = replace(SMALL, **changes)
    plain = replace(model, recompute="none", wide_gradients=False)
    args = made(model)
    for one, other in zip(
        jax.tree.leaves(jax.jit(jax.grad(model.loss))(*args)),
        jax.tree.leaves(jax.jit(jax.grad(plain.loss))(*args)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


def test_float8_products_are_close_to_plain_ones() -> None:
    args = made(SMALL)
    plain = SMALL.loss(*args)
    assert replace(SMALL, dtype=FP8).loss(*args) == pytest.approx(float(plain), rel=0.02)


def test_degrees_that_do_not_divide_are_refused() -> None:
    machine = parse_cluster("8xh100")
    with pytest.raises(ValueError, match="does not divide"):
        price(SMALL, Degrees(data=8, micro_batch=3), 32, machine, LIMIT)
    with pytest.raises(ValueError, match="is not on"):
        price(SMALL, Degrees(data=2), 32, machine, LIMIT)


def test_the_degrees_of_every_case_fill_its_machine() -> None:
    found = list(cases())
    assert len(found) > 190
    for case in found:
        given = {k: v for k, v in case.given.items() if k not in ("micro_batch", "chunks")}
        assert Degrees(**given).devices == parse_cluster(case.cluster).num_devices


def test_sharded_states_take_their_share_of_memory() -> None:
    model = replace(SMALL, layers=2, hidden=1024, heads=8, kv_heads=8, ffn=4096, dtype="bfloat16")
    machine = parse_cluster("8xh100")
    parameters = sum(p.size for p in jax.tree.leaves(model.parameters()))

    def peak(model: Transformer, degrees: Degrees) -> float:
        return price(model, degrees, 8, machine, LIMIT).peak_bytes

    whole = peak(model, Degrees(data=8))
    zero1 = peak(model, Degrees(data=8, shard="zero1"))
    zero3 = peak(replace(model, wide_weights=True), Degrees(data=8, shard="zero3"))
    tensor = peak(model, Degrees(tensor=8, micro_batch=8))
    assert whole > 14 * parameters
    assert whole - zero1 > 12 * parameters * 7 / 8 * 0.9
    assert zero3 < zero1
    assert tensor < whole / 2


def test_embedding_and_head_count_as_layers_where_stages_do_not_divide() -> None:
    for layers, stages, each in ((8, 4, [2, 2, 2, 2]), (6, 4, [1, 2, 2, 1])):
        model = replace(SMALL, layers=layers)
        args = model.parameters(), model.batch(4)
        loss = opened(model.loss, *args, adam(copies=True), microbatches=2)
        cuts = cuts_of(loss, stages)
        numbers = [slot.number for slot in loss.chain.slots]
        loop = max(set(numbers), key=numbers.count)
        found = [numbers[a:b].count(loop) for a, b in pairwise(cuts)]
        assert found == each


def test_steps_of_korthikanti_and_alpa_follow_the_published_ones() -> None:
    wanted = [c for c in cases() if "GPT 22B" in c.name or c.name.startswith("GPT h=5760 zero")]
    found = [predict(case) for case in wanted]
    assert [f.price.fits for f in found] == [f.case.step_s is not None for f in found]
    ratios = [f.ratio for f in found if f.ratio is not None]
    assert ratios == pytest.approx([1.0] * len(ratios), abs=0.1)


@pytest.mark.exhaustive
def test_recomputation_saves_the_published_share() -> None:
    found = shares("175B")
    for technique, (_, _, low, high) in SHARES.items():
        assert low - 0.01 <= found[technique] <= high
    assert set(MODELS) >= {"22B", "175B"}


def test_rank_correlation() -> None:
    assert rank_correlation([1.0, 2.0, 3.0], [2.0, 4.0, 9.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)

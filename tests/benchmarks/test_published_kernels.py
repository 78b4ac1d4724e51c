# pyright: basic
"""What frameworks do in place of operations of a JAX program, and beside them."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax.numpy as jnp
import pytest

from benchmarks.flash_kernels import SECOND_HEADS, SECOND_KEYS, SECOND_S, with_kernel
from benchmarks.published_kernels import CAST, in_kernels, with_copies
from benchmarks.published_model import FP8, Transformer, adam
from benchmarks.published_plan import Degrees, price
from costmodel import ComputeModel, parse_cluster
from ir.trace import trace
from planner.common.options import Options
from planner.sharding.fewest_microbatches import TRAINING_ROLES
from planner.sharding.plan_traced import program_for
from planner.sharding.problem.program import Program
from planner.training.training import Training

MODEL = Transformer(
    2, 256, 4, 2, 512, gated=True, vocab=512, seq=64, dtype="bfloat16", flash=False
)  # fmt: skip
LIMIT = 80_000_000_000
WEIGHTS = 8  # q, k, v, o, up, gate, down, head


@functools.cache
def program(model: Transformer) -> Program:
    args = (model.parameters(), model.batch(4))
    call = Training(model.loss, args, adam(copies=True), False, 0, "step").step(4, "mean")
    traced = trace(call.fn, *call.args, donate_argnums=(0, 1), roles=TRAINING_ROLES)
    options = Options(baselines=False, substitutions=False)
    return program_for(traced, options, parse_cluster("8xh100"))


def left_out(model: Transformer) -> tuple[list[str], list[str]]:
    """Operations that are left out, and types that casts to float8 among the others read."""
    facts, parameters = program(model).facts, frozenset(program(model).roles.parameters)
    flat, found = facts.flat, in_kernels(facts.flat, facts.traffic, parameters)
    gone = [
        i for i in range(len(flat.ops))
        if (facts.traffic.reads[i], facts.traffic.writes[i], facts.traffic.launches[i])
        != (found.reads[i], found.writes[i], found.launches[i])
    ]  # fmt: skip
    assert all(not found.reads[i] and not found.writes[i] for i in gone)
    casts = [
        op for i, op in enumerate(flat.ops)
        if i not in gone and op.node.op == CAST and op.node.outputs[0].dtype == FP8
    ]  # fmt: skip
    return [flat.ops[i].node.op for i in gone], [flat.values[op.reads[0]].name for op in casts]


def test_products_add_up_the_gradients_of_weights() -> None:
    gone, _ = left_out(MODEL)
    assert gone.count("add") == WEIGHTS  # that of the embedding is a scatter, of norms a sum
    assert set(gone) <= {"add", CAST}


def test_weights_are_cast_to_float8_once_and_activations_each_time() -> None:
    plain, _ = left_out(MODEL)
    gone, kept = left_out(replace(MODEL, dtype=FP8))
    per_layer = WEIGHTS - 1  # the head is a product of 16 bits
    assert gone.count(CAST) - plain.count(CAST) == 2 * per_layer  # forward and backward
    assert kept  # activations and slopes


def test_gradients_of_weights_are_copied() -> None:
    facts = program(replace(MODEL, wide_gradients=True)).facts
    found = with_copies(facts.flat, facts.traffic, 18.0)
    assert list(found.moved.values()) == [(("result", 0, 4.5),)] * WEIGHTS


@pytest.mark.exhaustive
def test_copies_of_gradients_take_the_time_of_their_bytes() -> None:
    model = replace(MODEL, wide_gradients=True, wide_weights=True)
    machine = replace(parse_cluster("8xh100"), loop_copies=True)
    given = Degrees(data=8, shard="zero3")
    plain, copied = (
        price(model, replace(given, copied_bytes=n), 32, machine, LIMIT).compute_s
        for n in (1e-9, 18.0)
    )
    weights = sum(
        a.size for name, a in {**model.parameters(), **model.parameters()["layers"]}.items()
        if name not in ("layers", "tok", "norm", "attn_norm", "mlp_norm")
    )  # fmt: skip
    wanted = 4 * 18.0 * weights / 3.35e12 / 0.89  # four micro-batches
    assert copied - plain == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("heads", [8, 32, 256])
def test_the_second_flash_attention_is_priced_as_timed(heads: int) -> None:
    compute = ComputeModel(with_kernel(parse_cluster("8xh100-hbm2e"), "second"))
    pairs = SECOND_KEYS * (SECOND_KEYS + 1) // 2
    for backward, timed in zip((False, True), SECOND_S, strict=True):
        found = compute.attention_s(
            heads, heads, pairs, SECOND_KEYS, 128, "bfloat16", backward=backward
        )
        assert float(found) == pytest.approx(timed * heads / SECOND_HEADS, rel=0.01)


def test_an_embedding_by_one_hot_rows_is_a_lookup() -> None:
    table, tokens = jnp.arange(12.0).reshape(4, 3), jnp.array([[3, 0, 2]])
    model = replace(MODEL, vocab=4, dtype="float32")
    wanted = model.embedded(table, tokens)
    assert jnp.array_equal(replace(model, one_hot=True).embedded(table, tokens), wanted)

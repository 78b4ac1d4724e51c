# pyright: basic
"""Exchanges in chunks: what they cost in the problem, in the account, and as a plan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from costmodel import INTERFERENCE, InChunks, parse_cluster
from ir import chunk_type
from planner import load, plan, verify
from planner.emit.compilers import has_plugin
from planner.inspect.timeline import predicted
from planner.sharding.cost.in_parts import beside_product
from planner.sharding.lower import lower_decisions
from planner.sharding.problem.in_chunks import exchange_step
from planner.sharding.problem.overlap_tables import sites_of
from planner.sharding.problem.reshard_tables import reshards
from tests.planner.sharding.cost.test_account import adds_up
from tests.planner.spaces import Space, space

SEQUENCES, EXPERTS, SLOTS, MODEL, INNER = 8, 8, 2048, 4096, 8192


def block(rows: Any, up: Any, down: Any) -> Any:
    """Rows of slots, by sequence, through their experts and back."""
    inner = jax.nn.gelu(jnp.einsum("becm,emf->becf", rows, up))
    return jnp.tanh(jnp.einsum("becf,efm->becm", inner, down))


def arguments(slots: int = SLOTS) -> tuple[Any, ...]:
    shapes = (SEQUENCES, EXPERTS, slots, MODEL), (EXPERTS, MODEL, INNER), (EXPERTS, INNER, MODEL)
    return tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)


def planned(slots: int = SLOTS, **options: Any) -> Any:
    """Rows and results by sequence, matrices by expert."""
    pins = (("rows", "[x,-,-,-]"), ("up", "[x,-,-]"), ("down", "[x,-,-]"))
    settings: dict[str, Any] = {"cluster": "8xh100", "mesh": {"x": 8}, **options}
    return plan(block, *arguments(slots), pins=pins, baselines=False, **settings)


def in_chunks(found: Space, seed: int, count: int) -> list[tuple[int, ...]]:
    """Choices under which something is exchanged in chunks."""
    rng, choices = np.random.default_rng(seed), list[tuple[int, ...]]()
    for _ in range(4000):
        choice = found.draw(rng)
        possible = np.isfinite(found.built.problem.cost(choice))
        if possible and found.decided(choice).plan.decisions.chunks:
            choices.append(choice)
        if len(choices) == count:
            return choices
    pytest.fail("no plan exchanges anything in chunks")


def test_the_account_is_the_objective_and_decisions_say_it_all() -> None:
    found = space(block, *arguments(), mesh=(2, 4), cluster=parse_cluster("8xh100"))
    reshard = found.builder.cache.reshard
    for choice in in_chunks(found, 0, 4):
        adds_up(found, choice)
        lowered = found.decided(choice).plan
        assert lower_decisions(found.flat, lowered.decisions, reshard, {}) == lowered


def test_seconds_are_those_of_the_formula() -> None:
    found = space(block, *arguments(), mesh=(8,), cluster=parse_cluster("8xh100"))
    (choice,) = in_chunks(found, 1, 1)
    decided = found.decided(choice)
    moved = next(r for r in decided.plan.reshards if r.chunks > 1)
    beside, compute = beside_product(decided, moved), found.builder.cache.compute
    assert beside is not None
    count, (step,) = moved.chunks, moved.change.steps
    small = chunk_type(moved.change.type, 2, count)
    chunk_s = found.builder.cache.reshard.step_s(step, small)
    part_s = float(compute.gemm_s(1, SEQUENCES * SLOTS / count, INNER, MODEL, "bfloat16"))
    local = moved.change.type.nbytes / 8
    slower = beside.seconds - count * chunk_s
    assert slower >= 2.0 * local / float(1.0 / compute.memory_s(1.0))
    piped = (count - 1) * min(chunk_s, INTERFERENCE * part_s) / INTERFERENCE
    assert beside.hidden_s >= piped * 0.99
    assert (beside.count, beside.kind) == (count, "all-to-all")
    assert beside.sent_bytes == pytest.approx(local * 7 / 8)


def test_hidden_seconds_by_hand() -> None:
    four = InChunks(4, np.array([2.0]), np.array([1.0]), np.array([0.5]))
    piped = 3 * 1.0 * INTERFERENCE  # a chunk takes longer than its product
    assert four.hidden_s(0.0)[0] == pytest.approx(piped / INTERFERENCE)
    assert four.added_s(0.0)[0] == pytest.approx(8.0 - 3.0 + 0.5)
    assert four.hidden_s(np.inf)[0] == pytest.approx(8.0 / INTERFERENCE)  # all else beside it


def test_plans_are_faster_with_it_and_files_keep_it(tmp_path: Any) -> None:
    on, off = planned(), planned(collective_matmul=False)
    assert on.program.in_chunks
    assert not off.program.in_chunks
    assert on.step_s < off.step_s
    assert "xla_gpu_use_memcpy_local_p2p" not in on.compiler_options  # nothing is permuted
    on.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json")
    assert again.decisions == on.decisions
    assert again.analysed.account.step_s == pytest.approx(on.step_s)
    assert predicted(again.analysed).end_s == pytest.approx(on.step_s)
    assert "chunks beside products" in again.explain("")


@pytest.mark.parametrize("options", [{"overlap": False}, {"emission": "constraints"}, {"slots": 1}])
def test_what_cannot_run_in_chunks_is_not_priced_so(options: Any) -> None:
    assert not planned(**options).program.in_chunks


@pytest.mark.exhaustive
@pytest.mark.skipif(not has_plugin(), reason="needs XLA's GPU compiler")
def test_the_scheduled_text_has_products_beside_all_chunks_but_one() -> None:
    """Of each exchange the first chunk, or the last, has none; the step is shorter all the same."""
    found = planned()
    overlap, whole = (
        verify(each, compiler="gpu-aot").overlap
        for each in (found, planned(collective_matmul=False))
    )
    assert overlap is not None
    assert whole is not None
    sent = [c for c in overlap.collectives if c.kind == "all-to-all"]
    counts = [row.count for row in found.program.in_chunks]
    assert len(sent) == sum(counts) > len(counts) > 0
    assert sum(c.beside_s > 0.5 * c.seconds for c in sent) >= sum(counts) - len(counts)
    step_s, whole_s = (o.scheduled_compute_s + o.scheduled_exposed_s for o in (overlap, whole))
    assert step_s < 0.97 * whole_s


def alone(found: Space, n: int, kind: int) -> dict[tuple[int, int], Any]:
    """Prices of a join's exchanges beside a kind of products, each pair of options by itself."""
    builder, built = found.builder, found.built
    join, type_ = builder.outline.joins[n], builder.outline.types[n]
    exchanges, reshard = builder.exchanges, builder.cache.reshard
    assert exchanges is not None
    rows = builder.states_of(built.refs, join.source)
    columns = builder.states_of(built.refs, join.target)
    seconds = reshards(builder.cache, rows, columns, type_, join.weight).table
    prices = dict[tuple[int, int], Any]()
    for r, c in zip(*np.nonzero(np.isfinite(seconds)), strict=True):
        step = exchange_step(exchanges.kinds[kind], type_, rows[r], columns[c], reshard.mesh)
        if step and reshard.step_s(step[1], type_) * join.weight <= seconds[r, c] * (1 + 1e-9):
            prices[int(r), int(c)] = exchanges.prices(kind, type_, *step)
    return prices


def test_tables_have_each_pair_that_one_exchange_joins() -> None:
    found = space(block, *arguments(), mesh=(2, 4), cluster=parse_cluster("8xh100"))
    builder, built, outline = found.builder, found.built, found.builder.outline
    assert builder.exchanges is not None
    sites, pairs = sites_of(outline, built.beside_s, builder.exchanges.kind), 0
    joins = [n for n, join in enumerate(outline.joins) if join.how == "reshard"]
    for n, kind in {(j, kind) for j in joins for _, kind, *_ in sites.get(j, ()) if kind >= 0}:
        table, prices = builder.in_chunks(built.refs, n, kind), alone(found, n, kind)
        if table is None:
            assert not prices
            continue
        at = [*zip(table.rows.tolist(), table.columns.tolist(), strict=True)]
        assert sorted(at) == sorted(prices)
        pairs += len(at)
        for k, pair in enumerate(at):
            for each in table.prices:
                one = prices[pair].get(each.count)
                assert (one is None) == np.isinf(each.slower_s[k])
                if one is not None:
                    own = each.chunk_s[k], each.part_s[k], each.slower_s[k]
                    seconds = one.chunk_s[0], one.part_s[0], one.slower_s[0]
                    weight = outline.joins[n].weight
                    assert own == pytest.approx([x * weight for x in seconds], rel=1e-12)
    assert pairs > 50

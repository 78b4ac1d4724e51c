# pyright: basic
"""Exchanges in chunks beside products: experts equal to those of one device, gradients too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks.experts_model import small
from ir import IRError, LoweredPlan, chunks_of, counts_of, neighbours_of, parse_plan, show_plan
from ir.analysis import Site, Specs
from ir.trace import Traced, trace
from planner import plan
from planner.emit.jit import compile_plan
from planner.sharding.lower import lower_decisions
from tests.planner.api.test_experts import LOADS, MODES, Held, close, with_gradients
from tests.planner.api.test_experts import arguments as experts
from tests.planner.emit.plans import model_of

BACK = {"back": P(("x", "y"))}
WHOLE = "slots: tokens to experts"


def sites(found: LoweredPlan) -> Iterator[tuple[Site, tuple[int, ...]]]:
    """Sites of a plan at which an exchange may run in chunks, and in how many."""
    near = neighbours_of(found.flat, Specs(found.flat).of)
    numbers = {p.site: n for n, p in enumerate(found.flat.passages)}
    for reshard in found.reshards:
        site, change = reshard.passage.site, reshard.change
        here = near.get(numbers[site])
        dim = chunks_of(change, here, found.mesh) if here else None
        if dim is not None:
            yield site, counts_of(change.type, dim, change.before, found.mesh)


@cache
def given(mode: str) -> tuple[Any, Traced, LoweredPlan]:
    """A program with the shardings of a mode, its trace, and its plan without chunks."""
    form, specs, _ = MODES[mode]
    plain = small(form)
    model = Held(**{f.name: getattr(plain, f.name) for f in fields(plain)}, specs=specs | BACK)
    args, run = experts(model, "balanced"), with_gradients(model)
    found = plan(
        run, *args, cluster="host", shardings="pin", substitutions=False, baselines=False
    )  # fmt: skip
    whole, reshard = found._lowered, model_of(found._lowered.mesh)  # of machines with fast links
    return run, trace(run, *args), lower_decisions(whole.flat, whole.decisions, reshard, {})


def chunked(traced: Traced, whole: LoweredPlan, count: int) -> LoweredPlan:
    """The plan with every exchange in chunks that may be, in as many as asked or divide."""
    chunks = {site: max(c for c in counts if c <= count) for site, counts in sites(whole)}
    decisions = replace(whole.decisions, chunks=chunks)
    return lower_decisions(whole.flat, decisions, model_of(whole.mesh), {})


@pytest.mark.parametrize("mode", [
    WHOLE,
    pytest.param("onehot: tokens to experts", marks=pytest.mark.exhaustive),
    pytest.param("onehot: to experts of a part", marks=pytest.mark.exhaustive),
])  # fmt: skip
def test_experts_in_chunks_give_what_one_device_gives(mode: str) -> None:
    run, traced, whole = given(mode)
    found = chunked(traced, whole, 4)
    assert len(found.decisions.chunks) >= 3  # there, back, and in the backward pass
    assert parse_plan(show_plan(found)) == found
    compiled, alone = compile_plan(traced, found), jax.jit(run)
    for load in LOADS:
        args = experts(small("slots"), load)
        close(jax.tree.leaves(compiled(*args)), jax.tree.leaves(alone(*args)), f"{mode}, {load}")


def test_chunks_send_what_the_whole_sends() -> None:
    _, traced, whole = given(WHOLE)
    sent = []
    for found in (whole, chunked(traced, whole, 8)):
        compiled = compile_plan(traced, found)
        compiled.lower_as_planned()
        rows = [w for w in compiled.written or () if w.step.kind == "all-to-all"]
        sent.append((len(rows), sum(w.count * w.type.nbytes for w in rows)))
    chunks = [r.chunks for r in chunked(traced, whole, 8).reshards if r.chunks > 1]
    assert sent[1][0] - sent[0][0] == sum(chunks) - len(chunks) > 0
    assert sent[0][1] == sent[1][1]


def test_what_is_no_exchange_beside_a_product_is_refused() -> None:
    _, _, whole = given(WHOLE)
    allowed = {site for site, _ in sites(whole)}
    other = next(r.passage.site for r in whole.reshards if r.passage.site not in allowed)
    for site, count in ((other, 2), (next(iter(allowed)), 3)):
        decisions = replace(whole.decisions, chunks={site: count})
        with pytest.raises(IRError, match=f"does not run in {count} chunks"):
            lower_decisions(whole.flat, decisions, model_of(whole.mesh), {})

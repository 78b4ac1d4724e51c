# pyright: basic
"""Values of layers that are written out, on the host: equal steps, order, memory, prices."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from costmodel import parse_cluster
from ir.analysis import flatten
from planner import load
from planner.common.errors import PlanError
from planner.common.options import Options
from planner.common.request import Request
from planner.pipeline.cut.forward_backward import values_after
from planner.pipeline.cut.opened_loss import cut_of, opened
from planner.pipeline.cut.replaced import late_inputs, traced_joint
from planner.pipeline.cut.stage_gradient import Joint, joint_of
from planner.pipeline.cut.stage_training_step import ROLES, training_step_of
from planner.pipeline.divide.stage_price import price_of
from planner.pipeline.stage_edits import StageEdits
from planner.pipeline.stage_hosts import Recomputation, Waiting, hosted_ways, waiting_values
from planner.pipeline.stage_planner import phases_of
from planner.sharding.plan_traced import One, plan_traced
from planner.sharding.recompute.draft import draft_of
from planner.sharding.recompute.hosted import with_hosted
from planner.sharding.recompute.hosted_written import may_be_hosted, written_classes
from planner.sharding.recompute.variants import kept_by, rows_of, variant_of
from planner.training.step_call import StepCall
from tests.planner.emit.pipelines import arguments_apart, assert_equal_steps, written_out
from tests.planner.programs import linked

from .hosted import random_choices, with_edits, written_values
from .test_stage_hosts import SGD, planned
from .trained import assert_trains

ROOM = 0.6  # of the memory that a step takes without a limit


@pytest.mark.parametrize(("schedule", "seed"), [("1f1b", 0), ("zb-h1", 1), ("1f1b-eager", 2)])
def test_random_choices_train_as_the_step_does(schedule: str, seed: int) -> None:
    """With dropout and tied weights."""
    assert_equal_steps(
        written_out, *arguments_apart(), schedule=schedule, mesh=(2, 2), has_aux=True,
        edited=random_choices(seed, written=True), microbatches=4,
    )  # fmt: skip


def chain(params: Any, batch: Any) -> Any:
    """Layers of one product each, written out."""
    x = batch["x"]
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def joint_of_chain(layers: int = 6, width: int = 256) -> Joint:
    args = [jnp.ones((width, width))] * layers, {"x": jnp.ones((1024, width))}
    loss = opened(chain, *args, SGD, microbatches=2)
    return joint_of(loss.program, cut_of(loss, (0, len(loss.chain.slots))), 0)


def test_each_layer_is_fetched_beside_the_one_before_it() -> None:
    """A copy back waits for the product that makes what the value before it is read with."""
    joint = joint_of_chain()
    traced = traced_joint(joint)
    late = late_inputs(joint, traced)
    (alike, *_) = written_classes(
        traced.program, may_be_hosted(draft_of(traced.program, late=late), _outs(traced)), late
    )
    hosted = with_hosted(traced.program, [((), v) for v in alike.numbers], late)
    flat = flatten(hosted.graph)
    times = {op.node.op: [] for op in flat.ops}
    for op in flat.ops:
        times[op.node.op].append(op.time)
    sent, back, products = times["to_host"], times["from_host"], times["dot_general"]
    count = len(alike.numbers)
    assert len(sent) == len(back) == count == 6
    assert max(sent) < min(back)
    for k in range(3, count):  # of the first two nothing was read before
        between = [t for t in products if back[k - 1] < t < back[k]]
        assert between
    after = values_after(hosted.graph, late)
    regions = [i for i, node in enumerate(hosted.graph.nodes) if node.op == "remat"]
    assert all(hosted.graph.values_of(i)[0] in after for i in regions)


def _outs(traced: Any) -> set[int]:
    graph = traced.graph
    return {v for i in range(len(graph.nodes)) for v in graph.values_of(i)}


def test_what_waits_is_alike_in_all_layers_but_the_last() -> None:
    joint = joint_of_chain()
    traced = traced_joint(joint)
    kept = kept_by(traced, late_inputs(joint, traced))
    work = Recomputation(variant_of(kept, ()), lambda place: 1.0, 1.0)
    waiting = waiting_values(work, joint)
    assert waiting
    for one in waiting:
        assert len(one.keys) == 5
        assert one.nbytes == 5 * one.layer_bytes == 5 * 512 * 256 * 4
        (_, forward_s), (_, backward_s) = one.beside
        assert 6 <= forward_s < len(traced.graph.nodes)
        assert 12 <= backward_s < len(traced.graph.nodes)


def test_sets_are_those_of_brute_force() -> None:
    """Least seconds and bytes of every set of values, with windows that they share."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        windows = [(((k,), rng.random()), ((-k - 1,), rng.random())) for k in range(2)]
        waiting = [
            Waiting((((), k),), rng.random(), 0.1 * rng.random(), windows[k % 2])
            for k in range(rng.integers(1, 5))
        ]
        work = Recomputation(None, lambda place: 0.0, rng.random())  # type: ignore[arg-type]
        flight, rate = int(rng.integers(1, 4)), 2 * rng.random()
        ways = hosted_ways([(work, waiting)], flight, lambda nbytes, rate=rate: rate * nbytes)
        found = {frozenset(way.keys): (way.least_s, way.here_bytes, way.host_bytes) for way in ways}
        assert len(found) == 2 ** len(waiting) - 1
        for n in range(1, len(waiting) + 1):
            for away in combinations(waiting, n):
                exposed = sum(
                    max(rate * sum(x.nbytes for x in away if x.beside == w) - seconds, 0.0)
                    for w in windows for _, seconds in w
                )  # fmt: skip
                stays = sum(x.nbytes for x in waiting if x not in away)
                here = flight * stays + 2 * sum(x.layer_bytes for x in away)
                expected = work.work_s + exposed, here, sum(x.nbytes for x in away)
                keys = frozenset(key for x in away for key in x.keys)
                assert found[keys] == pytest.approx(expected)


@pytest.mark.parametrize("slow", [False, True])
def test_prices_of_copies_know_of_both_programs(slow: bool) -> None:
    """What shows of the copies is at most their seconds; of slow ones the rest of one pass."""
    joint = joint_of_chain(width=1024)
    traced = traced_joint(joint)
    late = late_inputs(joint, traced)
    work = Recomputation(variant_of(kept_by(traced, late), ()), lambda place: 1.0, 1.0)
    (one, *_) = waiting_values(work, joint)
    stage = training_step_of(with_edits(joint, StageEdits((), rows_of(one.keys))), 2, SGD)
    machine = linked(parse_cluster("1xh100"), rate=1e6 if slow else 1e13)
    request = Request(machine, Options(mesh=(1,), baselines=False, substitutions=False))
    call = StepCall(chain, (), (), "auto")
    _, found = plan_traced(One(call, 2, (0, 1), ROLES, "stage"), stage.traced, request, 0.0)
    copies = found.best.account.host_copies
    assert {copy.op for copy in copies} == {"to_host", "from_host"}
    assert sum(c.nbytes for c in copies if c.op == "to_host") == 2 * one.nbytes
    price = price_of(found.best, phases_of(stage), stage.body.graph, 2)
    assert price.host_bytes == one.nbytes
    for copy in copies:
        assert copy.exposed_s == 0.0 if not slow else copy.exposed_s > 0.9 * copy.seconds


# --- plans -------------------------------------------------------------------------------------


@cache
def free() -> Any:
    return planned(written_out, arguments_apart(layers=4, batch=64))


@cache
def short(offload: str) -> Any:
    limit = int(ROOM * free().peak_bytes)
    args = arguments_apart(layers=4, batch=64)
    return planned(written_out, args, memory_bytes=limit, offload=offload)


def test_where_memory_is_short_values_wait_on_the_host(tmp_path: Path) -> None:
    found, here = short("auto"), short("never")
    assert not any(program.hosted for program in (*free().file.members, *here.file.members))
    assert found.step_s < here.step_s
    assert found.peak_bytes <= ROOM * free().peak_bytes
    assert 0.0 < found.lower_bound_s <= found.step_s
    s = next(s for s, program in enumerate(found.file.members) if program.hosted)
    program = found.file.members[s]
    assert [row.place for row in program.hosted] == [()]
    assert program.host_bytes > 0.0
    assert f"{len(program.hosted[0].numbers)} value" in found.explain(str(s))
    found.save(tmp_path / "plan.json")
    assert_trains(
        load(tmp_path / "plan.json"), SGD, written_out, arguments_apart(layers=4, batch=64)
    )


def test_values_that_no_backward_pass_reads_do_not_wait_on_the_host() -> None:
    joint = joint_of_chain()
    traced = traced_joint(joint)
    late = late_inputs(joint, traced)
    (key, *_) = written_values(traced.program, late)
    assert with_hosted(traced.program, [key], late) != traced.program
    for keys in ([key, key], [((), 0)], [((), 10**6)]):
        with pytest.raises(PlanError, match="is to wait on the host twice, or no loop"):
            with_hosted(traced.program, keys, late)

# pyright: basic
"""The search for a pipeline against every pipeline that there is."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import optax
import pytest
from msgspec import structs

from planner.common.options import Options
from planner.common.request import Request
from planner.pipeline import proof
from planner.pipeline.cut.opened_loss import cut_of
from planner.pipeline.divide.dynamic_programme import EXACT, Division, Machine
from planner.pipeline.divide.listing import Begun
from planner.pipeline.divide.run_costs import RECOMPUTE
from planner.pipeline.divide.simulated import PipelineShape, ranked
from planner.pipeline.divide.space import group_counts, sizes, stage_counts
from planner.pipeline.open_divisions import Open, OpenDivisions, Source, least_of
from planner.pipeline.schedule import INTERLEAVED, ONE_EACH, TURNS, Turns, families
from planner.pipeline.search import PipelineSearch
from planner.pipeline.stage_planner import NEAR, StageError
from planner.pipeline.trials import flight_of
from planner.training.training import Training
from tests.planner.pipeline.test_search import search_of
from tests.planner.programs import slow_machine

ALL = ("1f1b", "1f1b-eager", "1f1b-deep", "zb-h1", "gpipe", "interleaved", "zb-v")
# Widths of the layers, bytes of memory, kinds of recomputation, other settings.
MODELS = [
    ((48, 16), None, ("none", "stage"), {"microbatches": 2, "schedules": ("1f1b",)}),
    ((64,), None, RECOMPUTE, {"schedules": ALL}),
    ((64,), 20_000, RECOMPUTE, {"schedules": ALL}),
    ((32, 32), None, RECOMPUTE, {"schedules": ("1f1b", "zb-h1")}),
    ((32, 32), 14_000, RECOMPUTE, {"schedules": ("1f1b", "zb-h1")}),
    ((256, 16), None, RECOMPUTE, {"microbatches": 4, "schedules": ALL}),
    ((16, 256), None, RECOMPUTE, {"microbatches": 4, "schedules": ALL}),
    ((16, 256), 80_000, RECOMPUTE, {"microbatches": 4, "schedules": ALL}),
    ((64, 64, 64), None, ("none", "stage"), {"microbatches": 4, "schedules": ("1f1b", "gpipe")}),
    ((128, 16, 64), 60_000, ("none", "stage"), {"microbatches": 8, "schedules": ("1f1b-eager",)}),
]


def shapes(search: PipelineSearch, count: int):
    """Every (family, division without recomputation) with `count` micro-batches."""
    shares, cluster, given = search.shares, search.machine, search.options.schedules
    machine = Machine(cluster.num_devices, cluster.devices_per_host, sizes(cluster))
    stages = stage_counts(cluster, shares.count - 1)
    ways = [
        (family, devices, ONE_EACH)
        for family in families(given) for p in stages
        for devices in itertools.product(machine.sizes, repeat=p)
    ]  # fmt: skip
    ways += [
        (name, (cluster.num_devices // p,) * (p * turns.chunks), turns)
        for name in given for turns in TURNS.get(name, ())
        for p in group_counts(cluster, stages) if count % p == 0 or name != INTERLEAVED
    ]  # fmt: skip
    for family, devices, turns in ways:
        groups = devices[: len(devices) // turns.chunks]
        firsts = [sum(groups[:s]) for s in range(len(groups))]
        if sum(groups) != machine.devices or not all(map(machine.fits_at, firsts, groups)):
            continue
        for inner in itertools.combinations(range(1, shares.count - 1), len(devices) - 1):
            places = (0, *inner, shares.count - 1)
            yield family, Division(places, devices, ("none",) * len(devices), 0, 0, turns)


def best_of_all(search: PipelineSearch, kinds: tuple[str, ...]) -> float:
    """The least step over cuts, sub-meshes, recomputation, micro-batches and schedules."""
    planner, best = search.planner, math.inf

    @cache
    def priced(count: int, cuts: tuple[int, ...], s: int, size: int, kind: str, flight: int,
               turns: Turns):  # fmt: skip
        names = tuple(kind if r == s else "none" for r in range(len(cuts) - 1))
        shape = PipelineShape(cuts, (size,) * len(names), count, names, turns)
        found = planner.stage(cut_of(planner.loss(count), cuts, names), shape, s, flight)
        return None if isinstance(found, StageError) else found[1]

    for count in search.counts:
        for family, one in shapes(search, count):
            cuts = tuple(search.shares.places[j] for j in one.places)
            flight, end = flight_of(count, one, family), search.shares.places[-1]
            each = []
            for s, size in enumerate(one.sizes):
                own = tuple(dict.fromkeys((0, cuts[s], cuts[s + 1], end)))
                at = own.index(cuts[s])
                rows = [(k, priced(count, own, at, size, k, flight[s], one.turns)) for k in kinds]
                each.append([row for row in rows if row[1] is not None])
            across = [planner.loss(count).chain.across[c] for c in cuts[1:-1]]
            for chosen in itertools.product(*each):
                names, prices = zip(*chosen, strict=True)
                busy = max(count * p.paced_s(k) + p.once_s for k, p in chosen)
                if one.turns.chunks == 1 and busy >= best:
                    continue  # a group of devices works longer than the best step
                shape = PipelineShape(cuts, one.sizes, count, names, one.turns)
                found = ranked(shape, prices, across, search.machine, search.limit,
                               search.options.schedules)[0]  # fmt: skip
                if found.worst_bytes <= search.limit:
                    best = min(best, found.step_s)
    return best


def is_the_best(widths, memory_bytes, kinds, settings) -> None:
    search = search_of(widths, memory_bytes, **settings)
    object.__setattr__(search, "candidates", replace(search.candidates, kinds=kinds))
    found = search.run(None)
    assert search.proof.is_complete
    best = best_of_all(search_of(widths, memory_bytes, **settings), kinds)
    if found is None:
        assert best == math.inf
    else:
        assert found.ranked.step_s <= best * (1 + EXACT + 2 * NEAR)
        assert found.ranked.step_s >= best * (1 - 2 * NEAR)


def test_plans_of_stages_take_no_less_than_their_bounds():
    search = search_of((64, 64), 30_000, microbatches=4)
    assert search.run(None) is not None
    prices = [
        (kind, run, row.price) for kind, runs in search.bounds.known.items()
        for run, rows in runs.items() for row in rows
    ]  # fmt: skip
    assert len(prices) > 5
    for kind, run, price in prices:
        least = search.floors.least(kind.count, kind.size)
        assert price.forward_s >= least.forward_s[run] * (1 - 1e-9)
        assert price.forward_s >= least.begun_s[run] * (1 - 1e-9)
        assert price.paced_s(kind.recompute) >= least.micro_s[run] * (1 - 1e-9)
        assert price.microbatch_s >= least.passes_s[run] * (1 - 1e-9)
        assert price.input_gradient_s >= least.input_s[run] * (1 - 1e-9)
        assert price.forward_s + price.input_gradient_s >= least.sent_s[run] * (1 - 1e-9)
        back_s = price.input_gradient_s + price.weight_gradient_s
        assert back_s >= least.back_s[run] * (1 - 1e-9)
        spent_s = kind.count * price.paced_s(kind.recompute) + price.once_s
        assert spent_s >= least.step_s[run] * (1 - 1e-9)
        assert least.step_s[run] >= kind.count * least.micro_s[run]


def looped(params, batch):
    """Layers in a loop, with an embedding before and a head after it."""

    def layer(x, w):
        return x + jnp.tanh(x @ w[0]) @ w[1], None

    x = jnp.tanh(batch["x"] @ params["in"])
    x, _ = jax.lax.scan(layer, x, params["layers"])
    return jnp.mean(jnp.square(x @ params["out"]))


def test_runs_of_a_loop_are_bounded_by_the_longest() -> None:
    shape = {
        "in": (16, 16), "layers": ((6, 16, 64), (6, 64, 16)), "out": (16, 48)
    }  # fmt: skip
    args = jax.tree.map(
        lambda dims: jax.ShapeDtypeStruct(dims, jnp.float32), shape,
        is_leaf=lambda x: isinstance(x, tuple) and isinstance(x[0], int),
    )  # fmt: skip
    batch = {"x": jax.ShapeDtypeStruct((8, 16), jnp.float32)}
    training = Training(looped, (args, batch), optax.adam(1e-3), False, 0, "looped")
    options = Options(baselines=False, loss_reduction="mean")
    search = PipelineSearch(training, Request(slow_machine(4), options))
    floors, shares = search.floors, search.shares
    last = shares.count - 1
    within = [(i, j) for i in range(last) for j in range(i + 1, last + 1)]
    long = max((shares.core(run) for run in within), key=lambda run: run[1] - run[0])
    rounds = sorted(shares.family(long))
    assert rounds == [*range(2, rounds[-1] + 1)]
    assert len(rounds) > 3
    before = floors.least(2, 2).passes_s.copy()
    firsts = [runs[0] for runs in shares.family(long).values()]
    solved = dict.fromkeys((*firsts, *within[::3]))
    direct = {
        (run, kind): floors._passes_s(2, 2, run, kind, is_sent=False)[0]
        for run in solved for kind in floors.kinds
    }  # fmt: skip
    while not floors.is_passed(2, 2, long):
        floors.prove_passes(2, 2, long)
    after = floors.least(2, 2).passes_s
    assert all(after[run] >= before[run] for run in within)
    for run in solved:  # no higher than the bound of the run itself
        exact_s = min(direct[run, kind] for kind in floors.kinds)
        assert after[run] <= exact_s * (1 + 2e-4)  # solves end within 1e-4
    for runs in shares.family(long).values():
        exact_s = min(direct[runs[0], kind] for kind in floors.kinds)
        assert after[runs[0]] == pytest.approx(exact_s, rel=1e-2)
    exact_s = min(direct[long, kind] for kind in floors.kinds)
    assert after[long] == pytest.approx(exact_s, rel=1e-3)


def towers(params, batch):
    """A second tower begins in the middle: its gradients are sent to no earlier stage."""
    x = jnp.tanh(jnp.tanh(batch["x"] @ params["a"]) @ params["b"])
    y = jnp.tanh(jnp.tanh(batch["x"] @ params["c"]) @ params["d"])
    return jnp.mean(jnp.square(x + y))


def chain(params, batch):
    """What `tanh` returns is computed again where a stage begins after it."""
    x = batch["x"]
    for w, v in (("a", "b"), ("c", "d")):
        x = x + jnp.tanh(x @ params[w]) @ params[v]
    return jnp.mean(jnp.square(x))


def normed(params, batch):
    """Fusions that reach over the places between layers, and others that do not."""
    x = batch["x"]
    for w, v in (("a", "b"), ("c", "d")):
        y = jnp.exp(x - x.mean(-1, keepdims=True))
        y = y / y.sum(-1, keepdims=True)
        z = jax.nn.gelu(y @ params[w])
        x = x + (z * jax.nn.sigmoid(z)) @ params[v]
    return jnp.mean(jnp.square(x))


@pytest.mark.parametrize(("loss", "launch_s"), [(chain, 0.0), (towers, 1e-3), (normed, 1e-3)])
def test_stages_send_their_gradients_no_earlier_than_their_bounds(loss, launch_s):
    square = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    args = dict.fromkeys("abcd", square), {"x": jax.ShapeDtypeStruct((8, 16), jnp.float32)}
    options = Options(microbatches=2, baselines=False, loss_reduction="mean")
    training = Training(loss, args, optax.sgd(0.1), False, 0, "two")
    machine = slow_machine(4)
    device = structs.replace(machine.device, kernel_launch_s=launch_s)
    search = PipelineSearch(training, Request(replace(machine, device=device), options))
    least, places, whole = search.floors.least(2, 1), search.shares.places, search.planner.loss(2)
    for first in range(1, len(places) - 1):
        cuts = (0, places[first], places[-1])
        shape = PipelineShape(cuts, (1, 1), 2, ("none",) * 2)
        found = search.planner.stage(cut_of(whole, cuts), shape, 1, 1)
        assert not isinstance(found, StageError)
        price, run = found[1], (first, len(places) - 1)
        assert price.forward_s >= least.forward_s[run] * (1 - 1e-9)
        assert price.forward_s + price.input_gradient_s >= least.both_s[run] * (1 - 1e-9)
        assert price.microbatch_s >= least.micro_s[run] * (1 - 1e-9)
        assert price.forward_s >= least.begun_s[run] * (1 - 1e-9)
        assert price.input_gradient_s >= least.input_s[run] * (1 - 1e-9)
        assert price.weight_gradient_s >= least.weight_s[run] * (1 - 1e-9)


def test_a_bound_of_all_pipelines_is_below_the_best_and_above_their_work():
    search = search_of((64, 64), None, microbatches=2)
    found = search.run(None)
    assert found is not None
    work = min(search.planner.least_work_s(m, (1, 2, 3), "none") for m in search.counts)
    assert work / 4 < search.lower_bound_s(found.ranked.step_s) < found.ranked.step_s


def test_divisions_that_are_ruled_out_at_once_are_bounded_by_the_step():
    """Their bound is then that of the step below which none is, which work alone does not show."""
    settings = {"microbatches": 2, "schedules": ("1f1b",)}
    search = search_of((64, 64), None, **settings)
    work_s = min(search.planner.least_work_s(2, (1, 2, 3), kind) for kind in RECOMPUTE) / 4
    stages = stage_counts(search.machine, search.shares.count - 1)
    every = OpenDivisions(search.candidates, search.floors, search.options.schedules)
    assert not every.has_begun
    every.begin((2,), stages, (), math.inf)
    assert every.least_s > 1.01 * work_s
    step_s = (every.least_s + work_s) / 2
    search = search_of((64, 64), None, **settings)
    search.below_s = step_s
    assert search.run(None) is None
    assert search.proof.divisions.listed == 0
    assert search.proof.is_complete
    assert step_s * (1 - EXACT) <= search.lower_bound_s(step_s) <= step_s


def test_stages_are_solved_within_the_work_that_is_allowed(monkeypatch):
    """No stage is solved once the work is spent, and what was not solved is not in the bound."""
    monkeypatch.setattr(proof, "CLOSE", 0.0)
    whole = search_of((64, 64), None, microbatches=2)
    assert whole.run(None) is not None
    assert whole.proof.is_complete
    needed = proof.MOST_WORK - whole.proof.left
    rows = list[tuple[int, float]]()
    for share in (0.0, 0.7):
        monkeypatch.setattr(proof, "MOST_WORK", most := share * needed)
        search = search_of((64, 64), None, microbatches=2)
        found, own = search.run(None), search.proof
        assert found is not None
        assert not own.is_complete
        bound_s = own.lower_bound_s(found.ranked.step_s)
        assert bound_s <= found.ranked.step_s
        solved = [*search.floors.proved.items(), *search.floors.passed.items()]
        each = [
            search.floors.work(count, size, run)
            for (count, size, _), runs in solved
            for run in runs
        ]
        assert most - own.left <= most + max(each, default=0.0)  # the last one may go beyond it
        rows.append((len(each), bound_s))
    (none, low_s), (some, high_s) = rows
    assert none == 0 < some
    assert low_s < high_s


def test_divisions_come_with_the_least_bound_first():
    """Bounds of stages rise between; no division below the limit is left out."""
    search = search_of((64, 64), None, microbatches=2, schedules=("1f1b", "zb-v"))
    found = search.run(None)
    assert found is not None
    limit_s = 1.3 * found.ranked.step_s
    cluster, layers = search.machine, search.shares.count - 1
    stages = stage_counts(cluster, layers)
    turns = [(p, one) for p in group_counts(cluster, stages) for one in TURNS["zb-v"]]
    floors = replace(search.floors, _least={}, _kinds={}, proved={}, passed={})
    own = OpenDivisions(search.candidates, floors, search.options.schedules)
    own.begin((2,), stages, turns, limit_s)
    listed, bound_s, solved = dict[object, float](), 0.0, 0
    while (one := own.next(limit_s)) is not None:
        assert own.least_s >= bound_s
        bound_s = own.least_s
        if isinstance(one, Open):
            listed[one.places, one.sizes] = own.least_of_s(one)
            own.take()
        else:
            solved += 1
            floors.prove_passes(*one)
            own.rose(*one[:2])
    assert solved > 0
    assert own.least_s == limit_s
    for _, one in shapes(search, 2):
        if (one.places, one.sizes) not in listed:
            rows = zip(one.sizes, itertools.pairwise(one.places), strict=True)
            each = [own.floors_of(2, size).at(run) for size, run in rows]
            moved_s = own._opened(Source(2, 0, one.turns), Begun(0, one.places, one.sizes)).moved_s
            left = Open(2, one.places, one.sizes, one.turns, moved_s)
            own._schedule([left])
            assert own.with_schedule(left, least_of(left, each)) >= limit_s * (1 - 1e-9)
    assert min(listed.values()) <= found.ranked.step_s


@pytest.mark.slow
def test_no_pipeline_of_a_small_model_is_better():
    is_the_best(*MODELS[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", MODELS[1:])
def test_no_pipeline_is_better(model):
    is_the_best(*model)

# pyright: basic
"""The choice of what is computed again: brute force, and steps over memory limits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain, combinations
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from msgspec import structs

from benchmarks.memory_oracle import compared, programs_of, small_step
from costmodel import parse_cluster
from ir import digest
from ir.trace import trace
from planner import PlanError, plan
from planner.common import request as requests
from planner.common.options import Options
from planner.common.request import Request
from planner.common.stop import PART, Stop
from planner.sharding.edited import ROUNDING
from planner.sharding.plan_traced import One, plan_traced
from planner.sharding.recompute import choose, least_work, roughly
from planner.sharding.recompute.choose import LEAST_GAIN
from planner.sharding.recompute.chosen import Chosen
from planner.sharding.recompute.every_choice import best_of_every
from planner.sharding.recompute.least_work import WORTH
from planner.sharding.recompute.rough_plans import RoughPlans
from planner.sharding.recompute.roughly import fastest_roughly, of_fastest_roughly
from planner.sharding.recompute.saved import layers_of
from planner.sharding.recompute.variants import Variant, variant_of
from planner.sharding.recompute.variants_in_turn import VariantsInTurn
from planner.sharding.variant_plans import VariantPlans
from planner.training.step_call import StepCall


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def two_products(w, v, x):
    def loss(w, v):
        return jnp.sum(jnp.sin(jnp.tanh(x @ w) @ v))

    found, (a, b) = jax.value_and_grad(loss, (0, 1))(w, v)
    return w - a, v - b, found


def one_product(w, x):
    def loss(w):
        return jnp.sum(jnp.exp(jnp.sin(x @ w)) * x)

    found, a = jax.value_and_grad(loss)(w)
    return w - a, found


def test_rough_plans_begin_with_the_multipliers_of_the_last_one() -> None:
    traced, given = trace(one_product, struct(8, 8), struct(64, 8)), list[object]()

    class Prices:
        def anew(self, graph, cutoff_s, multipliers):
            given.append(multipliers)
            if len(given) == 2:
                return None
            sums = SimpleNamespace(step_s=1.0, peak_bytes=float(len(given)))
            answer = SimpleNamespace(multipliers=((0, 0.1 * len(given)),))
            return SimpleNamespace(account=sums, solution=answer)

    prices: Any = Prices()
    rough = RoughPlans(traced, lambda _: prices, 3.0)
    assert [rough.step_s(Variant(traced)) for _ in range(4)] == [
        1.0,
        float("inf"),
        1.0,
        float("inf"),
    ]
    assert given == [(), ((0, 0.1),), ((0, 0.1),), ((0, 0.1 * 3),)]


PROGRAMS = {
    "two products": (two_products, (struct(64, 256), struct(256, 64), struct(4096, 64))),
    "one product": (one_product, (struct(64, 64), struct(8192, 64))),
}
SETTINGS = {"baselines": False, "substitutions": False, "mesh": (2,)}


def by_brute_force(fn, args, memory_bytes: int) -> float:
    """The fastest step of all subsets of the nodes of the forward pass, each planned by itself."""
    options = Options(memory_bytes=memory_bytes, **SETTINGS)
    request = Request(parse_cluster("2xh100"), options)
    one = One(StepCall(fn, args, (), "auto"), 1, (), (), fn.__name__)
    traced = trace(fn, *args)
    each = [layer.keys([n]) for layer in layers_of(traced.program) for n in layer.nodes]
    assert len(each) <= 8
    best = float("inf")
    subsets = chain.from_iterable(combinations(each, n) for n in range(len(each) + 1))
    variants = [variant_of(traced, frozenset().union(*keys)).traced for keys in subsets]
    for program in {digest(variant.graph): variant for variant in variants}.values():
        try:
            found, _ = plan_traced(one, program, request, time.monotonic())
        except PlanError:
            continue
        best = min(best, found.step_s)
    return best


@pytest.mark.parametrize(
    "name", ["one product", pytest.param("two products", marks=pytest.mark.exhaustive)]
)
def test_the_choice_is_the_best_of_all_subsets(name: str) -> None:
    """It is so at every memory limit, and less memory is never faster."""
    fn, args = PROGRAMS[name]
    full = plan(fn, *args, cluster="2xh100", recompute="none", **SETTINGS)
    before = 0.0
    for share in (1.0, 0.9, 0.8, 0.7):
        limit = int(full.peak_bytes * share) + 1
        best = by_brute_force(fn, args, limit)
        settings = {"memory_bytes": limit, "recompute": "search", **SETTINGS}
        if best == float("inf"):
            with pytest.raises(PlanError, match="does not fit"):
                plan(fn, *args, cluster="2xh100", **settings)
            break
        found = plan(fn, *args, cluster="2xh100", **settings)
        assert found.peak_bytes <= limit
        # other choices are left that gain less than `LEAST_GAIN`; the bound knows of them
        assert found.lower_bound_s <= best * (1 + ROUNDING)
        assert best * (1 - ROUNDING) <= found.step_s <= best / (1 - LEAST_GAIN) * (1 + ROUNDING)
        assert found.step_s >= before
        before = found.step_s
    assert before > full.step_s


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [4, 11, 12, 22, 24, 35])
def test_choices_of_random_programs_are_the_best_of_all(seed: int) -> None:
    """Up to nine operations may be computed again; 35 was 11.5 % slower by the cuts alone."""
    found = compared(seed, 8, (1.0, 0.7))
    assert found is not None
    steps = [row["step_s"] for row in found["rows"]]
    assert len(steps) == 2
    assert steps[0] <= steps[1] * (1 + LEAST_GAIN)
    for row in found["rows"]:
        assert row["optimum_s"] * (1 - ROUNDING) <= row["step_s"]
        assert row["step_s"] <= row["optimum_s"] / (1 - LEAST_GAIN) * (1 + ROUNDING)
        assert row["bound_s"] <= row["optimum_s"] * (1 + ROUNDING)


@dataclass
class Priced:
    """Steps of programs by their digests, as plans and as rough plans."""

    step_s: float
    bound_s: float


def test_every_choice_has_a_rough_plan_and_the_fastest_are_planned() -> None:
    small = small_step(12, 8)
    programs = [digest(one.graph) for one in programs_of(small).programs]
    steps = {name: 1.0 + i * 7 % len(programs) for i, name in enumerate(programs)}
    asked: list[str] = []

    class Quick:
        known_s = 1.0

        def step_s(self, variant: Variant, cutoff_s: float = float("inf")) -> float:
            return steps[digest(variant.traced.graph)] - 0.25  # less than the plan takes

        def saving_s(self) -> float:
            raise AssertionError

    def search(variant: Variant, limit_s: float) -> Priced:
        asked.append(digest(variant.traced.graph))
        if steps[asked[-1]] >= limit_s:
            raise PlanError("no plan is below", kind="not-faster")
        return Priced(steps[asked[-1]], steps[asked[-1]] - 0.5)

    first = variant_of(small.traced, frozenset())
    begun = Priced(steps[digest(first.traced.graph)] + 9, 0.75)
    found = best_of_every(
        lambda: Chosen(first, begun, begun.bound_s), small.traced, small.each, lambda _: Quick(),
        Request(parse_cluster("2xh100"), Options()), search,
    )  # fmt: skip
    assert found.found.step_s == min(steps.values()) == 1.0
    assert found.bound_s == 0.5
    assert asked == [min(steps, key=lambda name: steps[name])]  # the others' rough plans are slower


def test_any_choice_that_fits_is_planned_where_those_of_least_work_do_not() -> None:
    small, asked = small_step(29, 8), list[float]()

    def refused() -> Any:
        raise PlanError("these do not fit", kind="does-not-fit")

    class Quick:
        known_s = 1.0

        def step_s(self, variant: Variant, cutoff_s: float = float("inf")) -> float:
            return 2.0

        def saving_s(self) -> float:
            raise AssertionError

    def search(variant: Variant, limit_s: float) -> Priced:
        asked.append(len(variant.rows or ()))
        if len(asked) < 3:
            raise PlanError("nor does this", kind="does-not-fit")
        return Priced(1.0, 0.5)

    request = Request(parse_cluster("2xh100"), Options())
    found = best_of_every(refused, small.traced, small.each, lambda _: Quick(), request, search)
    assert found.found.step_s == 1.0
    assert len(asked) == 3
    asked.clear()
    search_none = lambda variant, limit_s: refused()  # noqa: E731
    with pytest.raises(PlanError, match="these do not fit"):
        best_of_every(refused, small.traced, small.each, lambda _: Quick(), request, search_none)


def test_a_program_that_fits_is_planned_as_it_is_written() -> None:
    fn, args = PROGRAMS["one product"]
    settings = {"cluster": "2xh100", **SETTINGS}
    auto, written = (plan(fn, *args, recompute=r, **settings) for r in ("auto", "written"))
    assert auto.program.recomputed is None
    assert auto.program == structs.replace(
        written.program, warnings=(*written.program.warnings, PART)
    )  # of this choice alone


def products(weights, x):
    def loss(weights):
        y, _ = jax.lax.scan(lambda h, w: (h @ w @ w.T, None), x, weights)
        return jnp.mean(y**2)

    found, grads = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * grads, found


def test_another_choice_where_the_limit_slows_the_program_down() -> None:
    """The program as it is written fits at a lower limit too, with a slower plan."""
    args = struct(8, 1024, 1024), struct(4096, 1024)
    settings = {"cluster": "4xh100", "baselines": False, "substitutions": False, "mesh": (4,)}
    free = plan(products, *args, **settings)
    assert free.program.recomputed is None
    settings["memory_bytes"] = int(free.peak_bytes * 0.92)
    written = plan(products, *args, recompute="written", **settings)
    auto = plan(products, *args, **settings)
    assert auto.program.recomputed is not None
    assert auto.step_s < written.step_s * 0.99
    assert auto.peak_bytes <= settings["memory_bytes"] < free.peak_bytes
    assert auto.lower_bound_s <= auto.step_s
    late = plan(products, *args, time_limit_s=1e-3, **settings)
    assert late.stop is Stop.TIME_LIMIT
    assert any("recompute: the lower bound" in note for note in late.program.warnings)
    assert "that was looked at before the search ended" in str(late)


def test_another_choice_though_the_plan_as_written_takes_less_than_half_of_the_memory() -> None:
    """The next one that fits may need far less than the one that would be the fastest."""

    def layer(h, w):
        y = h @ w
        for _ in range(6):
            y = jnp.tanh(y) * jnp.sin(y)
        return y, None

    def step(weights, x):
        body = jax.checkpoint(layer, policy=jax.checkpoint_policies.checkpoint_dots)
        grads = jax.grad(lambda ws: jnp.mean(jax.lax.scan(body, x, ws)[0] ** 2))(weights)
        return weights - 0.1 * grads

    args = struct(4, 2048, 2048), struct(4096, 2048)
    given = {**SETTINGS, "cluster": "8xv100-16gb:1", "mesh": (8,), "memory_bytes": 355_000_000}
    written, auto, full = (
        plan(step, *args, recompute=r, **given) for r in ("written", "auto", "full")
    )
    assert written.peak_bytes < given["memory_bytes"] / 2
    assert auto.step_s <= full.step_s * (1 + 1e-3) < 0.9 * written.step_s


@pytest.mark.parametrize("again", [False, True])
def test_rough_plans_come_first_where_the_program_computes_again(
    monkeypatch: pytest.MonkeyPatch,
    again: bool,
) -> None:
    """Where it does not, no choice is less work, and making their programs takes long."""

    def step(weights, x):
        def layer(h, w):
            return h @ w @ w.T, None

        def loss(weights):
            body = jax.checkpoint(layer) if again else layer
            return jnp.mean(jax.lax.scan(body, x, weights)[0] ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    args = struct(8, 1024, 1024), struct(4096, 1024)
    settings = {"cluster": "4xh100", **SETTINGS, "mesh": (4,)}
    asked: list[bool] = []
    monkeypatch.setattr(VariantPlans, "roughly", lambda _: asked.append(again))
    monkeypatch.setattr(choose, "of_least_work", lambda *_: None)
    plan(step, *args, **settings)
    assert any(asked) == again


def test_a_time_limit_ends_what_improves_a_plan() -> None:
    """Once it is over no choice is planned beside the first plan, which says so."""
    fn, args = PROGRAMS["two products"]
    rows: dict[float, list[str]] = {1e-3: [], 1e6: []}
    plans = {
        limit: plan(fn, *args, cluster="2xh100", recompute="search", time_limit_s=limit,
                    progress=said.append, **SETTINGS)
        for limit, said in rows.items()
    }  # fmt: skip
    short, whole = plans.values()
    counts = [sum(row.startswith("recompute") for row in said) for said in rows.values()]
    assert counts[0] == 1 < counts[1]
    assert short.stop is Stop.TIME_LIMIT
    assert whole.step_s <= short.step_s
    assert any("recompute: the lower bound" in note for note in short.program.warnings)


@pytest.mark.parametrize(("each_s", "steps_s", "planned"), [
    (25.0, (0.9, 0.8, 0.7, 0.6), 0.8),  # 30 of 80 s are left after the second
    (1.0, (0.9, 0.8, 0.7, 0.6), 0.6),
    (20.0, (2.0, 2.0, 0.7, 0.6), 0.7),  # none is better after half of the time
    (50.0, (2.0, 2.0, 2.0, 2.0), None),
])  # fmt: skip
def test_rough_plans_leave_time_for_the_search_of_the_best(
    monkeypatch: pytest.MonkeyPatch,
    each_s: float,
    steps_s: tuple[float, ...],
    planned: float | None,
) -> None:
    now = [20.0]
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: now[0]))
    request = Request(parse_cluster("2xh100"), Options(time_limit_s=100.0), start=0.0)

    def step_s(variant: Variant, cutoff_s: float = float("inf")) -> float:
        now[0] += each_s
        number = variant.states[0]
        assert cutoff_s == min([1.0 - WORTH, *steps_s[:number]])  # the best so far
        return steps_s[number]

    quick: Any = SimpleNamespace(step_s=step_s)
    traced: Any = SimpleNamespace(graph=SimpleNamespace(nodes=()))
    variants = [Variant(traced, states=(k,)) for k in range(len(steps_s))]
    monkeypatch.setattr(roughly, "work_s", lambda *_: 0.0)
    each = VariantsInTurn([[one] for one in variants], hosted_if_short=False)
    found = fastest_roughly(traced, each, 1.0, 0.1, quick, request, lambda _: lambda _: 0.0)
    assert (found and steps_s[found.states[0]]) == planned


@pytest.mark.parametrize(("other_work_s", "step_s", "bound_s", "written_s", "asked", "kept_s"), [
    (0.11, 0.8, 0.9, 1.0, [], None),  # more work pays only where memory slows the program
    (0.1, 0.8, 0.9, 1.0, [], None),
    (0.09, 1.0, 0.9, 1.0, [], None),  # no choice is faster roughly
    (0.09, 0.8, 0.9, 1.0, ["other"], 0.8),  # its bound says that the program as written is slower
    (0.09, 0.8, 0.7, 1.0, ["other", "written"], 0.8),
    (0.09, 0.8, 0.7, 0.75, ["other", "written"], 0.75),
])  # fmt: skip
def test_the_fastest_rough_plan_comes_before_the_program_as_written(
    monkeypatch: pytest.MonkeyPatch,
    other_work_s: float,
    step_s: float,
    bound_s: float,
    written_s: float,
    asked: list[str],
    kept_s: float | None,
) -> None:
    traced: Any = SimpleNamespace(graph=SimpleNamespace(nodes=()))
    other: Any = SimpleNamespace(graph=SimpleNamespace(nodes=()))
    seen: list[str] = []

    def search(variant: Variant, limit_s: float) -> Priced:
        seen.append("written" if variant.traced is traced else "other")
        found = written_s if variant.traced is traced else step_s
        if found >= limit_s:
            raise PlanError("no plan is below", kind="not-faster")
        return Priced(found, 0.5)

    quick = SimpleNamespace(known_s=1.0, step_s=lambda *_: step_s)
    early: Any = SimpleNamespace(roughly=lambda: quick, bound_s=lambda: bound_s)
    for module in (roughly, least_work):
        monkeypatch.setattr(module, "work_s", lambda one, _: 0.1 if one is traced else other_work_s)
    found = of_fastest_roughly(
        traced, VariantsInTurn([[Variant(other)]], hosted_if_short=False),
        Request(parse_cluster("2xh100"), Options()), search,
        lambda _: lambda _: 0.0, early, float("inf"),
    )  # fmt: skip
    assert seen == asked
    assert (found and found.found.step_s) == kept_s

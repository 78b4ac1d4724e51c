# pyright: basic
"""Programs with `jax.checkpoint` that compute less again where memory allows."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from costmodel import parse_cluster
from ir.trace import Traced, trace
from planner import PlanError, plan
from planner.common import request as requests
from planner.common.interruption import Interruption
from planner.common.options import Options
from planner.common.request import Request
from planner.sharding.recompute.frontier import SecondsOf
from planner.sharding.recompute.least_work import MOST_TRIED, SHARE, of_least_work
from planner.sharding.recompute.saved import layers_of
from planner.sharding.recompute.variants import Variant, kept_by

SETTINGS: dict[str, Any] = {
    "baselines": False, "substitutions": False, "padding": False, "mesh": (8,),
}  # fmt: skip
WEIGHTS = jax.ShapeDtypeStruct((4, 256, 256), "float32")
DATA = jax.ShapeDtypeStruct((4096, 256), "float32")
MORE = jax.ShapeDtypeStruct((65536, 256), "float32")


def step(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        layer = jax.checkpoint(lambda h, w: (jnp.tanh(jnp.sin(h @ w) @ w.T), None))
        y, _ = jax.lax.scan(layer, x, weights)
        return jnp.mean(y**2)

    found, grads = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * grads, found


def test_less_is_computed_again_where_memory_allows(tmp_path: Path) -> None:
    written, auto, searched = (
        plan(step, WEIGHTS, DATA, cluster="8xh100", recompute=how, **SETTINGS)
        for how in ("written", "auto", "search")
    )
    assert written.program.recomputed is None
    assert auto.program.recomputed is not None
    assert searched.step_s <= auto.step_s < 0.9 * written.step_s
    assert auto.lower_bound_s <= auto.step_s
    assert any("not of all" in note for note in auto.program.warnings)
    with pytest.raises(PlanError, match="recompute='written'"):
        auto.export("jax", tmp_path / "module.py")
    written.export("jax", tmp_path / "module.py")
    notes = auto.export("megatron", tmp_path / "megatron.json").notes
    assert any("the program as written" in note for note in notes)
    tight = plan(
        step, WEIGHTS, DATA, cluster="8xh100", memory_bytes=int(written.peak_bytes), **SETTINGS
    )
    assert tight.peak_bytes <= written.peak_bytes


def light(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        y, _ = jax.lax.scan(lambda h, w: (jnp.tanh(jnp.sin(h @ w)), None), x, weights)
        return jnp.mean(y**2)

    return weights - 0.1 * jax.grad(loss)(weights)


def test_light_values_are_computed_again_where_they_take_longer_to_keep() -> None:
    settings = {"cluster": "8xh100", **SETTINGS}
    auto = plan(light, WEIGHTS, MORE, **settings)
    written = plan(light, WEIGHTS, MORE, recompute="written", **settings)
    assert auto.program.recomputed
    assert auto.step_s < 0.95 * written.step_s
    assert auto.peak_bytes < written.peak_bytes
    assert auto.lower_bound_s <= auto.step_s


def test_what_a_policy_sends_to_the_host_is_there() -> None:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["kept"],
        offload_src="device", offload_dst="pinned_host",
    )  # fmt: skip

    def offloaded(weights: Any, x: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            return jnp.sin(checkpoint_name(jnp.tanh(h @ w), "kept") @ w.T), None

        def loss(weights: Any) -> Any:
            y, _ = jax.lax.scan(jax.checkpoint(layer, policy=policy), x, weights)
            return jnp.mean(y**2)

        return weights - 0.1 * jax.grad(loss)(weights)

    found = plan(offloaded, WEIGHTS, DATA, cluster="8xh100", **SETTINGS)
    assert found.program.host_bytes > 0


@pytest.mark.parametrize(("fn", "data"), [(step, DATA), (light, MORE)])
def test_values_are_those_of_the_program(fn: Any, data: jax.ShapeDtypeStruct) -> None:
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.normal(size=s.shape) / 16, s.dtype) for s in (WEIGHTS, data)]
    found = plan(fn, *args, cluster="8xh100", **SETTINGS)
    assert found.program.recomputed is not None
    pairs = zip(
        *map(jax.tree.leaves, (found.compile(devices=jax.devices())(*args), jax.jit(fn)(*args))),
        strict=True,
    )
    for ours, theirs in pairs:
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-6)


@dataclass
class Told:
    """Rough and full steps of the program as written, and of others [s].

    full_s: of the program as written, and of those that keep more, in the order of their work;
        infinite where none fits.
    quick_bound_s: quick lower bound of the program as written.
    work_s: least seconds of its operations.
    bounds_s: lower bounds of the full plans of the program as written, and of others.
    excess: bytes by which each program exceeds the memory at least.
    interrupted: whether Ctrl-C ends the search of the program as written.
    asked: whose full plan was asked for.
    now: what the clock says [s].
    quick_s: seconds that the work of the program as written takes to price.
    """

    traced: Traced
    full_s: tuple[float, ...]
    quick_bound_s: float
    work_s: float = 0.6
    bounds_s: tuple[float, float] = (0.4, 0.4)
    excess: float = 0.0
    interrupted: bool = False
    asked: list[str] = field(default_factory=list[str])
    now: list[float] = field(default_factory=lambda: [0.0])
    quick_s: float = 0.0

    def search(self, variant: Variant, limit_s: float) -> Any:
        assert variant.traced is self.traced
        self.asked.append("written")
        if self.interrupted:
            raise KeyboardInterrupt
        return self._full(0, limit_s)

    def beside(self, variant: Variant, cutoff_s: float) -> Any:
        assert variant.traced is not self.traced
        self.asked.append("more")
        return self._full(self.asked.count("more"), cutoff_s)

    def _full(self, n: int, limit_s: float) -> Any:
        if self.full_s[n] >= limit_s:
            raise PlanError("no plan is below", kind="not-faster")
        return Full(self.full_s[n], self.bounds_s[n > 0])

    def bound_s(self) -> float:
        return self.quick_bound_s

    def roughly(self) -> None:
        return None

    def excess_bytes(self, traced: Traced) -> float:
        return self.excess

    def memory_s(self, nbytes: float) -> float:
        return nbytes / 1e12

    def request(self) -> Request:
        interruption = Interruption(keeps=True)
        options = Options(time_limit_s=100.0 if self.quick_s else float("inf"))
        start = 0.0 if self.quick_s else time.monotonic()
        return Request(parse_cluster("8xh100"), options, start=start, interruption=interruption)

    def chosen(self) -> Any:
        kept = kept_by(self.traced)

        def seconds_of(traced: Traced) -> SecondsOf:
            self.now[0] += self.quick_s if traced is self.traced else 0.0
            work_s = self.work_s if traced is self.traced else 0.0
            return lambda place: work_s / len(traced.graph.nodes)

        return of_least_work(
            self.traced, kept, layers_of(kept.program), self.request(), self.search, seconds_of,
            self, float("inf"),
        )  # fmt: skip


@dataclass
class Full:
    step_s: float
    bound_s: float


@pytest.mark.parametrize(
    ("full_s", "bound_s", "asked", "step_s"),
    [
        ((0.97, 0.59), 0.5, ["more"], 0.59),  # below the work of the program as written
        ((0.97, 0.9), 0.95, ["more"], 0.9),  # below its bound
        ((0.97, 0.9), 0.5, ["more", "written"], 0.9),
        ((0.96, 0.97), 0.5, ["more", "written"], 0.96),
        ((0.98, 0.97), 0.5, ["more", "written"], 0.97),
        ((0.9, math.inf, 0.8), 0.85, ["more", "more"], 0.8),
        ((0.9, *[math.inf] * MOST_TRIED, 0.8), 0.5, ["more"] * MOST_TRIED, None),
    ],
)
def test_the_program_as_written_is_planned_only_if_it_may_be_faster(
    full_s: tuple[float, ...], bound_s: float, asked: list[str], step_s: float | None
) -> None:
    told = Told(trace(step, WEIGHTS, DATA), full_s, bound_s)
    found = told.chosen()
    assert told.asked == asked
    assert (found.found.step_s if found else None) == step_s


def test_the_bound_is_that_of_all_that_was_planned() -> None:
    found = Told(trace(step, WEIGHTS, DATA), (0.96, 0.97), 0.5, bounds_s=(0.3, 0.9)).chosen()
    assert found.found.step_s == 0.96
    assert found.bound_s == 0.3


def test_ctrl_c_keeps_the_plan_that_was_found() -> None:
    told = Told(trace(step, WEIGHTS, DATA), (0.96, 0.97), 0.5, interrupted=True)
    assert told.chosen().found.step_s == 0.97
    assert told.asked == ["more", "written"]


@pytest.mark.parametrize(("share", "asked"), [(0.9, ["more"]), (1.1, [])])
def test_a_time_limit_leaves_most_of_it_to_full_plans(
    monkeypatch: pytest.MonkeyPatch, share: float, asked: list[str]
) -> None:
    traced = trace(step, WEIGHTS, DATA)
    told = Told(traced, (0.97, 0.9), 0.95, quick_s=share * SHARE * 100.0)
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: told.now[0]))
    told.chosen()
    assert told.asked == asked


@pytest.mark.parametrize(("work_s", "excess"), [(0.6, 2.0**60), (0.0, 0.0)])
def test_what_cannot_fit_or_saves_nothing_is_not_planned(work_s: float, excess: float) -> None:
    told = Told(trace(step, WEIGHTS, DATA), (1.0, 0.9), 0.5, work_s=work_s, excess=excess)
    assert told.chosen() is None
    assert not told.asked

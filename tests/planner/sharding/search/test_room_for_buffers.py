# pyright: basic
"""Plans that fit with their transient buffers, and the last solve of their problem."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest

from costmodel import parse_cluster
from ir.trace import trace
from planner import Options
from planner.common.request import Request
from planner.sharding.problem.in_flight import InFlightBuffers
from planner.sharding.problem.program import Program, program_of
from planner.sharding.search.on_mesh import MeshSearch
from planner.sharding.search.over_meshes import Search, SearchOutcome
from planner.sharding.search.room_for_buffers import NEAR, RoomForBuffers
from planner.solver.options import FURTHER, SolveOptions

LAYERS, WIDTH = 4, 1024
LIMIT = 100.0
FIRST_S = 1.0


def plan_of(step_s: float, peak_bytes: float) -> Any:
    account = SimpleNamespace(step_s=step_s, peak_bytes=peak_bytes)
    solution = SimpleNamespace(choice=(3,))
    return SimpleNamespace(account=account, builder="builder", solution=solution)


class Problem:
    """With one reserved moment beside the choices of a plan."""

    built = None

    def lowered(self, choice: tuple[int, ...]) -> tuple[int, ...]:
        return (*choice, 0)


class Solver:
    """Answers each solve with one plan, and notes where it began."""

    def __init__(self, plan: Any) -> None:
        self.plan, self.starts = plan, list[tuple[int, ...]]()

    def solve(self, left: Any, limit: float, options: SolveOptions) -> Any:
        self.starts.append(options.start)
        return SimpleNamespace(choice=(4,), bound=0.5)

    def of(self, name: str, built: object, solution: object, builder: object = None) -> Any:
        return self.plan


def last_of(fitting: Any, further: Any) -> tuple[Any, list[tuple[int, ...]]]:
    """The plan taken, and the starts of the last solves."""
    solver = Solver(further)
    room = RoomForBuffers(cast(Any, solver), LIMIT)
    left = Problem()
    room._found = lambda *_: [SimpleNamespace(plan=fitting, left=left, limit=LIMIT)]  # type: ignore[method-assign, list-item, return-value]
    options = SolveOptions()
    first = plan_of(FIRST_S, LIMIT + 1.0)
    return room.fitting("search", cast(Any, None), cast(Any, left), first, options, options), (
        solver.starts
    )


@pytest.mark.parametrize(
    ("step_s", "peak_bytes", "taken"),
    [(1.05, LIMIT, True), (1.15, LIMIT, False), (1.05, LIMIT + 1.0, False)],
)
def test_a_last_solve_is_taken_if_it_fits_and_is_faster(
    step_s: float, peak_bytes: float, taken: bool
) -> None:
    fitting, further = plan_of(1.1, LIMIT), plan_of(step_s, peak_bytes)
    found, starts = last_of(fitting, further)
    assert found is (further if taken else fitting)
    assert starts == [(3, 0)]


def test_a_plan_near_the_first_one_is_not_searched_further() -> None:
    fitting = plan_of(FIRST_S * (1 + NEAR), LIMIT)
    assert last_of(fitting, plan_of(0.9, LIMIT)) == (fitting, [])


@cache
def layers() -> Program:
    """A step of tanh layers: gathers and sums of weights pass buffers as large as these."""

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.sum(x * x)

    def step(weights: Any, x: Any) -> Any:
        grads = jax.grad(loss)(weights, x)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]

    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    x = jax.ShapeDtypeStruct((2 * WIDTH, WIDTH), jnp.float32)
    traced = trace(step, weights, x, donate_argnums=(0,))
    own = range(LAYERS)
    return program_of(traced.graph, tuple((i, i) for i in own), frozenset(own), Options())


def searched(program: Program, share: float, cutoff_s: float = float("inf")) -> SearchOutcome:
    """The search on eight devices, with a multiple of the least memory."""
    limit = int(program.facts.least_peak(8) * share)
    options = Options(memory_bytes=limit, baselines=False, mesh=(8,))
    found = Search(program, Request(parse_cluster("8xh100"), options), cutoff_s=cutoff_s).run()
    assert found.best.account.peak_bytes <= limit
    return found


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Budgets of the solves."""
    seen: list[Any] = []
    solve = MeshSearch.solve

    def noted(self: MeshSearch, left: Any, limit: float, options: SolveOptions) -> Any:
        seen.append(options.budget)
        return solve(self, left, limit, options)

    monkeypatch.setattr(MeshSearch, "solve", noted)
    return seen


@pytest.mark.parametrize(("in_flight", "share"), [(False, 2.0), (True, 4.0)])
def test_a_plan_over_the_limit_gives_way_to_one_that_fits(
    budgets: list[Any], in_flight: bool, share: float
) -> None:
    """Also where nodes follow others, as values of micro-batches in flight do."""
    program = layers()
    if in_flight:
        kept = tuple(v for op in program.flat.ops[: 2 * LAYERS] for v in op.outputs)
        buffers = InFlightBuffers(kept, 2, 0, program.flat.clock)
        program = replace(program, in_flight_buffers=buffers, like=program)
    found = searched(program, share)
    assert FURTHER in budgets
    assert 0.0 < found.lower_bound_s < found.best.account.step_s


def test_a_cutoff_between_the_bound_and_what_fits_is_no_lack_of_memory() -> None:
    found = searched(layers(), 2.0)
    step_s = found.best.account.step_s
    assert found.lower_bound_s < 0.9 * step_s
    under = searched(layers(), 2.0, 0.95 * step_s)
    assert under.best.account.step_s == step_s
    assert under.lower_bound_s <= found.lower_bound_s

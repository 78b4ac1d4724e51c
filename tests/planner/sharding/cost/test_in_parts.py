# pyright: basic
"""Products in parts: what they cost in the problem, in the account, and as a plan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from costmodel import INTERFERENCE, CollectiveModel, ComputeModel, parse_cluster
from costmodel.collective_matmul import ADDED, CUT, PLACED
from planner import PlanError, load, plan
from planner.inspect.timeline import predicted
from planner.sharding.cost.in_parts import beside_product
from planner.sharding.lower import lower_decisions
from tests.planner.sharding.cost.test_account import adds_up
from tests.planner.spaces import Space, space

WIDE = 8192


def layer(x: Any, w: Any, v: Any) -> Any:
    return x + jnp.tanh(x @ w) @ v


def gradients(x: Any, w: Any, v: Any) -> Any:
    return jax.grad(lambda *args: jnp.sum(layer(*args)), (0, 1, 2))(x, w, v)


def arguments(rows: int = 2 * WIDE) -> tuple[Any, ...]:
    shapes = (rows, WIDE), (WIDE, 4 * WIDE), (4 * WIDE, WIDE)
    return tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)


def planned(fn: Any = layer, cluster: str = "8xh100", **options: Any) -> Any:
    pins = (("x", "[t,-]"), ("w", "[-,t]"), ("v", "[t,-]"))
    devices = int(cluster.split("x")[0])
    return plan(
        fn, *arguments(), cluster=cluster, mesh={"t": devices}, pins=pins, baselines=False,
        **options,
    )  # fmt: skip


def with_parts(found: Space, seed: int, count: int) -> list[tuple[int, ...]]:
    """Choices that some product runs in parts under."""
    rng, choices = np.random.default_rng(seed), list[tuple[int, ...]]()
    for _ in range(4000):
        choice = found.draw(rng)
        cost = found.built.problem.cost(choice)
        if np.isfinite(cost) and found.decided(choice).plan.in_parts:
            choices.append(choice)
        if len(choices) == count:
            return choices
    pytest.fail("no plan runs a product in parts")


@pytest.mark.parametrize("fn", [layer, gradients])
def test_the_account_is_the_objective_and_decisions_say_it_all(fn: Any) -> None:
    found = space(fn, *arguments(), mesh=(2, 4), cluster=parse_cluster("8xh100"))
    reshard = found.builder.cache.reshard
    for choice in with_parts(found, 0, 6):
        adds_up(found, choice)
        lowered = found.decided(choice).plan
        assert lower_decisions(found.flat, lowered.decisions, reshard, {}) == lowered


def test_seconds_are_those_of_the_formula() -> None:
    machine = parse_cluster("8xh100")
    found = space(layer, *arguments(), mesh=(8,), cluster=machine)
    compute, hops = ComputeModel(machine), CollectiveModel(machine)
    seen: set[str] = set()
    for choice in with_parts(found, 1, 12):
        decided = found.decided(choice)
        for moved in decided.plan.in_parts.values():
            beside = beside_product(decided, moved)
            assert beside is not None
            op = found.flat.ops[decided.plan.product_of(moved)]
            (m, k), (_, n) = (found.flat.values[v].type.shape for v in op.reads)
            gathers = not moved.change.before.partial
            seen.add("gather" if gathers else "scatter")
            sides = _sides(decided.plan.strategies[found.flat.ops.index(op)], m, k, n)
            rows, columns, depth = sides
            dim = next(d for d, axes in enumerate(moved.change.after.dims)
                       if axes != moved.change.before.dims[d])  # fmt: skip
            by_rows = moved.passage.site.position == 0 if gathers else dim == 0
            part = (rows / 8, columns) if by_rows else (rows, columns / 8)
            alone = float(compute.gemm_s(1, rows, columns, depth, "bfloat16"))
            each = float(compute.gemm_s(1, *part, depth, "bfloat16"))
            operand = 2.0 * depth * (rows if by_rows else columns)
            result = 2.0 * rows * columns
            moves = operand / 8 if gathers else result / 8
            copied = PLACED * result if gathers else CUT * operand + ADDED * result * 7 / 8
            hop = float(
                hops.copy_s(found.builder.cache.reshard.group(("x",)), np.array([moves]))[0]
            )
            kernels = 9 if gathers else 15
            expected = (
                max(0.0, 8 * each - alone) + float(compute.memory_s(copied))
                + kernels * compute.launch_s + 7 * hop
            )  # fmt: skip
            assert beside.seconds == pytest.approx(expected)
            hidden = 7 * min(hop, INTERFERENCE * each) / INTERFERENCE
            assert beside.hidden_s == pytest.approx(hidden)
            assert (beside.count, beside.sent_bytes) == (7, 7 * moves)
    assert seen == {"gather", "scatter"}


def _sides(strategy: Any, *whole: float) -> list[float]:
    """Local rows, columns and depth of a product of matrices on a mesh of one axis of eight."""
    (role,) = strategy.roles
    return [
        size / (8 if role.startswith(name) else 1)
        for size, name in zip((whole[0], whole[2], whole[1]), "mnk", strict=True)
    ]


def test_plans_are_faster_with_it_and_files_keep_it(tmp_path: Any) -> None:
    on, off = planned(), planned(collective_matmul=False)
    assert on.program.in_parts
    assert not off.program.in_parts
    assert on.step_s < off.step_s
    assert on.compiler_options["xla_gpu_use_memcpy_local_p2p"]
    assert "xla_gpu_use_memcpy_local_p2p" not in off.compiler_options
    on.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json")
    assert again.decisions == on.decisions
    assert again.analysed.account.step_s == pytest.approx(on.step_s)
    assert predicted(again.analysed).end_s == pytest.approx(on.step_s)
    assert "beside its product" in again.explain("")


@pytest.mark.parametrize("options", [{"overlap": False}, {"emission": "constraints"}])
def test_what_cannot_run_in_parts_is_not_priced_so(options: Any) -> None:
    assert not planned(**options).program.in_parts


def test_rings_stay_on_one_host() -> None:
    assert not planned(cluster="16xh100").program.in_parts


def test_it_is_a_flag() -> None:
    with pytest.raises(PlanError, match="collective_matmul"):
        planned(collective_matmul="yes")

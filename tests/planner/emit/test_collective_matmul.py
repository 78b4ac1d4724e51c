# pyright: basic
"""Products in parts, on eight devices: equal to that of one, gradients too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir import (
    LoweredPlan,
    Parts,
    interpret_lowered,
    is_product,
    lookup,
    parse_plan,
    parts_of,
    show_plan,
)
from ir.analysis import FlatOp, Site, operand_types
from ir.analysis.decisions import Decisions
from ir.trace import Traced, trace
from planner.emit import local_program
from planner.emit.jit import build_mesh
from planner.emit.local_op import partition_spec
from tests.helpers_numerics import check_numerics
from tests.planner.emit.plans import CUBE, LINE, MESHES, lowered, random_decisions


def two_layers(x: Any, w: Any, v: Any) -> Any:
    """Gradients of a loss of two products."""

    def loss(x: Any, w: Any, v: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w) @ v)

    return jax.grad(loss, (0, 1, 2))(x, w, v)


def scanned(x: Any, w: Any, v: Any) -> Any:
    def body(x: Any, each: Any) -> Any:
        return x + jnp.tanh(x @ each[0]) @ each[1], ()

    stacks = jnp.stack([w, 2.0 * w]), jnp.stack([v, 0.5 * v])
    return jax.grad(lambda x: jnp.sum(jax.lax.scan(body, x, stacks)[0]))(x)


def arguments(dtype: Any = np.float32) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shapes = (8, 16, 32), (32, 64), (64, 32)
    return tuple(jnp.asarray(0.1 * rng.normal(size=s), dtype) for s in shapes)


def sites(plan: LoweredPlan) -> Iterator[tuple[Site, Parts]]:
    """The sites of a plan at which a product may run in parts."""
    flat = plan.flat
    for reshard in plan.reshards:
        passage, before = reshard.passage, reshard.change.before
        if before.partial:
            i, made = flat.maker.get(passage.value, (-1, 0))
            shared = len(flat.readers.get(passage.value, ())) > 1
            if i < 0 or made or (shared and passage.site.at != "result"):
                continue
        else:
            i = passage.op if passage.site.at == "operand" else -1
        if i < 0 or not is_product(flat.ops[i].node) or flat.ops[i].weight != passage.weight:
            continue
        strategy = plan.strategies[i]
        spec = _spec(plan, flat.ops[i])
        if strategy is not None:
            parts = parts_of(spec, passage.site.position, strategy, reshard.change)
            if parts is not None:
                yield passage.site, parts


def _spec(plan: LoweredPlan, op: FlatOp) -> Any:
    types = operand_types(plan.flat, op)
    return lookup(op.node.op).factors(types, op.node.outputs, dict(op.node.attrs))


def in_parts(traced: Traced, decisions: Decisions) -> tuple[LoweredPlan, list[Parts]]:
    """The plan with every product in parts that may be."""
    found = list(sites(lowered(traced, decisions)))
    sited = frozenset(site for site, _ in found)
    return lowered(traced, replace(decisions, in_parts=sited)), [parts for _, parts in found]


BOTH = {"all-gather", "reduce-scatter"}


# First seeds of decisions, over one to three axes: products of both kinds, in loops of one.
@pytest.mark.parametrize(("run", "mesh", "seed"), [
    (two_layers, "cube", 33), (scanned, "line", 0),
    *(pytest.param(*more, marks=pytest.mark.exhaustive)
      for more in ((two_layers, "line", 2), (scanned, "cube", 52))),
])  # fmt: skip
def test_a_plan_in_parts_gives_what_one_device_gives(run: Any, mesh: str, seed: int) -> None:
    args = arguments()
    traced = trace(run, *args)
    for drawn in range(seed, seed + 100):  # what a seed draws depends on the version of JAX
        plan, parts = in_parts(traced, random_decisions(traced.graph, MESHES[mesh], drawn))
        if {p.kind for p in parts} == BOTH or (parts and run is scanned):  # rare in loops
            break
    else:
        pytest.fail("no seed has products in parts")
    assert len(plan.in_parts) == len(parts)
    assert plan.decisions.in_parts == {r.passage.site for r in plan.reshards if r.in_parts}
    assert parse_plan(show_plan(plan)) == plan
    report = check_numerics(traced, plan, args, rtol=1e-5)
    assert report.ok, str(report)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter"])
def test_shorter_floats_on_the_interpreter_and_on_devices(kind: str) -> None:
    args = arguments(jnp.bfloat16)
    traced = trace(lambda x, w: x @ w, *args[:2])
    for seed in range(400):
        plan, parts = in_parts(traced, random_decisions(traced.graph, LINE, seed))
        if any(p.kind == kind for p in parts):
            break
    else:
        pytest.fail(f"no plan with a {kind} in parts")
    assert check_numerics(traced, plan, args[:2], rtol=1e-2).ok
    (whole,) = interpret_lowered(plan, [np.asarray(x) for x in args[:2]])
    expected = np.asarray(args[0] @ args[1], np.float32)
    np.testing.assert_allclose(np.asarray(whole, np.float32), expected, atol=2e-2)


def test_permutes_are_beside_products_and_send_what_a_gather_sends() -> None:
    args = arguments()[:2]
    traced = trace(lambda x, w: x @ w, *args)
    plans = (in_parts(traced, random_decisions(traced.graph, CUBE, n)) for n in range(20, 100))
    plan, parts = next((plan, parts) for plan, parts in plans if parts)
    n = CUBE.product(parts[0].axes)
    program = local_program(traced.program, plan)
    specs = [tuple(map(partition_spec, states)) for states in (plan.arguments, plan.results)]
    mapped = jax.shard_map(
        program, mesh=build_mesh(CUBE), in_specs=specs[0], out_specs=specs[1], check_vma=False
    )
    text = str(jax.make_jaxpr(mapped)(*traced.args_info))
    assert text.count("optimization_barrier") == text.count("dot_general") == n
    assert text.count("ppermute") == n - 1
    (reshard,) = (r for r in plan.reshards if r.in_parts)
    states = reshard.change.before, reshard.change.after
    small = min(s.local_bytes(reshard.change.type, CUBE) for s in states)
    permutes = [w for w in program.written if w.step.kind == "collective-permute"]
    assert [w.type.nbytes for w in permutes] == [small] * (n - 1)

# pyright: basic
"""Cumulative ops split along their dimension, on eight devices: equal to those of one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from costmodel import RunningTotals
from ir import RUNNING, Mesh, replicated
from ir.strategy import strategies
from ir.table import lookup
from ir.trace import Traced, trace
from planner import plan
from planner.emit import local_program
from planner.emit.jit import build_mesh
from planner.emit.local_op import partition_spec
from planner.result.verify.verify import verify
from tests.helpers_numerics import check_numerics
from tests.planner.emit.plans import LINE, decisions_by, lowered

PAIR = Mesh((("x", 2), ("y", 4)))


def normal(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def cumulative(name: str, axis: int, reverse: bool = False) -> Any:
    """An op with its gradient; that of a sum runs the other way."""

    def run(x: Any) -> Any:
        def op(x: Any) -> Any:
            return getattr(lax, name)(x, axis=axis, reverse=reverse)

        if name != "cumsum":  # others have other ops in their gradients
            return op(x)
        out, pull = jax.vjp(op, x)
        return out, pull(jnp.cos(out))

    return run


CASES = {
    "sum": (cumulative("cumsum", 1), (normal(4, 16, 3),), LINE),
    "sum backwards": (cumulative("cumsum", 1, True), (normal(4, 16, 3),), PAIR),
    "product": (cumulative("cumprod", 0), (normal(16, 4),), PAIR),
    "largest": (cumulative("cummax", 0, True), (normal(16, 4),), PAIR),
    "least": (cumulative("cummin", 0), (normal(8),), LINE),
    "logarithms": (cumulative("cumlogsumexp", 0), (100 * normal(16, 4),), PAIR),
    "whole numbers": (lambda x: jnp.cumsum(x, 0), (np.arange(32, dtype="int32"),), LINE),
}


def ways_of(traced: Traced, mesh: Mesh) -> list[tuple[str, ...]]:
    """Roles that split the first cumulative op of a program along its dimension."""
    node = next(n for n in traced.graph.nodes if n.op.startswith("cum"))
    types = tuple(map(traced.graph.type_of, node.inputs))
    spec = lookup(node.op).factors(types, node.outputs, dict(node.attrs))
    return [s.roles for s in strategies(spec, mesh) if RUNNING in s.roles]


def split(traced: Traced, mesh: Mesh, chosen: tuple[str, ...]) -> Any:
    def choose(_types: Any, op: Any, menu: Any) -> Any:
        runs = op.node.op.startswith("cum")
        return next((s for s in menu if runs and s.roles == chosen), menu[0])

    graph = traced.graph
    inputs = [replicated(item.type.rank) for item in graph.inputs]
    outputs = [replicated(graph.type_of(o).rank) for o in graph.outputs]
    return lowered(traced, decisions_by(graph, mesh, inputs, outputs, choose, lambda raw: raw))


@pytest.mark.parametrize("name", CASES)
def test_every_way_gives_what_one_device_gives(name: str) -> None:
    run, args, mesh = CASES[name]
    traced = trace(run, *args)
    ways = ways_of(traced, mesh)
    assert len(ways) >= (3 if mesh is PAIR else 1)
    for roles in ways if name == "sum backwards" else ways[-1:]:
        report = check_numerics(traced, split(traced, mesh, roles), args)
        assert report.ok, f"{roles}: {report}"


@pytest.mark.parametrize("name", ["sum", "largest"])
def test_totals_are_what_is_priced(name: str) -> None:
    run, args, mesh = CASES[name]
    traced = trace(run, *args)
    graph = traced.graph
    for roles in ways_of(traced, mesh):
        plan_ = split(traced, mesh, roles)
        program = local_program(traced.program, plan_)
        specs = [tuple(map(partition_spec, states)) for states in (plan_.arguments, plan_.results)]
        mapped = jax.shard_map(
            program, mesh=build_mesh(mesh), in_specs=specs[0], out_specs=specs[1], check_vma=False
        )
        jax.eval_shape(mapped, *traced.args_info)
        inside = [w for w in program.written if w.step.to_dim == -1 and w.step.dim >= 0
                  and w.step.kind == "all-gather" and w.step.before == w.step.after]  # fmt: skip
        priced = 0.0
        for node in graph.nodes:
            if node.op.startswith("cum"):
                types = tuple(map(graph.type_of, node.inputs))
                spec = lookup(node.op).factors(types, node.outputs, dict(node.attrs))
                parts = {f: [n for n, r in zip(mesh.sizes, roles, strict=True) if r == f]
                         for f in spec.names}  # fmt: skip
                ways = {f: np.array([float(np.prod(each))]) for f, each in parts.items()}
                priced += float(RunningTotals(types[0], spec, ways).totals[0])
        assert sum(w.type.nbytes for w in inside) == priced > 0


def test_long_sums_stay_where_they_are() -> None:
    """Totals only are exchanged, and the compiled program has what the plan says."""
    x = jax.ShapeDtypeStruct((1 << 20, 4), "float32")
    found = plan(
        lambda x: jnp.cumsum(jnp.sin(x), 0), x, cluster="8xh100", baselines=False, mesh=(8,),
        pins=(("x", "[8,-]"),),
    )  # fmt: skip
    (row,) = found.file.programs[0].collectives
    assert (row.kind, row.bytes) == ("all-gather", 7 * 4 * 4)
    report = verify(found, compiler="host")
    assert report.ok, report
    (compiled,) = report.collectives
    assert compiled.compiled_bytes == compiled.predicted_bytes == row.bytes

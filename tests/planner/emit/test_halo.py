# pyright: basic
"""Convolutions and windows split in space, on eight devices: equal to those of one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from costmodel import Borders
from ir import SLIDING, Mesh, interpret_lowered, replicated
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
FOUR = Mesh((("x", 4),))


def normal(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def with_gradients(fn: Any) -> Any:
    def run(*args: Any) -> Any:
        out, pull = jax.vjp(fn, *args)
        return out, pull(jnp.cos(out))

    return run


def conv(*strides: int, padding: Any = "SAME", layout: Any = None, **options: Any) -> Any:
    options |= {"dimension_numbers": layout}
    return with_gradients(lambda x, w: lax.conv_general_dilated(x, w, strides, padding, **options))


def pool(fill: float, fn: Any, window: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    return with_gradients(
        lambda x: lax.reduce_window(x, np.float32(fill), fn, window, strides, "SAME")
    )


NHWC = ("NHWC", "HWIO", "NHWC")
MAX = (-np.inf, lax.max)
CASES = {
    "two dimensions": (conv(1, 1, layout=NHWC), (normal(2, 16, 8, 4), normal(3, 3, 4, 4)), PAIR),
    "stride two": (conv(2, 2), (normal(2, 4, 16, 16), normal(4, 4, 3, 3)), PAIR),
    "dilated": (conv(1, rhs_dilation=(3,)), (normal(2, 2, 32), normal(2, 2, 3)), LINE),
    "causal": (conv(1, padding=[(2, 0)]), (normal(2, 2, 32), normal(2, 2, 3)), LINE),
    "depthwise": (
        conv(1, layout=("NHC", "HIO", "NHC"), feature_group_count=8),
        (normal(2, 16, 8), normal(4, 1, 8)), FOUR,
    ),
    "transposed": (
        conv(1, padding=[(2, 1)], lhs_dilation=(2,)), (normal(2, 2, 16), normal(2, 2, 3)), LINE,
    ),
    "patches": (conv(4, padding="VALID"), (normal(2, 2, 32), normal(2, 2, 4)), LINE),
    "three dimensions": (
        conv(1, 1, 1), (normal(1, 2, 8, 4, 8), normal(2, 2, 3, 3, 3)), PAIR,
    ),
    "largest": (pool(*MAX, (1, 3, 1), (1, 2, 1)), (normal(2, 16, 4),), LINE),
    "largest apart": (pool(*MAX, (1, 2, 2, 1), (1, 2, 2, 1)), (normal(2, 16, 8, 4),), PAIR),
    "padded before": (
        with_gradients(lambda x, w: lax.conv_general_dilated(
            jnp.pad(x, ((0, 0), (0, 0), (1, 1))), w, (1,), "VALID"
        )), (normal(2, 2, 32), normal(2, 2, 3)), LINE,
    ),
    "least": (pool(np.inf, lax.min, (1, 3, 1), (1, 1, 1)), (-normal(2, 16, 4),), LINE),
    "overlapping": (pool(*MAX, (1, 4, 3, 1), (1, 2, 1, 1)), (normal(2, 16, 8, 4),), PAIR),
    "sum": (pool(0.0, lax.add, (1, 5, 1), (1, 1, 1)), (normal(2, 16, 4),), FOUR),
    "wide": (conv(1), (normal(2, 2, 16), normal(2, 2, 9)), LINE),
    "widest": (conv(1, padding=[(14, 0)]), (normal(2, 2, 8), normal(2, 2, 15)), LINE),
    "wide strides": (conv(2), (normal(2, 2, 32), normal(2, 2, 17)), LINE),
    "wide pool": (pool(*MAX, (1, 7, 1), (1, 1, 1)), (normal(2, 16, 4),), LINE),
    "shifts": (
        with_gradients(lambda x: sum(
            jnp.roll(x, by, 0) * (by + 20) + jnp.pad(x[:-by], ((by, 0), (0, 0))) for by in (3, 4, 5)
        )), (normal(16, 2),), LINE,
    ),
    "own": (
        lambda x: lax.reduce_window(
            x, np.float32(0.0), lambda a, b: a + b + a * b, (1, 2), (1, 2), "SAME"
        ),
        (normal(4, 16),), LINE,
    ),
}  # fmt: skip


def ways_of(traced: Traced, mesh: Mesh) -> list[tuple[Any, tuple[str, ...]]]:
    """Sliding ops, each with the roles that split it in space."""
    graph, found = traced.graph, []
    for node in graph.nodes:
        if node.op in SLIDING:
            types = tuple(map(graph.type_of, node.inputs))
            spec = lookup(node.op).factors(types, node.outputs, dict(node.attrs))
            found += [
                (node, s.roles)
                for s in strategies(spec, mesh)
                if any(role.startswith("halo") for role in s.roles)
            ]
    return found


def split(traced: Traced, mesh: Mesh, chosen: Any) -> Any:
    """The plan that splits ops as the roles say, by node, and nothing else."""

    def choose(_types: Any, op: Any, menu: Any) -> Any:
        roles = next((roles for node, roles in chosen if node is op.node), None)
        return next((s for s in menu if s.roles == roles), menu[0])

    graph = traced.graph
    inputs = [replicated(item.type.rank) for item in graph.inputs]
    outputs = [replicated(graph.type_of(o).rank) for o in graph.outputs]
    return lowered(traced, decisions_by(graph, mesh, inputs, outputs, choose, lambda raw: raw))


def rounds(traced: Traced, mesh: Mesh) -> list[Any]:
    """All ways, each once, with those of the other ops of the program in the same plans."""
    ways: dict[int, list[Any]] = {}
    for node, roles in ways_of(traced, mesh):
        ways.setdefault(id(node), []).append((node, roles))
    longest = max(map(len, ways.values()))
    return [[each[i % len(each)] for each in ways.values()] for i in range(longest)]


def test_every_case_slides() -> None:
    """In all ops; a pool and a function of one's own have one or two."""
    expected = {
        "largest": 2, "least": 2, "sum": 2, "own": 1, "largest apart": 2, "overlapping": 2,
        "wide pool": 2, "shifts": 9,
    }  # fmt: skip
    for name, (run, args, mesh) in CASES.items():
        found = {id(node) for node, _ in ways_of(trace(run, *args), mesh)}
        assert len(found) == expected.get(name, 3), name


@pytest.mark.parametrize("name", ["two dimensions", "stride two", "largest", "widest", "shifts"])
def test_one_way_gives_what_one_device_gives(name: str) -> None:
    run, args, mesh = CASES[name]
    traced = trace(run, *args)
    both = [w for w in rounds(traced, mesh) if len({r for _, roles in w for r in roles}) > 1]
    report = check_numerics(traced, split(traced, mesh, (both or rounds(traced, mesh))[-1]), args)
    assert report.ok, report


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_every_way_gives_what_one_device_gives(name: str) -> None:
    run, args, mesh = CASES[name]
    traced = trace(run, *args)
    for chosen in rounds(traced, mesh):
        report = check_numerics(traced, split(traced, mesh, chosen), args)
        assert report.ok, f"{[roles for _, roles in chosen]}: {report}"


def test_numpy_gives_the_same() -> None:
    run, args, mesh = CASES["stride two"]
    traced = trace(run, *args)
    expected = jax.tree.leaves(run(*args))
    consts = [np.asarray(x) for x in traced.program.consts]
    plan_ = split(traced, mesh, rounds(traced, mesh)[0])
    for x, y in zip(interpret_lowered(plan_, [*consts, *args]), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["two dimensions", "overlapping", "widest", "shifts"])
def test_permutes_send_what_is_priced(name: str) -> None:
    """Corners included, where two dimensions are split."""
    run, args, mesh = CASES[name]
    traced = trace(run, *args)
    graph = traced.graph
    for chosen in rounds(traced, mesh):
        plan_ = split(traced, mesh, chosen)
        program = local_program(traced.program, plan_)
        specs = [tuple(map(partition_spec, states)) for states in (plan_.arguments, plan_.results)]
        mapped = jax.shard_map(
            program, mesh=build_mesh(mesh), in_specs=specs[0], out_specs=specs[1], check_vma=False
        )
        jax.eval_shape(mapped, *traced.args_info)
        sent = [w.type for w in program.written if w.step.kind == "collective-permute"]
        priced = []
        for node, roles in chosen:
            types = tuple(map(graph.type_of, node.inputs))
            spec = lookup(node.op).factors(types, node.outputs, dict(node.attrs))
            ways = {
                f: np.array([float(np.prod([n for n, r in zip(mesh.sizes, roles, strict=True)
                                            if r == f]))]) for f in spec.names
            }  # fmt: skip
            priced += Borders(node, types, spec, ways, 1).sent
        assert sum(t.nbytes for t in sent) == sum(float(each.bytes[0]) for each in priced)
        assert len(sent) == sum(float(each.count[0]) for each in priced)


def test_images_split_in_space_are_planned_with_borders_only() -> None:
    """A layer on one large image: its rows stay where they are."""

    def layer(state: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(state["x"], w, (1, 1), "SAME", dimension_numbers=NHWC)
        return {"x": jax.nn.relu(y)}

    state = {"x": jax.ShapeDtypeStruct((1, 4096, 4096, 16), "float32")}
    w = jax.ShapeDtypeStruct((3, 3, 16, 16), "float32")
    pins = (("state/*", "[-,8,-,-]"), ("w", "[-,-,-,-]"))
    found = plan(layer, state, w, cluster="8xh100", baselines=False, pins=pins)
    rows = found.file.programs[0].collectives
    assert {row.kind for row in rows} == {"collective-permute"}
    assert sum(row.bytes for row in rows) == 2 * 4096 * 16 * 4  # a row on either side


@pytest.mark.exhaustive
def test_compiled_permutes_send_what_is_predicted() -> None:
    """A convolution, an overlapping pool, their gradients and a shift."""

    def loss(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)
        y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        return jnp.sum(jnp.roll(y, 1, 1) ** 2)

    args = [jax.ShapeDtypeStruct(s, "float32") for s in ((1, 1024, 1024, 16), (3, 3, 16, 16))]
    pins = (("x", "[-,8,-,-]"), ("w", "[-,-,-,-]"))
    settings = {"pins": pins, "baselines": False, "substitutions": False, "mesh": (8,)}
    found = plan(jax.grad(loss, (0, 1)), *args, cluster="8xh100", **settings)
    report = verify(found, compiler="host")
    permutes = [row for row in found.collectives if row.kind == "collective-permute"]
    assert sum(row.count for row in permutes) >= 6
    assert report.ok, report
    assert "unexplained: 0 B" in str(report)

# pyright: basic
"""Attention split along the sequence, on eight devices: equal to that of one, gradients too."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from costmodel import (
    AttentionWork,
    CollectiveModel,
    ComputeModel,
    Hops,
    group_for,
    parse_cluster,
)
from ir import ATTENTION, Mesh, interpret_lowered, replicated
from ir.analysis.decisions import Decisions
from ir.strategy import strategies
from ir.table import lookup
from ir.trace import Traced, trace
from planner.emit import local_program
from planner.emit.jit import build_mesh
from planner.emit.local_op import partition_spec
from tests.helpers_exhaustive import usual
from tests.helpers_internals import attention
from tests.helpers_numerics import check_numerics
from tests.planner.emit.plans import CUBE, LINE, decisions_by, lowered

WAYS = ("t", "ring", "zigzag")
ALL = (*WAYS, "halo")
# What does not hang on the way; zigzag has the most blocks.
ONE_OF_THEM = ("zigzag", *(pytest.param(way, marks=pytest.mark.exhaustive) for way in WAYS[:2]))
PAIR = Mesh((("x", 2), ("y", 4)))


def arguments(length: int = 32, groups: int = 2, *, first: bool = False) -> tuple[Any, ...]:
    """Query, key, value and the gradient of the output; a batch of 2, four heads of 8."""
    rng = np.random.default_rng(length)
    shapes = [(2, length, n, 8) for n in (4, groups, groups, 4)]
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    return tuple(np.swapaxes(x, 1, 2) for x in arrays) if first else tuple(arrays)


def with_gradients(*, learned: bool = False, bias: Any = None, **options: Any) -> Any:
    """Attention and its gradients, with that of a bias if it is learned."""

    def run(query: Any, key: Any, value: Any, seed: Any) -> Any:
        given = (query, key, value, *((bias,) if learned else ()))

        def attend(*xs: Any) -> Any:
            return attention(*xs[:3], bias=xs[3] if learned else bias, **options)

        out, pull = jax.vjp(attend, *given)
        return out, pull(seed)

    return run


CAUSAL = with_gradients(mask="CAUSAL")
MASKS = {"CAUSAL": CAUSAL, "NO_MASK": with_gradients(mask="NO_MASK")}


def roles_of(traced: Traced, mesh: Mesh) -> list[set[tuple[str, ...]]]:
    """The roles of the strategies of each attention op."""
    graph = traced.graph
    specs = [
        lookup(n.op).factors(tuple(map(graph.type_of, n.inputs)), n.outputs, dict(n.attrs))
        for n in graph.nodes
        if n.op in ATTENTION
    ]
    return [{s.roles for s in strategies(spec, mesh)} for spec in specs]


def split(traced: Traced, mesh: Mesh, roles: tuple[str, ...]) -> Decisions:
    """Decisions that split attention as the roles say, and nothing else."""

    def choose(_types: Any, op: Any, menu: Any) -> Any:
        return next((s for s in menu if s.roles == roles and op.node.op in ATTENTION), menu[0])

    inputs = [replicated(item.type.rank) for item in traced.graph.inputs]
    outputs = [replicated(traced.graph.type_of(o).rank) for o in traced.graph.outputs]
    return decisions_by(traced.graph, mesh, inputs, outputs, choose, lambda raw: raw)


@cache
def traced_of(run: Any, shapes: tuple[tuple[int, ...], ...]) -> Traced:
    """A function, traced once for some shapes, so that it is compiled once for one device."""
    return trace(run, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))


def check(run: Any, args: Any, mesh: Mesh, roles: tuple[str, ...], **options: Any) -> None:
    traced = traced_of(run, tuple(x.shape for x in args))
    assert all(roles in found for found in roles_of(traced, mesh))
    plan = lowered(traced, split(traced, mesh, roles))
    report = check_numerics(traced, plan, args, rtol=1e-5, **options)
    assert report.ok, f"{roles}: {report}"


@pytest.mark.parametrize(("way", "mask", "groups"), [
    ("t", "CAUSAL", 4), ("ring", "CAUSAL", 4), ("zigzag", "CAUSAL", 4), ("t", "NO_MASK", 4),
    ("ring", "NO_MASK", 1), pytest.param("zigzag", "CAUSAL", 1, marks=pytest.mark.exhaustive),
])  # fmt: skip
def test_every_way_gives_what_one_device_gives(way: str, mask: str, groups: int) -> None:
    check(MASKS[mask], arguments(groups=groups), LINE, (way,))


@pytest.mark.parametrize("roles", [
    ("zigzag", "b", "zigzag"), ("ring", "g", "r"),
    *(pytest.param(roles, marks=pytest.mark.exhaustive)
      for roles in (("t", "t", "b"), ("g", "r", "zigzag"))),
])  # fmt: skip
def test_beside_batch_and_heads(roles: tuple[str, ...]) -> None:
    check(CAUSAL, arguments(), CUBE, roles)


@pytest.mark.parametrize("way", ONE_OF_THEM)
def test_heads_before_the_sequence(way: str) -> None:
    run = with_gradients(mask="CAUSAL", heads_first=True)
    check(run, arguments(first=True), PAIR, ("b", way))


@pytest.mark.parametrize("way", ONE_OF_THEM)
def test_without_residuals(way: str) -> None:
    args = arguments()[:3]
    check(lambda *xs: attention(*xs, mask="CAUSAL"), args, LINE, (way,))


@pytest.mark.parametrize("way", usual(["t", "ring"], ["ring"]))
def test_more_keys_than_queries(way: str) -> None:
    query, _, _, seed = arguments(32)
    _, key, value, _ = arguments(48)
    check(with_gradients(), (query, key, value, seed), LINE, (way,))


@pytest.mark.parametrize("way", ["ring", "zigzag", "halo"])
def test_permutes_send_what_is_priced(way: str) -> None:
    run = with_gradients(mask="CAUSAL", window=4 if way == "halo" else None)
    traced = trace(run, *arguments())
    plan = lowered(traced, split(traced, PAIR, ("b", way)))
    program = local_program(traced.program, plan)
    specs = [tuple(map(partition_spec, states)) for states in (plan.arguments, plan.results)]
    mapped = jax.shard_map(
        program, mesh=build_mesh(PAIR), in_specs=specs[0], out_specs=specs[1], check_vma=False
    )
    text = str(jax.make_jaxpr(mapped)(*traced.args_info))
    rounds = 0 if way == "halo" else 2 * 4  # forward and backward
    assert text.count("optimization_barrier") == rounds, "else all blocks are sent at once"
    permutes = [w for w in program.written if w.step.kind == "collective-permute"]
    cluster, graph = parse_cluster("8xh100"), traced.graph
    hops = Hops(CollectiveModel(cluster), (group_for(cluster, PAIR.sizes, (1,)),), overlap=True)
    ways = {n: np.array([{"b": 2.0, way: 4.0}.get(n, 1.0)]) for n in ("b", "g", "r", "t", *ALL[1:])}
    priced = [
        AttentionWork(n, tuple(map(graph.type_of, n.inputs)), ways).exchange(
            ComputeModel(cluster), hops
        )
        for n in graph.nodes
        if n.op in ATTENTION
    ]
    assert sum(w.type.nbytes for w in permutes) == sum(float(x.sent_bytes[0]) for x in priced)
    assert len(permutes) == sum(float(x.count[0]) for x in priced)


@pytest.mark.parametrize("way", usual(["t", "ring"], ["ring"]))
def test_blocks_of_odd_length(way: str) -> None:
    """Zigzag halves a block, so that there is none of an odd length; the others take it."""
    args, run = arguments(24), CAUSAL
    check(run, args, LINE, (way,))
    traced = trace(run, *args)
    assert not any(("zigzag",) in found for found in roles_of(traced, LINE))
    traced = trace(run, *arguments(20))
    assert not any({(way,) for way in WAYS} & found for found in roles_of(traced, LINE))


@pytest.mark.parametrize(("window", "mesh", "roles"), [
    (5, LINE, ("halo",)),
    *(pytest.param(*more, marks=pytest.mark.exhaustive)
      for more in ((2, LINE, ("halo",)), (8, PAIR, ("b", "halo")))),
    (9, CUBE, ("halo", "g", "halo")),
])  # fmt: skip
def test_a_sliding_window_needs_keys_of_one_neighbour(window: int, mesh: Any, roles: Any) -> None:
    check(with_gradients(mask="CAUSAL", window=window), arguments(), mesh, roles)


def test_a_window_wider_than_a_block_is_not_split_so_far() -> None:
    traced = trace(with_gradients(mask="CAUSAL", window=6), *arguments())
    assert all(found == {("",)} for found in roles_of(traced, LINE))
    assert all(("b", "halo") in found for found in roles_of(traced, PAIR))


@pytest.mark.parametrize("options", [
    {"mask": "CAUSAL", "bias": jnp.zeros((1, 1, 32, 32)), "learned": True},
    {"mask": "CAUSAL", "bias": jnp.zeros((1, 1, 32, 32)), "window": 4},
    {"mask": "PADDING_CAUSAL", "lengths": (jnp.full(2, 5, jnp.int32),) * 2},
])  # fmt: skip
def test_what_blocks_cannot_do_is_not_offered(options: Any) -> None:
    traced = trace(with_gradients(**options), *arguments())
    offered = roles_of(traced, LINE)  # forward, where no gradient of a bias is asked, and backward
    each = offered[1:] if "learned" in options else offered
    assert not {role for found in each for (role,) in found} & {*ALL, "merge", "s"}


def segments(length: int = 32) -> Any:
    """What keeps the texts of a packed sequence apart, of which a block of keys may be none."""
    ids = jnp.asarray([[0] * 9 + [1] * 3 + [2] * 20, [0] * 17 + [1] * 15])[:, :length]
    return jnp.where(ids[:, None, :, None] == ids[:, None, None, :], 0.0, -1e30)


@pytest.mark.parametrize(("way", "mask", "shape"), [
    ("ring", "NO_MASK", (1, 4, 32, 32)), ("zigzag", "CAUSAL", (2, 4, 32, 32)),
    ("merge", "NO_MASK", (2, 4, 32, 32)),
    *(pytest.param(*more, marks=pytest.mark.exhaustive) for more in (
        ("t", "CAUSAL", (2, 4, 32, 32)), ("ring", "CAUSAL", (2, 1, 32, 32)),
        ("zigzag", "CAUSAL", (1, 1, 1, 32)),
    )),
])  # fmt: skip
def test_a_bias_follows_the_sequence(way: str, mask: str, shape: Any) -> None:
    bias = jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)
    both(with_gradients(mask=mask, bias=bias), arguments(), LINE, way)


@pytest.mark.parametrize("way", usual([*WAYS, "merge"], ["zigzag", "merge"]))
def test_segments_follow_the_sequence(way: str) -> None:
    mask = "NO_MASK" if way == "merge" else "CAUSAL"
    both(with_gradients(mask=mask, bias=segments()), arguments(), PAIR, way, "b")


def both(run: Any, args: Any, mesh: Mesh, way: str, outer: str = "") -> None:
    """Forward in a way and backward in the same; of merged keys that is a split of them."""
    traced = trace(run, *args)
    names = {ATTENTION[0]: way, ATTENTION[1]: "s" if way == "merge" else way}

    def choose(_types: Any, op: Any, menu: Any) -> Any:
        wanted = tuple(filter(None, (outer, names.get(op.node.op, "none"))))
        return next((s for s in menu if s.roles == wanted), menu[0])

    inputs = [replicated(item.type.rank) for item in traced.graph.inputs]
    outputs = [replicated(traced.graph.type_of(o).rank) for o in traced.graph.outputs]
    chosen = decisions_by(traced.graph, mesh, inputs, outputs, choose, lambda raw: raw)
    plan = lowered(traced, chosen)
    pairs = zip(plan.flat.ops, plan.strategies, strict=True)
    used = {op.node.op: s.roles[-1] for op, s in pairs if s is not None and op.node.op in names}
    assert used == {op: names[op] for op in used}
    assert ATTENTION[0] in used
    report = check_numerics(traced, plan, args, rtol=1e-5)
    assert report.ok, f"{way}: {report}"


@pytest.mark.parametrize(("queries", "lengths"), [
    (1, None), (3, (32, 1)),
    *(pytest.param(*more, marks=pytest.mark.exhaustive) for more in ((3, None), (1, (29, 5)))),
])  # fmt: skip
@pytest.mark.parametrize("first", [False, True])
def test_few_queries_meet_split_keys(queries: int, lengths: Any, first: bool) -> None:
    """A step of decoding: blocks of a past, some of them beyond its length."""
    query, key, value, _ = arguments(first=first)
    query = query[:, :, :queries] if first else query[:, :queries]
    used = (np.full(2, queries, np.int32), np.asarray(lengths, np.int32)) if lengths else None

    def step(query: Any, key: Any, value: Any) -> Any:
        mask = "PADDING" if lengths else "NO_MASK"
        return attention(query, key, value, mask=mask, lengths=used, heads_first=first)

    both(step, (query, key, value), LINE, "merge")


def test_gradients_of_split_keys_with_lengths() -> None:
    lengths = np.asarray([32, 20], np.int32), np.asarray([32, 7], np.int32)
    both(with_gradients(mask="PADDING", lengths=lengths), arguments(), LINE, "merge")


def test_merging_sends_what_is_priced() -> None:
    query, key, value, _ = arguments()
    traced = trace(lambda *xs: attention(*xs), query[:, :1], key, value)
    plan = lowered(traced, split(traced, LINE, ("merge",)))
    program = local_program(traced.program, plan)
    specs = [tuple(map(partition_spec, states)) for states in (plan.arguments, plan.results)]
    jax.make_jaxpr(jax.shard_map(
        program, mesh=build_mesh(LINE), in_specs=specs[0], out_specs=specs[1], check_vma=False
    ))(*traced.args_info)  # fmt: skip
    cluster, graph = parse_cluster("8xh100"), traced.graph
    hops = Hops(CollectiveModel(cluster), (group_for(cluster, (8,), (0,)),), overlap=True)
    node = next(n for n in graph.nodes if n.op == ATTENTION[0])
    work = AttentionWork(node, tuple(map(graph.type_of, node.inputs)), {"merge": np.array([8.0])})
    priced = work.exchanges(ComputeModel(cluster), hops)
    written = [w for w in program.written if w.step.kind == "all-reduce"]
    assert [kind for kind, _ in priced] == ["all-reduce"] * 2 == [w.step.kind for w in written]
    for (_, each), wrote in zip(priced, written, strict=True):
        assert float(each.sent_bytes[0]) == wrote.type.nbytes * 2 * 7 / 8
        assert 0.0 < float(each.exposed_s[0]) == float(each.seconds[0])
    assert float(work.scratch_bytes()[0]) > 0.0


def test_one_op_is_split_along_the_sequence_in_one_way() -> None:
    traced = trace(CAUSAL, *arguments())
    for found in roles_of(traced, CUBE):
        assert all(len({*roles} & {*WAYS}) <= 1 for roles in found)


@pytest.mark.parametrize("way", usual(WAYS, ["zigzag"]))
def test_numpy_and_the_partitioner_give_the_same(way: str) -> None:
    args, run = arguments(), CAUSAL
    traced = trace(run, *args)
    plan = lowered(traced, split(traced, PAIR, ("b", way)))
    expected = jax.tree.leaves(run(*args))
    consts = [np.asarray(x) for x in traced.program.consts]
    for x, y in zip(interpret_lowered(plan, [*consts, *args]), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    check(run, args, PAIR, ("b", way), emission="constraints")

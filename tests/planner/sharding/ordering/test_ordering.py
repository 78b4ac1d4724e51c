# pyright: basic
"""Sequences in zigzag from batch to loss: equal to the program as it is, and less to send."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
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
from ir import (
    ATTENTION,
    ORDERED,
    Node,
    Sharding,
    TensorType,
    check,
    ordered_parts,
    replicated,
    to_straight,
    to_zigzag,
)
from ir.evaluate import plain_program
from ir.trace import Traced, trace
from planner import load, plan
from planner.sharding.ordering.edit import Order, ordered, takes
from planner.sharding.padding.classified import Classified
from tests.helpers_internals import attention
from tests.helpers_numerics import check_numerics
from tests.planner.emit.plans import LINE, decisions_by, lowered

LENGTH, HEADS, GROUPS, SIZE, WIDTH = 64, 4, 2, 8, 32


def rotary(x: Any) -> Any:
    angles = jnp.arange(x.shape[1])[:, None] * 100.0 ** (-jnp.arange(SIZE // 2) / SIZE)
    turn = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate(
        [first * turn[0] - second * turn[1], second * turn[0] + first * turn[1]], -1
    )


def apart(segments: Any) -> Any:
    """What keeps the texts of a packed sequence apart."""
    same = segments[:, None, :, None] == segments[:, None, None, :]
    return jnp.where(same, 0.0, -1e30).astype(jnp.float32)


def step(params: Any, tokens: Any, targets: Any, segments: Any) -> Any:
    """Loss and gradients of scanned layers with rotary positions and packed texts.

    What moves along the sequence is in it too: a sum over all tokens before, and the token before.
    """

    def layer(x: Any, p: Any) -> Any:
        q, k, v = (jnp.einsum("btm,mhd->bthd", x, p[name]) for name in "qkv")
        bias = apart(segments) if segments is not None else None
        heads = attention(rotary(q), rotary(k), v, mask="CAUSAL", bias=bias)
        x = x + jnp.einsum("bthd,hdm->btm", heads, p["o"])
        return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-3), None

    def loss(params: Any) -> Any:
        x = params["embed"][tokens] + params["places"]
        counted = jnp.cumsum((tokens == 3).astype(jnp.float32), axis=1) / LENGTH
        before = jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
        x = x + counted[..., None] + 0.1 * params["embed"][before]
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        logits = jax.nn.log_softmax(x @ params["embed"].T)
        return -jnp.mean(jnp.take_along_axis(logits, targets[..., None], -1))

    return jax.value_and_grad(loss)(params)


def arguments(*, packed: bool = False) -> tuple[Any, ...]:
    def draw(*shape: int) -> Any:
        rng = np.random.default_rng(shape)
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

    heads = {"q": HEADS, "k": GROUPS, "v": GROUPS}
    layers = {name: draw(2, WIDTH, n, SIZE) for name, n in heads.items()}
    layers["o"] = draw(2, HEADS, SIZE, WIDTH)
    params = {"embed": draw(48, WIDTH), "places": draw(LENGTH, WIDTH), "layers": layers}
    tokens = np.random.default_rng(0).integers(0, 48, (2, 1, LENGTH))
    segments = jnp.asarray(np.arange(LENGTH)[None] // 24, jnp.int32) if packed else None
    return params, *jnp.asarray(tokens, jnp.int32), segments


def in_order(traced: Traced, parts: int) -> Traced:
    known = Classified(traced.graph)
    ops = range(len(known.flat.ops))
    sequence = next(known.classes.of_factor(i, "t") for i in ops if takes(known, i, parts))
    place, number, dim = next(
        (place, number, d)
        for (place, number), v in sorted(known.flat.names.items())
        for d, n in enumerate(known.flat.values[v].type.shape)
        if n == LENGTH and known.classes.of_dim(v, d) == sequence
    )
    program = ordered(traced.program, Order(place, number, dim, parts), known)
    check(program.graph, after="ordering")
    return replace(traced, program=program)


@pytest.mark.parametrize("parts", [1, 3, 6])
def test_the_order_is_that_of_chunks_from_both_ends(parts: int) -> None:
    x = np.arange(48).reshape(2, 24)
    found = to_zigzag(np, x, 1, parts)
    chunks = x.reshape(2, 2 * parts, -1)
    for i in range(parts):
        both = np.concatenate([chunks[:, i], chunks[:, 2 * parts - 1 - i]], 1)
        np.testing.assert_array_equal(found[:, i * 24 // parts : (i + 1) * 24 // parts], both)
    np.testing.assert_array_equal(to_straight(np, found, 1, parts), x)


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("parts", [pytest.param(2, marks=pytest.mark.exhaustive), 8])
def test_a_program_in_order_is_equal(parts: int, packed: bool) -> None:
    args = arguments(packed=packed)
    traced = trace(step, *args)
    edited = in_order(traced, parts)
    kernels = [op.node for op in Classified(edited.graph).flat.ops if op.node.op in ATTENTION]
    assert [ordered_parts(dict(node.attrs)) for node in kernels] == [parts] * len(kernels)
    leaves = jax.tree.leaves(args)
    before, after = (
        jax.jit(plain_program(p))(*p.consts, *leaves) for p in (traced.program, edited.program)
    )
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5 * float(jnp.abs(a).max()))


def along(traced: Traced, way: str) -> Any:
    """The plan that splits everything along the sequence, and attention in a way or over heads."""
    graph, mesh = traced.graph, LINE

    def split(type_: Any, state: Sharding) -> bool:
        pairs = zip(type_.shape, state.dims, strict=True)
        return any(size == LENGTH and axes for size, axes in pairs)

    def choose(types: Any, op: Any, menu: Any) -> Any:
        if op.node.op in ATTENTION:
            return next(s for s in menu if s.roles == (way,))
        each = (*types, *op.node.outputs)
        counts = [sum(map(split, each, (*s.operands, *s.results))) for s in menu]
        return menu[int(np.argmax(counts))]

    def state(type_: Any) -> Sharding:
        return Sharding(tuple(mesh.names if size == LENGTH else () for size in type_.shape))

    inputs = [state(item.type) for item in graph.inputs]
    outputs = [replicated(graph.type_of(o).rank) for o in graph.outputs]
    return lowered(traced, decisions_by(graph, mesh, inputs, outputs, choose, lambda raw: raw))


@pytest.mark.parametrize(
    ("parts", "packed", "way"),
    [
        pytest.param(8, False, "zigzag", marks=pytest.mark.exhaustive),
        pytest.param(8, True, "zigzag", marks=pytest.mark.exhaustive),
        pytest.param(16, False, "zigzag", marks=pytest.mark.exhaustive),
        (16, True, "zigzag"),
        pytest.param(8, False, "", marks=pytest.mark.exhaustive),
    ],
)
def test_split_along_the_sequence_it_gives_what_one_device_gives(
    parts: int, packed: bool, way: str
) -> None:
    args = arguments(packed=packed)
    traced = in_order(trace(step, *args), parts)
    report = check_numerics(traced, along(traced, way), args, rtol=5e-5)
    assert report.ok, str(report)


def test_kernels_in_order_send_no_chunks_to_it() -> None:
    """Seconds of permutes of a kernel in zigzag, and of one that is in the order of its program."""
    found = [seconds(parts, 8.0) for parts in (0, 8, 16)]
    turned, kept, mixed = found
    assert turned[1] > kept[1] == mixed[1] > 0.0
    assert turned[0] == kept[0] < mixed[0]  # two parts on a device are put into order
    alone = [seconds(parts, 1.0) for parts in (0, 8)]
    assert alone[0][0] < alone[1][0] < 1.2 * alone[0][0]


def seconds(parts: int, ways: float) -> tuple[float, float]:
    """Seconds of compute and of permutes of a kernel over 8 H100, or on one."""
    cluster = parse_cluster("8xh100")
    each, none = TensorType((1, 65536, 8, 128), "bfloat16"), TensorType((0,), "bfloat16")
    attrs = {
        "mask_type": "CAUSAL", "layout": 0, "sliding_window_length": None, "dropout_rate": 0.0,
        "variadic_args": (False, False), **({ORDERED: parts} if parts else {}),
    }  # fmt: skip
    operands = (*(each,) * 3, *(none,) * 7)
    node = Node(ATTENTION[0], tuple(range(10)), (each,), tuple(attrs.items()), ())
    work = AttentionWork(node, operands, {"zigzag": np.array([ways])})
    group = group_for(cluster, (8,), (0,))
    hops = Hops(CollectiveModel(cluster), (group,), overlap=True)
    compute = ComputeModel(cluster)
    return float(work.seconds(compute)[0]), float(work.exchange(compute, hops).seconds[0])


def test_plans_keep_the_order_where_that_is_faster(tmp_path: Path) -> None:
    """A long sequence over 8 devices, more than there are heads: from plan to file and back."""

    def loss(params: Any, batch: Any) -> Any:
        x = params["embed"][batch]
        q, k, v = (jnp.einsum("btm,mhd->bthd", x, params[name]) for name in "qkv")
        out = attention(q, k, v, mask="CAUSAL")
        return jnp.mean(jnp.einsum("bthd,hdm->btm", out, params["o"]) ** 2)

    def struct(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    params = {name: struct(256, 4, 128) for name in "qkv"}
    params |= {"o": struct(4, 128, 256), "embed": struct(512, 256)}
    args = params, jax.ShapeDtypeStruct((1, 131072), jnp.int32)
    options: Any = {
        "cluster": "8xh100",
        "mesh": (8,),
        "substitutions": False,
        "baselines": False,
    }
    found = plan(jax.value_and_grad(loss), *args, **options)
    before = plan(jax.value_and_grad(loss), *args, sequence_order=False, **options)
    (row,) = found.program.ordered
    assert (row.was, row.parts) == (131072, 8)
    assert found.step_s < before.step_s * 0.99
    assert before.program.ordered == ()
    sent = [sum(c.bytes for c in p.collectives if "permute" in c.kind) for p in (found, before)]
    assert sent[0] < sent[1]
    assert "in zigzag over 8 devices" in str(found)
    found.save(tmp_path / "plan.json")
    again = load(tmp_path / "plan.json").bind(jax.value_and_grad(loss), *args)
    assert again.program.graph_digest == found.program.graph_digest
    assert again.program.ordered == (row,)

# pyright: basic
"""Sequences in zigzag from batch to loss: equal to the program as it is, and less to send."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
    Mesh,
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
from planner.common.options import Options
from planner.common.request import Request, heard
from planner.emit import compile_plan
from planner.sharding.ordering import plan as ordering
from planner.sharding.ordering.edit import Order, ordered, takes
from planner.sharding.padding.classified import Classified
from tests.helpers_internals import attention
from tests.helpers_numerics import check_numerics
from tests.planner.emit.plans import CUBE, LINE, decisions_by, lowered
from tests.planner.emit.test_attention import PAIR, split
from tests.planner.emit.test_attention import arguments as of_attention

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


def arguments(*, packed: bool = False, steep: bool = False) -> tuple[Any, ...]:
    """Arguments of `step`; with `steep` weights of layers are 4 times, scores 16 times as large."""

    def draw(*shape: int, inputs: int) -> Any:
        rng = np.random.default_rng(shape)
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(inputs), jnp.float32)

    heads, inputs = {"q": HEADS, "k": GROUPS, "v": GROUPS}, WIDTH // 16 if steep else WIDTH
    layers = {name: draw(2, WIDTH, n, SIZE, inputs=inputs) for name, n in heads.items()}
    layers["o"] = draw(2, HEADS, SIZE, WIDTH, inputs=inputs)
    params = {
        "embed": draw(48, WIDTH, inputs=48), "places": draw(LENGTH, WIDTH, inputs=LENGTH),
        "layers": layers,
    }  # fmt: skip
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
    report = check_numerics(traced, along(traced, way), args, rtol=1e-5)
    assert report.ok, str(report)


def test_steep_scores_are_as_accurate_as_on_one_device() -> None:
    """Both against float64: scores in the twenties magnify what float32 rounds on one device too.

    Largest errors are 1.7e-5 on one device and 2.8e-5 in zigzag over eight.
    """
    args = arguments(steep=True)
    traced = in_order(trace(step, *args), 8)
    program, leaves = traced.program, jax.tree.leaves(args)
    alone = jax.jit(plain_program(program))(*program.consts, *leaves)
    spread = jax.tree.leaves(compile_plan(traced, along(traced, "zigzag"))(*args))
    with jax.enable_x64(True):
        exact = jax.tree.leaves(jax.jit(step)(*jax.tree.map(as_float64, args)))

    def worst(found: Any) -> float:
        pairs = zip(found, exact, strict=True)
        return max(float(np.abs(x - np.asarray(y)).max() / np.abs(y).max()) for x, y in pairs)

    assert worst(alone) > 1e-6, "else float32 is not what limits it"
    assert worst(spread) < 2.5 * worst(alone)


def as_float64(x: Any) -> Any:
    return jnp.asarray(x, jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


def of_all_heads(x: Any, seed: Any) -> Any:
    """Attention of queries, keys and values side by side, and its gradient."""

    def attend(x: Any) -> Any:
        return attention(*jnp.split(x, (HEADS, HEADS + GROUPS), 2), mask="CAUSAL")

    out, pull = jax.vjp(attend, x)
    return out, pull(seed)


@pytest.mark.parametrize(
    ("parts", "mesh", "roles"),
    [
        (16, LINE, ("zigzag",)),
        (4, PAIR, ("b", "zigzag")),
        pytest.param(8, LINE, ("zigzag",), marks=pytest.mark.exhaustive),
        pytest.param(8, CUBE, ("zigzag", "g", "zigzag"), marks=pytest.mark.exhaustive),
    ],
)
def test_attention_alone_in_order(parts: int, mesh: Mesh, roles: tuple[str, ...]) -> None:
    """Queries, keys and values of one product, as their kernel is no sequence's otherwise."""
    query, key, value, seed = of_attention(LENGTH)
    args = np.concatenate([query, key, value], 2), seed
    traced = in_order(trace(of_all_heads, *args), parts)
    report = check_numerics(traced, lowered(traced, split(traced, mesh, roles)), args, rtol=1e-5)
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


@pytest.mark.parametrize(
    ("rough_s", "found_s", "kept"),
    [
        ((1.1, 1.05), 0.999, True),  # rough plans are slower than the one that was searched for
        ((1.1, 1.15), 0.9, False),
        ((1.1, 1.05), 1.0, False),
    ],
)
def test_the_order_is_kept_where_it_saves_anything(
    monkeypatch: Any, rough_s: tuple[float, float], found_s: float, kept: bool
) -> None:
    """Rough plans are held against each other, the plan in order against that without it."""
    straight = trace(step, *arguments())
    edited, steps = in_order(straight, 8), dict(zip("ab", rough_s, strict=True))
    each = {"most_split": "row", "as_ordered": edited, "as_edited": "in order", "limit_of": 1.0}
    for name, result in each.items():
        monkeypatch.setattr(ordering, name, lambda *_, result=result, **__: result)
    best = SimpleNamespace(account=SimpleNamespace(step_s=1.0))

    def pricer(traced: Traced, _: Any) -> Any:
        step_s = steps["a" if traced is straight else "b"]
        sums, answer = (
            SimpleNamespace(step_s=step_s, peak_bytes=0.0),
            SimpleNamespace(multipliers=()),
        )
        plan_ = SimpleNamespace(account=sums, solution=answer)
        return SimpleNamespace(anew=lambda *_: plan_)

    def search(*_: Any) -> Any:
        assert rough_s[1] < rough_s[0], "not worth a search"
        return SimpleNamespace(step_s=found_s)

    known: Any = SimpleNamespace(outcome=SimpleNamespace(best=best))
    request: Any = Request(parse_cluster("8xh100"), Options(), heard(None), 0.0)
    found = ordering.with_order(known, straight, request, search, pricer)
    assert found == (("in order", edited) if kept else (known, straight))

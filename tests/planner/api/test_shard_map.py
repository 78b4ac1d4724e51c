# pyright: basic
"""The user's `shard_map` in a plan: it keeps its specs, and all around it is planned."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from costmodel import CollectiveModel, group_for, parse_cluster
from ir import SHARD_MAP, FactorSpec, Mesh, lookup, strategies
from ir.trace import trace
from planner import PlanError, load, plan, verify
from planner.common.stop import PART
from tests.planner.programs import array, slow_machine

P = PartitionSpec
MESH = jax.make_mesh((2, 1, 4), ("data", "model", "seq"), axis_types=(AxisType.Auto,) * 3)
ROWS = P("data", "seq")


def block(q: Any, k: Any, v: Any, mask: Any, kept: Any) -> Any:
    """One block of keys and values, added to what softmax has kept (Milakov and Gimelshein)."""
    total, weight, most = kept
    scores = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]), -1e9)
    higher = jnp.maximum(most, scores.max(-1))
    found, old = jnp.exp(scores - higher[..., None]), jnp.exp(most - higher)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", found, v)
    return total * old.swapaxes(1, 2)[..., None] + mixed, weight * old + found.sum(-1), higher


@partial(jax.shard_map, mesh=MESH, in_specs=(ROWS, ROWS, ROWS), out_specs=ROWS, check_vma=False)
def ring_attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention whose keys and values go round (Liu et al. 2023, arXiv:2310.01889)."""
    count, here = lax.axis_size("seq"), lax.axis_index("seq")
    batch, length, heads, _ = q.shape
    places = jnp.arange(length)

    def step(carry: Any, n: Any) -> Any:
        kept, k, v = carry
        keys = (here - n) % count * length + places
        mask = (here * length + places)[:, None] >= keys[None, :]
        kept = block(q, k, v, mask, kept)
        turn = [(i, (i + 1) % count) for i in range(count)]
        return (kept, lax.ppermute(k, "seq", turn), lax.ppermute(v, "seq", turn)), None

    start = (
        jnp.zeros_like(q),
        jnp.zeros((batch, heads, length)),
        jnp.full((batch, heads, length), -jnp.inf),
    )
    ((total, weight, _), _, _), _ = lax.scan(step, (start, k, v), jnp.arange(count))
    return total / weight.swapaxes(1, 2)[..., None]


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")


def loss(attend: Any, params: Any, x: Any) -> Any:
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
    return jnp.mean(jnp.einsum("bthk,hkd->btd", attend(q, k, v), params["o"]) ** 2)


def layer(attend: Any) -> Any:
    return jax.value_and_grad(partial(loss, attend))


PARAMS = {name: array(16, 4, 4, seed=n) for n, name in enumerate("qkv")} | {"o": array(4, 4, 16)}
X = array(4, 32, 16, seed=5)


def equal(want: Any, got: Any) -> None:
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4)


def test_ring_attention_is_trained_as_one_device_would(tmp_path: Any) -> None:
    found = plan(layer(ring_attention), PARAMS, X, cluster=slow_machine(), baselines=False)
    assert found.mesh.axes == (("data", 2), ("seq", 4))
    assert found.warnings == ("the program is not rewritten: it has a shard_map", PART)
    want = layer(attention)(PARAMS, X)
    equal(want, found.compile()(PARAMS, X))
    found.save(tmp_path / "plan.json")
    bound = load(tmp_path / "plan.json").bind(layer(ring_attention), PARAMS, X)
    equal(want, bound.compile()(PARAMS, X))


def summed(x: Any, w: Any) -> Any:
    def body(x: Any, w: Any) -> Any:
        part = lax.psum(x * w + lax.axis_index("model"), ("seq", "model"))
        return part, lax.all_gather(part, "data", tiled=True)

    mapped = jax.shard_map(
        body, mesh=MESH, in_specs=(ROWS, P(None, "seq")), out_specs=(P("data"), P()),
        check_vma=False,
    )  # fmt: skip
    split, whole = mapped(jnp.sin(x), w)
    return split.sum() + (whole**2).sum()


@pytest.mark.parametrize("settings", [{}, {"shardings": "warn"}, {"mesh": (2, 4)}])
def test_axes_of_size_one_several_results_and_any_setting_of_shardings(settings: Any) -> None:
    x, w = array(8, 16), array(1, 16, seed=1)
    fn = jax.value_and_grad(summed, argnums=(0, 1))
    found = plan(fn, x, w, cluster=slow_machine(), **settings)
    assert found.mesh.axes == (("data", 2), ("seq", 4))
    equal(jax.jit(fn)(x, w), found.compile()(x, w))


def test_its_collectives_are_verified() -> None:
    """Those of ring attention, which are permutes in loops, and sums over two axes and gathers."""
    x, w = array(8, 16), array(1, 16, seed=1)
    for fn, args in (
        (layer(ring_attention), (PARAMS, X)),
        (jax.value_and_grad(summed, argnums=(0, 1)), (x, w)),
    ):
        found = verify(plan(fn, *args, cluster=slow_machine(), baselines=False), compiler="host")
        assert found.ok
        own = [row for row in found.collectives if "own shard_map" in row.note]
        assert own
        assert all(row.unexplained_bytes == 0.0 for row in own), found


def factors() -> FactorSpec:
    (node,) = (n for n in trace(ring_attention, *[array(4, 32, 4, 4)] * 3).graph.nodes)
    types = tuple(trace(ring_attention, *[array(4, 32, 4, 4)] * 3).graph.types[:3])
    return lookup(node.op).factors(types, node.outputs, dict(node.attrs))


def test_the_only_strategy_is_its_specs() -> None:
    (only,) = strategies(factors(), Mesh((("data", 2), ("seq", 4))))
    assert only.roles == ("data", "seq")
    assert {str(s) for s in (*only.operands, *only.results)} == {"[data,seq,-,-]"}
    assert strategies(factors(), Mesh((("x", 2), ("y", 4)))) == ()


def test_collectives_inside_are_priced() -> None:
    def shifted(x: Any) -> Any:
        turn = [(i, (i + 1) % 4) for i in range(4)]
        body = lambda x: lax.ppermute(x, "seq", turn)  # noqa: E731
        return jax.shard_map(body, mesh=MESH, in_specs=P("data", "seq"), out_specs=ROWS)(x)

    machine = parse_cluster("8xh100")
    x = jax.ShapeDtypeStruct((4096, 4096), "float32")
    found = plan(shifted, x, cluster="8xh100", baselines=False)
    permute_s = CollectiveModel(machine).seconds(
        "collective-permute", group_for(machine, (2, 4), (1,)), 4096 * 4096 * 4 / 8
    )
    assert found.step_s >= permute_s > 1e-6
    (own,) = (c for c in found.collectives if c.cause.startswith("inside shard_map"))
    assert (own.kind, own.axes, own.count) == ("collective-permute", ("seq",), 1.0)
    assert own.seconds == own.exposed_s == pytest.approx(permute_s)
    assert own.bytes == 4096 * 4096 * 4 / 8
    program = found.program
    assert program.communication_s == pytest.approx(sum(c.seconds for c in found.collectives))
    assert program.compute_s == pytest.approx(found.step_s - program.exposed_s)


def test_a_branch_of_two_counts_half() -> None:
    """In the plan, and in what verify reads from the compiled program."""

    def body(x: Any) -> Any:
        return lax.cond(x[0, 0] > 0, lambda x: lax.psum(x, "seq"), lambda x: 2.0 * x, x)

    def fn(x: Any) -> Any:
        return jax.shard_map(
            body, mesh=MESH, in_specs=P("data"), out_specs=P("data"), check_vma=False
        )(jnp.sin(x))

    found = plan(fn, array(8, 16), cluster=slow_machine(), baselines=False)
    own = [(c.kind, c.axes, c.count) for c in found.collectives if c.cause.startswith("inside")]
    assert own == [("all-reduce", ("seq",), 0.5)]
    checked = verify(found, compiler="host")
    assert checked.ok
    assert all(row.unexplained_bytes == 0.0 for row in checked.collectives)


def printing(x: Any) -> Any:
    def body(x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return x

    return jax.shard_map(body, mesh=MESH, in_specs=P("data"), out_specs=P("data"))(x)


def plain(x: Any) -> Any:
    return jax.shard_map(jnp.sin, mesh=MESH, in_specs=P("data"), out_specs=P("data"))(x)


@pytest.mark.parametrize(
    ("fn", "settings", "message"),
    [
        (printing, {}, r"py:\d+: a jax.shard_map prints or calls back"),
        (plain, {"emission": "constraints"}, r"a jax.shard_map .* emitted as 'constraints'"),
        (plain, {"cluster": slow_machine(4)}, "over 8 devices, the cluster has 4"),
        (plain, {"mesh": {"a": 2, "b": 4}}, r"py:\d+: maps over the axes data, seq, .* are a, b"),
        (plain, {"mesh": (8,)}, r"mesh \(8,\) was asked for, and the program is written for \(2"),
    ],
)  # fmt: skip
def test_what_no_plan_can_keep_is_refused(fn: Any, settings: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(fn, array(8, 8), **{"cluster": slow_machine(), **settings})


def partly(x: Any, a: Any, b: Any) -> Any:
    """Two layers over one axis; the others are left to the compiler."""

    def body(x: Any, a: Any, b: Any) -> Any:
        h = lax.with_sharding_constraint(jnp.tanh(x @ a), P("data"))
        return lax.psum(h @ b, "seq")

    specs = P(), P(None, "seq"), P("seq", None)
    mapped = jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=P(), axis_names={"seq"})
    return jnp.sum(jax.jit(mapped)(jnp.sin(x), a, b) ** 2)


def split_along(found: Any, axis: str) -> list[bool]:
    """Whether the plan splits each `shard_map` along an axis."""
    decided, at = found.analysed.decided, found.mesh.names.index(axis)
    ops = enumerate(decided.builder.flat.ops)
    return [bool(decided.plan.strategies[i].roles[at]) for i, op in ops if op.node.op == SHARD_MAP]


def test_axes_may_be_left_to_the_compiler_which_split_the_batch() -> None:
    args = array(8, 16), array(16, 32, seed=1), array(32, 16, seed=2)
    fn = jax.value_and_grad(partly, argnums=(0, 1, 2))
    with jax.set_mesh(MESH):
        found = plan(fn, *args, cluster=slow_machine(), baselines=False)
        want = jax.jit(fn)(*args)
    assert found.mesh.axes == (("data", 2), ("seq", 4))
    equal(want, found.compile()(*args))
    (note,) = {line for line in found.warnings if "leaves data to the compiler" in line}
    assert note.endswith("[data] on data=2,model=1,seq=4 at " + note.split(" at ")[-1])
    assert "1 sharding in it is not followed" in note
    assert verify(found, compiler="host").ok


def in_a_ring(x: Any, w: Any) -> Any:
    """A product with weights that go round, in a loop, with a bias made inside."""

    def body(x: Any, w: Any) -> Any:
        count = lax.axis_size("seq")
        turn = [(i, (i + 1) % count) for i in range(count)]

        def step(carry: Any, n: Any) -> Any:
            total, w = carry
            rows = jnp.arange(x.shape[0], dtype=x.dtype)[:, None]
            return (total + jnp.tanh(x @ w + n * rows), lax.ppermute(w, "seq", turn)), x.sum()

        start = jnp.zeros((x.shape[0], w.shape[1])), w
        (total, _), sums = lax.scan(step, start, jnp.arange(count, dtype=x.dtype))
        return total * sums.mean() / 100, lax.all_gather(total.sum(0), "seq", tiled=True)

    specs = {"in_specs": (P(), P(None, "seq")), "out_specs": (P(None, "seq"), P())}
    names = {"axis_names": {"seq"}, "check_vma": False}
    total, sums = jax.shard_map(body, mesh=MESH, **specs, **names)(x, w)
    return (total**2).mean() + jnp.cos(sums / 9).mean()


@pytest.mark.parametrize("fn", [in_a_ring, jax.grad(in_a_ring, argnums=(0, 1))])
def test_loops_sums_and_positions_inside_are_split(fn: Any) -> None:
    x, w = array(64, 512), array(512, 64, seed=1)
    found = plan(fn, x, w, cluster=slow_machine(), baselines=False)
    assert all(split_along(found, "data"))
    equal(jax.jit(fn)(x, w), found.compile()(x, w))
    assert verify(found, compiler="host").ok


@pytest.mark.parametrize("recompute", ["auto", "full"])
def test_layers_with_parts_left_to_the_compiler_are_computed_again(recompute: str) -> None:
    """Least seconds are of splits that the axes left to the compiler can give."""

    def step(x: Any, w: Any) -> Any:
        return jax.grad(jax.checkpoint(in_a_ring), argnums=(0, 1))(x, w)

    x, w = array(64, 512), array(512, 64, seed=1)
    found = plan(step, x, w, cluster=slow_machine(), baselines=False, recompute=recompute)
    equal(jax.jit(step)(x, w), found.compile()(x, w))


def test_a_ring_over_one_axis_has_its_batch_over_another() -> None:
    names = {"axis_names": {"seq"}, "check_vma": False}
    rows = P(None, "seq")
    ring = jax.shard_map(
        ring_attention.__wrapped__, mesh=MESH, in_specs=(rows,) * 3, out_specs=rows, **names
    )
    found = plan(layer(ring), PARAMS, X, cluster=slow_machine(), baselines=False)
    assert split_along(found, "data") == [True, True]
    assert not any("leaves data" in line for line in found.warnings)
    equal(layer(attention)(PARAMS, X), found.compile()(PARAMS, X))
    both = plan(layer(ring_attention), PARAMS, X, cluster=slow_machine(), baselines=False)
    assert found.step_s == pytest.approx(both.step_s, rel=0.1)

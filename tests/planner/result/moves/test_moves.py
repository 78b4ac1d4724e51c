# pyright: basic
"""What moves between two plans, against JAX's own maps of devices to indices."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding

from ir import Mesh, Sharding
from planner import Plan, PlanError, moves, plan
from planner.emit.jit import build_mesh
from planner.emit.local_op import partition_spec
from planner.result.moves.common_mesh import refined
from planner.result.moves.device_shards import device_shards_of, lost, received
from tests.planner.programs import BATCH, PARAMS, mean_loss, slow_machine, struct

SIZES = ((8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (2, 2), (4,), (3, 2), (6,), (2, 3), (1,))
SHAPE = (24, 12)


def mesh_of(sizes: tuple[int, ...]) -> Mesh:
    return Mesh(tuple(zip("xyz", sizes, strict=False)))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Mesh, Sharding]:
    """A mesh, and a sharding of SHAPE on it whose sizes divide."""
    mesh = mesh_of(draw(st.sampled_from(SIZES)))
    dims: list[list[str]] = [[], []]
    for axis in draw(st.permutations(mesh.names)):
        where = draw(st.integers(0, 2))
        if where < 2:
            dims[where].append(axis)
    state = Sharding(tuple(map(tuple, dims)))
    return mesh, state if state.fits(SHAPE, mesh) else Sharding(((), ()))


def held_by_jax(mesh: Mesh, state: Sharding) -> list[np.ndarray]:
    """For each device a mask of the entries that JAX puts there."""
    real = build_mesh(mesh)
    where = NamedSharding(real, partition_spec(state)).devices_indices_map(SHAPE)
    found = []
    for device in real.devices.flat:
        mask = np.zeros(SHAPE, bool)
        mask[where[device]] = True
        found.append(mask)
    return found


@given(layouts(), layouts(), st.sets(st.integers(0, 7), max_size=4))
def test_bytes_are_those_of_the_devices_of_jax(a: Any, b: Any, gone: set[int]) -> None:
    (mesh_a, state_a), (mesh_b, state_b) = a, b
    old, new = held_by_jax(mesh_a, state_a), held_by_jax(mesh_b, state_b)
    left = [d for d in range(len(old)) if d not in gone]
    here = np.full(len(new), -1)
    here[: len(left)] = left[: len(new)]
    shards = device_shards_of(state_a, SHAPE, mesh_a)
    wanted = device_shards_of(state_b, SHAPE, mesh_b).on(np.arange(len(new)))
    nothing = np.zeros(SHAPE, bool)
    expected = [
        int((need & ~(old[d] if d >= 0 else nothing)).sum())
        for need, d in zip(new, here.tolist(), strict=True)
    ]
    assert received(shards.on(here), wanted).tolist() == expected
    some = np.any([old[d] for d in left], axis=0) if left else nothing
    assert lost(shards, np.array(left, dtype=np.int64)) == int((~some).sum())


@given(layouts(), layouts())
def test_the_common_mesh_says_the_same(a: Any, b: Any) -> None:
    (mesh_a, state_a), (mesh_b, state_b) = a, b
    found = refined(mesh_a, mesh_b)
    if found is None:
        return
    assert found.mesh.num_devices == mesh_a.num_devices == mesh_b.num_devices
    for mesh, state, there in (
        (mesh_a, state_a, found.first(state_a)), (mesh_b, state_b, found.second(state_b))
    ):  # fmt: skip
        old, new = device_shards_of(state, SHAPE, mesh), device_shards_of(there, SHAPE, found.mesh)
        np.testing.assert_array_equal(old.low, new.low)
        np.testing.assert_array_equal(old.high, new.high)


def test_meshes_that_have_a_common_one() -> None:
    """There is one exactly where the numbering of every axis nests."""
    for a, b in itertools.product(SIZES, repeat=2):
        found = refined(mesh_of(a), mesh_of(b))
        ends = {*np.cumprod(a).tolist(), *np.cumprod(b).tolist()}
        nested = all(x % y == 0 or y % x == 0 for x, y in itertools.product(ends, repeat=2))
        same = np.prod(a) == np.prod(b)
        assert (found is not None) == (same and nested)


# --- plans ------------------------------------------------------------------------------------


def planned(count: int, *pins: tuple[str, str], fn: Any = mean_loss, **settings: Any) -> Plan:
    given = {"cluster": slow_machine(count), "baselines": False, "pins": pins}
    args = settings.pop("args", (PARAMS, BATCH))
    return plan(fn, *args, **given | settings, roles=("parameter", "batch"))


@cache
def split_one() -> Plan:
    return planned(8, ("params/w1", "[-,8]"), ("params/w2", "[8,-]"), ("params/b1", "[-]"))


@cache
def split_otherwise() -> Plan:
    return planned(8, ("params/w1", "[8,-]"), ("params/w2", "[8,-]"), ("params/b1", "[8]"))


@cache
def on_four() -> Plan:
    return planned(4, ("params/w1", "[-,4]"), ("params/w2", "[-,-]"), ("params/b1", "[-]"))


W = 16 * 32 * 4  # bytes of w1 and of w2


def test_a_plan_to_itself_moves_nothing() -> None:
    found = moves(split_one(), split_one())
    assert [row.name for row in found.arrays] == ["params/b1", "params/w1", "params/w2"]
    assert found.total_bytes == found.received_bytes == found.lost_bytes == 0


def test_an_array_split_otherwise_moves_by_one_exchange() -> None:
    found = moves(split_one(), split_otherwise())
    by_name = {row.name: row for row in found.arrays}
    w1 = by_name["params/w1"]
    assert w1.total_bytes == W * 7 // 8
    assert w1.received_bytes == W * 7 // 64
    assert by_name["params/w2"].total_bytes == 0
    assert by_name["params/b1"].total_bytes == 0  # a slice of what is there
    if len(split_one().mesh.axes) == len(split_otherwise().mesh.axes) == 1:
        assert w1.collectives == ("all-to-all of 8",)
    back = moves(split_otherwise(), split_one())
    b1 = next(row for row in back.arrays if row.name == "params/b1")
    assert b1.received_bytes == 32 * 4 * 7 // 8
    assert found.received_bytes == w1.received_bytes


def test_fewer_devices_and_lost_ones() -> None:
    found = moves(split_one(), on_four())
    by_name = {row.name: row for row in found.arrays}
    assert found.devices == (8, 4)
    assert found.lost_bytes == 0
    assert by_name["params/w2"].received_bytes == W * 7 // 8
    assert by_name["params/w2"].collectives == ()
    gone = moves(split_one(), on_four(), lost_devices=(1, 6))
    rows = {row.name: row for row in gone.arrays}
    assert rows["params/w1"].lost_bytes == rows["params/w2"].lost_bytes == W // 4
    assert rows["params/b1"].lost_bytes == 0
    assert moves(on_four(), on_four(), lost_devices=(0,)).arrays[0].lost_bytes == W // 4


def test_plans_of_other_programs() -> None:
    def longer(params: Any, batch: Any) -> Any:
        return mean_loss(params, batch) + params["new"].sum()

    more = planned(4, fn=longer, args=({**PARAMS, "new": struct(8)}, BATCH))
    found = moves(split_one(), more)
    assert (found.only_before, found.only_after) == ((), ("params/new",))
    wide = {name: struct(*(2 * n for n in p.shape)) for name, p in PARAMS.items()}
    wide_batch = {name: struct(8, 32) for name in BATCH}
    with pytest.raises(PlanError, match="in the old plan"):
        moves(split_one(), planned(4, args=(wide, wide_batch)))
    with pytest.raises(PlanError, match="there is no device 8"):
        moves(split_one(), on_four(), lost_devices=(8,))


def test_what_is_said_to_move_is_what_devices_lack() -> None:
    """Every array of one plan, put where the other wants it, device by device."""
    rng = np.random.default_rng(0)
    tree = {n: rng.standard_normal(p.shape).astype(np.float32) for n, p in PARAMS.items()}
    old, new = split_one().shard(tree), on_four().shard(tree)
    for row in moves(split_one(), on_four()).arrays:
        name = row.name.removeprefix("params/")
        held = {s.device: s.index for s in old[name].addressable_shards}
        total = 0
        for shard in new[name].addressable_shards:
            mask = np.zeros(row.shape, bool)
            mask[shard.index] = True
            mask[held[shard.device]] = False
            total += int(mask.sum()) * 4
        assert row.total_bytes == total
    assert jax.device_count() == 8

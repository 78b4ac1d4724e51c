# pyright: basic
"""What moves between plans in stages and others, against the arrays that their runtime places."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest

from planner import load, moves, plan
from planner.emit.pipeline.holdings import Pieces
from tests.planner.emit.pipelines import arguments, everything
from tests.planner.pipeline.unproved import without_proof
from tests.planner.programs import slow_machine

ADAM = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2))


@cache
def planned(stages: int | str, devices: int = 4, schedules: tuple[str, ...] = ("1f1b",)) -> Any:
    params, batch = arguments()
    with without_proof():
        return plan(
            everything, params, batch, optimizer=ADAM, has_aux=True, pipeline=stages,
            cluster=slow_machine(devices), microbatches=4, baselines=False, substitutions=False,
            schedules=schedules,
        )  # fmt: skip


def arguments_of(made: Any) -> dict[str, Any]:
    """Name -> parameter or state, where a plan has them."""
    params, _ = arguments()
    if made.file.in_stages:
        init = made.bound.loss.built.init
        trees = [made.shard(params, argnum=0), made.shard(init(params), argnum=1)]
    else:
        init = planned(2).bound.loss.built.init
        trees = [made.shard(params, argnum=0), made.shard(init(params), argnum=1)]
    found = {}
    for name, tree in zip(("params", "opt_state"), trees, strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            found[f"{name}/{jax.tree_util.keystr(path, simple=True, separator='/')}"] = leaf
    return found


def held(x: Any) -> dict[Any, np.ndarray]:
    """Device -> mask of the entries of an array that it has."""
    found: dict[Any, np.ndarray] = {}
    low = 0
    for part in x.parts if isinstance(x, Pieces) else [x]:
        for shard in part.addressable_shards:
            mask = found.setdefault(shard.device, np.zeros(x.shape, bool))
            here = np.zeros(part.shape, bool)
            here[shard.index] = True
            if isinstance(x, Pieces):
                mask[low : low + part.shape[0]] |= here
            else:
                mask |= here
        low += part.shape[0] if part.ndim else 0
    return found


PAIRS = {
    "to itself": ((2, 4), (2, 4)),
    "to one program": ((2, 4), ("off", 4)),
    "to stages": (("off", 4), (2, 4)),
    "to more stages": ((2, 4), (3, 6)),
    "to fewer stages": ((3, 6), (2, 4)),
}


@pytest.mark.parametrize(("a", "b"), PAIRS.values(), ids=PAIRS)
def test_what_is_said_to_move_is_what_devices_lack(a: Any, b: Any) -> None:
    before, after = planned(*a), planned(*b)
    old, new = arguments_of(before), arguments_of(after)
    found = moves(before, after)
    assert found.devices == (a[1], b[1])
    assert {row.name for row in found.arrays} == old.keys() - {"params/unread"} - {
        name for name in old if name.endswith("/unread")
    }
    for row in found.arrays:
        there, wanted = held(old[row.name]), held(new[row.name])
        lacks = [
            int((mask & ~there.get(device, np.zeros(row.shape, bool))).sum())
            for device, mask in wanted.items()
        ]
        size = old[row.name].dtype.itemsize
        assert row.total_bytes == sum(lacks) * size, row
        assert row.received_bytes == max(lacks) * size, row
        assert row.collectives == ()
        if a == b:
            assert (row.total_bytes, row.before) == (0, row.after)


def test_layers_of_lost_devices_come_from_a_checkpoint(tmp_path: Any) -> None:
    before = planned(2)
    before.save(tmp_path / "p.json")
    gone = moves(load(tmp_path / "p.json"), planned(2, 8), lost_devices=(2, 3))
    old = arguments_of(before)
    for row in gone.arrays:
        left = [mask for device, mask in held(old[row.name]).items() if device.id not in (2, 3)]
        some = np.any(left, axis=0) if left else np.zeros(row.shape, bool)
        assert row.lost_bytes == int((~some).sum()) * old[row.name].dtype.itemsize, row
    assert gone.lost_bytes > 0


@pytest.mark.exhaustive
def test_several_stages_of_a_group_hold_pieces_of_one_stack() -> None:
    before, after = planned(2), planned(2, 4, ("1f1b", "interleaved"))
    assert after.schedule == "interleaved"
    old, new = arguments_of(before), arguments_of(after)
    for row in moves(before, after).arrays:
        there, wanted = held(old[row.name]), held(new[row.name])
        lacks = [int((mask & ~there.get(device, np.zeros(row.shape, bool))).sum())
                 for device, mask in wanted.items()]  # fmt: skip
        assert row.total_bytes == sum(lacks) * old[row.name].dtype.itemsize, row

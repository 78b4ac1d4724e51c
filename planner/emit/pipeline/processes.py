# pyright: basic
"""Several processes: each starts what runs on its own devices, all take part in what crosses them.

Every process goes through the same tasks in the same order. An array on devices of other processes
has no data here; it is kept for its shape and place. Between groups of different processes a tile
goes from device to device by `lax.ppermute` over both groups, which all their processes start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

Array = Any
Devices = tuple[Any, ...]


def is_here(devices: Sequence[Any]) -> bool:
    """Whether some of the devices are this process's."""
    own = jax.process_index()
    return any(device.process_index == own for device in devices)


def is_one(devices: Sequence[Any]) -> bool:
    """Whether all devices are of one process."""
    return len({device.process_index for device in devices}) <= 1


def _alone(found: Any, devices: Devices) -> Any:
    """Results, waited for where programs that talk to one another must not run side by side.

    Collectives of CPU devices hold threads of one pool while they wait; two programs of several
    processes can hold all of it and wait for each other. GPUs have queues instead.
    """
    if jax.process_count() > 1 and devices[0].platform == "cpu":
        jax.block_until_ready([x for x in jax.tree.leaves(found) if x.addressable_shards])
    return found


def alone(call: Callable[..., Any], devices: Devices) -> Callable[..., Any]:
    """A jitted function, whose results are waited for where that is needed."""
    return lambda *args: _alone(call(*args), devices)


def away(shape: Sequence[int], dtype: Any, sharding: Sharding) -> Array:
    """An array on devices of other processes."""
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, [], dtype=dtype)


def started(
    call: Callable[..., Any],
    args: Sequence[Array],
    devices: Devices,
    place: Callable[[int], Sharding],
    known: dict[Any, Any],
) -> Any:
    """Results of a jitted function where its devices are here, else arrays without data.

    Args:
        call: the function.
        args: on `devices`.
        devices: that it runs on.
        place: rank -> a sharding of results that are elsewhere.
        known: shapes of results by function, filled in.
    """
    if is_here(devices):
        return _alone(call(*args), devices)
    if id(call) not in known:
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args]
        known[id(call)] = jax.eval_shape(call, *structs)
    return jax.tree.map(lambda s: away(s.shape, s.dtype, place(len(s.shape))), known[id(call)])


@cache
def _crossing(source: Devices, target: Devices, tiles: int) -> tuple[NamedSharding, Any]:
    """Sharding of tiles over both groups, and the program that moves them.

    Tile t lies on devices t * copies to (t + 1) * copies - 1 of each group. Where the target has
    more copies than the source, each source device sends in several rounds.
    """
    a, b = len(source) // tiles, len(target) // tiles
    mesh = Mesh(np.array([*source, *target], dtype=object), ("d",))
    sharding = NamedSharding(mesh, PartitionSpec("d"))
    rounds = [
        [
            (t * a + c, len(source) + t * b + r * a + c)
            for t in range(tiles) for c in range(a) if r * a + c < b
        ]
        for r in range(math.ceil(b / a))
    ]  # fmt: skip

    def move(x: Array) -> Array:
        me = lax.axis_index("d")
        found = x
        for pairs in rounds:
            there = jnp.isin(me, jnp.array([end for _, end in pairs]))
            found = jnp.where(there, lax.ppermute(x, "d", pairs), found)
        return found

    spec = PartitionSpec("d")
    program = jax.shard_map(move, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return sharding, jax.jit(program)


def devices_in(sharding: NamedSharding) -> Devices:
    """Devices of its mesh in order."""
    mesh: Any = sharding.mesh
    return tuple(mesh.devices.flat)


def crossed(x: Array, here: NamedSharding, there: NamedSharding, tiles: int) -> Array:
    """An array from one group to another of which some devices are of other processes.

    Args:
        x: as `here`, or without data if it is elsewhere.
        here: its tiles, the first dimension outermost, repeated to fill the group.
        there: the same tiles on the other group.
        tiles: how many.
    """
    source, target = devices_in(here), devices_in(there)
    if not is_here((*source, *target)):
        return away(x.shape, x.dtype, there)
    sharding, program = _crossing(source, target, tiles)
    shape = here.shard_shape(x.shape)
    own = jax.process_index()
    held = {s.device: s.data for s in x.addressable_shards}
    parts = [
        held[d][None] if d in held else jax.device_put(np.zeros((1, *shape), x.dtype), d)
        for d in (*source, *target)
        if d.process_index == own
    ]
    whole = (len(source) + len(target), *shape)
    moved = program(jax.make_array_from_single_device_arrays(whole, sharding, parts))
    _alone(moved, source)
    if not is_here(target):
        return away(x.shape, x.dtype, there)
    found = {s.device: s.data for s in moved.addressable_shards}
    pieces = [found[d][0] for d in target if d.process_index == own]
    return jax.make_array_from_single_device_arrays(x.shape, there, pieces)

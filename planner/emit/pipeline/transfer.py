# pyright: basic
"""Arrays between groups of devices, without a detour through the host.

`jax.device_put` copies from device to device where each slice that the target wants lies whole on
some source device, and fetches the array to the host where it does not. An array is therefore
resharded among its own devices first, into tiles that both sides can hold; the target cuts them
smaller if it wants to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from ir import IRError
from ir.jax_compilers import copied_to

from .processes import away, crossed, is_here, is_one

Array = Any
Tiles = tuple[int, ...]
Devices = tuple[Any, ...]


def tiles_of(sharding: Sharding, shape: tuple[int, ...]) -> Tiles:
    """Into how many parts each dimension is cut."""
    local = sharding.shard_shape(shape)
    return tuple(n // k if k else 1 for n, k in zip(shape, local, strict=True))


@cache
def tiled(devices: Devices, tiles: Tiles) -> NamedSharding:
    """Parts of every dimension over devices, the first dimension outermost; repeated to fill them.

    Raises:
        ValueError: if the tiles do not divide the devices.
    """
    copies, rest = divmod(len(devices), math.prod(tiles))
    if rest:
        raise ValueError(f"{math.prod(tiles)} tiles on {len(devices)} devices")
    names = tuple(f"d{i}" for i in range(len(tiles)))
    grid = np.array(devices, dtype=object).reshape(*tiles, copies)
    spec = PartitionSpec(*(name if n > 1 else None for name, n in zip(names, tiles, strict=True)))
    return NamedSharding(Mesh(grid, (*names, "copies")), spec)


def whole(devices: Devices, rank: int) -> NamedSharding:
    """All of an array on every device."""
    return tiled(devices, (1,) * rank)


def common(tiles: Tiles, source: int, target: int) -> Tiles:
    """A coarsening of tiles that both numbers of devices can hold; the first dimensions keep most.

    Args:
        tiles: parts of each dimension.
        source: devices at one end.
        target: devices at the other.
    """
    left = math.gcd(source, target)
    found: list[int] = []
    for n in tiles:
        found.append(math.gcd(n, left))
        left //= found[-1]
    return tuple(found)


@cache
def _reshard(target: NamedSharding) -> Any:
    return jax.jit(_same, out_shardings=target)


def _same(x: Array) -> Array:
    return x


def devices_of(sharding: Sharding) -> Devices:
    """Devices of a sharding in its own order."""
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
        return tuple(sharding.mesh.devices.flat)
    return tuple(sorted(sharding.device_set, key=lambda device: device.id))


def sent(x: Array, devices: Devices, goal: NamedSharding | None = None) -> Array:
    """An array on other devices.

    Args:
        x: on devices of its own.
        devices: where it goes; if they are the same ones, in the same order, it stays.
        goal: how it shall lie there; the same parts as at the source, as far as possible, if None.
    """
    way = _way(x.sharding, x.shape, devices, goal)
    if way is None:
        return _lying(x, goal)
    if not way.is_one:
        return _crossed(x, devices_of(x.sharding), devices, goal)
    if not way.is_here:
        return away(x.shape, x.dtype, goal or way.there)
    if way.first is not None:
        x = way.first(x)
    x = copied_to(x, way.there) if way.is_even else jax.device_put(x, way.there)
    return x if way.last is None else way.last(x)


@dataclass(frozen=True, slots=True)
class _Way:
    """How arrays of one sharding and shape get to other devices.

    is_one: whether all devices are of one process; is_here: whether the target's are of this one.
    is_even: whether there are as many devices at both ends.
    first, last: reshard at the source and at the target, None where the array lies so already.
    there: tiles that the source has after the first, on the target.
    """

    is_one: bool
    is_here: bool
    is_even: bool
    first: Any
    there: NamedSharding
    last: Any


@cache
def _way(
    lies: Sharding, shape: tuple[int, ...], devices: Devices, goal: NamedSharding | None
) -> _Way | None:
    """The way to other devices; None to the same ones."""
    source = devices_of(lies)
    if source == devices:
        return None
    between = common(tiles_of(goal or lies, shape), len(source), len(devices))
    here, there = tiled(source, between), tiled(devices, between)
    rank = len(shape)
    stays = lies.is_equivalent_to(here, rank)
    arrives = goal is None or there.is_equivalent_to(goal, rank)
    return _Way(
        is_one((*source, *devices)), is_here(devices), len(source) == len(devices),
        None if stays else _reshard(here), there,
        None if arrives or goal is None else _reshard(goal),
    )  # fmt: skip


def _lying(x: Array, goal: NamedSharding | None) -> Array:
    """An array resharded among its own devices."""
    if goal is None or x.sharding.is_equivalent_to(goal, x.ndim):
        return x
    if not is_here(devices_of(goal)):
        return away(x.shape, x.dtype, goal)
    return _reshard(goal)(x)


def _crossed(x: Array, source: Devices, devices: Devices, goal: NamedSharding | None) -> Array:
    """The same between processes, each of which knows the goal but not what the others hold."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        raise IRError("keys of random numbers cannot go from process to process between stages")
    wished = (1,) * x.ndim if goal is None else tiles_of(goal, x.shape)
    between = common(wished, len(source), len(devices))
    here, there = tiled(source, between), tiled(devices, between)
    return _lying(crossed(_lying(x, here), here, there, math.prod(between)), goal)


def split_devices(devices: Sequence[Any], sizes: Sequence[int]) -> tuple[Devices, ...]:
    """Consecutive groups of devices."""
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(tuple(devices[a:b]) for a, b in pairwise(ends))

# pyright: basic
"""Arrays between groups of devices, without a detour through the host.

`jax.device_put` copies from device to device where each slice that the target wants lies whole on
some source device, and fetches the array to the host where it does not. An array is therefore
resharded among its own devices first, into tiles that both sides can hold; the target cuts them
smaller if it wants to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from ir import IRError
from ir.jax_compilers import copier

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
    return way_to(x.sharding, x.shape, x.dtype, devices, goal)(x)


@cache
def way_to(
    lies: Sharding, shape: tuple[int, ...], dtype: Any, devices: Devices, goal: NamedSharding | None
) -> Callable[[Array], Array]:
    """How arrays of one sharding, shape and type get to other devices, see `sent`."""
    source = devices_of(lies)
    if source == devices:
        return partial(_lying, goal=goal)
    if not is_one((*source, *devices)):
        return partial(_crossed, source=source, devices=devices, goal=goal)
    between = common(tiles_of(goal or lies, shape), len(source), len(devices))
    here, there = tiled(source, between), tiled(devices, between)
    if not is_here(devices):
        return lambda x: away(shape, dtype, goal or there)
    rank, ways = len(shape), list[Callable[[Array], Array]]()
    if not lies.is_equivalent_to(here, rank):
        ways.append(_reshard(here))
    if len(source) == len(devices):
        ways.append(copier(there, dtype))
    else:
        ways.append(partial(jax.device_put, device=there))
    if goal is not None and not there.is_equivalent_to(goal, rank):
        ways.append(_reshard(goal))
    return ways[0] if len(ways) == 1 else lambda x: reduce(lambda x, way: way(x), ways, x)


def _lying(x: Array, goal: NamedSharding | None) -> Array:
    """An array resharded among its own devices."""
    if goal is None or x.sharding.is_equivalent_to(goal, x.ndim):
        return x
    if not is_here(devices_of(goal)):
        return away(x.shape, x.dtype, goal)
    return _reshard(goal)(x)


def _crossed(x: Array, source: Devices, devices: Devices, goal: NamedSharding | None) -> Array:
    """The same between processes, each of which knows the goal but not what the others hold."""
    refuse_keys(x.dtype, source, devices)
    wished = (1,) * x.ndim if goal is None else tiles_of(goal, x.shape)
    between = common(wished, len(source), len(devices))
    here, there = tiled(source, between), tiled(devices, between)
    return _lying(crossed(_lying(x, here), here, there, math.prod(between)), goal)


def refuse_keys(dtype: Any, source: Devices, devices: Devices) -> None:
    """Refuses to send keys of random numbers between processes.

    Raises:
        IRError: if that is asked for.
    """
    if jnp.issubdtype(dtype, jax.dtypes.prng_key) and not is_one((*source, *devices)):
        raise IRError("keys of random numbers cannot go from process to process between stages")


def split_devices(devices: Sequence[Any], sizes: Sequence[int]) -> tuple[Devices, ...]:
    """Consecutive groups of devices."""
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(tuple(devices[a:b]) for a, b in pairwise(ends))

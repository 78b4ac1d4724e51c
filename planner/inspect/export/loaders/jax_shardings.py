# pyright: basic
"""Shardings of a plan for JAX programs; needs nothing but JAX.

    mesh = make_mesh()
    params = jax.device_put(params, shardings(params, mesh))

A path names a leaf as `jax.tree_util.keystr(path, simple=True, separator="/")` does.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

PLAN: dict[str, Any] = {}


def make_mesh(devices: Any = None) -> Mesh:
    """The plan's mesh over the devices there are, host by host."""
    names = tuple(name for name, _ in PLAN["mesh"])
    sizes = tuple(size for _, size in PLAN["mesh"])
    if devices is None:
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    need = int(np.prod(sizes))
    if len(devices) < need:
        raise ValueError(f"the plan needs {need} devices, there are {len(devices)}")
    return Mesh(np.array(devices[:need], dtype=object).reshape(sizes), names)


def _spec(entries: Any) -> PartitionSpec:
    return PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in entries))


def spec(path: str) -> PartitionSpec:
    """The PartitionSpec of a parameter: by its exact path, else by the first pattern."""
    if path in PLAN["parameters"]:
        return _spec(PLAN["parameters"][path])
    for pattern, entries in PLAN["patterns"]:
        if re.fullmatch(pattern, path):
            return _spec(entries)
    raise KeyError(f"the plan has no parameter '{path}'")


def argument_spec(path: str) -> PartitionSpec:
    """The PartitionSpec of any argument of the planned function, such as `batch/x`."""
    return _spec(PLAN["arguments"][path])


def specs(params: Any) -> Any:
    """A PartitionSpec for each leaf of a tree of parameters."""

    def one(path: Any, leaf: Any) -> PartitionSpec:
        del leaf
        return spec(jax.tree_util.keystr(path, simple=True, separator="/"))

    return jax.tree_util.tree_map_with_path(one, params)


def shardings(params: Any, mesh: Mesh) -> Any:
    """A NamedSharding for each leaf of a tree of parameters."""
    is_spec = lambda x: isinstance(x, PartitionSpec)  # noqa: E731
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs(params), is_leaf=is_spec)


def logical_axis_rules() -> list[tuple[str, Any]]:
    """Rules as `flax.linen.logical_axis_rules` and MaxText take them."""
    return [
        (name, None if not axes else axes[0] if len(axes) == 1 else tuple(axes))
        for name, axes in PLAN["logical_axis_rules"]
    ]

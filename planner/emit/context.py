# pyright: basic
"""The caller's mesh: a plan brings its own, and the one set with `jax.set_mesh` is not its."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, NamedSharding

from ..common.errors import ArgumentError

PLACE = "the planned function"  # where what a user calls goes wrong

P = ParamSpec("P")
R = TypeVar("R")


def without_mesh() -> AbstractContextManager[Any]:
    """Within it no mesh is set, whatever the caller has set with `jax.set_mesh`."""
    try:
        return jax.set_mesh(None)
    except ValueError:  # under jax.jit, where a mesh is only what types say
        return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))


def unmeshed(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run within `without_mesh`."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with without_mesh():
            return function(*args, **kwargs)

    return run


def check_untyped(leaf: Any, mesh: jax.sharding.Mesh | AbstractMesh) -> None:
    """Refuses a value of an outer `jax.jit` whose type is split over axes of another mesh.

    Raises:
        ArgumentError: with what to do instead.
    """
    sharding = jax.typeof(leaf).sharding if isinstance(leaf, Tracer) else None
    if not isinstance(sharding, NamedSharding):
        return
    split = [axis for axis in sharding.spec if axis is not None]
    if split and sharding.mesh.shape_tuple != mesh.shape_tuple:
        raise ArgumentError(
            f"a planned step over the mesh {dict(mesh.shape)} is called under jax.jit with an "
            f"array whose type is split over another mesh, {dict(sharding.mesh.shape)}",
            kind="bad-argument", where=PLACE,
            remedy="call it outside of jax.jit, or pass jax.sharding.reshard(array, jax.P())",
        )  # fmt: skip

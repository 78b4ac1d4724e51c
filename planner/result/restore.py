# pyright: basic
"""Checkpoints under another plan: arrays saved by Orbax are read with the plan's shardings."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding

from ir.trace import Traced

from ..common.errors import PlanError
from ..common.surface import public
from ..emit.jit import build_mesh
from .bind import specs_like
from .plan import Plan

EXTRA = "pip install 'meshwright[orbax]'"


@public
def structs(
    plan: Plan, tree: Any, *, argnum: int | None = None, devices: Sequence[Any] | None = None
) -> Any:
    """Shapes of one argument with the plan's shardings: a target for Orbax.

    Args:
        plan: a plan with a bound function.
        tree: the argument, a pytree of arrays or `jax.ShapeDtypeStruct`.
        argnum: position of the argument; found by structure and shapes if None.
        devices: devices of the mesh; all present if None.

    Raises:
        PlanError: if no argument, or more than one, has this structure, or there are too few
            devices.
    """
    wanted = plan.in_shardings  # refuses plans that have no function, or are in stages
    assert isinstance(plan.bound, Traced)
    specs = specs_like(plan.bound, wanted, tree, "the tree", argnum, plan.where)
    here, need = len(jax.devices() if devices is None else devices), plan.mesh.num_devices
    if here < need:
        raise PlanError(
            f"the plan needs {need} devices ({plan.mesh}), there are {here}",
            kind="too-few-devices", where=plan.where, remedy="plan for the devices there are",
        )  # fmt: skip
    mesh = build_mesh(plan.mesh, devices)

    def struct(x: Any, spec: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(struct, jax.eval_shape(lambda: tree), specs)


@public
def restore(
    plan: Plan,
    path: str | Path,
    tree: Any,
    *,
    argnum: int | None = None,
    devices: Sequence[Any] | None = None,
) -> Any:
    """Reads a checkpoint of Orbax's `StandardCheckpointer`, saved under any plan, into this plan.

    Every device reads its own part. For a plan in stages arrays pass through the host's memory.

    Args:
        plan: a plan with a bound function.
        path: folder of the checkpoint.
        tree: the saved argument, a pytree of arrays or `jax.ShapeDtypeStruct`.
        argnum: position of the argument; found by structure and shapes if None.
        devices: devices of the mesh; all present if None.

    Raises:
        PlanError: if Orbax is not installed, the checkpoint cannot be read or holds another tree,
            or no argument has this structure.
    """
    try:
        orbax = importlib.import_module("orbax.checkpoint")
    except ImportError as error:
        raise PlanError(
            "needs Orbax, which is not installed", kind="missing-library", where="planner.restore",
            remedy=EXTRA,
        ) from error  # fmt: skip
    if plan.file.in_stages:
        whole = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
        shapes = jax.eval_shape(lambda: tree)
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), shapes
        )
    else:
        target = structs(plan, tree, argnum=argnum, devices=devices)
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise PlanError(
            "is no folder", kind="checkpoint", where=str(path),
            remedy="name the folder that StandardCheckpointer.save wrote",
        )  # fmt: skip
    try:
        with orbax.StandardCheckpointer() as checkpointer:
            found = checkpointer.restore(folder, target)
    except (KeyError, OSError, ValueError) as error:
        raise PlanError(
            f"cannot be restored: {' '.join(str(error).split())[:300]}", kind="checkpoint",
            where=str(path), remedy="pass the tree that was saved",
        ) from error  # fmt: skip
    if plan.file.in_stages:
        return plan.shard(found, argnum=argnum or 0, devices=devices)
    return found

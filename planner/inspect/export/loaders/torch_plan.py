# pyright: basic, reportMissingImports=false
"""Applies a plan to PyTorch modules; needs nothing but PyTorch.

    plan = load("plan.torch.json")
    mesh = device_mesh(plan, "cuda")
    distribute(module, plan, mesh, names={"up.weight": ("up", (1, 0))})

`names` maps each parameter of the module to the plan's path and, where the layout differs, to the
order of the plan's dimensions in it: `torch.nn.Linear` keeps [out, in], so (1, 0).
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel


def load(path):
    """Reads a plan that `meshwright export --to torch` wrote."""
    plan = json.loads(Path(path).read_text(encoding="utf-8"))
    if plan.get("format") != "meshwright-torch" or plan.get("version") != 1:
        raise ValueError(f"{path}: not a plan for torch, version 1")
    return plan


def device_mesh(plan, device_type):
    """The plan's DeviceMesh; as many processes as it has devices must run."""
    names = tuple(name for name, _ in plan["mesh"])
    sizes = tuple(size for _, size in plan["mesh"])
    world = torch.distributed.get_world_size()
    if world != math.prod(sizes):
        raise ValueError(f"the plan is for {math.prod(sizes)} processes, there are {world}")
    return init_device_mesh(device_type, sizes, mesh_dim_names=names)


def placements(entry, order=None):
    """DTensor placements of a parameter or argument; `order` as in `names`."""
    order = list(order) if order is not None else list(range(len(entry["shape"])))
    return [Replicate() if d is None else Shard(order.index(d)) for d in entry["placements"]]


def distribute(module, plan, mesh, names=None):
    """Replaces every parameter of a module by a DTensor placed as planned."""
    for name, parameter in list(module.named_parameters()):
        path, order = (names or {}).get(name, (name.replace(".", "/"), None))
        if path not in plan["parameters"]:
            raise KeyError(
                f"the plan has no parameter '{path}' (for {name}); say its path in names="
            )
        entry = plan["parameters"][path]
        shape = [entry["shape"][d] for d in (order or range(len(entry["shape"])))]
        if shape != list(parameter.shape):
            raise ValueError(
                f"{name} is {list(parameter.shape)}, the plan has {shape} for '{path}'"
            )
        owner, _, leaf = name.rpartition(".")
        placed = distribute_tensor(parameter.detach(), mesh, placements(entry, order))
        placed = torch.nn.Parameter(placed, requires_grad=parameter.requires_grad)
        setattr(module.get_submodule(owner), leaf, placed)
    return module


def distribute_argument(tensor, plan, mesh, name):
    """An argument of the planned function, such as `batch/x`, placed as planned."""
    return distribute_tensor(tensor, mesh, placements(plan["arguments"][name]))


def parallelize_plan(plan, axis, names):
    """Styles for `torch.distributed.tensor.parallel.parallelize_module` over one mesh axis.

    names: as for `distribute`; parameters called `weight` stand for their `torch.nn.Linear`.
    """
    made = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    found = {}
    for name, (path, _) in names.items():
        style = plan["styles"].get(path, {}).get(axis)
        if name.endswith(".weight") and style is not None:
            found[name.removesuffix(".weight")] = made[style]()
    return found

"""`torch`: a DeviceMesh, DTensor placements of every argument, and a plan for parallelize_module.

DTensor shards a dimension over mesh dimensions from the outermost in; a dimension that the plan
splits the other way round has no placement, and is said to be kept whole.
"""

from __future__ import annotations

from typing import Any

from ir import Literal, Sharding

from ..analysed_plan import Why
from .origin import origin
from .record import Exported, Subject, json_bytes, loader
from .specs import parameters

FORMAT = "meshwright-torch"
COLUMNS, ROWS = "colwise", "rowwise"


def torch_plan(subject: Subject) -> Exported:
    """JSON at the path, and a loader for PyTorch beside it."""
    why = subject.why
    notes: list[str] = []
    held = parameters(why)
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "mesh": [[axis, size] for axis, size in why.file.mesh],
        "parameters": {
            path: {
                "shape": list(why.graph.inputs[n].type.shape),
                "dtype": why.graph.inputs[n].type.dtype,
                "placements": _placements(why, path, state, notes),
            }
            for path, (n, state) in held.items()
        },
        "arguments": {
            item.name: {
                "shape": list(item.type.shape), "dtype": item.type.dtype,
                "placements": _placements(why, item.name, state, notes),
            }
            for item, state in zip(why.graph.inputs, why.decisions.inputs, strict=True)
            if item.role not in ("constant", "parameter")
        },
        "styles": _styles(why),
    }  # fmt: skip
    notes.append(
        "placements of activations are DTensor's own choice between the arguments and results; "
        "the plan's collectives are not forced"
    )
    if why.file.microbatches > 1:
        notes.append(f"accumulate gradients over {why.file.microbatches} micro-batches yourself")
    data["not_expressed"] = notes
    source = loader("torch_plan.py").encode()
    return Exported(json_bytes(data), ((".py", source),), tuple(notes))


def _placements(why: Why, name: str, state: Sharding, notes: list[str]) -> list[int | None]:
    """For each mesh axis the dimension that it splits, or None."""
    order = list(why.decisions.mesh.names)
    found: dict[str, int] = {}
    for d, axes in enumerate(state.dims):
        if [order.index(a) for a in axes] != sorted(order.index(a) for a in axes):
            notes.append(f"dimension {d} of {name} is split {'*'.join(axes)}, against the order of "
                         "the mesh; it is kept whole")  # fmt: skip
            continue
        found.update(dict.fromkeys(axes, d))
    return [found.get(axis) for axis in order]


def _styles(why: Why) -> dict[str, dict[str, str]]:
    """Parameter path -> mesh axis -> colwise or rowwise, by what the first product does with it.

    A product that splits a dimension of the parameter which is in its result is colwise; one that
    splits a dimension which is summed over is rowwise.
    """
    of = {why.flat.inputs[n]: path for path, (n, _) in parameters(why).items()}
    found: dict[str, dict[str, str]] = {}
    for i in sorted(why.built.op_node):
        op = why.flat.ops[i]
        if op.node.op != "dot_general":
            continue
        spec, node = why.builder.spec(op), why.built.op_node[i]
        roles = why.built.refs[node].menu[why.choice[node]].roles
        results = {f for dims in spec.results for dim in dims for f in dim}
        for v, dims in zip(op.inputs, spec.operands, strict=True):
            path = None if isinstance(v, Literal) else of.get(origin(why, v))
            if path is None or path in found:
                continue
            mine = {f for dim in dims for f in dim}
            other = {f for ds in spec.operands for dim in ds for f in dim if ds is not dims}
            found[path] = {
                axis: ROWS if role not in results else COLUMNS
                for axis, role in zip(why.decisions.mesh.names, roles, strict=True)
                if role in mine and (role not in other or role not in results)
            }
    return {path: styles for path, styles in found.items() if styles}

"""`torch`: a DeviceMesh, DTensor placements of every argument, and a plan for parallelize_module.

DTensor shards a dimension over mesh dimensions from the outermost in; a dimension that the plan
splits the other way round has no placement, and is said to be kept whole.
"""

from __future__ import annotations

from typing import Any

from ir import Literal, Sharding

from ..analysed_plan import AnalysedPlan
from .origin import origin
from .record import Exported, Subject, json_bytes, loader
from .specs import parameters

FORMAT = "meshwright-torch"
COLUMNS, ROWS = "colwise", "rowwise"


def torch_plan(subject: Subject) -> Exported:
    """JSON at the path, and a loader for PyTorch beside it."""
    analysed = subject.analysed
    notes: list[str] = []
    held = parameters(analysed)
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "mesh": [[axis, size] for axis, size in analysed.program.mesh],
        "parameters": {
            path: {
                "shape": list(analysed.graph.inputs[n].type.shape),
                "dtype": analysed.graph.inputs[n].type.dtype,
                "placements": _placements(analysed, path, state, notes),
            }
            for path, (n, state) in held.items()
        },
        "arguments": {
            item.name: {
                "shape": list(item.type.shape), "dtype": item.type.dtype,
                "placements": _placements(analysed, item.name, state, notes),
            }
            for item, state in zip(analysed.graph.inputs, analysed.decisions.inputs, strict=True)
            if item.role not in ("constant", "parameter")
        },
        "styles": _styles(analysed),
    }  # fmt: skip
    notes.append(
        "placements of activations are DTensor's own choice between the arguments and results; "
        "the plan's collectives are not forced"
    )
    if analysed.program.microbatches > 1:
        notes.append(
            f"accumulate gradients over {analysed.program.microbatches} micro-batches yourself"
        )
    data["not_expressed"] = notes
    source = loader("torch_plan.py").encode()
    return Exported(json_bytes(data), ((".py", source),), tuple(notes))


def _placements(
    analysed: AnalysedPlan, name: str, state: Sharding, notes: list[str]
) -> list[int | None]:
    """For each mesh axis the dimension that it splits, or None."""
    order = list(analysed.decisions.mesh.names)
    found: dict[str, int] = {}
    for d, axes in enumerate(state.dims):
        if [order.index(a) for a in axes] != sorted(order.index(a) for a in axes):
            notes.append(f"dimension {d} of {name} is split {'*'.join(axes)}, against the order of "
                         "the mesh; it is kept whole")  # fmt: skip
            continue
        found.update(dict.fromkeys(axes, d))
    return [found.get(axis) for axis in order]


def _styles(analysed: AnalysedPlan) -> dict[str, dict[str, str]]:
    """Parameter path -> mesh axis -> colwise or rowwise, by the weight's first product.

    A product that splits a dimension of the parameter which is in its result is colwise; one that
    splits a dimension which is summed over is rowwise.
    """
    of = {analysed.flat.inputs[n]: path for path, (n, _) in parameters(analysed).items()}
    found: dict[str, dict[str, str]] = {}
    for i in sorted(analysed.built.op_node):
        op = analysed.flat.ops[i]
        if op.node.op != "dot_general":
            continue
        spec, node = analysed.builder.spec(op), analysed.built.op_node[i]
        roles = analysed.built.refs[node].menu[analysed.choice[node]].roles
        results = {f for dims in spec.results for dim in dims for f in dim}
        for v, dims in zip(op.inputs, spec.operands, strict=True):
            path = None if isinstance(v, Literal) else of.get(origin(analysed, v))
            if path is None or path in found:
                continue
            mine = {f for dim in dims for f in dim}
            other = {f for ds in spec.operands for dim in ds for f in dim if ds is not dims}
            found[path] = {
                axis: ROWS if role not in results else COLUMNS
                for axis, role in zip(analysed.decisions.mesh.names, roles, strict=True)
                if role in mine and (role not in other or role not in results)
            }
    return {path: styles for path, styles in found.items() if styles}

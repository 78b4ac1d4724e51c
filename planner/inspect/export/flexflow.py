"""`flexflow`: a strategy file as FlexFlow's `load_strategies_from_file` reads it.

The number of operations; then for each its name, device type (0 for GPU), number of dimensions,
parts of each dimension of its output (innermost first), number of devices, and their ids, the
innermost dimension fastest.

Source: FlexFlow, src/runtime/strategy.cc (Apache-2.0).
"""

from __future__ import annotations

import itertools
import re

from ir import Sharding

from ..analysed_plan import AnalysedPlan
from ..report import is_heavy
from .record import Exported, Subject

GPU = 0
MOST_DIMS = 4  # a build has MAX_TENSOR_DIM of them, 4 unless configured otherwise


def flexflow(subject: Subject) -> Exported:
    """One configuration for each heavy operation, named by its op and place."""
    analysed = subject.analysed
    rows: list[str] = []
    partial, deep = 0, 0
    for i in sorted(analysed.built.op_node):
        op = analysed.flat.ops[i]
        if not is_heavy(op):
            continue
        node = analysed.built.op_node[i]
        state = analysed.built.refs[node].menu[analysed.choice[node]].results[0]
        partial += bool(state.partial)
        deep += len(state.dims) > MOST_DIMS
        name = re.sub(r"\s+", "_", f"{op.node.op}@{'/'.join(map(str, op.place))}")
        rows += [name, str(GPU), *_config(state, analysed)]
    notes = [
        "names are those of the traced program: rename them to the layers of the FlexFlow model",
        "a configuration says how an operation's output is cut; weights, optimizer state and "
        "collectives are FlexFlow's own choice, and a whole output runs on one device there",
    ]
    if partial:
        notes.append(
            f"{partial} operations are split along a summed dimension, which has no place in a "
            "configuration: they appear with the split of their output only"
        )
    if deep:
        notes.append(f"{deep} outputs have more than {MOST_DIMS} dimensions; FlexFlow must be "
                     "built with a larger MAX_TENSOR_DIM")  # fmt: skip
    count = sum(1 for i in analysed.built.op_node if is_heavy(analysed.flat.ops[i]))
    return Exported(("\n".join([str(count), *rows]) + "\n").encode(), (), tuple(notes))


def _config(state: Sharding, analysed: AnalysedPlan) -> list[str]:
    """Parts of each dimension and the device of each part."""
    mesh = analysed.decisions.mesh
    parts = [mesh.product(axes) for axes in reversed(state.dims)] or [1]
    ids = [
        _device(state, tuple(reversed(point)), analysed)
        for point in itertools.product(*(range(n) for n in reversed(parts)))
    ]
    # product runs the last factor fastest, which is the innermost dimension
    return [
        str(len(parts)), "\t".join(map(str, parts)), str(len(ids)), "\t".join(map(str, ids)),
    ]  # fmt: skip


def _device(state: Sharding, part: tuple[int, ...], analysed: AnalysedPlan) -> int:
    """The first device that holds a part, innermost dimension first; others hold copies."""
    mesh = analysed.decisions.mesh
    place = dict.fromkeys(mesh.names, 0)
    for axes, index in zip(reversed(state.dims), part, strict=False):
        for axis in reversed(axes):
            index, place[axis] = divmod(index, mesh.size(axis))
    device = 0
    for axis, size in mesh.axes:
        device = device * size + place[axis]
    return device

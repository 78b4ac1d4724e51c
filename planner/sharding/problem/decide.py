"""A choice of the solver back to decisions about the program."""

from __future__ import annotations

from ir import Literal, Mesh, Sharding
from ir.analysis import Decisions, FlatProgram, Place, ValueKey

from .records import Built
from .states import state_at


def decide(built: Built, flat: FlatProgram, choice: tuple[int, ...], mesh: Mesh) -> Decisions:
    """Decisions that a choice stands for."""
    ops: dict[Place, tuple[str, ...]] = {}
    for i, node in built.op_node.items():
        ops[flat.ops[i].place] = built.refs[node].menu[choice[node]].roles

    def state(v: int) -> Sharding | None:
        end = built.outline.ends[v]
        return None if end is None else state_at(built, choice, end)

    values: dict[ValueKey, Sharding] = {}
    for key, v in flat.names.items():
        found = state(v)
        if found is not None:
            values[key] = found
    inputs = tuple(state(v) for v in flat.inputs)
    outputs: list[Sharding] = []
    for position, v in enumerate(flat.outputs):
        if isinstance(v, Literal):
            outputs.append(Sharding(()))
        else:
            node = built.out_node[position]
            outputs.append(built.refs[node].states[choice[node]])
    return Decisions(mesh, ops, values, tuple(s for s in inputs if s is not None), tuple(outputs))

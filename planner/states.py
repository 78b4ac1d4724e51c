"""In which state a value is kept under a choice."""

from __future__ import annotations

from ir import Sharding

from .intra.build import Builder
from .intra.records import Built


def state_of(builder: Builder, built: Built, choice: tuple[int, ...], v: int) -> Sharding:
    """The state in which a value is made; the builder may have built other problems since."""
    if v in builder.flat.stacked:
        return port_state(built, choice, builder.flat.stacked[v], 1)
    if v in built.value_node:
        node = built.value_node[v]
        return built.refs[node].states[choice[node]]
    i, position = built.maker[v]
    node = built.op_node[i]
    return built.refs[node].menu[choice[node]].results[position]


def port_state(built: Built, choice: tuple[int, ...], v: int, lift: int) -> Sharding:
    """The state of a port; lifted, that of the stack whose slices it holds."""
    node = built.value_node[v]
    state = built.refs[node].states[choice[node]]
    return Sharding(((), *state.dims), state.partial) if lift else state

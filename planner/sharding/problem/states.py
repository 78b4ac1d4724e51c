"""The state of a value under a choice."""

from __future__ import annotations

from collections.abc import Sequence

from ir import Sharding

from .records import Built
from .skeleton import End


def state_at(built: Built, choice: Sequence[int], end: End) -> Sharding:
    """The state in which a node provides a value."""
    ref, option = built.refs[end.node], choice[end.node]
    if end.how == "operand":
        return ref.menu[option].operands[end.position]
    if end.how == "result":
        return ref.menu[option].results[end.position]
    state = ref.states[option]
    return state.stacked() if end.how == "lifted" else state

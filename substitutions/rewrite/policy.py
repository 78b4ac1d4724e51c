"""For which element types a rule may be applied.

The worth of a rule decides. One that rounds nothing that the program does not round fits every
type: it moves elements, applies the same functions to them, or computes the same sums. Others are
applied to floats of at least 32 bits, since shorter ones would be rounded at other places than the
user wrote, and to whole numbers of one type where they are exact, as sums and products that wrap
around are. The type in which products are accumulated (`preferred_element_type`) never changes.
"""

from __future__ import annotations

from ir import TensorType, dtype_bytes, dtype_kind

from ..catalogue import worth_of_row
from ..program.net import Net
from ..worth import EXACT, Worth
from .match import Match

_NUMBERS = ("bool", "complex", "float", "int")


def may_begin(rule: str, type_: TensorType) -> bool:
    """Whether a rule may be applied where its first output has this type."""
    return _allowed(worth_of_row(rule), {type_.dtype})


def may_apply(net: Net, match: Match) -> bool:
    """Whether the element types at this place are among those of the rule."""
    types = {net.type_of(view.source).dtype for view in match.views.values()}
    types |= {type_.dtype for _, item in match.items for type_ in item.node.outputs}
    return _allowed(worth_of_row(match.pattern.name), types)


def _allowed(worth: Worth, dtypes: set[str]) -> bool:
    kinds = {dtype_kind(dtype) for dtype in dtypes}
    if worth.keeps:
        return kinds <= {*_NUMBERS}
    if kinds == {"int"}:
        return len(dtypes) == 1 and worth.integers == EXACT
    return kinds == {"float"} and all(dtype_bytes(dtype) >= 4 for dtype in dtypes)

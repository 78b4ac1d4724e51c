"""For which element types a rule may be applied.

A rule that only moves elements, or applies one function to each, or runs the same sums, is exact
for every type. A rule that reorders sums, factors or roundings is proved over a field: it is
applied to floats of at least 32 bits, whose results then differ by rounding. Shorter floats would
be rounded at other places than the user wrote, so that only rules that round less often are
applied to them. Types that are added up in (`preferred_element_type`) stay as they are everywhere.
"""

from __future__ import annotations

from ir import TensorType, dtype_bytes, dtype_kind

from .match import Match
from .net import Net

# Rules whose result is the same bit for bit, but for the order in which a product adds up.
MOVES = frozenset({
    "merge-projections", "merge-three-projections", "merge-gate-and-up", "split-projection",
    "merge-batch-projections", "merge-rows", "transpose-product", "product-of-transposes",
    "merge-convolutions", "cast-before-transpose", "cast-after-transpose", "cast-parts",
    "cast-whole", "cast-rows", "cast-less-rows", "cast-before-expand", "transpose-twice",
    "transpose-after-add", "transpose-after-mul", "transpose-after-relu", "transpose-after-exp",
    "transpose-after-scale", "sum-of-transpose", "max-of-transpose", "concat-of-transposes",
    "relu-whole", "add-whole", "concat-geometry", "split-of-concat", "merge-lookups",
    "lookup-after-product", "lookup-before-product", "lookup-after-relu", "lookup-of-columns",
    "merge-tables",
})  # fmt: skip
# Rules that add up in one product what was rounded before it was added.
ROUNDS_LESS = frozenset({"merge-batch-k", "merge-convolution-inputs", "merge-k"})


def may_begin(rule: str, type_: TensorType) -> bool:
    """Whether a rule may be applied where its first output has this type."""
    return rule in MOVES or _allowed(rule, type_)


def may_apply(net: Net, match: Match) -> bool:
    """Whether the element types at this place are among those of the rule."""
    if match.pattern.name in MOVES:
        return True
    return all(_allowed(match.pattern.name, net.type_of(v.source)) for v in match.views.values())


def _allowed(name: str, type_: TensorType) -> bool:
    if dtype_kind(type_.dtype) != "float":
        return False
    return dtype_bytes(type_.dtype) >= 4 or name in ROUNDS_LESS

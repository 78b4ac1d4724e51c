"""All ops by name."""

from __future__ import annotations

from collections.abc import Mapping

from .constants import CONSTANT
from .convolutions import CONVOLUTIONS
from .elementwise import ELEMENTWISE
from .lookups import LOOKUPS
from .parallel import PARALLEL
from .products import PRODUCTS
from .record import RuleOp
from .reductions import REDUCTIONS
from .shapes import SHAPES
from .windows import WINDOWS

_FAMILIES = (
    ELEMENTWISE, PRODUCTS, CONVOLUTIONS, WINDOWS, SHAPES, REDUCTIONS, LOOKUPS, PARALLEL, CONSTANT,
)  # fmt: skip
OPS: Mapping[str, RuleOp] = {op.name: op for family in _FAMILIES for op in family}
CONSTANTS = frozenset(name for name, op in OPS.items() if op.fill is not None)

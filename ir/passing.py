"""Which partial sums may pass an op: those of which it makes, term by term, terms of its result.

An op that is linear over the reals is not so in floats. A term may be larger than the sum, of the
other sign, or rounded on its own, so that for terms a + b = s

    cast(a) + cast(b) = cast(s)    only if the new type has all numbers of the old one
    a * c + b * c = s * c          only if c is neither infinite nor NaN, and a * c no larger than
                                   numbers go: inf * c - inf * c is NaN

but for the rounding that every sum in another order has. Whole numbers wrap, so that any product
is exact. A sum may overflow in one order and not in another; this is accepted.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from .graph import Literal, Node
from .opdef import Types
from .ops.numeric import numpy_dtype
from .table import lookup
from .types import TensorType, dtype_kind

Groups = tuple[tuple[int, ...], ...]

_FLOATS: Any = ml_dtypes  # its type stubs are incomplete
# The divisor or the other factor of these is applied to every term.
_SCALED = ("div", "mul")
_FACTORS = (2.0**-32, 2.0**32)  # that keep terms within the exponents of float32
_LEAST_EXPONENT = 100
# Products with values that may be infinite, and solutions, which divide.
_NEVER = ("contraction", "convolution")
_DIVIDING = ("triangular_solve",)


def passing_groups(node: Node, operands: Types) -> Groups:
    """The groups of `OpDef.linear`; empty where partial sums must not pass.

    Args:
        node: the op; its operands are read from `operands`, except for literals.
        operands: their types.
    """
    record = lookup(node.op)
    if record.linear is None:
        return ()
    groups = record.linear(operands, node.outputs, dict(node.attrs))
    if record.family in _NEVER or node.op in _DIVIDING:
        return ((),) * len(groups)
    return tuple(group if _is_exact(node, operands, group) else () for group in groups)


def factor_marks(node: Node) -> tuple[bool, ...]:
    """For each operand, whether it is a harmless factor of terms; types do not imply it."""
    return tuple(map(_is_harmless, node.inputs)) if node.op in _SCALED else ()


def _is_exact(node: Node, operands: Types, group: tuple[int, ...]) -> bool:
    types = [operands[i] for i in group]
    if all(dtype_kind(type_.dtype) == "int" for type_ in (*types, *node.outputs)):
        return True
    if not all(_holds(out, type_) for out in node.outputs for type_ in types):
        return False
    if node.op not in _SCALED:
        return True
    others = [node.inputs[i] for i in range(len(operands)) if i not in group]
    wide = all(_limits(type_).maxexp >= _LEAST_EXPONENT for type_ in node.outputs)
    return wide and all(map(_is_harmless, others))


def _is_harmless(operand: int | Literal) -> bool:
    """Whether an operand is a number that is neither zero, infinite, NaN, nor extreme."""
    if not isinstance(operand, Literal):
        return False
    size = abs(operand.value)
    return math.isfinite(size) and _FACTORS[0] <= size <= _FACTORS[1]


def _holds(wide: TensorType, narrow: TensorType) -> bool:
    """Whether a type has all numbers of another; of complex ones, of their parts."""
    if wide.dtype == narrow.dtype:
        return True
    a, b = _limits(wide), _limits(narrow)
    return a.nmant >= b.nmant and a.maxexp >= b.maxexp and a.minexp <= b.minexp


def _limits(type_: TensorType) -> Any:
    """Digits and exponents of floats, and of the parts of complex numbers."""
    values: Any = np.empty(0, numpy_dtype(type_.dtype))
    return _FLOATS.finfo(values.real.dtype)

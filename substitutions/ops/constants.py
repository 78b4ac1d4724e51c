"""Arrays that rules write themselves, of the sizes that suit the rest of the rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph import Op, Ref
from ..numeric.arrays import Array, Numbers
from ..symbolic.expr import ONE, Expr, symbol
from ..symbolic.meaning import Indices, Meaning
from ..symbolic.solve import FREE
from ..symbolic.types import Dim, Type, Typing
from ..symbolic.values import Factor, Value, constant, times
from .record import RuleOp


def _ones_type(typing: Typing, op: Op, args: Sequence[Type], where: str) -> tuple[Type, ...]:
    sizes = (symbol(f"{FREE}{where}.{i}") for i in range(max(typing.ranks.values(), default=0)))
    return (Type(ONE, tuple(map(Dim, sizes))),)


def _ones(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    return constant(ONE)


def _fill_ones(op: Op, shape: tuple[int, ...], numbers: Numbers) -> Array:
    return numbers.array(np.ones(shape))


def _identity_type(typing: Typing, op: Op, args: Sequence[Type], where: str) -> tuple[Type, ...]:
    size = symbol(f"{FREE}{where}.n")
    return (Type(ONE, (Dim(size), Dim(size))),)


def _identity(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    return times(constant(ONE), (Factor("eq", (index[0].at, index[1].at)),))


def _fill_identity(op: Op, shape: tuple[int, ...], numbers: Numbers) -> Array:
    return numbers.array(np.eye(shape[0], shape[1]))


CONSTANT = (
    RuleOp(name="ones", operands=(0, 0), type=_ones_type, value=_ones, fill=_fill_ones),
    RuleOp(
        name="identity-matrix", operands=(0, 0), type=_identity_type, value=_identity,
        fill=_fill_identity,
    ),
)  # fmt: skip

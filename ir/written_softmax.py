# pyright: basic
"""The softmax of attention that a program writes out, from its weights back to its scores.

    p = exp(z - m) / l   before the second product, or   o = (exp(z - m) v) / l   after it

where l is the sum of the exponentials over keys and m does not vary along them. A quotient may be a
product with the reciprocal of the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from .compact_values import unit_reshape
from .jax_internals import Literal
from .written_scores import SHORT, Dims, NoMatchError, seen_through

_MOVED = ("transpose", "reshape", "squeeze", "broadcast_in_dim", "copy")
_CALLED = ("mul", "div", "select_n", "convert_element_type", "transpose", "reshape")


@dataclass(frozen=True)
class Softmax:
    """A softmax.

    scores: what the exponentials are of, but for what does not vary along keys.
    dims: letters of the scores.
    axis: the dimension of keys of the scores.
    inner: the values between the scores and the weights.
    changed: the op that changes the weights after it; empty if none does.
    """

    scores: Any
    dims: Dims
    axis: int
    inner: tuple[Any, ...]
    changed: str


@dataclass(frozen=True)
class Quotient:
    """A quotient after the second product.

    product: the equation of the product.
    reduced: the equation of the sum that divides it.
    at: the dimension of the quotient that each one of the product is.
    of_sum: the dimension of the quotient along which each one of the sum lies; None where it has
        one element.
    inner: the values between product, sum and quotient.
    roundings: of these to 16 bits.
    """

    product: Any
    reduced: Any
    at: Dims
    of_sum: tuple[int | None, ...]
    inner: tuple[Any, ...]
    roundings: int


@final
class SoftmaxReader:
    """Finds softmaxes in one body.

    Args:
        made: the equation of each value.
    """

    def __init__(self, made: Mapping[Any, Any]) -> None:
        self._made = made

    def _maker(self, var: Any) -> Any:
        return None if isinstance(var, Literal) else self._made.get(var)

    # --- before the second product ---------------------------------------------------------

    def read(self, var: Any, dims: Dims, total: Any = None) -> Softmax:
        """The softmax that makes some weights.

        Args:
            var: the weights.
            dims: their letters.
            total: the equation of the sum by which the second product is divided; None where the
                weights are divided.

        Raises:
            NoMatchError: if there is none.
        """
        inner, changed = [], ""
        while True:
            eqn = self._maker(var)
            if eqn is None:
                raise NoMatchError
            inner.append(var)
            name = eqn.primitive.name
            step = seen_through(eqn, dims)
            if step is not None:
                var, dims = step
            elif self._ends(eqn, total):
                break
            elif name in ("mul", "select_n", "div") and len(inner) < 12:
                wide = [v for v in eqn.invars if self._leads_to_softmax(v, 6, total)]
                if len(wide) != 1:
                    raise NoMatchError
                changed, var = changed or f"'{name}'", wide[0]
            else:
                raise NoMatchError
        exponent, reduced, total_inner = var, total, ()
        if total is None:
            exponent, reduced, total_inner = self._normalised(eqn)
        (axis,) = reduced.params["axes"]
        summed = self._same(reduced.invars[0])
        weights = self._same(exponent)
        exp = self._maker(weights)
        if summed is not weights or exp is None or exp.primitive.name != "exp":
            raise NoMatchError
        inner += [exponent, weights, reduced.outvars[0], *total_inner]
        x = exp.invars[0]
        shift = self._maker(x)
        if shift is not None and shift.primitive.name == "sub" and self._is_level(shift, axis):
            inner.append(x)
            x = shift.invars[0]
        return Softmax(x, dims, int(axis), tuple(inner), changed)

    def _ends(self, eqn: Any, total: Any) -> bool:
        """Whether an equation makes the weights that a softmax has."""
        if total is None:
            return self._normalised(eqn) is not None
        return eqn.primitive.name == "exp"

    def _leads_to_softmax(self, var: Any, depth: int, total: Any) -> bool:
        eqn = self._maker(var)
        if eqn is None or depth == 0:
            return False
        if self._ends(eqn, total):
            return True
        return eqn.primitive.name in _CALLED and any(
            self._leads_to_softmax(v, depth - 1, total) for v in eqn.invars
        )

    def _normalised(self, eqn: Any) -> Any:
        """The exponentials of a quotient, the equation of their sum, and values between the two.

        None if it is no quotient of exponentials and their sum along one axis.
        """
        for over, under, inverse in quotients(eqn):
            exp = self._maker(self._same(over))
            found = self._reduced(under, inverse)
            if exp is None or exp.primitive.name != "exp" or found is None:
                continue
            reduced, inner = found
            if reduced.primitive.name == "reduce_sum" and len(reduced.params["axes"]) == 1:
                return over, reduced, inner
        return None

    def _reduced(self, var: Any, inverse: bool) -> tuple[Any, tuple[Any, ...]] | None:
        """The reduction behind a value, or behind its reciprocal, and the values between.

        The value is broadcast along the reduced axis again.
        """
        inner: list[Any] = []
        for _ in range(9):
            eqn = self._maker(var)
            if eqn is None:
                return None
            name = eqn.primitive.name
            inner.append(var)
            if name in ("reduce_sum", "reduce_max"):
                return None if inverse else (eqn, tuple(inner))
            if name in ("broadcast_in_dim", "reshape", "stop_gradient", "convert_element_type"):
                var = eqn.invars[0]
            elif inverse and (below := inverted(eqn)) is not None:
                var, inverse = below, False
            elif name == "max" and isinstance(eqn.invars[0], Literal):
                if not np.isneginf(np.float64(eqn.invars[0].val)):
                    return None
                var = eqn.invars[1]
            else:
                return None
        return None

    def _is_level(self, shift: Any, axis: int) -> bool:
        """Whether what a difference takes away does not vary along an axis, as a maximum of it."""
        taken = shift.invars[1]
        if isinstance(taken, Literal):
            return False
        if taken.aval.shape[axis : axis + 1] == (1,):
            return True
        found = self._reduced(taken, inverse=False)
        if found is None or found[0].primitive.name != "reduce_max":
            return False
        (reduced, _) = found
        same = self._same(reduced.invars[0]) is self._same(shift.invars[0])
        return same and tuple(reduced.params["axes"]) == (axis,)

    def _same(self, var: Any) -> Any:
        """A value before conversions."""
        while (eqn := self._maker(var)) and eqn.primitive.name in ("convert_element_type", "copy"):
            var = eqn.invars[0]
        return var

    # --- after the second product ----------------------------------------------------------

    def quotient(self, eqn: Any) -> Quotient:
        """A product that is divided by a sum.

        Raises:
            NoMatchError: if an equation is none.
        """
        for over, under, inverse in quotients(eqn):
            product = self._moved(over, tuple(range(len(over.aval.shape))))
            total = self._total(under, inverse)
            if product is None or total is None or over.aval.shape != eqn.outvars[0].aval.shape:
                continue
            inner = (*product[2], *total[2])
            rounded = (v for v in inner if self._maker(v).primitive.name not in _MOVED)
            roundings = sum(v.aval.dtype.name in SHORT for v in rounded)
            return Quotient(product[0], total[0], product[1], total[1], inner, roundings)
        raise NoMatchError

    def _moved(self, var: Any, at: Dims) -> tuple[Any, Dims, list[Any]] | None:
        """The product behind a value, where its dimensions are in the value, and values between."""
        inner = []
        while (eqn := self._maker(var)) is not None:
            inner.append(var)
            step = seen_through(eqn, at)
            if step is not None:
                var, at = step
            else:
                return (eqn, at, inner) if eqn.primitive.name == "dot_general" else None
        return None

    def _total(
        self, var: Any, inverse: bool
    ) -> tuple[Any, tuple[int | None, ...], list[Any]] | None:
        """The sum behind a value, where its dimensions are in the value, and values between."""
        at: list[int | None] = list(range(len(var.aval.shape)))
        inner = []
        while (eqn := self._maker(var)) is not None and eqn.invars:
            inner.append(var)
            name, before = eqn.primitive.name, eqn.invars[0]
            if name == "reduce_sum" and len(eqn.params["axes"]) == 1:
                return None if inverse else (eqn, tuple(at), inner)
            if name in ("convert_element_type", "copy"):
                var = before
            elif name == "transpose":
                moved: list[int | None] = [None] * len(at)
                for after, d in enumerate(eqn.params["permutation"]):
                    moved[d] = at[after]
                at, var = moved, before
            elif name == "broadcast_in_dim":
                at = [at[d] for d in eqn.params["broadcast_dimensions"]]
                at = [d if n != 1 else None for d, n in zip(at, before.aval.shape, strict=True)]
                var = before
            elif name == "reshape" and (kept := unit_reshape(eqn)) is not None:
                where = {old: at[new] for old, new in kept}
                at, var = [where.get(d) for d in range(len(before.aval.shape))], before
            elif name == "squeeze":
                gone = {d % len(before.aval.shape) for d in eqn.params["dimensions"]}
                rest = iter(at)
                at = [None if d in gone else next(rest) for d in range(len(before.aval.shape))]
                var = before
            elif inverse and (below := inverted(eqn)) is not None:
                var, inverse = below, False
            else:
                return None
        return None


def quotients(eqn: Any) -> list[tuple[Any, Any, bool]]:
    """How an equation may be read as a quotient: dividend, divisor, whether it is a reciprocal."""
    if eqn.primitive.name not in ("div", "mul") or any(isinstance(v, Literal) for v in eqn.invars):
        return []
    a, b = eqn.invars
    return [(a, b, False)] if eqn.primitive.name == "div" else [(a, b, True), (b, a, True)]


def inverted(eqn: Any) -> Any:
    """The value of which an equation computes the reciprocal; None if it does not."""
    if eqn.primitive.name == "integer_pow" and eqn.params["y"] == -1:
        return eqn.invars[0]
    if eqn.primitive.name == "div" and isinstance(eqn.invars[0], Literal):
        return eqn.invars[1] if np.all(np.asarray(eqn.invars[0].val) == 1) else None
    return None

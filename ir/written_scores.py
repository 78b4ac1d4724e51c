# pyright: basic
"""Scores of attention that a program writes out, from the softmax back to their product.

    z = c q k^T + bias, and very negative where a mask hides a key

Each dimension has a letter, which stays with it through transposes and conversions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .compact_values import Constants
from .jax_internals import Literal

# What a mask fills in is at most that: its exponential is 0 in float32.
HIDDEN = -1e4
# What a mask adds is at most that: scores to 32 are below half of a unit in its last place, so that
# keys of a query that sees none have equal weights.
ABSORBING = -1e9
SHORT = ("bfloat16", "float16")
# What a mask fills in beside a constant bias is at most the first, against biases to 1e7; what one
# that may hide all keys of a query adds, at most the second: it absorbs biases to 1e11.
BESIDE, BIASED = -1e8, -1e20
_DEEPEST = 12  # ops between the softmax and the product
_MASKED = ("queries", "keys")  # what a constant mask varies along

Dims = tuple[int, ...]  # a letter for each dimension of a value
Made = Mapping[Any, Any]  # the equation of each value


class DiffersError(Exception):
    """A softmax between two products is not attention as the kernel computes it; says why."""


class NoMatchError(Exception):
    """There is no softmax between two products."""


@dataclass(frozen=True)
class Mask:
    """Where scores count: where `value` is true, or false if `hides`; `dims`: its letters."""

    value: Any
    hides: bool
    dims: Dims

    @property
    def shape(self) -> tuple[int, ...]:
        constant = isinstance(self.value, np.ndarray)
        return self.value.shape if constant else self.value.aval.shape


@dataclass(frozen=True)
class Bias:
    """A value that is added to scores.

    dims: its letters.
    factor: by which it is multiplied.
    fixed: whether it depends on no argument.
    """

    value: Any
    dims: Dims
    factor: float
    fixed: bool

    @property
    def exact(self) -> bool:
        """Whether the kernel takes it as the program has it."""
        return self.value.aval.dtype.name in SHORT and self.factor == 1.0


@dataclass
class Scores:
    """What is between the first product and the softmax.

    product: the equation of the product.
    dims: letters of its result.
    roundings: of scores to 16 bits.
    fills: how each mask hides scores, and by which number.
    """

    product: Any = None
    dims: Dims = ()
    scale: float = 1.0
    masks: list[Mask] = field(default_factory=list)
    biases: list[Bias] = field(default_factory=list)
    roundings: int = 0
    fills: list[tuple[str, float]] = field(default_factory=list)


def read_scores(made: Made, constants: Constants, var: Any, dims: Dims) -> Scores:
    """Reads scores from the input of a softmax.

    Args:
        made: the equation of each value of the body.
        constants: its constants.
        var: the input of the softmax.
        dims: its letters.

    Raises:
        NoMatchError: if there is no product behind it.
        DiffersError: if something is done to its result that the kernel does not do.
    """
    reader = _Reader(made, constants)
    reader.read(var, dims)
    found = reader.found
    known = all(isinstance(mask.value, np.ndarray) for mask in found.masks)
    if not known and len(found.fills) > 1:
        alike = {number for _, number in found.fills}
        if len(alike) > 1 or any(how == "add" for how, _ in found.fills):
            raise DiffersError("a query that sees no key is hidden by several masks")
    return found


def seen_through(eqn: Any, dims: Dims) -> tuple[Any, Dims] | None:
    """The operand of an op that only moves or converts elements, with its letters."""
    name = eqn.primitive.name
    if name in ("convert_element_type", "copy"):
        return eqn.invars[0], dims
    if name == "transpose":
        before = [0] * len(dims)
        for after, d in enumerate(eqn.params["permutation"]):
            before[d] = dims[after]
        return eqn.invars[0], tuple(before)
    return None


def short(made: Made, var: Any) -> Any:
    """A value of 16 bits before its conversion to a longer type."""
    eqn = None if isinstance(var, Literal) else made.get(var)
    if eqn is not None and eqn.primitive.name == "convert_element_type":
        before = eqn.invars[0]
        if not isinstance(before, Literal) and before.aval.dtype.name in SHORT:
            return before
    return var


class _Reader:
    def __init__(self, made: Made, constants: Constants) -> None:
        self._made, self._constants, self.found = made, constants, Scores()

    def _maker(self, var: Any) -> Any:
        return None if isinstance(var, Literal) else self._made.get(var)

    def read(self, var: Any, dims: Dims) -> None:
        """Goes back to the product."""
        found, wide = self.found, var.aval.size
        while True:
            eqn = self._maker(var)
            if eqn is None or var.aval.size != wide:  # scores are broadcast
                raise NoMatchError
            name = eqn.primitive.name
            if eqn.outvars[0].aval.dtype.name in SHORT:
                found.roundings += 1
            step = seen_through(eqn, dims)
            if step is not None:
                var, dims = step
            elif name == "dot_general":
                found.product, found.dims = eqn, dims
                return
            elif name in ("mul", "div"):
                var = self._scaled(eqn)
            elif name in ("add", "sub"):
                var = self._added(eqn, dims)
            elif name == "select_n" and len(eqn.invars) == 3:
                var = self._selected(eqn, dims)
            elif name in ("tanh", "logistic") and self._reaches_product(eqn.invars[0]):
                raise DiffersError(f"its scores go through '{name}' (a soft cap)")
            else:
                raise NoMatchError

    def _scaled(self, eqn: Any) -> Any:
        """The scores before a product with a constant number, or a quotient."""
        x, other = self._towards_product(eqn.invars)
        divided = eqn.primitive.name == "div"
        if divided and x is not eqn.invars[0]:
            raise NoMatchError
        found = self._constants(other)
        if found is None or found.size != 1:
            raise DiffersError("its scale is no constant number")
        factor = float(found.astype(np.float64).reshape(()))
        if not np.isfinite(factor) or factor == 0:
            raise DiffersError("its scale is not a finite number")
        self.found.scale *= 1 / factor if divided else factor
        return x

    def _towards_product(self, operands: Any) -> tuple[Any, Any]:
        ways = [self._reaches_product(x) for x in operands]
        if sum(ways) != 1:
            raise NoMatchError
        return (operands[0], operands[1]) if ways[0] else (operands[1], operands[0])

    def _reaches_product(self, var: Any, depth: int = _DEEPEST) -> bool:
        """Whether a value is a product but for changes of each element."""
        eqn = self._maker(var)
        if eqn is None or depth == 0:
            return False
        if eqn.primitive.name == "dot_general":
            return True
        names = (
            "mul", "div", "add", "sub", "select_n", "tanh", "convert_element_type", "transpose",
        )  # fmt: skip
        return eqn.primitive.name in names and any(
            self._reaches_product(v, depth - 1) for v in eqn.invars
        )

    def _added(self, eqn: Any, dims: Dims) -> Any:
        """The scores before a mask of 0 and very negative numbers, or a bias, is added."""
        x, other = self._towards_product(eqn.invars)
        negated = eqn.primitive.name == "sub"
        if negated and x is not eqn.invars[0]:
            raise DiffersError("its scores are subtracted from another value")
        found, shape = self.found, self._constants.shape(other)
        if shape is not None and sum(n != 1 for n in shape) <= len(_MASKED):
            value = self._constants(other)
            assert value is not None
            numbers = (-value if negated else value).astype(np.float64) * found.scale
            if np.all((numbers == 0) | (numbers <= HIDDEN)):
                found.masks.append(Mask(numbers == 0, False, dims))
                found.fills.append(("add", float(numbers.min())))
                return x
            if all(n == 1 for n in shape):  # which changes no weight
                return x
        mask = None if negated or shape is not None else self._chosen_mask(other, dims)
        if mask is not None:
            found.masks += self._conjuncts(*mask)
            return x
        before = short(self._made, other)
        if before.aval.dtype.name not in (*SHORT, "float32"):
            raise DiffersError(f"what is added to its scores is {before.aval.dtype.name}")
        factor = -found.scale if negated else found.scale
        found.biases.append(Bias(before, dims, factor, fixed=shape is not None))
        return x

    def _chosen_mask(self, var: Any, dims: Dims) -> tuple[Any, bool, Dims] | None:
        """The mask of a value that is 0 where it counts, and very negative elsewhere."""
        eqn = self._maker(var)
        for _ in range(_DEEPEST):
            step = None if eqn is None else seen_through(eqn, dims)
            if step is not None:
                var, dims = step
            elif eqn is not None and eqn.primitive.name == "broadcast_in_dim":
                dims = tuple(dims[d] for d in eqn.params["broadcast_dimensions"])
                var = eqn.invars[0]
            else:
                break
            eqn = self._maker(var)
        if eqn is None or eqn.primitive.name != "select_n" or len(eqn.invars) != 3:
            return None
        which, *cases = eqn.invars
        found = [self._constants(x) for x in cases]
        for i, (kept, fill) in enumerate((found, found[::-1])):
            if kept is None or fill is None or kept.any() or fill.size != 1:
                continue
            number = float(fill.astype(np.float64).reshape(())) * self.found.scale
            if number <= ABSORBING or (var.aval.dtype == np.float16 and number <= HIDDEN):
                self.found.fills.append(("add", number))
                return which, i == 0, dims if which.aval.shape else ()
        return None

    def _selected(self, eqn: Any, dims: Dims) -> Any:
        """The scores of a choice between them and a very negative number, which is a mask."""
        which, *cases = eqn.invars
        for i, x in enumerate(cases):
            fill = self._constants(cases[1 - i])
            if fill is None or not self._reaches_product(x):
                continue
            number = fill.astype(np.float64)
            if not np.all(number <= HIDDEN) or number.min() != number.max():
                raise DiffersError(f"its mask fills in more than {HIDDEN:g}, or several numbers")
            self.found.masks += self._conjuncts(which, i == 0, dims if which.aval.shape else ())
            self.found.fills.append(("select", float(number.min()) * self.found.scale))
            return x
        if any(self._reaches_product(x) for x in cases):
            raise DiffersError("its mask fills in other values")
        raise NoMatchError

    def _conjuncts(self, var: Any, hides: bool, dims: Dims) -> Iterator[Mask]:
        """A mask as parts that all hold: constants apart from what depends on arguments."""
        found = self._constants(var)
        if found is not None:
            yield Mask(found.astype(bool, copy=False), hides, dims)
            return
        if var.aval.dtype != bool:
            raise DiffersError("its mask is a number")
        eqn = self._made.get(var)
        if eqn is not None and eqn.primitive.name == "not":
            yield from self._conjuncts(eqn.invars[0], not hides, dims)
        elif eqn is not None and eqn.primitive.name == ("or" if hides else "and"):
            for part in eqn.invars:
                yield from self._conjuncts(part, hides, dims if part.aval.shape else ())
        else:
            yield Mask(var, hides, dims)

# pyright: basic
"""Values of a jaxpr without the dimensions along which they do not vary.

A mask over [batch, heads, queries, keys] that depends on queries and keys alone is computed as an
array [1, 1, queries, keys]. What depends on no argument is computed at once, which tells a causal
mask from others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from .jax_internals import Literal, run_equation
from .table import lookup

Array = Any
Known = Callable[[], Array]  # the compact form of a constant

MOST_ELEMENTS = 1 << 28  # of a constant: a mask of 16,384 queries and keys


class NotConstantError(Exception):
    """The value depends on an argument, or is not computed while a program is read."""


def is_elementwise(eqn: Any) -> bool:
    """Whether an equation computes each element from the elements at the same place.

    Dimensions of one element, and numbers, count for all places.
    """
    if len(eqn.outvars) != 1 or eqn.effects or not eqn.invars:
        return False
    shape = eqn.outvars[0].aval.shape
    shapes = [getattr(var.aval, "shape", None) for var in eqn.invars]
    return lookup(eqn.primitive.name).family == "elementwise" and all(
        each == ()
        or (
            each is not None
            and len(each) == len(shape)
            and all(n in (1, size) for n, size in zip(each, shape, strict=True))
        )
        for each in shapes
    )


def producers(jaxpr: Any) -> dict[Any, Any]:
    """The equation of each value of a body."""
    return {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}


@final
class Compact:
    """Values of one body, each in its own shape with size 1 along what it does not vary along.

    leaf: value of what cannot be made compact; raises `NotConstantError` for what has no value.
    """

    def __init__(self, made: Mapping[Any, Any], leaf: Callable[[Any], Array]) -> None:
        self._made, self._leaf = made, leaf
        self._found: dict[Any, Array] = {}

    def __call__(self, var: Any) -> Array:
        """The compact value.

        Raises:
            NotConstantError: if a leaf has no value.
        """
        if isinstance(var, Literal):
            aval: Any = var.aval
            return jnp.asarray(var.val, aval.dtype)
        if var not in self._found:
            self._found[var] = self._value(var)
        return self._found[var]

    def _value(self, var: Any) -> Array:
        eqn = self._made.get(var)
        if eqn is None:
            return self._leaf(var)
        params, name = eqn.params, eqn.primitive.name
        if name == "iota":
            return self._iota(eqn)
        if name == "broadcast_in_dim":
            return self._broadcast(eqn)
        if name == "transpose":
            return jnp.transpose(self(eqn.invars[0]), params["permutation"])
        if name == "squeeze":
            return jnp.squeeze(self(eqn.invars[0]), params["dimensions"])
        if name == "slice":
            return self._sliced(eqn)
        if name in ("reshape", "expand_dims"):
            return self._reshaped(var, eqn)
        if name in ("stop_gradient", "copy"):
            return self(eqn.invars[0])
        if is_elementwise(eqn):
            return self._each(eqn)
        return self._leaf(var)

    @staticmethod
    def _iota(eqn: Any) -> Array:
        params = eqn.params
        shape, axis = params["shape"], params["dimension"]
        row = jnp.arange(shape[axis], dtype=params["dtype"])
        return row.reshape([n if d == axis else 1 for d, n in enumerate(shape)])

    def _broadcast(self, eqn: Any) -> Array:
        value, params = self(eqn.invars[0]), eqn.params
        shape = [1] * len(params["shape"])
        for size, d in zip(value.shape, params["broadcast_dimensions"], strict=True):
            shape[d] = size
        return value.reshape(shape)

    def _sliced(self, eqn: Any) -> Array:
        value, params = self(eqn.invars[0]), eqn.params
        starts, ends = params["start_indices"], params["limit_indices"]
        steps = params["strides"] or (1,) * value.ndim
        whole = eqn.invars[0].aval.shape
        parts = [
            slice(None) if n == 1 != size else slice(start, end, step)
            for n, size, start, end, step in zip(
                value.shape, whole, starts, ends, steps, strict=True
            )
        ]
        return value[tuple(parts)]

    def _reshaped(self, var: Any, eqn: Any) -> Array:
        """A reshape that adds and drops dimensions of one element; others end what is compact."""
        kept = unit_reshape(eqn)
        if kept is None:
            return self._leaf(var)
        value, shape = self(eqn.invars[0]), [1] * len(var.aval.shape)
        for before, after in kept:
            shape[after] = value.shape[before]
        return value.reshape(shape)

    def _each(self, eqn: Any) -> Array:
        rank = len(eqn.outvars[0].aval.shape)
        values = [self(v) for v in eqn.invars]
        ranked = [v for v in values if v.ndim == rank]
        shape = np.broadcast_shapes(*(v.shape for v in ranked)) if ranked else ()
        if int(np.prod(shape, dtype=np.int64)) > MOST_ELEMENTS:
            raise NotConstantError
        operands = [jnp.broadcast_to(v, shape) if v.ndim == rank else v for v in values]
        return run_equation(eqn, operands, {})[0]


def unit_reshape(eqn: Any) -> list[tuple[int, int]] | None:
    """Pairs of equal dimensions before and after a reshape; None if others than ones change."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.params.get("dimensions") is not None:
        return None
    olds = [d for d, n in enumerate(before) if n != 1]
    news = [d for d, n in enumerate(after) if n != 1]
    if [before[d] for d in olds] != [after[d] for d in news]:
        return None
    return list(zip(olds, news, strict=True))


@final
class Expressions:
    """Expressions of all bodies of a program, and the values of those that are constant.

    What the same equations make of the same values, such as the mask of each layer, is one
    expression; it is computed once, and its value is one array.

    numbers: by the equation and its operands, or of what is no expression by itself.
    """

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.arrays: dict[int, np.ndarray] = {}


@final
class Constants:
    """Values of one body that depend on no argument.

    known: those of its inputs and captured constants.
    expressions: of the whole program.
    """

    def __init__(
        self, jaxpr: Any, known: Mapping[Any, Known], expressions: Expressions | None = None
    ) -> None:
        self._known, self._made = known, producers(jaxpr)
        self._expressions = expressions or Expressions()
        self._compact = self._fresh()
        self._failed: set[Any] = set()
        self._shapes: dict[Any, tuple[int, ...]] = {}
        self._number: dict[Any, int] = {}  # of the expression of each value

    def _fresh(self) -> Compact:
        """The values, none of which is computed yet."""
        return Compact(self._made, self._leaf)

    def _leaf(self, var: Any) -> Array:
        if var not in self._known:
            raise NotConstantError
        return self._known[var]()

    def __call__(self, var: Any) -> np.ndarray | None:
        """The compact value; None if it is none."""
        if isinstance(var, Literal):
            return np.asarray(var.val)
        if var in self._failed:
            return None
        number, arrays = self._numbered(var), self._expressions.arrays
        if number not in arrays:
            try:
                with jax.ensure_compile_time_eval():
                    arrays[number] = np.asarray(self._compact(var))
            except NotConstantError:
                self._failed.add(var)
                return None
        return arrays[number]

    def _numbered(self, var: Any) -> int:
        """The number of the expression that makes a value."""
        if var not in self._number:
            numbers = self._expressions.numbers
            stack = [var]
            while stack:
                each = stack.pop()
                eqn = self._made.get(each)
                waits = [
                    v for v in ([] if eqn is None else eqn.invars)
                    if not isinstance(v, Literal) and v not in self._number
                ]  # fmt: skip
                if waits:
                    stack += [each, *waits]
                elif each not in self._number:
                    key = each if eqn is None else self._expression(each, eqn)
                    self._number[each] = numbers.setdefault(key, len(numbers))
        return self._number[var]

    def _expression(self, var: Any, eqn: Any) -> Any:
        """What tells an expression from others; the value itself where that is not known."""
        operands = [
            (str(v.aval), np.asarray(v.val).tobytes()) if isinstance(v, Literal)
            else self._number[v]
            for v in eqn.invars
        ]  # fmt: skip
        key = eqn.primitive, tuple(sorted(eqn.params.items())), tuple(operands), var.aval
        try:
            hash(key)
        except TypeError:
            return var
        return key if len(eqn.outvars) == 1 and not eqn.effects else var

    def shape(self, var: Any) -> tuple[int, ...] | None:
        """The shape of the compact value, which is not computed; None if it is no constant."""
        if isinstance(var, Literal):
            return np.shape(var.val)
        if var in self._failed:
            return None
        if var not in self._shapes:
            try:
                self._shapes[var] = jax.eval_shape(lambda: self._fresh()(var)).shape
            except NotConstantError:
                self._failed.add(var)
                return None
        return self._shapes[var]

    def hidden(
        self, var: Any, factor: float, dims: Sequence[int], kept: Sequence[int], most: float
    ) -> tuple[np.ndarray, tuple[int, ...]] | None:
        """Where a constant is very negative, if that varies along some dimensions alone.

        Args:
            var: the constant.
            factor: by which it is multiplied.
            dims: letters of its dimensions.
            kept: letters of those along which it may vary.
            most: what counts as very negative is at most that.

        Returns:
            The compact mask and its letters; None if there is nothing, or it varies elsewhere.
        """
        shape = self.shape(var)
        if shape is None or not shape:
            return None
        rest = tuple(i for i, d in enumerate(dims) if d not in kept)

        def both() -> tuple[Array, Array]:
            low = self._fresh()(var).astype(jnp.float32) * factor <= most
            return jnp.any(low, axis=rest, keepdims=True), jnp.all(low, axis=rest, keepdims=True)

        with jax.ensure_compile_time_eval():
            some, every = map(np.asarray, jax.jit(both)())
        alike = bool(some.any()) and np.array_equal(some, every)
        return (every, tuple(dims)) if alike else None

    def into(self, operands: Sequence[Any], inner: Sequence[Any]) -> dict[Any, Known]:
        """What is known of the inputs of a body that starts with these operands."""

        def known(var: Any) -> Known:
            return lambda: self._fresh()(var)

        return {to: known(var) for var, to in zip(operands, inner, strict=False)}

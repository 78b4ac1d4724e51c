# pyright: basic
"""Attention that a program writes out: two products with a softmax between them.

    z = c q k^T + biases, -inf where a mask says so;  p = softmax(z) over keys;  o = p v

Dimensions are followed by letters from the second product back to the first, through transposes,
conversions and dimensions of one element. Any number of dimensions may be shared by all of q, k and
v (batch, heads), and any number by queries alone (the query heads of a key head).

What is found is equal in real numbers. In numbers of u = 2^-8 (bfloat16) or 2^-11 (float16), where
the program rounds scores m times to 16 bits, the largest of which is Z, outputs of the kernel and
of the program differ by at most (4 + 2 m Z) u max|v|, to first order in u: a change d of all scores
changes each weight by a factor within e^(2 d), weights and outputs are rounded once by each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .compact_values import Constants, producers
from .jax_internals import Literal
from .written_scores import (
    SHORT,
    Bias,
    DiffersError,
    Dims,
    Mask,
    NoMatchError,
    read_scores,
    seen_through,
    short,
)


@dataclass(frozen=True)
class WrittenAttention:
    """Attention as it is written in one body.

    eqn: the second product, whose result is the output.
    q, k, v: values, and the letter of each of their dimensions.
    batch: letters of what all three share, in the order of the scores.
    queries: letters of queries, of which the first are query heads.
    keys, features, out_features: letters.
    out: letters of the output.
    sizes: elements along each letter.
    window: keys that a query of a causal mask sees; 0 for all.
    roundings: of scores, or of their bias, to 16 bits.
    """

    eqn: Any
    q: tuple[Any, Dims]
    k: tuple[Any, Dims]
    v: tuple[Any, Dims]
    batch: Dims
    queries: Dims
    keys: int
    features: int
    out_features: int
    out: Dims
    sizes: Mapping[int, int]
    scale: float
    causal: bool
    window: int
    masks: tuple[Mask, ...]
    biases: tuple[Bias, ...]
    constant: Any  # what a constant mask that is not causal allows, [queries, keys]; or None
    roundings: int
    dtype: str

    @property
    def reads(self) -> tuple[Any, ...]:
        """The values that it is computed from."""
        others = (*(m.value for m in self.masks), *(b.value for b in self.biases))
        return (self.q[0], self.k[0], self.v[0], *others)


class Matcher:
    """Finds attention in one body whose calls are inlined.

    Args:
        jaxpr: the body.
        constants: its constants.
    """

    def __init__(self, jaxpr: Any, constants: Constants) -> None:
        self.made, self._constants = producers(jaxpr), constants
        self._uses: dict[Any, list[Any]] = {}
        for eqn in jaxpr.eqns:
            for var in eqn.invars:
                if not isinstance(var, Literal):
                    self._uses.setdefault(var, []).append(eqn)
        for var in jaxpr.outvars:
            if not isinstance(var, Literal):
                self._uses.setdefault(var, []).append(None)

    def match(self, eqn: Any) -> WrittenAttention:
        """Attention whose second product is `eqn`.

        Raises:
            NoMatchError: if it is no softmax between two products.
            DiffersError: if it is one that the kernel does not compute.
        """
        if eqn.primitive.name != "dot_general":
            raise NoMatchError
        for side in (0, 1):
            try:
                return self._of(eqn, side)
            except NoMatchError:
                continue
        raise NoMatchError

    def _of(self, eqn: Any, side: int) -> WrittenAttention:
        weights, value = eqn.invars[side], eqn.invars[1 - side]
        (contracted, shared) = eqn.params["dimension_numbers"]
        dims: Dims = tuple(range(len(weights.aval.shape)))
        sizes = dict(enumerate(weights.aval.shape))
        softmax_of, dims_of_scores, axis, inner, changed = self._softmax(weights, dims)
        key = dims_of_scores[axis]
        scores = read_scores(self.made, self._constants, softmax_of, dims_of_scores)
        first, out_dims = scores.product, scores.dims
        (c1, b1) = first.params["dimension_numbers"]
        batch = out_dims[: len(b1[0])]
        rest = [len(v.aval.shape) - len(c1[0]) - len(b1[0]) for v in first.invars]
        free = (out_dims[len(batch) : len(batch) + rest[0]], out_dims[len(batch) + rest[0] :])
        if key not in (*free[0], *free[1]):
            raise NoMatchError
        k_side = 0 if key in free[0] else 1
        if free[k_side] != (key,) or len(c1[0]) != 1:
            raise NoMatchError
        if changed:
            raise DiffersError(
                f"its weights go through {changed} before they meet the values (dropout?)"
            )
        here = {*(d for d in range(len(dims)) if d not in contracted[side])}
        if [*contracted[side]] != [key] or here != {*batch, *free[1 - k_side]}:
            raise NoMatchError
        if {*shared[side]} != {*batch}:
            raise NoMatchError
        feature, out_feature = len(dims), len(dims) + 1
        q_dims = _letters(first, 1 - k_side, batch, free[1 - k_side], feature)
        k_dims = _letters(first, k_side, batch, (key,), feature)
        v_dims = self._value_letters(eqn, side, key, out_feature)
        sizes[feature] = first.invars[0].aval.shape[c1[0][0]]
        sizes[out_feature] = value.aval.shape[v_dims.index(out_feature)]
        own = [d for d in range(len(dims)) if d not in contracted[side] and d not in shared[side]]
        sides = ([*own], [out_feature]) if side == 0 else ([out_feature], [*own])
        out = (*(shared[side]), *sides[0], *sides[1])
        self._check_uses(weights, softmax_of, inner, eqn)
        q, k, v = (
            short(self.made, x) for x in (first.invars[1 - k_side], first.invars[k_side], value)
        )
        dtype = self._check_types((q, k, v), eqn)
        found = WrittenAttention(
            eqn, (q, q_dims), (k, k_dims), (v, v_dims), batch, free[1 - k_side], key, feature,
            out_feature, out, sizes, scores.scale, False, 0, tuple(scores.masks),
            tuple(scores.biases), None, scores.roundings, dtype,
        )  # fmt: skip
        return self._with_constants(self._ordered(found))

    # --- softmax ---------------------------------------------------------------------------

    def _softmax(self, var: Any, dims: Dims) -> tuple[Any, Dims, int, list[Any], str]:
        """Input of the softmax that makes some weights, its letters and axis, and its values.

        The last is what changes the weights after it.
        """
        inner, changed = [], ""
        while True:
            eqn = self.made.get(var)
            if eqn is None:
                raise NoMatchError
            inner.append(var)
            name = eqn.primitive.name
            step = seen_through(eqn, dims)
            if step is not None:
                var, dims = step
            elif name == "div" and self._is_normalised(eqn):
                break
            elif name in ("mul", "select_n", "div") and len(inner) < 12:
                wide = [v for v in eqn.invars if self._leads_to_softmax(v, 6)]
                if len(wide) != 1:
                    raise NoMatchError
                changed, var = changed or f"'{name}'", wide[0]
            else:
                raise NoMatchError
        exponent, total = eqn.invars
        reduced = self._through(total)
        (axis,) = reduced.params["axes"]
        summed = self._same(reduced.invars[0])
        weights = self._same(exponent)
        exp = self.made.get(weights)
        if summed is not weights or exp is None or exp.primitive.name != "exp":
            raise NoMatchError
        inner += [exponent, weights, reduced.outvars[0], total]
        x = exp.invars[0]
        shift = self.made.get(x)
        if shift is not None and shift.primitive.name == "sub" and self._is_level(shift, axis):
            inner.append(x)
            x = shift.invars[0]
        return x, dims, int(axis), inner, changed

    def _leads_to_softmax(self, var: Any, depth: int) -> bool:
        eqn = None if isinstance(var, Literal) else self.made.get(var)
        if eqn is None or depth == 0:
            return False
        if eqn.primitive.name == "div" and self._is_normalised(eqn):
            return True
        names = ("mul", "div", "select_n", "convert_element_type", "transpose", "reshape")
        return eqn.primitive.name in names and any(
            self._leads_to_softmax(v, depth - 1) for v in eqn.invars
        )

    def _is_normalised(self, eqn: Any) -> bool:
        """Whether a quotient is that of exponentials and their sum along one axis."""
        if any(isinstance(v, Literal) for v in eqn.invars):
            return False
        reduced = self._through(eqn.invars[1])
        exp = self.made.get(self._same(eqn.invars[0]))
        return (
            reduced is not None and reduced.primitive.name == "reduce_sum"
            and len(reduced.params["axes"]) == 1
            and exp is not None and exp.primitive.name == "exp"
        )  # fmt: skip

    def _is_level(self, shift: Any, axis: int) -> bool:
        """Whether what a difference takes away does not vary along an axis, as a maximum of it."""
        taken = shift.invars[1]
        if isinstance(taken, Literal):
            return False
        if taken.aval.shape[axis : axis + 1] == (1,):
            return True
        reduced = self._through(taken)
        if reduced is None or reduced.primitive.name != "reduce_max":
            return False
        same = self._same(reduced.invars[0]) is self._same(shift.invars[0])
        return same and tuple(reduced.params["axes"]) == (axis,)

    def _through(self, var: Any) -> Any:
        """The reduction behind a value, which is broadcast along the reduced axis again."""
        for _ in range(8):
            eqn = None if isinstance(var, Literal) else self.made.get(var)
            if eqn is None:
                return None
            name = eqn.primitive.name
            if name in ("reduce_sum", "reduce_max"):
                return eqn
            if name in ("broadcast_in_dim", "reshape", "stop_gradient", "convert_element_type"):
                var = eqn.invars[0]
            elif name == "max" and isinstance(eqn.invars[0], Literal):
                if not np.isneginf(np.float64(eqn.invars[0].val)):
                    return None
                var = eqn.invars[1]
            else:
                return None
        return None

    def _same(self, var: Any) -> Any:
        """A value before conversions."""
        while (eqn := self.made.get(var)) and eqn.primitive.name in (
            "convert_element_type",
            "copy",
        ):
            var = eqn.invars[0]
        return var

    # --- checks ----------------------------------------------------------------------------

    def _check_types(self, operands: Any, eqn: Any) -> str:
        names = sorted({x.aval.dtype.name for x in operands})
        if len(names) > 1 or names[0] not in SHORT:
            raise DiffersError(f"its operands are {' and '.join(names)}")
        out = eqn.outvars[0]
        if out.aval.dtype.name != names[0] and not self._is_shortened(out, names[0]):
            raise DiffersError(f"its result is kept in {out.aval.dtype.name}")
        return names[0]

    def _is_shortened(self, var: Any, dtype: str) -> bool:
        """Whether all that reads a value converts it to `dtype`."""
        users = self._uses.get(var, [None])
        for eqn in users:
            if eqn is None:
                return False
            after = eqn.outvars[0]
            if eqn.primitive.name == "convert_element_type" and after.aval.dtype.name == dtype:
                continue
            if eqn.primitive.name in ("transpose", "reshape") and self._is_shortened(after, dtype):
                continue
            return False
        return True

    def _check_uses(self, weights: Any, scores: Any, inner: list[Any], eqn: Any) -> None:
        """Checks that nothing else reads the weights or the scores."""
        inside = {*inner, weights, scores}
        allowed = {id(self.made[v]) for v in inside if v in self.made} | {id(eqn)}
        for var in (*inner, scores):
            for user in self._uses.get(var, ()):
                if user is None:
                    raise DiffersError("its weights are results of the program or of a loop")
                passed = user.primitive.name in (
                    "reduce_max", "reduce_sum", "broadcast_in_dim", "max", "stop_gradient",
                    "reshape", "convert_element_type",
                )  # fmt: skip
                if id(user) not in allowed and not passed:
                    raise DiffersError("its weights or scores are read elsewhere in the program")

    def _value_letters(self, eqn: Any, side: int, key: int, out_feature: int) -> Dims:
        (contracted, shared) = eqn.params["dimension_numbers"]
        letters = [out_feature] * len(eqn.invars[1 - side].aval.shape)
        for mine, its in zip(shared[side], shared[1 - side], strict=True):
            letters[its] = mine
        letters[contracted[1 - side][0]] = key
        if letters.count(out_feature) != 1:
            raise NoMatchError
        return tuple(letters)

    # --- masks of queries and keys -----------------------------------------------------------

    def _ordered(self, found: WrittenAttention) -> WrittenAttention:
        """The same with the queries' letter along which masks vary, or the longest, as the last."""
        varying = {
            d for mask in found.masks for d, n in zip(mask.dims, mask.shape, strict=True) if n != 1
        }
        wide = [d for d in found.queries if found.sizes[d] != 1]
        seen = [d for d in wide if d in varying] or wide or [*found.queries]
        if not seen:
            raise NoMatchError
        last = max(seen, key=lambda d: found.sizes[d])  # a mask is broadcast to query heads, too
        rest = tuple(d for d in found.queries if d != last)
        return replace(found, queries=(*rest, last))

    @staticmethod
    def _with_constants(found: WrittenAttention) -> WrittenAttention:
        """The same with its constant masks as causal, as a window, or as one array."""
        query, key = found.queries[-1], found.keys
        t, s = found.sizes[query], found.sizes[key]
        constant = np.ones((1, 1), bool)
        rest: list[Mask] = []
        for mask in found.masks:
            if not isinstance(mask.value, np.ndarray):
                rest.append(mask)
                continue
            allowed = ~mask.value if mask.hides else mask.value
            at = dict(zip(mask.dims, allowed.shape, strict=True)) if allowed.ndim else {}
            if any(n != 1 for d, n in at.items() if d not in (query, key)):
                raise DiffersError("a constant mask differs between heads or examples")
            order = sorted(range(allowed.ndim), key=lambda i: mask.dims[i] == key)
            allowed = allowed.transpose(order)
            constant = constant & allowed.reshape(at.get(query, 1), at.get(key, 1))
        if constant.all():
            return replace(found, masks=tuple(rest))
        whole = np.broadcast_to(constant, (t, s))
        if not whole.any(axis=1).all():
            raise DiffersError("its mask leaves a query without any key")
        window = _causal_window(whole) if not rest and t == s else None
        if window is None:
            return replace(found, masks=tuple(rest), constant=constant)
        return replace(found, masks=(), causal=True, window=window)


def _causal_window(allowed: np.ndarray) -> int | None:
    """Keys that a query sees of a causal mask, 0 for all before it; None for another mask."""
    queries, keys = allowed.shape
    t, s = np.arange(queries)[:, None], np.arange(keys)[None, :]
    width = int(allowed[-1].sum())
    if np.array_equal(allowed, s <= t):
        return 0
    return width if np.array_equal(allowed, (s <= t) & (s > t - width)) else None


def _letters(product: Any, side: int, batch: Dims, free: Dims, feature: int) -> Dims:
    """Letters of an operand of the first product."""
    (contracted, shared) = product.params["dimension_numbers"]
    letters = [feature] * len(product.invars[side].aval.shape)
    for letter, d in zip(batch, shared[side], strict=True):
        letters[d] = letter
    own = [d for d in range(len(letters)) if d not in shared[side] and d not in contracted[side]]
    for letter, d in zip(free, own, strict=True):
        letters[d] = letter
    return tuple(letters)

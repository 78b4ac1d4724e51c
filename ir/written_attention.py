# pyright: basic
"""Attention that a program writes out: two products with a softmax between them.

    z = c q k^T + biases, -inf where a mask says so;  p = softmax(z) over keys;  o = p v

Dimensions are followed by letters from the second product back to the first, through transposes,
conversions and dimensions of one element. Any number of dimensions may be shared by all of q, k and
v (batch, heads), and any number by queries alone (the query heads of a key head).

The softmax divides its weights, or the output after the second product: (exp(z) v) / sum exp(z).

What is found is equal in real numbers. In numbers of u = 2^-8 (bfloat16) or 2^-11 (float16), where
the program rounds scores m times to 16 bits, the largest of which is Z, outputs of the kernel and
of the program differ by at most (4 + r + 2 m Z) u max|v|, to first order in u: a change d of all
scores changes each weight by a factor within e^(2 d), weights and outputs are rounded once by each,
and outputs r times more by a program that divides them late.

A bias b of more than 16 bits (ALiBi: 1,000 and more) is rounded by the kernel. Its largest number
among the keys that a query sees is subtracted before, which changes no weight; so b <= 0, and 0
somewhere. Rounded, it changes outputs by at most 2 u E|b| max|v|, the mean over the weights of a
query. With entropy H of these and scores within S without the bias, Gibbs' inequality at the key
with b = 0 says E[q k + b] + H >= q k_0, so that E|b| <= log(n) + 2 S for n keys, whatever the size
of b: (4 + 2 log(n) + 4 S) u max|v|.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .compact_values import Constants, producers
from .jax_internals import Literal
from .written_scores import (
    ABSORBING,
    BESIDE,
    BIASED,
    SHORT,
    Bias,
    DiffersError,
    Dims,
    Mask,
    NoMatchError,
    Scores,
    read_scores,
    short,
)
from .written_softmax import Quotient, SoftmaxReader

# Masks and what `_one_mask` found, by identities of their arrays, letters and sizes.
ReadMasks = dict[Any, tuple[list[Mask], Any, int | None]]


@dataclass(frozen=True)
class WrittenAttention:
    """Attention as it is written in one body.

    eqn: whose result is the output: the second product, or a quotient after it.
    q, k, v: values, and the letter of each of their dimensions.
    batch: letters of what all three share, in the order of the scores.
    queries: letters of queries, of which the first are query heads.
    keys, features, out_features: letters.
    out: letters of the output.
    sizes: elements along each letter.
    window: keys that a query of a causal mask sees; 0 for all.
    roundings: of scores to 16 bits.
    late: roundings to 16 bits between the second product and its quotient.
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
    late: int
    dtype: str

    @property
    def shifted(self) -> bool:
        """Whether the largest bias of each query is subtracted, as the kernel rounds the bias."""
        return len(self.biases) > 1 or any(not bias.exact for bias in self.biases)

    @property
    def pair(self) -> tuple[int, int]:
        """Letters of the queries that masks tell apart, and of keys."""
        return self.queries[-1], self.keys

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
        read: constant masks that were read before, of all bodies.
    """

    def __init__(self, jaxpr: Any, constants: Constants, read: ReadMasks | None = None) -> None:
        self.made, self._constants = producers(jaxpr), constants
        self._read = {} if read is None else read
        self._softmaxes = SoftmaxReader(self.made)
        self._uses: dict[Any, list[Any]] = {}
        for eqn in jaxpr.eqns:
            for var in eqn.invars:
                if not isinstance(var, Literal):
                    self._uses.setdefault(var, []).append(eqn)
        for var in jaxpr.outvars:
            if not isinstance(var, Literal):
                self._uses.setdefault(var, []).append(None)

    def match(self, eqn: Any) -> WrittenAttention:
        """Attention whose output is the result of `eqn`.

        Raises:
            NoMatchError: if it is no softmax between two products.
            DiffersError: if it is one that the kernel does not compute.
        """
        late = None
        if eqn.primitive.name != "dot_general":
            late = self._softmaxes.quotient(eqn)
        for side in (0, 1):
            try:
                return self._of(eqn if late is None else late.product, side, eqn, late)
            except NoMatchError:
                continue
        raise NoMatchError

    def _of(self, eqn: Any, side: int, last: Any, late: Quotient | None) -> WrittenAttention:
        """Attention with the second product `eqn`, whose operand `side` are the weights."""
        weights, value = eqn.invars[side], eqn.invars[1 - side]
        (contracted, shared) = eqn.params["dimension_numbers"]
        dims: Dims = tuple(range(len(weights.aval.shape)))
        sizes = dict(enumerate(weights.aval.shape))
        softmax = self._softmaxes.read(weights, dims, late and late.reduced)
        key = softmax.dims[softmax.axis]
        feature, out_feature = len(dims), len(dims) + 1
        own = [d for d in range(len(dims)) if d not in contracted[side] and d not in shared[side]]
        sides = ([*own], [out_feature]) if side == 0 else ([out_feature], [*own])
        out = (*(shared[side]), *sides[0], *sides[1])
        if late is not None:
            out = _divided(late, out, tuple(d for d in softmax.dims if d != key))
        scores = read_scores(self.made, self._constants, softmax.scores, softmax.dims)
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
        if softmax.changed:
            raise DiffersError(
                f"its weights go through {softmax.changed} before they meet the values (dropout?)"
            )
        here = {*(d for d in range(len(dims)) if d not in contracted[side])}
        if [*contracted[side]] != [key] or here != {*batch, *free[1 - k_side]}:
            raise NoMatchError
        if {*shared[side]} != {*batch}:
            raise NoMatchError
        q_dims = _letters(first, 1 - k_side, batch, free[1 - k_side], feature)
        k_dims = _letters(first, k_side, batch, (key,), feature)
        v_dims = self._value_letters(eqn, side, key, out_feature)
        sizes[feature] = first.invars[0].aval.shape[c1[0][0]]
        sizes[out_feature] = value.aval.shape[v_dims.index(out_feature)]
        inner = (*softmax.inner, *(late.inner if late else ()))
        self._check_uses(weights, softmax.scores, inner, (eqn, last))
        q, k, v = (
            short(self.made, x) for x in (first.invars[1 - k_side], first.invars[k_side], value)
        )
        dtype = self._check_types((q, k, v), last)
        found = WrittenAttention(
            last, (q, q_dims), (k, k_dims), (v, v_dims), batch, free[1 - k_side], key, feature,
            out_feature, out, sizes, scores.scale, False, 0, tuple(scores.masks),
            tuple(scores.biases), None, scores.roundings, late.roundings if late else 0, dtype,
        )  # fmt: skip
        found = self._ordered(found)
        return self._with_constants(self._masks_of_biases(found, scores))

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

    def _check_uses(
        self, weights: Any, scores: Any, inner: tuple[Any, ...], last: tuple[Any, Any]
    ) -> None:
        """Checks that nothing else reads the weights or the scores."""
        inside = {*inner, weights, scores}
        allowed = {id(self.made[v]) for v in inside if v in self.made} | {*map(id, last)}
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

    def _masks_of_biases(self, found: WrittenAttention, scores: Scores) -> WrittenAttention:
        """The same with what constant biases hide from all heads and examples as masks."""
        fixed = [bias for bias in found.biases if bias.fixed]
        if not fixed:
            return found
        if any(number > BESIDE for _, number in scores.fills):
            raise DiffersError(f"its mask fills in more than {BESIDE:g} beside a bias")
        known = all(isinstance(mask.value, np.ndarray) for mask in found.masks)
        if not known and any(how == "add" and n > BIASED for how, n in scores.fills):
            raise DiffersError(f"its mask adds more than {BIASED:g} to scores with a bias")
        masks: list[Mask] = []
        for bias in fixed:
            both = self._constants.hidden(bias.value, bias.factor, bias.dims, found.pair, ABSORBING)
            if both is None:
                continue
            hidden, dims = both
            if not known:
                raise DiffersError("a query that sees no key is hidden by several masks")
            masks.append(Mask(hidden, True, dims))
        return replace(found, masks=(*found.masks, *masks))

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

    def _with_constants(self, found: WrittenAttention) -> WrittenAttention:
        """The same with its constant masks as causal, as a window, or as one array."""
        query, key = found.pair
        fixed = [m for m in found.masks if isinstance(m.value, np.ndarray)]
        rest = tuple(m for m in found.masks if not isinstance(m.value, np.ndarray))
        sizes = found.sizes[query], found.sizes[key]
        # layers have the same masks: those of one are read for all
        asked = tuple((id(m.value), m.hides, m.dims) for m in fixed), query, key, sizes, not rest
        if asked not in self._read:
            read = _one_mask(fixed, query, key, sizes, windows=not rest)
            self._read[asked] = fixed, *read  # which keeps the arrays that it is about
        _, constant, window = self._read[asked]
        if window is None:
            return replace(found, masks=rest, constant=constant)
        return replace(found, masks=(), causal=True, window=window)


def _one_mask(
    masks: list[Mask], query: int, key: int, sizes: tuple[int, int], *, windows: bool
) -> tuple[Any, int | None]:
    """Constant masks as one array over queries and keys, None if it hides nothing, or as a window.

    Args:
        masks: constant ones.
        query: letter of queries.
        key: letter of keys.
        sizes: of queries and keys.
        windows: whether a causal mask may be told by its window.

    Raises:
        DiffersError: if it varies along other letters, or hides all keys of a query.
    """
    constant = np.ones((1, 1), bool)
    for mask in masks:
        allowed = ~mask.value if mask.hides else mask.value
        at = dict(zip(mask.dims, allowed.shape, strict=True)) if allowed.ndim else {}
        if any(n != 1 for d, n in at.items() if d not in (query, key)):
            raise DiffersError("a constant mask differs between heads or examples")
        order = sorted(range(allowed.ndim), key=lambda i: mask.dims[i] == key)
        allowed = allowed.transpose(order)
        constant = constant & allowed.reshape(at.get(query, 1), at.get(key, 1))
    if constant.all():
        return None, None
    whole = np.broadcast_to(constant, sizes)
    if not whole.any(axis=1).all():
        raise DiffersError("its mask leaves a query without any key")
    return constant, _causal_window(whole) if windows and sizes[0] == sizes[1] else None


def _causal_window(allowed: np.ndarray) -> int | None:
    """Keys that a query sees of a causal mask, 0 for all before it; None for another mask."""
    queries, keys = allowed.shape
    t, s = np.arange(queries)[:, None], np.arange(keys)[None, :]
    width = int(allowed[-1].sum())
    if np.array_equal(allowed, s <= t):
        return 0
    return width if np.array_equal(allowed, (s <= t) & (s > t - width)) else None


def _divided(late: Quotient, product: Dims, total: Dims) -> Dims:
    """Letters of a quotient.

    Args:
        late: the quotient.
        product: letters of the product.
        total: letters of the sum.

    Raises:
        NoMatchError: if the sum lies along other letters than those it has.
    """
    letters = [0] * len(product)
    for letter, d in zip(product, late.at, strict=True):
        letters[d] = letter
    for letter, d in zip(total, late.of_sum, strict=True):
        if d is not None and letters[d] != letter:
            raise NoMatchError
    return tuple(letters)


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

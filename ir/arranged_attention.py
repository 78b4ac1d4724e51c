# pyright: basic
"""Attention that a program writes out, as operands and result of a kernel of cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .compact_values import Compact
from .host_kernels import bias_gradients
from .jax_internals import fused_attention_stablehlo as cudnn
from .written_attention import WrittenAttention
from .written_scores import Dims

Array = Any


@final
class Arranged:
    """Written attention as the operands of the kernel.

    Args:
        found: the attention.
        made: the equation of each value, by which keys that are repeated for heads are found.
    """

    def __init__(self, found: WrittenAttention, made: Mapping[Any, Any] | None = None) -> None:
        self.found, self._made = found, made or {}
        heads = found.queries[:-1]
        wide = any(found.sizes[d] != 1 for d in heads)
        split = len(found.batch) - (1 if len(found.batch) > 1 or wide else 0)
        self._b, self._g = found.batch[:split], found.batch[split:]
        self._r, self._t = heads, found.queries[-1]
        self.batch, self.key_heads = self._count(self._b), self._count(self._g)
        self.heads = self.key_heads * self._count(self._r)
        dims = found.q[1]
        first = [dims.index(d) for d in (*self._g, *self._r) if found.sizes[d] != 1]
        self._by_length = not first or dims.index(self._t) < min(first)
        self._repeats = self._repeated()
        if self._repeats:
            self.key_heads //= self._repeats[0]

    def _count(self, letters: Iterable[int]) -> int:
        return int(np.prod([self.found.sizes[d] for d in letters], dtype=np.int64))

    @property
    def reads(self) -> list[Any]:
        """Operands but for masks, which are read in a compact form."""
        pair = [self.found.k[0], self.found.v[0]]
        if self._repeats:
            pair = [source for _, source, _ in self._repeats[1]]
        return [self.found.q[0], *pair, *(bias.value for bias in self.found.biases)]

    def _repeated(self) -> tuple[int, tuple[Any, Any]] | None:
        """How often each key head is repeated for query heads, and keys and values before that."""
        if len(self._g) != 1:
            return None
        keys, values = (
            repeated(self._made, var, dims.index(self._g[0]))
            for var, dims in (self.found.k, self.found.v)
        )
        if keys is None or values is None or keys[0] != values[0]:
            return None
        return keys[0], (keys, values)

    def structs(self) -> list[jax.ShapeDtypeStruct | None]:
        """Types of query, key, value and bias as the kernel takes them."""
        sizes, dtype = self.found.sizes, self.found.dtype

        def of(letter: int, heads: int, features: int) -> jax.ShapeDtypeStruct:
            n = sizes[letter]
            middle = (n, heads) if self._by_length else (heads, n)
            return jax.ShapeDtypeStruct((self.batch, *middle, sizes[features]), dtype)

        f = self.found
        biased = f.masks or f.biases or f.constant is not None
        shape = (1, 1, sizes[self._t], sizes[f.keys])
        return [
            of(self._t, self.heads, f.features), of(f.keys, self.key_heads, f.features),
            of(f.keys, self.key_heads, f.out_features),
            jax.ShapeDtypeStruct(shape, dtype) if biased else None,
        ]  # fmt: skip

    def kernel(self, q: Array, k: Array, v: Array, bias: Array | None) -> Array:
        """The kernel on operands in its own layout."""
        kind = cudnn.MaskType.CAUSAL if self.found.causal else cudnn.MaskType.NO_MASK
        with bias_gradients(any(not bias.fixed for bias in self.found.biases)):
            return cudnn.dot_product_attention(
                q, k, v, bias, scale=self.found.scale, mask_type=kind,
                qkv_layout="BTNH" if self._by_length else "BNTH",
                sliding_window_length=self.found.window or None,
            )  # fmt: skip

    def run(self, read: Callable[[Any], Array]) -> Array:
        """The output as the program has it, from values that `read` returns."""
        found, b, t = self.found, self._b, (self._t,)
        q = self._laid_out(read(found.q[0]), found.q[1], t, (*self._g, *self._r), found.features)
        k, v = self._keys(read)
        allowed = self._allowed(read)
        out = self.kernel(q, k, v, self._bias(read, allowed))
        if found.masks and allowed is not None:
            out = self._with_equal_weights(out, v, jnp.any(allowed, axis=-1))
        heads = (*self._g, *self._r)
        letters = (*b, *t, *heads) if self._by_length else (*b, *heads, *t)
        letters = (*letters, found.out_features)
        out = out.reshape([found.sizes[d] for d in letters])
        out = jnp.transpose(out, [letters.index(d) for d in found.out])
        return out.astype(found.eqn.outvars[0].aval.dtype)

    def _keys(self, read: Callable[[Any], Array]) -> list[Array]:
        found, out = self.found, []
        for i, (var, dims) in enumerate((found.k, found.v)):
            features = found.out_features if i else found.features
            value = read(var) if self._repeats is None else None
            if self._repeats is not None:
                _, source, order = self._repeats[1][i]
                value = jnp.transpose(read(source), order)
            out.append(self._laid_out(value, dims, (found.keys,), self._g, features))
        return out

    def _laid_out(
        self, value: Array, dims: Dims, length: Dims, heads: Dims, features: int
    ) -> Array:
        middle = (length, heads) if self._by_length else (heads, length)
        order = (*self._b, *middle[0], *middle[1], features)
        value = jnp.transpose(value, [dims.index(d) for d in order])
        sizes = dict(zip(order, value.shape, strict=True))
        groups = (self._b, *middle, (features,))
        shape = [int(np.prod([sizes[d] for d in group], dtype=np.int64)) for group in groups]
        return value.reshape(shape)

    def _with_equal_weights(self, out: Array, v: Array, seeing: Array) -> Array:
        """The output, which is the mean of all values for a query that sees no key.

        A softmax of equal scores has equal weights; the kernel's backward pass computes them from
        the logarithm of their sum, which a very negative score absorbs.
        """
        length, heads = (1, 2) if self._by_length else (2, 1)
        mean = jnp.mean(v.astype(jnp.float32), axis=length, keepdims=True).astype(v.dtype)
        mean = jnp.repeat(mean, self.heads // self.key_heads, axis=heads)
        seeing = jnp.swapaxes(seeing, 1, 2) if self._by_length else seeing
        return jnp.where(seeing[..., None], out, mean)

    def _allowed(self, read: Callable[[Any], Array]) -> Array | None:
        """All masks as one of [examples or 1, heads or 1, queries or 1, keys or 1]."""
        found = self.found
        allowed = None if found.constant is None else jnp.asarray(found.constant)[None, None]
        compact = Compact(self._made, read)
        for mask in found.masks:
            value = self._placed(compact(mask.value), mask.dims)
            value = ~value if mask.hides else value
            allowed = value if allowed is None else allowed & value
        return allowed

    def _bias(self, read: Callable[[Any], Array], allowed: Array | None) -> Array | None:
        """Masks and biases as one value that is added to scores."""
        found = self.found
        if not found.biases and allowed is None:
            return None
        dtype = jnp.dtype(found.dtype)
        lowest = cudnn.get_large_negative_number(dtype)
        bias = self._sum_of_biases(Compact(self._made, read))
        if found.shifted:
            bias = _below_highest(bias, self._visible(allowed), lowest)
        bias = bias.astype(dtype)
        if allowed is not None:
            bias = jnp.where(allowed, bias, lowest)
        return jnp.broadcast_to(
            bias, (*bias.shape[:2], found.sizes[self._t], found.sizes[found.keys])
        )

    def _sum_of_biases(self, compact: Compact) -> Array:
        found = self.found
        total = jnp.zeros((1, 1, 1, 1), found.dtype)
        for i, each in enumerate(found.biases):
            value = compact(each.value)
            if found.shifted:
                value = value.astype(jnp.float32) * each.factor
            value = self._placed(value, each.dims)
            total = total + value if i else value
        return total

    def _visible(self, allowed: Array | None) -> Array | None:
        """Which keys a query sees, those of the kernel's own mask included; None for all."""
        found = self.found
        if not found.causal:
            return allowed
        t, s = (jnp.arange(found.sizes[d]) for d in found.pair)
        after = t[:, None] - s[None, :]
        seen = (after >= 0) & (after < found.window) if found.window else after >= 0
        return seen[None, None]

    def _placed(self, value: Array, dims: Dims) -> Array:
        """A compact value as [examples or 1, heads or 1, queries or 1, keys or 1]."""
        order = (*self._b, *self._g, *self._r, self._t, self.found.keys)
        dims = dims if value.ndim else ()
        value = jnp.transpose(value, sorted(range(value.ndim), key=lambda i: order.index(dims[i])))
        have = dict(zip(sorted(dims, key=order.index), value.shape, strict=True))
        value = value.reshape([have.get(d, 1) for d in order])
        groups = (self._b, (*self._g, *self._r), (self._t,), (self.found.keys,))
        shape, merged = [], []
        for group in groups:
            varies = any(have.get(d, 1) != 1 for d in group)
            shape += [self.found.sizes[d] if varies else 1 for d in group]
            merged.append(self._count(group) if varies else 1)
        return jnp.broadcast_to(value, shape).reshape(merged)


def _below_highest(bias: Array, visible: Array | None, lowest: Array) -> Array:
    """A bias less the largest one among the keys that a query sees, which changes no weight.

    Args:
        bias: [examples or 1, heads or 1, queries or 1, keys or 1].
        visible: which keys are seen, in the same form; None for all.
        lowest: the least number that the kernel takes.
    """
    held = lax.stop_gradient(bias)
    seen = held if visible is None else jnp.where(visible, held, -jnp.inf)
    highest = jnp.max(seen, axis=-1, keepdims=True)
    highest = jnp.where(jnp.isfinite(highest), highest, 0.0)
    return jnp.maximum(bias - highest, lowest.astype(bias.dtype))


def repeated(
    made: Mapping[Any, Any], var: Any, dim: int
) -> tuple[int, Any, tuple[int, ...]] | None:
    """How often each element along a dimension is repeated there.

    Returns:
        The number, the value before, and the order of its dimensions in `var`.
    """
    order = list(range(len(var.aval.shape)))
    for _ in range(6):
        eqn = made.get(var)
        if eqn is None:
            return None
        name = eqn.primitive.name
        if name == "transpose":
            permutation = eqn.params["permutation"]
            order = [permutation[d] for d in order]
            dim, var = permutation[dim], eqn.invars[0]
        elif name == "reshape":
            break
        else:
            return None
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    spread = made.get(eqn.invars[0])
    if (
        spread is None
        or spread.primitive.name != "broadcast_in_dim"
        or len(before) != len(after) + 1
    ):
        return None
    rest = (*before[:dim], before[dim] * before[dim + 1], *before[dim + 2 :])
    kept = [d for d in range(len(before)) if d != dim + 1]
    if rest != tuple(after) or list(spread.params["broadcast_dimensions"]) != kept:
        return None
    source = spread.invars[0]
    if source.aval.shape != tuple(before[d] for d in kept):
        return None
    return int(before[dim + 1]), source, tuple(order)

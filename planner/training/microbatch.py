# pyright: basic
"""Micro-batches: cuts a batch into parts, and merges the results of the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..common.errors import IndivisibleError, PlanError


@dataclass(frozen=True, slots=True)
class Parts:
    """How a batch is cut into `count` parts.

    roles: of each leaf: rows (cut along `axis`), first (cut along its first dimension), same, key
        (folded with the part's number), or number (the part's own).
    """

    count: int
    axis: int
    batch: int
    roles: tuple[str, ...]

    def cuts(self, role: str) -> bool:
        """Whether a leaf of this role is cut into parts."""
        return role in ("rows", "first")

    def axis_of(self, role: str) -> int:
        """Dimension of the examples of a leaf that is cut."""
        return 0 if role == "first" else self.axis

    def cut(self, leaf: Any, role: str) -> Any:
        """[..., B, ...] as [m, ..., B/m, ...]; part i holds the examples i, i + m, i + 2m, ..."""
        shape, axis = leaf.shape, self.axis_of(role)
        sizes = (*shape[:axis], shape[axis] // self.count, self.count, *shape[axis + 1 :])
        return jnp.moveaxis(jnp.reshape(leaf, sizes), axis + 1, 0)

    def join(self, leaf: Any, dim: int, inner: int) -> Any:
        """Puts results [m, ..., examples, ...] of the parts back in the order of the batch.

        Args:
            leaf: results, one part after the other.
            dim: dimension of one part's result that runs over its examples.
            inner: consecutive entries of that dimension that belong to one example.
        """
        shape, each = leaf.shape[1:], self.batch // self.count
        outer = shape[dim] // (each * inner)
        sizes = (self.count, *shape[:dim], outer, each, inner, *shape[dim + 1 :])
        spread = jnp.moveaxis(jnp.reshape(leaf, sizes), 0, dim + 2)
        return jnp.reshape(spread, (*shape[:dim], shape[dim] * self.count, *shape[dim + 1 :]))


@dataclass(frozen=True, slots=True)
class Merge:
    """How the parts' results are merged: mean, sum, same (all equal), or rows in order."""

    how: str
    dim: int = 0
    inner: int = 1


# --- the batch ---------------------------------------------------------------------------------


def parts_of(batch: Any, count: int, axis: int) -> Parts:
    """Finds the size of a batch and the role of each of its leaves.

    Raises:
        PlanError: if leaves disagree, or the size is not a multiple of `count`.
    """
    paths, leaves = _named(batch)
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    raw = [leaf.dtype == jnp.uint32 and leaf.shape == words for leaf in leaves]
    plain = [leaf.ndim > 0 and not is_raw for leaf, is_raw in zip(leaves, raw, strict=True)]
    sizes = {
        path: leaf.shape[axis] if axis < leaf.ndim else None
        for path, leaf, cut in zip(paths, leaves, plain, strict=True)
        if cut
    }
    if len(set(sizes.values())) != 1 or None in sizes.values():
        found = ", ".join(f"{path} {size or 'none'}" for path, size in sizes.items())
        raise _bad_batch(
            f"arrays need one number of examples in dimension {axis}, found: {found or 'none'}",
            "give batch_axis=, and bind what has no examples beforehand or make it a parameter",
        )
    size = next(iter(sizes.values()))
    assert size is not None
    if words == (size,) and any(raw):
        raise _bad_batch(
            f"a uint32{list(words)} leaf may be {size} examples or a raw random key",
            "pass keys made with jax.random.key",
        )
    if size % count:
        raise IndivisibleError(
            f"{size} examples do not divide into {count} micro-batches", kind="bad-batch",
            where="batch", remedy=f"choose a number of micro-batches that divides {size}",
        )  # fmt: skip
    roles = tuple(
        "rows" if cut else "key" if is_raw or _is_key(leaf) else "same"
        for leaf, cut, is_raw in zip(leaves, plain, raw, strict=True)
    )
    return Parts(count, axis, size, roles)


def _named(tree: Any) -> tuple[list[str], list[Any]]:
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in found]
    return [f"batch/{path}" if path else "batch" for path in paths], [leaf for _, leaf in found]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _bad_batch(message: str, remedy: str) -> PlanError:
    return PlanError(message, kind="bad-batch", where="batch", remedy=remedy)


# --- accumulation ------------------------------------------------------------------------------

Gradient = Callable[[Any], tuple[Any, list[Any], list[Any]]]


def accumulated(
    gradient: Gradient,
    batch: Any,
    parts: Parts,
    structs: Sequence[jax.ShapeDtypeStruct],
    aux: Sequence[Merge],
) -> tuple[Any, list[Any], list[Any]]:
    """Adds up losses and gradients of the parts of a batch and merges aux leaves.

    Args:
        gradient: batch -> (loss, aux leaves, gradient leaves); already scaled by 1/m for a mean.
        batch: the whole batch.
        parts: how the batch is cut.
        structs: types of the loss and of the gradient leaves.
        aux: merge of each aux leaf.
    """

    def terms(part: Any) -> tuple[list[Any], list[Any]]:
        loss, extra, grads = gradient(part)
        return [loss, *grads], extra

    (loss, *grads), extras = _looped(terms, batch, parts, structs)
    results = [merged(leaf, merge, parts) for leaf, merge in zip(extras, aux, strict=True)]
    return loss, results, grads


def added(terms: Callable[[Any], list[Any]], batch: Any, parts: Parts) -> list[Any]:
    """Sums over the parts of a batch; arguments as of `accumulated`."""
    one = jax.eval_shape(lambda batch: terms(_first(batch, parts)), batch)
    return _looped(lambda part: (terms(part), []), batch, parts, one)[0]


def _first(batch: Any, parts: Parts) -> Any:
    """The first part of a batch."""
    leaves, tree = jax.tree.flatten(batch)
    pairs = list(zip(leaves, parts.roles, strict=True))
    rows = iter([parts.cut(leaf, role)[0] for leaf, role in pairs if parts.cuts(role)])
    return jax.tree.unflatten(tree, [of_part(leaf, role, 0, rows) for leaf, role in pairs])


def _looped(
    terms: Callable[[Any], tuple[list[Any], list[Any]]],
    batch: Any,
    parts: Parts,
    structs: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """Sums over the parts of a batch, and the other results of each part."""
    leaves, tree = jax.tree.flatten(batch)
    pairs = list(zip(leaves, parts.roles, strict=True))
    cut = [parts.cut(leaf, role) for leaf, role in pairs if parts.cuts(role)]

    def body(carry: list[Any], x: tuple[Any, list[Any]]) -> tuple[list[Any], list[Any]]:
        number, rows = x[0], iter(x[1])
        here = [of_part(leaf, role, number, rows) for leaf, role in pairs]
        found, extra = terms(jax.tree.unflatten(tree, here))
        each = zip(carry, found, strict=True)
        return [jax.lax.add(total, term.astype(total.dtype)) for total, term in each], extra

    zeros = [jnp.zeros(s.shape, wide(s.dtype)) for s in structs]
    totals, extras = jax.lax.scan(body, zeros, (jnp.arange(parts.count), cut))
    return [t.astype(s.dtype) for t, s in zip(totals, structs, strict=True)], extras


def of_part(leaf: Any, role: str, number: Any, rows: Any) -> Any:
    """A part's value of a leaf; `rows` iterates over the part's slices of cut leaves."""
    if role in ("rows", "first"):
        return next(rows)
    if role == "number":
        return jnp.asarray(number, leaf.dtype)
    return jax.random.fold_in(leaf, number) if role == "key" else leaf


def wide(dtype: Any) -> Any:
    """Accumulation type: float32 for 16-bit floats, as in a product over the whole batch."""
    short = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.float32 if short else dtype


def merged(leaf: Any, merge: Merge, parts: Parts) -> Any:
    """Merges the stacked results of all micro-batches."""
    if merge.how == "mean":
        return jnp.mean(leaf, axis=0)
    if merge.how == "sum":
        return jnp.sum(leaf, axis=0, dtype=wide(leaf.dtype)).astype(leaf.dtype)
    return leaf[0] if merge.how == "same" else parts.join(leaf, merge.dim, merge.inner)

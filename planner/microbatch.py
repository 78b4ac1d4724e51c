# pyright: basic
"""Micro-batches: how a batch is cut, what the loss makes of the parts, and their accumulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ir import IRError, TensorType, dtype_kind
from ir.trace import Traced, trace

from .batchwise import SAME, Share
from .errors import IndivisibleError, PlanError
from .reduction import Lockstep, reduction_of, shares_of

REMEDY = "pass loss_reduction='mean' or 'sum' to have it so regardless, or microbatches=1"


@dataclass(frozen=True, slots=True)
class Parts:
    """How a batch is cut into `count` parts.

    roles: of each leaf: rows (cut along `axis`), key (folded with the part's number) or same.
    """

    count: int
    axis: int
    batch: int
    roles: tuple[str, ...]

    def cut(self, leaf: Any) -> Any:
        """[..., B, ...] as [m, ..., B/m, ...]; part i holds the examples i, i + m, i + 2m, ..."""
        shape, axis = leaf.shape, self.axis
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
    """What the results of the parts become: mean, sum, same (all alike), or rows put in order."""

    how: str
    dim: int = 0
    inner: int = 1


@dataclass(frozen=True, slots=True)
class Decision:
    """Reduction of the loss, merges of the leaves of aux, and warnings."""

    reduction: str
    aux: tuple[Merge, ...]
    warnings: tuple[str, ...]


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


# --- the meaning of the parts ------------------------------------------------------------------


def decide(
    loss_fn: Callable[..., Any], params: Any, batch: Any, parts: Parts, asked: str
) -> Decision:
    """Reads off the loss whether it is a mean or a sum over examples, and likewise each aux leaf.

    Args:
        loss_fn: the user's loss.
        params: structs of the parameters.
        batch: structs of the batch.
        parts: how the batch is cut.
        asked: mean, sum or auto.

    Raises:
        PlanError: if it is neither and `asked` is auto, or an aux leaf cannot be put together.
    """
    ratio = parts.count
    # A single example per part would meet the special treatment of dimensions of size one.
    size = parts.batch if parts.batch > ratio else 2 * parts.batch
    large = _traced(loss_fn, params, batch, parts, size)
    small = _traced(loss_fn, params, batch, parts, size // ratio)
    row = Share("rows", 0, parts.axis, 1)
    inputs = [SAME] * len(jax.tree.leaves(params))
    inputs += [row if role == "rows" else SAME for role in parts.roles]
    shares = shares_of(large.graph, small.graph, inputs, Lockstep(size, ratio))
    reduction, warnings = _loss_reduction(shares[0], asked)
    merges: list[Merge] = []
    before = [small.graph.type_of(o) for o in small.graph.outputs]
    after = [large.graph.type_of(o) for o in large.graph.outputs]
    for i in range(1, len(shares)):
        stays = after[i] if before[i] == after[i] else None
        merge, warning = _aux_merge(shares[i], large.out_names[i], stays, reduction, asked)
        merges.append(merge)
        warnings.extend(warning)
    return Decision(reduction, tuple(merges), tuple(warnings))


def _traced(loss_fn: Any, params: Any, batch: Any, parts: Parts, size: int) -> Traced:
    leaves, tree = jax.tree.flatten(batch)
    resized = [
        jax.ShapeDtypeStruct(
            (*leaf.shape[: parts.axis], size, *leaf.shape[parts.axis + 1 :]), leaf.dtype
        )
        if role == "rows"
        else leaf
        for leaf, role in zip(leaves, parts.roles, strict=True)
    ]
    try:
        return trace(loss_fn, params, jax.tree.unflatten(tree, resized))
    except IRError as error:
        raise untraceable(size, parts.batch, error) from error


def untraceable(size: int, batch: int, error: Exception) -> IndivisibleError:
    """What is said of a loss that does not take as few examples as a micro-batch has."""
    return IndivisibleError(
        f"does not trace with {size} examples in place of {batch}: {error}", kind="bad-batch",
        where="loss_fn", remedy="take the batch size from the shapes of its arrays, or use fewer "
        "micro-batches",
    )  # fmt: skip


def _loss_reduction(share: Share, asked: str) -> tuple[str, list[str]]:
    found = reduction_of(share)
    why = share.reason or "its value grows with a power of the number of examples"
    if asked == "auto":
        if not found:
            raise PlanError(
                f"the loss is neither a mean nor a sum over examples: {why}",
                kind="loss-reduction", where="loss_fn", remedy=REMEDY,
            )  # fmt: skip
        return found, []
    if not found:
        return asked, [f"micro-batches change the meaning of the loss: {why}"]
    if found != asked:
        return asked, [f"loss_reduction='{asked}' was asked for, but the loss is a {found}"]
    return asked, []


def _aux_merge(
    share: Share, name: str, stays: TensorType | None, reduction: str, asked: str
) -> tuple[Merge, list[str]]:
    """Merge of one aux leaf; `stays` is its type if that does not depend on the batch size."""
    if share.kind in ("rows", "never") and share.power == 0:
        return Merge("rows", share.dim, max(share.inner, 1)), []
    if share.kind == "zero" or share == SAME:
        return Merge("same"), []
    found = reduction_of(share)
    if found:
        return Merge(found), []
    why = share.reason or "it depends on the examples in another way"
    if asked != "auto" and stays is not None and dtype_kind(stays.dtype) == "float":
        return Merge(reduction), [f"aux '{name}' is made a {reduction} of micro-batches: {why}"]
    raise PlanError(
        f"aux is neither per example nor a mean or sum over examples: {why}",
        kind="bad-aux", where=f"loss_fn result '{name}'",
        remedy=f"return what it is computed from, or {REMEDY}",
    )  # fmt: skip


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
        parts: how it is cut.
        structs: types of the loss and of the gradient leaves.
        aux: merge of each aux leaf.
    """
    leaves, tree = jax.tree.flatten(batch)
    cut = [
        parts.cut(leaf) for leaf, role in zip(leaves, parts.roles, strict=True) if role == "rows"
    ]

    def body(carry: list[Any], x: tuple[Any, list[Any]]) -> tuple[list[Any], list[Any]]:
        number, rows = x[0], iter(x[1])
        pairs = zip(leaves, parts.roles, strict=True)
        here = [of_part(leaf, role, number, rows) for leaf, role in pairs]
        loss, extra, grads = gradient(jax.tree.unflatten(tree, here))
        terms = zip(carry, (loss, *grads), strict=True)
        return [jax.lax.add(total, term.astype(total.dtype)) for total, term in terms], extra

    zeros = [jnp.zeros(s.shape, wide(s.dtype)) for s in structs]
    totals, extras = jax.lax.scan(body, zeros, (jnp.arange(parts.count), cut))
    loss, *grads = [t.astype(s.dtype) for t, s in zip(totals, structs, strict=True)]
    results = [merged(leaf, merge, parts) for leaf, merge in zip(extras, aux, strict=True)]
    return loss, results, grads


def of_part(leaf: Any, role: str, number: Any, rows: Any) -> Any:
    """What a micro-batch gets of a leaf; `rows` iterates over its parts of those that are cut."""
    if role == "rows":
        return next(rows)
    return jax.random.fold_in(leaf, number) if role == "key" else leaf


def wide(dtype: Any) -> Any:
    """16-bit floats are added up in float32, as they are inside a product over the whole batch."""
    return jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype


def merged(leaf: Any, merge: Merge, parts: Parts) -> Any:
    """The results of all micro-batches, stacked, as one."""
    if merge.how == "mean":
        return jnp.mean(leaf, axis=0)
    if merge.how == "sum":
        return jnp.sum(leaf, axis=0, dtype=leaf.dtype)
    return leaf[0] if merge.how == "same" else parts.join(leaf, merge.dim, merge.inner)

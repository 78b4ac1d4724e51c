# pyright: basic
"""Decides how a loss is computed from parts of the batch: as mean, as sum, with edits, or not.

A loss that is a mean or a sum over examples runs unchanged on the parts. Others, and those that
draw random numbers for all examples together, run with edits (see `edits`): each part then computes
slices and terms of sums of the whole batch's values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from ir import IRError, TensorType, dtype_kind
from ir.trace import Traced, trace

from ..common.errors import IndivisibleError, PlanError
from .custom_derivatives import rules_of, telling
from .edits import SHARE, Edits, Place
from .loss_reduction import Known, Lockstep, reduction_of, shares_of
from .microbatch import Merge, Parts
from .shares import SAME, Share, mixed
from .sliced_program import Sliced

REMEDY = "pass loss_reduction='mean' or 'sum' to have it so regardless, or microbatches=1"
ONCE = "late"


@dataclass(frozen=True, slots=True)
class Decision:
    """How a loss is computed from parts of the batch.

    reduction: mean or sum; auto where it is neither, or with one micro-batch.
    aux: how the parts' other outputs are merged.
    sliced: the loss with edits; None if it runs unchanged.
    folded: whether keys are folded with the part's number, so that parts draw different numbers.
    """

    reduction: str
    aux: tuple[Merge, ...]
    warnings: tuple[str, ...]
    sliced: Sliced | None = None
    folded: bool = False

    def scale(self, count: int) -> float:
        """Factor of a part's loss: 1 / count for a mean, else 1."""
        return 1 / count if self.sliced is None and self.reduction == "mean" else 1


@dataclass(frozen=True, slots=True)
class _Asked:
    """The question: the loss, structs of its arguments, and the reduction asked for."""

    loss_fn: Callable[..., Any]
    params: Any
    batch: Any
    parts: Parts
    reduction: str


def decide(
    loss_fn: Callable[..., Any], params: Any, batch: Any, parts: Parts, asked: str
) -> Decision:
    """Decides from the traced loss how it and each aux leaf are computed from parts of the batch.

    Args:
        loss_fn: the user's loss.
        params: structs of the parameters.
        batch: structs of the batch.
        parts: how the batch is cut.
        asked: reduction asked for: mean, sum or auto.

    Raises:
        PlanError: if the loss cannot be computed from parts and `asked` is auto, or the parts'
            values of an aux leaf cannot be merged.
    """
    question = _Asked(loss_fn, params, batch, parts, asked)
    plain = _Plain.of(question)
    free = asked in ("auto", plain.reduction)
    if free and plain.reduction and not plain.drawn and not plain.telling:
        try:
            return Decision(plain.reduction, *plain.merged(plain.reduction, asked))
        except PlanError:
            if asked != "auto":
                raise
    if free:
        try:
            return _edited(question, plain)
        except PlanError as error:
            if asked == "auto":
                raise _of_so_few(error, question, plain) from error
    return plain.forced(asked)


# --- unchanged ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plain:
    """A loss that runs unchanged on the parts.

    share, aux: shares of the loss and of each aux leaf; drawn: ops that draw random numbers.
    stays: type of each aux leaf that does not depend on the batch size.
    telling: calls whose derivatives depend on the batch size.
    """

    share: Share
    aux: tuple[Share, ...]
    names: tuple[str, ...]
    stays: tuple[TensorType | None, ...]
    drawn: tuple[str, ...]
    telling: tuple[Place, ...]

    @staticmethod
    def of(asked: _Asked) -> _Plain:
        parts, ratio = asked.parts, asked.parts.count
        # A single example per part would trace to other ops, since JAX treats dimensions of size
        # one specially.
        size = parts.batch if parts.batch > ratio else 2 * parts.batch
        large, small = _traced(asked, size), _traced(asked, size // ratio)
        lockstep = Lockstep(size, ratio)
        shares = shares_of(large.program, small.program, _inputs(asked), lockstep)
        ends = zip(small.graph.outputs, large.graph.outputs, strict=True)
        types = [(small.graph.type_of(x), large.graph.type_of(y)) for x, y in ends]
        stays = tuple(b if a == b else None for a, b in types[1:])
        drawn = tuple(dict.fromkeys(lockstep.drawn))
        odd = telling(large.closed, small.closed)
        return _Plain(shares[0], shares[1:], large.out_names[1:], stays, drawn, odd)

    @property
    def reduction(self) -> str:
        return reduction_of(self.share)

    def merged(self, reduction: str, asked: str) -> tuple[tuple[Merge, ...], tuple[str, ...]]:
        """Merges of the aux leaves, and warnings.

        Raises:
            PlanError: if the parts' values of an aux leaf cannot be merged.
        """
        merges: list[Merge] = []
        warnings: list[str] = []
        for share, name, stays in zip(self.aux, self.names, self.stays, strict=True):
            merge, warning = _aux_merge(share, name, stays, reduction, asked)
            merges.append(merge)
            warnings.extend(warning)
        return tuple(merges), tuple(warnings)

    def forced(self, asked: str) -> Decision:
        """The reduction asked for, with warnings if the loss is another one."""
        warnings: list[str] = []
        if not self.reduction:
            why = self.share.reason or "its value grows with a power of the number of examples"
            warnings.append(f"micro-batches change the meaning of the loss: {why}")
        elif self.reduction != asked:
            warnings.append(
                f"loss_reduction='{asked}' was asked for, but the loss is a {self.reduction}"
            )
        if self.drawn:
            warnings.append(
                f"each micro-batch draws random numbers of its own: {', '.join(self.drawn)}"
            )
        merges, more = self.merged(asked, asked)
        return Decision(asked, merges, (*warnings, *more), folded=bool(self.drawn))


def _inputs(asked: _Asked) -> list[Known]:
    """Shares of the arguments: `same` for parameters, by role for the batch."""
    row = Share("rows", 0, asked.parts.axis, 1)
    inputs = [Known(SAME)] * len(jax.tree.leaves(asked.params))
    rows = [asked.parts.cuts(role) for role in asked.parts.roles]
    return inputs + [Known(row if cut else SAME, fixed=True) for cut in rows]


def _traced(asked: _Asked, size: int) -> Traced:
    leaves, tree = jax.tree.flatten(asked.batch)
    parts = asked.parts
    resized = [
        jax.ShapeDtypeStruct(
            (*leaf.shape[: parts.axis], size, *leaf.shape[parts.axis + 1 :]), leaf.dtype
        )
        if parts.cuts(role)
        else leaf
        for leaf, role in zip(leaves, parts.roles, strict=True)
    ]
    try:
        return trace(asked.loss_fn, asked.params, jax.tree.unflatten(tree, resized))
    except IRError as error:
        raise untraceable(size, parts.batch, error) from error


def untraceable(size: int, batch: int, error: Exception) -> IndivisibleError:
    """The error for a loss that does not trace at the size of a micro-batch."""
    return IndivisibleError(
        f"does not trace with {size} examples in place of {batch}: {error}", kind="bad-batch",
        where="loss_fn", remedy="take the batch size from the shapes of its arrays, or use fewer "
        "micro-batches",
    )  # fmt: skip


def _aux_merge(
    share: Share, name: str, stays: TensorType | None, reduction: str, asked: str
) -> tuple[Merge, list[str]]:
    """Merge of one aux leaf; `stays`: its type if independent of the batch size."""
    if share.kind in ("rows", "never") and share.power == 0:
        return Merge("rows", share.dim, max(share.inner, 1)), []
    if share.kind == "zero" or share == SAME:
        return Merge("same"), []
    found = reduction_of(share)
    if found:
        return Merge(found), []
    if asked != "auto" and stays is not None and dtype_kind(stays.dtype) == "float":
        why = share.reason or "it depends on the examples in another way"
        return Merge(reduction), [f"aux '{name}' is made a {reduction} of micro-batches: {why}"]
    raise _bad_aux(share, name)


def _bad_aux(share: Share, name: str) -> PlanError:
    why = share.reason or "it depends on the examples in another way"
    return PlanError(
        f"aux is neither per example nor computed from means or sums over examples: {why}",
        kind="bad-aux", where=f"loss_fn result '{name}'",
        remedy=f"return what it is computed from, or {REMEDY}",
    )  # fmt: skip


# --- with edits ---------------------------------------------------------------------------------


def _edited(asked: _Asked, plain: _Plain) -> Decision:
    """The loss with edits.

    Raises:
        PlanError: if the loss cannot be computed from parts.
    """
    parts, edits = asked.parts, Edits(telling=plain.telling)
    large = _traced(asked, parts.batch)
    small = _traced(asked, parts.batch // parts.count)
    lockstep = Lockstep(parts.batch, parts.count, edits)
    loss, *aux = shares_of(large.program, small.program, _inputs(asked), lockstep)
    broken = rules_of(large.closed, small.closed, edits, parts.batch, parts.count)
    if broken:
        loss = mixed(broken)
    if loss.kind in ("same", "zero"):
        edits.ends[(), 0] = SHARE
    elif loss.kind not in ("total", ONCE):
        why = loss.reason or "it is not one number for all examples"
        raise PlanError(
            f"the loss cannot be computed from sums over examples, nor from micro-batches: {why}",
            kind="loss-reduction", where="loss_fn", remedy=REMEDY,
        )  # fmt: skip
    merges: list[Merge] = []
    for share, name in zip(aux, large.out_names[1:], strict=True):
        merges += _merge_of(share, name)
    merges += [Merge("sum")] * len(edits.sums)
    late = tuple(share.kind == ONCE for share in (loss, *aux))
    sliced = Sliced(large.closed, small.closed, edits, late, parts.count)
    return Decision(plain.reduction or "auto", tuple(merges), (), sliced)


def _of_so_few(error: PlanError, asked: _Asked, plain: _Plain) -> PlanError:
    """The error, or one about parts of one example, which trace to other ops.

    Where parts of two examples do not give the loss either, it is the error of these.
    """
    parts = asked.parts
    if parts.batch > parts.count or error.kind == "bad-batch":
        return error
    try:
        _edited(replace(asked, parts=replace(parts, batch=2 * parts.batch)), plain)
    except PlanError as larger:
        if larger.kind != "bad-batch":
            return IndivisibleError(
                larger.message, kind=larger.kind, where=larger.where, remedy=larger.remedy
            )
    return IndivisibleError(
        f"parts of one example are computed in another way: {error.message}", kind=error.kind,
        where=error.where, remedy=f"use fewer micro-batches than {parts.count}",
    )  # fmt: skip


def _merge_of(share: Share, name: str) -> Sequence[Merge]:
    """Merge of one aux leaf that is not computed after all parts.

    Raises:
        PlanError: if the parts' values cannot be merged.
    """
    if share.kind == ONCE:
        return ()
    if share.kind == "total":
        return (Merge("sum"),)
    if share.kind in ("rows", "never"):
        return (Merge("rows", share.dim, max(share.inner, 1)),)
    if share.kind in ("same", "zero"):
        return (Merge("same"),)
    raise _bad_aux(share, name)


def sharing_keys(parts: Parts, decision: Decision) -> Parts:
    """The parts with the same keys for all, unless keys are folded."""
    if decision.folded:
        return parts
    roles = tuple("same" if role == "key" else role for role in parts.roles)
    return replace(parts, roles=roles)

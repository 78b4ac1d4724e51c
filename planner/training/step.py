# pyright: basic
"""The training step that the planner owns: gradient, accumulation over micro-batches, optimizer.

    (params, opt_state, batch) -> (params, opt_state, loss)        loss is (loss, aux) with has_aux

With m micro-batches the gradients of m parts of the batch are added up by one `lax.scan`. In its
body each new carry is `add(carry, gradient)` and nothing else, so that a planner can leave the
carry a partial result and reduce it over devices once, after the loop. For a mean loss the loss
of each part is divided by m before it is differentiated.

Part i holds the examples i, i + m, i + 2m, ...: a batch that is split over devices is cut into
parts without moving anything between them. Scalars and keys are the same for all parts, of which
each draws its slice of the random numbers of the whole batch (see `loss_parts`). Where the gradient
of a part waits for sums over all examples, as in the root of a mean, a first loop makes these sums.
There is one program, sharded or not; with one micro-batch it is the loss exactly as given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import lazy_loader

from ir.trace import Watch, cudnn_assumed, names_of, structs_of

from ..common.errors import PlanError
from .loss_in_parts import InParts
from .loss_parts import Decision, decide, sharing_keys
from .microbatch import Parts, accumulated, added, parts_of

optax: Any = lazy_loader.load("optax")  # only needed with optimizer=
REDUCTIONS = ("auto", "mean", "sum")


@dataclass(frozen=True, slots=True)
class BuiltStep:
    """A training step.

    fn: (params, opt_state, batch) -> (params, opt_state, loss or (loss, aux)).
    opt_state_structs: shapes and types of the optimizer's state.
    reduction: mean or sum; auto with one micro-batch.
    warnings: what the user should know.
    init: params -> optimizer state; `optimizer.init` of the leaves that have a gradient.
    update: (parameter leaves, gradients, optimizer state, loss) -> (new leaves, new state), of the
        leaves that have a gradient.
    parts, decision: how the batch is cut and results are put together; None with one micro-batch.
    inside: the loss with edits, where it needs them; `parts` are then of its extended batch.
    """

    fn: Callable[..., Any]
    opt_state_structs: Any
    reduction: str
    warnings: tuple[str, ...]
    init: Callable[[Any], Any]
    update: Callable[[Sequence[Any], Sequence[Any], Any, Any], tuple[list[Any], Any]]
    parts: Parts | None
    decision: Decision
    inside: InParts | None


def build_step(
    loss_fn: Callable[..., Any],
    params: Any,
    batch: Any,
    optimizer: Any,
    *,
    has_aux: bool = False,
    microbatches: int = 1,
    loss_reduction: str = "auto",
    batch_axis: int = 0,
) -> BuiltStep:
    """Builds the training step of a loss and an optimizer.

    Args:
        loss_fn: (params, batch) -> scalar, or (scalar, aux) with `has_aux`.
        params: pytree of arrays or structs; leaves that are not floating-point or complex pass
            through unchanged, and the optimizer does not see them.
        batch: pytree of arrays or structs. With micro-batches every array in it but random keys
            has the examples along `batch_axis`.
        optimizer: an optax gradient transformation.
        has_aux: whether the loss returns a pair.
        microbatches: parts that are differentiated one after the other.
        loss_reduction: mean or sum over examples; auto reads it off the loss.
        batch_axis: dimension of the examples.

    Raises:
        PlanError: if the loss is not a real scalar, the batch cannot be cut, the loss cannot be
            computed from sums over examples, or the optimizer is not one.
    """
    _check_settings(optimizer, microbatches, loss_reduction, batch_axis)
    params, batch = structs_of("params", params), structs_of("batch", batch)
    watch = Watch((*names_of("params", params), *names_of("batch", batch)))
    watched = watch.on(loss_fn, (params, batch))
    loss, aux_tree = _loss_struct(watched, params, batch, has_aux)
    tree = _Parameters.of(params)
    rule = _Optimizer(optimizer, tree)
    warnings = rule.warnings(params)
    parts: Parts | None = None
    decision, inside = Decision(loss_reduction, (), ()), None
    if microbatches > 1:
        parts = parts_of(batch, microbatches, batch_axis)
        decision = decide(loss_fn, params, batch, parts, loss_reduction)
        parts = sharing_keys(parts, decision)
        if decision.sliced is not None:
            inside = InParts.of(decision.sliced, parts, decision.aux)
            parts = inside.parts
    structs = [loss, *tree.moving(jax.tree.leaves(params))]
    scale = decision.scale(parts.count) if parts else 1
    whole = _differentiated(loss_fn, tree, has_aux, scale)

    def train_step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, Any]:
        leaves = jax.tree.leaves(params)
        if parts is None:
            loss, aux, grads = whole(leaves, batch)
        elif inside is None:
            one = functools.partial(whole, leaves)
            loss, aux, grads = accumulated(one, batch, parts, structs, decision.aux)
        else:
            loss, aux, grads = _with_edits(inside, tree, leaves, batch, structs)
        new, opt_state = rule.update(leaves, grads, opt_state, loss)
        result = (loss, jax.tree.unflatten(aux_tree, aux)) if has_aux else loss
        return tree.merged(new, leaves), opt_state, result

    return BuiltStep(
        train_step, jax.eval_shape(rule.init, params), decision.reduction,
        (*warnings, *watch.warnings, *decision.warnings), rule.init, rule.update, parts, decision,
        inside,
    )  # fmt: skip


def _differentiated(
    loss_fn: Any, tree: _Parameters, has_aux: bool, scale: float = 1
) -> Callable[[Sequence[Any], Any], tuple[Any, list[Any], list[Any]]]:
    """(parameter leaves, batch) -> (loss, aux leaves, gradients, where a leaf has one)."""

    def gradient(leaves: Sequence[Any], batch: Any) -> tuple[Any, list[Any], list[Any]]:
        def scaled(moving: list[Any]) -> tuple[Any, list[Any]]:
            found = loss_fn(tree.merged(moving, leaves), batch)
            loss, aux = found if has_aux else (found, None)
            return (loss if scale == 1 else loss * scale), jax.tree.leaves(aux)

        (loss, aux), grads = jax.value_and_grad(scaled, has_aux=True)(tree.moving(leaves))
        return loss, aux, grads

    return gradient


def _with_edits(
    inside: InParts, tree: _Parameters, leaves: Sequence[Any], batch: Any, structs: Sequence[Any]
) -> tuple[Any, list[Any], list[Any]]:
    """Loss, leaves of aux, and gradients, of a loss with edits."""
    parts, params = inside.parts, tree.merged(tree.moving(leaves), leaves)
    whole = inside.extended(params, batch)
    if inside.twice:
        sums = added(lambda part: inside.sums(params, part), whole, parts)
        whole = inside.with_sums(whole, sums)
    one = functools.partial(_differentiated(inside.loss, tree, True), leaves)
    loss, merged, grads = accumulated(one, whole, parts, structs, inside.merges)
    return loss, inside.finished(params, whole, merged), grads


# --- checks ------------------------------------------------------------------------------------


def _check_settings(optimizer: Any, microbatches: int, reduction: str, axis: int) -> None:
    if not callable(getattr(optimizer, "init", None)) or not callable(
        getattr(optimizer, "update", None)
    ):
        raise PlanError(
            f"a {type(optimizer).__name__} has no functions init and update",
            kind="bad-optimizer", where="optimizer",
            remedy="pass an optax gradient transformation such as optax.adamw(1e-3)",
        )  # fmt: skip
    if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
        raise _bad_option("microbatches", f"must be a whole number from 1, got {microbatches!r}")
    if reduction not in REDUCTIONS:
        raise _bad_option("loss_reduction", f"must be auto, mean or sum, got {reduction!r}")
    if not isinstance(axis, int) or axis < 0:
        raise _bad_option("batch_axis", f"must be a whole number from 0, got {axis!r}")


def _bad_option(name: str, message: str) -> PlanError:
    return PlanError(message, kind="bad-option", where=name, remedy="correct it, or leave it out")


@cudnn_assumed()
def _loss_struct(
    loss_fn: Any, params: Any, batch: Any, has_aux: bool
) -> tuple[jax.ShapeDtypeStruct, Any]:
    """Type of the loss, and the tree structure of aux."""
    try:
        found = jax.eval_shape(loss_fn, params, batch)
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        raise PlanError(
            f"fails on the given arguments: {type(error).__name__}: {text[0]}", kind="bad-loss",
            where="loss_fn", remedy="call jax.eval_shape(loss_fn, params, batch) to see it alone",
        ) from error  # fmt: skip
    if has_aux and not (isinstance(found, tuple) and len(found) == 2):
        raise _bad_loss(f"must return (loss, aux) with has_aux, returns {_show(found)}")
    loss = found[0] if has_aux else found
    if not isinstance(loss, jax.ShapeDtypeStruct):
        raise _bad_loss(f"must return one scalar, returns {_show(loss)}; set has_aux for a pair")
    if loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise _bad_loss(f"must return a floating-point scalar, returns {_show(loss)}")
    return loss, jax.tree.structure(found[1] if has_aux else None)


def _bad_loss(message: str) -> PlanError:
    return PlanError(message, kind="bad-loss", where="loss_fn", remedy="return one number to lower")


def _show(found: Any) -> str:
    if isinstance(found, jax.ShapeDtypeStruct):
        return f"{found.dtype}{list(found.shape)}"
    return f"a {type(found).__name__} with {len(jax.tree.leaves(found))} arrays"


# --- parameters that have a gradient -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parameters:
    """A pytree of parameters, of which some leaves have a gradient and the others are constant."""

    tree: Any
    moves: tuple[bool, ...]

    @staticmethod
    def of(params: Any) -> _Parameters:
        leaves, tree = jax.tree.flatten(params)
        moves = tuple(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves)
        if not any(moves):
            raise PlanError(
                "none of the parameters is floating-point or complex", kind="bad-argument",
                where="params", remedy="pass what is trained as the first argument",
            )  # fmt: skip
        return _Parameters(tree, moves)

    def moving(self, leaves: Sequence[Any]) -> list[Any]:
        return [leaf for leaf, moves in zip(leaves, self.moves, strict=True) if moves]

    def merged(self, moving: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """The pytree with new values of the leaves that have a gradient."""
        new = iter(moving)
        all_leaves = [next(new) if m else x for x, m in zip(leaves, self.moves, strict=True)]
        return jax.tree.unflatten(self.tree, all_leaves)


@dataclass(frozen=True, slots=True)
class _Optimizer:
    """An optimizer of the leaves that have a gradient; the others are None to it."""

    rule: Any
    tree: _Parameters

    def init(self, params: Any) -> Any:
        return self.rule.init(self._seen(jax.tree.leaves(params)))

    def update(
        self, leaves: Sequence[Any], grads: Sequence[Any], state: Any, loss: Any
    ) -> tuple[list[Any], Any]:
        """New values of the leaves that have a gradient, and the new state."""
        seen = self._seen(leaves)
        extra = {}
        if isinstance(self.rule, optax.GradientTransformationExtraArgs):
            extra["value"] = loss  # for rules that follow the loss, such as reduce_on_plateau
        slopes = self.tree.merged(grads, [None] * len(leaves))
        updates, state = self.rule.update(slopes, state, seen, **extra)
        return jax.tree.leaves(optax.apply_updates(seen, updates)), state

    def _seen(self, leaves: Sequence[Any]) -> Any:
        return self.tree.merged(self.tree.moving(leaves), [None] * len(leaves))

    def warnings(self, params: Any) -> list[str]:
        """Runs one update on types alone.

        Raises:
            PlanError: if the optimizer fails.
        """
        leaves = jax.tree.leaves(params)

        def once(leaves: list[Any]) -> tuple[Any, Any]:
            state = self.init(jax.tree.unflatten(self.tree.tree, leaves))
            return state, self.update(leaves, self.tree.moving(leaves), state, jnp.zeros(()))[1]

        try:
            before, after = jax.eval_shape(once, leaves)
        except Exception as error:
            text = str(error).strip().splitlines() or [""]
            raise PlanError(
                f"fails on these parameters: {type(error).__name__}: {text[0]}",
                kind="bad-optimizer", where="optimizer",
                remedy="call optimizer.init(params) and optimizer.update(...) to see it alone",
            ) from error  # fmt: skip
        found: list[str] = []
        if _types(before) != _types(after):
            found.append("the optimizer's state has other types after a step than before")
        if not all(self.tree.moves) and _types(before) != _types(self._plain_state(params)):
            found.append(
                "some parameters are not floating-point and stay as they are; the optimizer's "
                "state covers the others: create it with the step's init"
            )
        return found

    def _plain_state(self, params: Any) -> Any:
        """Result of `optimizer.init(params)`; None if it fails."""
        try:
            return jax.eval_shape(self.rule.init, params)
        except Exception:
            return None


def _types(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)

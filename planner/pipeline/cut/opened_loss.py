# pyright: basic
"""A loss traced at the size of one micro-batch, and its cut into stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ...common.errors import PlanError
from ...training.loss_in_parts import InParts
from ...training.loss_parts import untraceable
from ...training.step import BuiltStep, build_step
from .chain import Chain
from .equations import Equations, open_loss
from .layers import Layers, chain_of, layers_of
from .stage import Staged, staged
from .stage_steps import RECOMPUTE


@dataclass(frozen=True)
class Opened:
    """A loss traced at the size of one micro-batch.

    built: the unsharded training step with the same number of micro-batches.
    params, batch: structs of the arguments.
    """

    built: BuiltStep
    program: Equations
    layers: Layers
    chain: Chain
    params: Any
    batch: Any
    microbatches: int
    has_aux: bool

    def held_bytes(self) -> int:
        """Bytes of parameters, optimizer state and gradients.

        A stage updates its parameters after its last micro-batch, so that it holds the gradients
        of all of them, of one micro-batch too.
        """
        state = jax.eval_shape(self.built.init, self.params)
        leaves = jax.tree.leaves((self.params, state, self.params))
        return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def opened(
    loss_fn: Callable[..., Any],
    params: Any,
    batch: Any,
    optimizer: Any,
    *,
    microbatches: int,
    has_aux: bool = False,
    loss_reduction: str = "auto",
    batch_axis: int = 0,
) -> Opened:
    """Traces a loss for a pipeline; arguments as of `build_step`.

    Raises:
        PlanError: if the batch or the loss cannot be cut, or the program has effects.
    """
    built = build_step(
        loss_fn, params, batch, optimizer, has_aux=has_aux, microbatches=microbatches,
        loss_reduction=loss_reduction, batch_axis=batch_axis,
    )  # fmt: skip
    params, batch = jax.eval_shape(lambda *trees: trees, params, batch)
    one, whole = loss_fn, batch
    if built.inside is not None:
        _check_aux(built.inside)
        one, whole = built.inside.loss, jax.eval_shape(built.inside.extended, params, batch)
    try:
        program = open_loss(one, params, _micro(whole, built))
    except (TypeError, ValueError) as error:
        if built.parts is None or isinstance(error, PlanError):
            raise
        size = built.parts.batch
        raise untraceable(size // microbatches, size, error) from error
    layers = layers_of(program)
    return Opened(built, program, layers, chain_of(layers), params, batch, microbatches, has_aux)


def _check_aux(inside: InParts) -> None:
    """Refuses aux leaves that need values of several stages."""
    if inside.sliced.reads(len(inside.sliced.whole.inputs) - inside.leaves):
        raise PlanError(
            "aux is computed from parameters and sums over all examples, which stages do not have "
            "in one place", kind="bad-aux", where="loss_fn",
            remedy="return what it is computed from, or plan with pipeline='off'",
        )  # fmt: skip


def _micro(batch: Any, built: BuiltStep) -> Any:
    """Structs of one micro-batch."""
    parts = built.parts
    if parts is None:
        return batch
    leaves, tree = jax.tree.flatten(batch)
    found = []
    for leaf, role in zip(leaves, parts.roles, strict=True):
        shape = list(leaf.shape)
        if parts.cuts(role):
            shape[parts.axis_of(role)] //= parts.count
        found.append(jax.ShapeDtypeStruct(tuple(shape), leaf.dtype))
    return jax.tree.unflatten(tree, found)


def cut_of(loss: Opened, cuts: Sequence[int], recompute: Sequence[str] = ()) -> Staged:
    """Cuts a loss into stages; stages that recompute by layer contain the recomputation.

    Args:
        loss: the traced loss.
        cuts: first slot of every stage, and the number of slots at the end.
        recompute: kind of recomputation of each stage; none if empty.
    """
    inside = [kind if kind in RECOMPUTE else "none" for kind in recompute]
    return staged(loss.layers, cuts, inside, loss.chain.places())

# pyright: basic
"""A loss with edits as a function of parameters and a part, with programs before and after.

The extended batch is the leaves of the batch, then the values computed beforehand from the whole
batch, then the part's number. It is cut into parts like any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .derivative_rules import chosen, merged
from .microbatch import Merge, Parts
from .sliced_program import Sliced

Array = Any


@dataclass(frozen=True)
class InParts:
    """A loss with edits.

    parts: how the extended batch is cut.
    leaves: number of leaves of the batch.
    merges: how the parts' other outputs are merged.
    """

    sliced: Sliced
    parts: Parts
    leaves: int
    merges: tuple[Merge, ...]

    @staticmethod
    def of(sliced: Sliced, parts: Parts, merges: tuple[Merge, ...]) -> InParts:
        """A loss with edits; `parts` are of the batch."""
        given = ["same" if dim is None else "first" for dim in sliced.edits.given.values()]
        sums = ["same"] * len(sliced.sums) if sliced.late[0] else []
        whole = replaced(parts, roles=(*parts.roles, *given, "number", *sums))
        return InParts(sliced, whole, len(parts.roles), merges)

    @property
    def twice(self) -> bool:
        """Whether the gradient of a part waits for sums of all parts."""
        return self.sliced.late[0]

    def extended(self, params: Any, batch: Any) -> list[Array]:
        """The extended batch; sums over all parts are still zero."""
        leaves = jax.tree.leaves(batch)
        given = self.sliced.before(_leaves(params), leaves)
        sums = self.sliced.sum_structs if self.twice else ()
        zeros = [jnp.zeros(s.shape, s.dtype) for s in sums]
        return [*leaves, *given, jnp.zeros((), jnp.int32), *zeros]

    def with_sums(self, whole: Sequence[Array], sums: Sequence[Array]) -> list[Array]:
        """The extended batch with sums over all parts."""
        return [*whole[: len(whole) - len(sums)], *sums]

    def _opened(self, whole: Sequence[Array]) -> tuple[Sequence[Array], ...]:
        """Leaves of the batch, values computed before, number of the part, sums of all parts."""
        given = self.leaves + len(self.sliced.given)
        batch, rest = whole[: self.leaves], whole[self.leaves : given]
        return batch, rest, whole[given : given + 1], whole[given + 1 :]

    def _of_part(
        self, params: Any, part: Sequence[Array], *, effects: bool = True
    ) -> tuple[list[Array], list[Array]]:
        batch, given, (number,), _ = self._opened(part)
        return self.sliced.of_part(_leaves(params), batch, given, number, effects=effects)

    def sums(self, params: Any, part: Sequence[Array]) -> list[Array]:
        """A part's terms of the sums over all parts."""
        return self._of_part(params, part, effects=False)[1]

    def loss(self, params: Any, part: Sequence[Array]) -> tuple[Array, list[Array]]:
        """A part's term of the loss, and its other outputs.

        For a loss f(params, S) of sums S over all parts the term is f / m, with the derivative of
        f / m + (df/dS) . (the part's terms of S) as its own: added up, that of f.
        """
        outs, sums = self._of_part(params, part)
        if not self.twice:
            loss, *aux = outs
            return loss, [*aux, *sums]
        totals = self._opened(part)[3]
        flows = [jnp.issubdtype(x.dtype, jnp.inexact) for x in totals]

        def last(floats: Sequence[Array]) -> Array:
            return self._after(params, part, merged(totals, floats, flows), [0])[0]

        own, slopes = jax.value_and_grad(last)(chosen(totals, flows))
        loss = own / self.parts.count
        for slope, x in zip(slopes, chosen(sums, flows), strict=True):
            loss = _with_slope(loss, lax.stop_gradient(slope), x)
        return loss, [*outs, *sums]

    def _after(
        self, params: Any, whole: Sequence[Array], sums: Sequence[Array], outputs: Sequence[int]
    ) -> list[Array]:
        batch, given, _, _ = self._opened(whole)
        return self.sliced.after(_leaves(params), batch, given, sums, outputs)

    def finished(self, params: Any, whole: Sequence[Array], found: Sequence[Array]) -> list[Array]:
        """Leaves of aux.

        Args:
            params: parameters.
            whole: the extended batch.
            found: what all parts gave beside the loss.
        """
        count = len(found) - len(self.sliced.sums)
        numbers = self.sliced.late_aux
        plain = iter(found[:count])
        late = iter(self._after(params, whole, found[count:], numbers) if numbers else ())
        return [next(late) if once else next(plain) for once in self.sliced.late[1:]]


@jax.custom_jvp
def _with_slope(loss: Array, slope: Array, x: Array) -> Array:
    """The loss as it is, with the derivative of loss + slope . x.

    No such term is added, not even as slope . (x - x), which is NaN once slope or x overflows.
    """
    del slope, x
    return loss


@_with_slope.defjvp
def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
    loss, slope, _ = primals
    moved, _, more = tangents
    return loss, moved + jnp.sum(slope * more).astype(loss.dtype)


def _leaves(params: Any) -> list[Any]:
    """Leaves of the parameters; None stands for those that nothing reads."""
    return jax.tree.leaves(params, is_leaf=lambda x: x is None)

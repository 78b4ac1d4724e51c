# pyright: basic
"""A loss with edits as a function of parameters and a part, and what comes before and after.

The batch is extended: its leaves are followed by values that were computed from the whole batch,
and the part's number. So extended it is cut like any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any

import jax
import jax.numpy as jnp

from .emit.sliced import Sliced
from .microbatch import Merge, Parts

Array = Any


@dataclass(frozen=True)
class InParts:
    """A loss with edits.

    parts: of the extended batch.
    leaves: of the batch.
    merges: of what a part gives beside the loss.
    """

    sliced: Sliced
    parts: Parts
    leaves: int
    merges: tuple[Merge, ...]

    @staticmethod
    def of(sliced: Sliced, parts: Parts, merges: tuple[Merge, ...]) -> InParts:
        """A loss with edits; `parts` are of the batch."""
        given = ("same" if dim is None else "first" for dim in sliced.edits.given.values())
        whole = replaced(parts, roles=(*parts.roles, *given, "number"))
        return InParts(sliced, whole, len(parts.roles), merges)

    @property
    def twice(self) -> bool:
        """Whether the gradient of a part waits for sums of all parts."""
        return self.sliced.late[0]

    def extended(self, params: Any, batch: Any) -> list[Array]:
        """The batch with what is computed from all of it."""
        leaves = jax.tree.leaves(batch)
        given = self.sliced.before(_leaves(params), leaves)
        return [*leaves, *given, jnp.zeros((), jnp.int32)]

    def _of_part(
        self, params: Any, part: Sequence[Array], *, effects: bool = True
    ) -> tuple[list[Array], list[Array]]:
        n, leaves = self.leaves, _leaves(params)
        return self.sliced.of_part(leaves, part[:n], part[n:-1], part[-1], effects=effects)

    def loss(self, params: Any, part: Sequence[Array]) -> tuple[Array, list[Array]]:
        """What a part adds to the loss, and what it gives beside."""
        (loss, *aux), sums = self._of_part(params, part)
        return loss, [*aux, *sums]

    def sums(self, params: Any, part: Sequence[Array]) -> list[Array]:
        """What a part adds to the sums from which the loss is computed."""
        return self._of_part(params, part, effects=False)[1]

    def rest(self, params: Any, part: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """What a part adds to these sums, and what it gives beside, where the loss is late."""
        aux, sums = self._of_part(params, part)
        return sums, [*aux, *sums]

    def after(self, params: Any, whole: Sequence[Array], sums: Sequence[Array]) -> list[Array]:
        """Outputs that are computed at the end, of which the loss is the first if it is late."""
        n = self.leaves
        return self.sliced.after(_leaves(params), whole[:n], whole[n:-1], sums)

    def finished(self, params: Any, whole: Sequence[Array], merged: Sequence[Array]) -> list[Array]:
        """Leaves of aux.

        Args:
            params: parameters.
            whole: the extended batch.
            merged: what all parts gave beside the loss.
        """
        count = len(merged) - len(self.sliced.sums)
        plain, late = iter(merged[:count]), iter(())
        if any(self.sliced.late[1:]):
            late = iter(self.after(params, whole, merged[count:])[int(self.twice) :])
        return [next(late) if once else next(plain) for once in self.sliced.late[1:]]


def _leaves(params: Any) -> list[Any]:
    """Leaves of the parameters; None stands for those that nothing reads."""
    return jax.tree.leaves(params, is_leaf=lambda x: x is None)

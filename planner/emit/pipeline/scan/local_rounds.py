# pyright: basic
"""All rounds of a schedule on the shards of one device, inside of `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from ir import TensorType

from ....pipeline.schedule.lockstep import WEIGHT, Lockstep
from .branches import (
    Branch,
    Carry,
    Entries,
    Given,
    Kept,
    Row,
    StageBranches,
    empty,
    picked,
    put,
    sent,
    written,
)
from .classes import classes_of
from .layout import ScanLayout
from .rows import Rows, rows_of

Array = Any


@dataclass(frozen=True)
class LocalRounds:
    """The rounds of a pipeline.

    scale: of the loss of a micro-batch in what is minimised.
    cut: leaves of the batch of which each micro-batch has its own part.
    microbatches: of a step.
    """

    layout: ScanLayout
    rounds: Lockstep
    scale: float
    cut: frozenset[int]
    microbatches: int

    def run(
        self, given: Given, types: Mapping[int, TensorType]
    ) -> tuple[tuple[Array, ...], dict[int, Array]]:
        """Results of all micro-batches on the stage that makes them, and sums of gradients.

        Args:
            given: parameters and micro-batches.
            types: of the sums of the part of each parameter that a stage holds.
        """
        carry = self._scanned(given)
        return carry.results, self._sums(carry, types)

    def _branches(self, rows: Rows, phase: int) -> list[Branch]:
        def of(stage: int) -> StageBranches:
            return StageBranches(self.layout, stage, self.scale, self.cut)

        return [of(0).idle(phase), *(of(stage).of(kind) for kind, stage in rows.branches[phase])]

    def _scanned(self, given: Given) -> Carry:
        """All rounds."""
        layout, count = self.layout, self.rounds.stages
        rows = rows_of(self.rounds, classes_of(layout))
        phases = [self._branches(rows, phase) for phase in range(rows.phases)]
        me = lax.axis_index(layout.axis)
        ahead = [(s, s + 1) for s in range(count - 1)]
        back = [(s + 1, s) for s in range(count - 1)]

        def moved(arrays: Sequence[Array], pairs: Sequence[tuple[int, int]]) -> list[Array]:
            return [sent(x, layout.axis, pairs) for x in arrays]

        def stored(pools: Sequence[Array], came: Sequence[Array], slot: Any) -> tuple[Array, ...]:
            return tuple(put(pool, x, slot) for pool, x in zip(pools, came, strict=True))

        def round_(carry: Carry, all_rows: Row) -> tuple[Carry, None]:
            row = Row(*(x[me] for x in all_rows))
            there = [branch > 0 for branch in row.branch]
            gradients = moved(carry.sending, back)
            kept, made, sending = lax.switch(row.branch[0], phases[0], row, given, carry)
            values = moved(sending, ahead)
            carry = carry._replace(
                saved=written(layout.saved, carry.saved, kept, me, row.saved[0], there[0]),
                results=_collected(carry.results, made, row.microbatch[0], there[0]),
                back=stored(carry.back, gradients, row.arriving[1]),
            )
            kept, sums, sending = lax.switch(row.branch[1], phases[1], row, given, carry)
            carry = carry._replace(
                between=written(layout.between, carry.between, kept, me, row.between[1], there[1]),
                sums=_added(carry.sums, sums),
                sending=sending,
            )
            if rows.phases > WEIGHT:
                sums = lax.switch(row.branch[2], phases[2], row, given, carry)
                carry = carry._replace(sums=_added(carry.sums, sums))
            return carry._replace(ahead=stored(carry.ahead, values, row.arriving[0])), None

        return lax.scan(round_, self._empty(), Row(*map(jnp.asarray, rows.table)))[0]

    def _empty(self) -> Carry:
        layout, rounds = self.layout, self.rounds

        def pool(found: Any) -> tuple[Array, ...]:
            return tuple(empty(f, n) for f, n in zip(found.forms, found.sizes, strict=True))

        def wires(found: Any, slots: int) -> tuple[Array, ...]:
            return tuple(empty(form, slots) for form in found.forms)

        results = [empty(form, self.microbatches) for form in layout.result_forms]
        return Carry(
            wires(layout.ahead, max(rounds.activations.most)),
            wires(layout.back, max(rounds.gradients.most)),
            pool(layout.saved), pool(layout.between), pool(layout.sums), tuple(results),
            tuple(empty(form) for form in layout.back.forms),
        )  # fmt: skip

    def _sums(self, carry: Carry, types: Mapping[int, TensorType]) -> dict[int, Array]:
        """Gradients of the parts of the parameters that a stage holds, in their places."""
        layout = self.layout
        classes, moving = classes_of(layout), sorted(types)
        kinds = sorted(set(classes))
        branches = [self._finish(stage, moving, types) for stage in kinds]
        me = lax.axis_index(layout.axis)
        found = lax.switch(jnp.asarray([kinds.index(c) for c in classes])[me], branches, carry.sums)
        return {
            leaf: x if layout.held[leaf].rows else lax.psum(x, layout.axis)
            for leaf, x in zip(moving, found, strict=True)
        }

    def _finish(self, s: int, moving: Sequence[int], types: Mapping[int, TensorType]) -> Any:
        layout, local = self.layout, self.layout.stages[s]
        pairs = zip(local.stage.params, local.program.moves, strict=True)
        own = [use.leaf for use, moves in pairs if moves]
        run = local.finish([layout.held[leaf].stored for leaf in own])

        def finish(sums: Sequence[Array]) -> tuple[Array, ...]:
            found: dict[int, list[Array]] = {}
            for leaf, x in zip(own, run(Kept(layout.sums, s).read(sums, 0)), strict=True):
                found.setdefault(leaf, []).append(x)
            return tuple(
                _joined(found[leaf])
                if leaf in found
                else empty(local.form(types[leaf], layout.held[leaf].stored))
                for leaf in moving
            )

        return finish


def _joined(parts: Sequence[Array]) -> Array:
    """A stack of its parts."""
    return jnp.concatenate(parts) if len(parts) > 1 else parts[0]


def _added(sums: Sequence[Array], more: Entries) -> tuple[Array, ...]:
    """Sums of gradients with those of one more micro-batch."""
    return tuple(x + jnp.stack(one) if one else x for x, one in zip(sums, more, strict=True))


def _collected(
    results: Sequence[Array], made: Sequence[Array], microbatch: Any, is_there: Any
) -> tuple[Array, ...]:
    """Results of all micro-batches with those of one."""
    return tuple(
        put(x, jnp.where(is_there, one, picked(x, microbatch)), microbatch)
        for x, one in zip(results, made, strict=True)
    )

"""The rounds of a schedule as tables of numbers that the one program reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....pipeline.schedule import Kind
from ....pipeline.schedule.lockstep import BACKWARD, FORWARD, PHASE, WEIGHT, Lockstep

Numbers = NDArray[np.int32]


@dataclass(frozen=True)
class Rows:
    """Tables of all rounds.

    branches: for each phase, (kind, class of stages) of the branches after the idle one.
    table: [rounds, stages, phases] branch, micro-batch, and slots of its activations, of what its
        forward saved, of its gradients, and of what lies between them; then [rounds, stages, 2]
        slots for what arrives ahead and back.
    """

    branches: tuple[tuple[tuple[Kind, int], ...], ...]
    table: tuple[Numbers, ...]

    @property
    def phases(self) -> int:
        """How many phases have tasks."""
        return WEIGHT + 1 if self.branches[WEIGHT] else WEIGHT


def rows_of(rounds: Lockstep, classes: Sequence[int]) -> Rows:
    """Tables of the rounds.

    Args:
        rounds: of a schedule.
        classes: of each stage; those of a class have the same branches.
    """
    found = sorted({(PHASE[kind], kind, classes[s]) for kind, s, _ in rounds.at})
    branches = tuple(
        tuple((kind, c) for phase, kind, c in found if phase == own)
        for own in (FORWARD, BACKWARD, WEIGHT)
    )
    branch, microbatch, *slots = (
        np.zeros((rounds.rounds, rounds.stages, WEIGHT + 1), np.int32) for _ in range(6)
    )
    kept = (rounds.activations, rounds.saved, rounds.gradients, rounds.between)
    arriving = np.zeros((rounds.rounds, rounds.stages, 2), np.int32)
    for column, spans in enumerate((rounds.activations, rounds.gradients)):
        for (s, r), slot in spans.spare.items():
            arriving[r, s, column] = slot
    for (kind, s, m), r in rounds.at.items():
        phase = PHASE[kind]
        branch[r, s, phase] = 1 + branches[phase].index((kind, classes[s]))
        microbatch[r, s, phase] = m
        for table, spans in zip(slots, kept, strict=True):
            table[r, s, phase] = spans.slot.get((s, m), 0)
        if phase == FORWARD and s + 1 < rounds.stages:
            arriving[r, s + 1, 0] = rounds.activations.slot[s + 1, m]
        if phase == BACKWARD and s:
            arriving[r + 1, s - 1, 1] = rounds.gradients.slot[s - 1, m]
    return Rows(branches, (branch, microbatch, *slots, arriving))

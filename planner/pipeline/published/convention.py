"""What a paper's cost formula has to say, once for a plan and once for a search.

A search adds stages from the last to the first. Its labels are rows of numbers, each of which may
only make things worse when it grows; the first column counts what is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StageTerms:
    """Numbers of one stage, or arrays of them for many.

    forward_s, backward_s: of one micro-batch, replicas included.
    edge_bytes: of one micro-batch over all edges that enter or leave, group exchange included.
    enter_s, leave_s: transfer of one micro-batch's activations to and from the neighbours.
    sync_s: ring all-reduce of the gradients, once a step.
    late_s: what of it is left when backward ends, if every layer starts its own at once.
    weight_bytes: gradients exchanged by each replica.
    ring_bytes_per_s: of the slowest link between the replicas.
    replicas: data-parallel degree.
    """

    forward_s: Floats
    backward_s: Floats
    edge_bytes: Floats
    enter_s: Floats
    leave_s: Floats
    sync_s: Floats
    late_s: Floats
    weight_bytes: Floats
    ring_bytes_per_s: float
    replicas: int

    @property
    def seconds(self) -> Floats:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True)
class Convention:
    """A cost formula.

    name: of the planner whose paper has it.
    source: paper and section.
    schedule: what the formula assumes to run.
    by_replicas: whole micro-batches go to replicas in turn, so that ceil(s / d) are in flight on
        each of d replicas, with s the replicas of this stage and all later ones. Otherwise each
        micro-batch is split over the replicas and as many are in flight as stages are left.
    stashes: every micro-batch in flight holds its own version of the weights.
    averages: layer times are averaged over all devices of the machine, whatever runs them.
    divides: data-parallel degrees must divide the number of micro-batches.
    step_s: seconds of a step from its stages, first to last, and the number of micro-batches.
    seconds: of one stage where the whole is the largest of them, else None.
    start: the label of nothing planned yet, without the first column.
    extend: labels (without the first column) with a stage put in front of them.
    value: step seconds of labels.
    bound: what they cannot fall below however they are extended.
    """

    name: str
    source: str
    schedule: str
    by_replicas: bool
    stashes: bool
    averages: bool
    divides: bool
    step_s: Callable[[Sequence[StageTerms], int], float]
    seconds: Callable[[StageTerms, int], Floats] | None
    start: tuple[float, ...]
    extend: Callable[[Floats, StageTerms, int], Floats]
    value: Callable[[Floats, int], Floats]
    bound: Callable[[Floats, int], Floats]

    def in_flight(self, held: int, replicas: int) -> int:
        """Micro-batches that a stage keeps, from the count of its label."""
        return -(-held // replicas) if self.by_replicas else held

    def adds(self, replicas: int) -> int:
        """What a stage adds to the count."""
        return replicas if self.by_replicas else 1

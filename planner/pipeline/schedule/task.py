"""A task of a schedule: one row of one device's table."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Kind(enum.IntEnum):
    """Kind of a task; the value is the first column of a schedule's table."""

    FORWARD = 0
    BACKWARD = 1  # input and weight gradient in one task
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3
    RECOMPUTE = 4  # repeats the forward before a backward
    SEND_ACTIVATION = 5
    RECEIVE_ACTIVATION = 6
    SEND_GRADIENT = 7
    RECEIVE_GRADIENT = 8
    SYNC = 9  # one part of the gradient sum among copies of a stage
    OPTIMIZER = 10
    OFFLOAD = 11  # activations to the host
    FETCH = 12  # activations from the host

    @property
    def word(self) -> str:
        """Name in output and files, such as `input-gradient`."""
        return self.name.lower().replace("_", "-")


BY_WORD = {kind.word: kind for kind in Kind}
# Tasks that keep the device's compute queue busy.
COMPUTE = (
    Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT, Kind.RECOMPUTE,
    Kind.OPTIMIZER,
)  # fmt: skip
SENDS = (Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT)
RECEIVES = (Kind.RECEIVE_ACTIVATION, Kind.RECEIVE_GRADIENT)


class Row(NamedTuple):
    """A task as a row of numbers, the form that the builders of schedules write.

    chunk: the virtual stage worked on.
    microbatch: from 0; for `SYNC` and `OPTIMIZER` the number of the update, from 0.
    part: token slice of the micro-batch; for `SYNC` the part of the gradient.
    peer: the chunk at the other end of a send or receive, else -1.
    """

    kind: int
    chunk: int
    microbatch: int
    part: int = 0
    peer: int = -1


@dataclass(frozen=True, slots=True, order=True)
class Task:
    """A task; fields as in `Row`."""

    kind: Kind
    chunk: int
    microbatch: int
    part: int = 0
    peer: int = -1

    def __str__(self) -> str:
        """The task in words, such as `forward of micro-batch 3 on chunk 1`."""
        if self.kind in (Kind.SYNC, Kind.OPTIMIZER):
            part = f" part {self.part}" if self.kind is Kind.SYNC else ""
            return f"{self.kind.word}{part} of update {self.microbatch} on chunk {self.chunk}"
        piece = f", slice {self.part}," if self.part else ""
        text = f"{self.kind.word} of micro-batch {self.microbatch}{piece} on chunk {self.chunk}"
        if self.kind in SENDS:
            return f"{text} to chunk {self.peer}"
        return f"{text} from chunk {self.peer}" if self.kind in RECEIVES else text

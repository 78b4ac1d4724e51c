"""What every pass of one call of `plan` is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from costmodel import Cluster

from .interruption import Interruption
from .log import LOGGER
from .options import Options


class OutOfTimeError(Exception):
    """The time limit ends a search that has found something."""


def logged(line: str) -> None:
    """Progress that only the log hears."""
    LOGGER.debug(line)


def heard(progress: Callable[[str], None] | None) -> Callable[[str], None]:
    """Progress that the log hears, and a receiver if there is one."""
    if progress is None:
        return logged

    def say(line: str) -> None:
        logged(line)
        progress(line)

    return say


@dataclass(frozen=True)
class Request:
    """A machine to plan for, and how.

    say: called with a line of text as the search goes on.
    start: when planning began [s of `time.monotonic`].
    interruption: whether Ctrl-C ended it, and what is done then.
    """

    machine: Cluster
    options: Options
    say: Callable[[str], None] = logged
    start: float = field(default_factory=time.monotonic)
    interruption: Interruption = field(default_factory=Interruption)

    @property
    def deadline(self) -> float:
        """End of the time limit [s of `time.monotonic`]."""
        return self.start + self.options.time_limit_s

    @property
    def left_s(self) -> float:
        """What is left of the time limit [s]."""
        return self.deadline - time.monotonic()

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit is over."""
        return self.left_s < 0.0

    @property
    def over(self) -> bool:
        """Whether a plan that there is is not improved further: after Ctrl-C or the time limit."""
        return self.interruption.happened or self.out_of_time

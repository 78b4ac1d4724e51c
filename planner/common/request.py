"""What every pass of one call of `plan` is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from costmodel import Cluster

from .options import Options


def silent(_: str) -> None:
    """Progress that nobody hears."""


@dataclass(frozen=True)
class Request:
    """A machine to plan for, and how.

    say: called with a line of text as the search goes on.
    start: when planning began [s of `time.monotonic`].
    """

    machine: Cluster
    options: Options
    say: Callable[[str], None] = silent
    start: float = field(default_factory=time.monotonic)

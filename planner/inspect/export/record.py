"""What an export format gets and gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..analysed_plan import AnalysedPlan


@dataclass(frozen=True, slots=True)
class Subject:
    """A plan to export.

    serialize: the compiled program as (StableHLO text, bytes of `jax.export`); raises a PlanError
        if the plan has no function.
    progress: called with a line of text.
    """

    analysed: AnalysedPlan
    serialize: Callable[[], tuple[str, bytes]]
    progress: Callable[[str], None] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True)
class Exported:
    """Files of an export.

    main: content of the file that the user named.
    beside: (suffix, content) of files beside it, such as `.py`.
    notes: decisions of the plan that the format cannot express.
    """

    main: bytes
    beside: tuple[tuple[str, bytes], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """A format: one line about it, whether it needs the function, and how it is made."""

    name: str
    about: str
    needs_function: bool
    make: Callable[[Subject], Exported]


def json_bytes(value: Any) -> bytes:
    """Indented JSON; equal values give equal bytes."""
    return (json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode()


def loader(name: str) -> str:
    """Source of a loader that goes with an export; it imports nothing of ours."""
    return (Path(__file__).parent / "loaders" / name).read_text(encoding="utf-8")

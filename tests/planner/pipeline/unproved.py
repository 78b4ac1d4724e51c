"""Pipelines without the proof, for tests whose subject is not which one is the best."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from planner.pipeline import search


@contextmanager
def without_proof() -> Generator[None]:
    """Plans pipelines by estimates alone, as of programs that have too many stages for a proof.

    The proof plans each stage that a better pipeline might have: four fifths of the time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MOST_UNITS", 0)
        yield

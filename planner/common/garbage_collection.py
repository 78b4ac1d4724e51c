"""Less frequent garbage collection while much is made that stays: plans, and modules.

Reference counts free most objects. Only reference cycles need the collector, which Python runs
after every few hundred new objects, each time over many that are still in use.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

YOUNG = 4_000_000  # new objects before a collection of the youngest generation
_lock = Lock()
_inside: list[tuple[int, int, int]] = []  # thresholds to restore, one for each call in progress


@contextmanager
def seldom_collected() -> Generator[None, None, None]:
    """Lets objects wait to be looked at; a collector that the user turned off stays off."""
    with _lock:
        before = _inside[0] if _inside else gc.get_threshold()
        _inside.append(before)
        if before[0]:
            gc.set_threshold(max(YOUNG, before[0]), *before[1:])
    try:
        yield
    finally:
        with _lock:
            _inside.pop()
            if not _inside:
                gc.set_threshold(*before)

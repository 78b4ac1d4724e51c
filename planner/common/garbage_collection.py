"""Planning makes millions of small objects that stay: Python looks for garbage less often then.

Most objects die when nothing refers to them; only circles of them wait to be looked for, which
Python does after every few hundred new objects, and all that are there again and again.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

YOUNG = 4_000_000  # new objects before the youngest are looked at
_lock = Lock()
_inside: list[tuple[int, int, int]] = []  # what is put back, once for every call that goes on


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

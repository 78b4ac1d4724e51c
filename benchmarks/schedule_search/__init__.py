"""Schedules where none is published: a search with a bound, for any placement.

`find_schedule` looks for a pattern that repeats with the least period that work and memory allow
(`periodic.py` exactly, `modulo.py` by placing blocks), unrolls it, fills the idle time
(`fill_idle.py`) and simulates.
"""

from .search import FoundSchedule as FoundSchedule
from .search import find_schedule as find_schedule

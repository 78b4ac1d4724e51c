"""What a rule file may be at most, so that a hostile one is refused instead of read for ever."""

from __future__ import annotations

MOST_BYTES = 32 * 2**20
MOST_RULES = 100_000
MOST_DEPTH = 64
LONGEST_REASON = 300  # that is told of a rule

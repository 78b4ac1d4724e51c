"""The largest rule files that are read; larger ones are refused."""

from __future__ import annotations

MOST_BYTES = 32 * 2**20
MOST_RULES = 100_000
MOST_DEPTH = 64
LONGEST_REASON = 300  # characters

"""`python -m benchmarks fuzz-files`: changed files of every kind are read."""

from __future__ import annotations

from .main import main as main

"""`python -m benchmarks fuzz`: random programs under random plans, held against two references."""

from __future__ import annotations

from .main import main as main

"""Roles of the arguments of a program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Roles:
    """Flat values of the arguments by role."""

    batch: tuple[int, ...]
    parameters: tuple[int, ...]
    states: tuple[int, ...]

    def named(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(role, its values) of each role."""
        return (
            ("batch", self.batch), ("parameter", self.parameters), ("optimizer-state", self.states)
        )  # fmt: skip

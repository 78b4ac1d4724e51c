"""What the arguments of a program are for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Roles:
    """Flat values by what they are for."""

    batch: tuple[int, ...]
    parameters: tuple[int, ...]
    states: tuple[int, ...]

    def named(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(role, its values) of each."""
        return (
            ("batch", self.batch), ("parameter", self.parameters), ("optimizer-state", self.states)
        )  # fmt: skip

"""The error of this package."""

from __future__ import annotations


class RuleError(ValueError):
    """A rule or a file of rules is malformed.

    where: file and place in it.
    remedy: what the user can do.
    """

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        self.message, self.where, self.remedy = message, where, remedy
        parts = [f"{where}: {message}" if where else message]
        if remedy:
            parts.append(remedy)
        super().__init__("; ".join(parts))

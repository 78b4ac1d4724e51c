"""The error of this package."""

from __future__ import annotations

LONGEST = 1500  # characters of each part of a message


class RuleError(ValueError):
    """A rule or a file of rules is malformed.

    where: file and place in it.
    remedy: what the user can do.
    """

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        message, where, remedy = _bounded(message), _bounded(where), _bounded(remedy)
        self.message, self.where, self.remedy = message, where, remedy
        parts = [f"{where}: {message}" if where else message]
        if remedy:
            parts.append(remedy)
        super().__init__("; ".join(parts))


def _bounded(text: str) -> str:
    """The text, shortened: a damaged file may have a very long text in place of a name."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 100]} ... {text[-90:]}"

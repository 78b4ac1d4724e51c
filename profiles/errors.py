from __future__ import annotations

LONGEST = 1500  # characters of each part of a message


class ProfileError(ValueError):
    """A profile, a table or a cluster description is missing, malformed or not believable.

    Attributes:
        message: without the place and the remedy.
        where: the file or the text that was being read, with the key inside it.
        remedy: what to do about it, as one sentence.
    """

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        message, where, remedy = _bounded(message), _bounded(where), _bounded(remedy)
        self.message = message
        self.where = where
        self.remedy = remedy
        place = f"{where}: " if where else ""
        advice = f"; {remedy}" if remedy else ""
        super().__init__(f"{place}{message}{advice}")


def _bounded(text: str) -> str:
    """A text of bearable length: what a damaged file holds in place of a name may be very long."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 100]} ... {text[-90:]}"

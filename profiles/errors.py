from __future__ import annotations


class ProfileError(ValueError):
    """A profile, a table or a cluster description is missing, malformed or not believable.

    Attributes:
        message: without the place and the remedy.
        where: the file or the text that was being read, with the key inside it.
        remedy: what to do about it, as one sentence.
    """

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        self.message = message
        self.where = where
        self.remedy = remedy
        place = f"{where}: " if where else ""
        advice = f"; {remedy}" if remedy else ""
        super().__init__(f"{place}{message}{advice}")

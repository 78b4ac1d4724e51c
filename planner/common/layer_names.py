"""Names that differ only in numbers, as those of repeated layers do."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"(?<![^/._])\d+(?![^/._])")


def without_numbers(name: str) -> str:
    """The name with `*` for each number that stands between separators."""
    return _NUMBER.sub("*", name)


def common_name(names: Sequence[str]) -> str:
    """One name for all, with `*` for the numbers in which they differ.

    Args:
        names: at least one; all equal without their numbers.
    """
    numbers = [_NUMBER.findall(name) for name in names]
    same = [len(set(column)) == 1 for column in zip(*numbers, strict=True)]
    kept = iter(zip(same, numbers[0], strict=True))

    def shown(_: re.Match[str]) -> str:
        alike, number = next(kept)
        return number if alike else "*"

    return _NUMBER.sub(shown, names[0])

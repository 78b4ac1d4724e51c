"""JSON whose every key is checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ..graph import bad_profile, check_number

MOST_DIGITS = 10


def load_json(where: str, text: str) -> Any:
    """The value of a JSON text; numbers that JSON lacks and repeated keys are refused.

    Raises:
        PlanError: if the text is not JSON.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise bad_profile(where, f"is not JSON: {error}", "the file may be cut off") from error


def read_json(path: Path) -> Any:
    """The value in a JSON file; see `load_json`.

    Raises:
        PlanError: if it cannot be read, or is not JSON.
    """
    return load_json(path.name, read_utf8(path))


def read_utf8(path: Path) -> str:
    """The text of a file.

    Raises:
        PlanError: if it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise bad_profile(path.name, f"cannot be read: {error}", "check path and file") from error


def number_of(where: str, key: str, what: str) -> int:
    """The whole number that a key is.

    Raises:
        PlanError: if it is none.
    """
    if not (key.isascii() and key.isdecimal() and len(key) < MOST_DIGITS):
        raise bad_profile(where, f"'{key}' is no {what}, expected a whole number")
    return int(key)


def mapping(where: str, value: object, *, required: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """An object with the keys required.

    Raises:
        PlanError: if it is something else, or lacks one.
    """
    if not isinstance(value, dict):
        raise bad_profile(where, f"found {type(value).__name__}, expected an object")
    found = cast("dict[str, Any]", value)
    for key in required:
        if key not in found:
            raise bad_profile(where, f"lacks '{key}'", "the file may be cut off")
    return found


def sequence(where: str, value: object) -> list[Any]:
    """A list.

    Raises:
        PlanError: if it is something else.
    """
    if not isinstance(value, list):
        raise bad_profile(where, f"found {type(value).__name__}, expected a list")
    return cast("list[Any]", value)


def whole(where: str, what: str, value: object, *, least: int = 0) -> int:
    """A whole number.

    Raises:
        PlanError: if it is none, or below `least`.
    """
    number = check_number(where, what, value)
    if number != int(number) or number < least:
        raise bad_profile(where, f"{what} is {value}, expected a whole number of at least {least}")
    return int(number)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key '{twice}' is given twice")
    return found

"""Decisions on candidates, kept in a file so that an interrupted search need not repeat them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..errors import RuleError

KEPT, IMPLIED, REJECTED = "kept", "implied", "rejected"


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a candidate; `ways` has > and < where it holds without a condition."""

    decision: str
    verdict: str
    condition: str
    ways: str


class Journal:
    """Decisions by candidate, appended to a file line by line; a torn last line is forgotten.

    Each line ends with a digest of what it says.
    """

    def __init__(self, path: Path | None, head: str) -> None:
        self.path, self.known = path, dict[str, Decision]()
        if path is None:
            return
        try:
            lines = path.read_text("utf-8").splitlines() if path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise RuleError(
                f"is no journal of a search: {error}", where=str(path),
                remedy="delete it or name another",
            ) from None  # fmt: skip
        if lines and lines[0] != head:
            raise RuleError(
                "belongs to another search", where=str(path), remedy="delete it or name another"
            )
        for i, line in enumerate(lines[1:]):
            entry = _entry(line)
            if entry is None:
                if i + 2 < len(lines):
                    raise RuleError(f"line {i + 2} is not a decision", where=str(path))
                break
            self.known[entry[0]] = entry[1]
        body = [_line(key, found) for key, found in self.known.items()]
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_text("\n".join([head, *body]) + "\n", "utf-8")
            part.replace(path)
        except OSError as error:
            text = f"cannot be written: {error.strerror}"
            raise RuleError(text, where=str(path), remedy="name another file") from None

    def add(self, key: str, found: Decision) -> None:
        self.known[key] = found
        if self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(_line(key, found) + "\n")
            except OSError as error:
                text = f"cannot be written: {error.strerror}"
                raise RuleError(text, where=str(self.path), remedy="name another file") from None


def _line(key: str, found: Decision) -> str:
    texts = [key, found.decision, found.verdict, found.condition, found.ways]
    return json.dumps([*texts, _digest(texts)])


def _digest(texts: list[str]) -> str:
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=8).hexdigest()


def _entry(line: str) -> tuple[str, Decision] | None:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    texts = cast("list[Any]", found)
    if len(texts) != 6 or not all(isinstance(item, str) for item in texts):
        return None
    if texts.pop() != _digest(texts):
        return None
    key, decision, verdict, condition, ways = cast("list[str]", texts)
    if decision not in (KEPT, IMPLIED, REJECTED) or ways not in ("", ">", "<", "><"):
        return None
    return key, Decision(decision, verdict, condition, ways)

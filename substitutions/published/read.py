"""Reads a rule file of any known format."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from ..errors import RuleError
from ..rule import Rule, Unread
from .flexflow import read_flexflow
from .limits import MOST_BYTES
from .taso import read_taso
from .tensat import read_tensat

GZIP = b"\x1f\x8b"
_REMEDY = "give FlexFlow's JSON, TASO's protobuf (.pb) or TENSAT's text"


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Rules of FlexFlow's JSON, TASO's protobuf or TENSAT's text, compressed with gzip or not.

    Raises:
        RuleError: if the file cannot be read, is too large, or has another form, or a rule has.
    """
    found: list[Rule] = []
    for rule in read_each(path):
        if isinstance(rule, Unread):
            raise RuleError(rule.reason, where=rule.where)
        found.append(rule)
    return tuple(found)


def read_each(path: Path) -> tuple[Rule | Unread, ...]:
    """The same, rule by rule: one that breaks the form of rules leaves the others readable.

    Raises:
        RuleError: if the file cannot be read, is too large, or has another form.
    """
    data = _content(path)
    if data.lstrip()[:1] in (b"{", b"["):
        return read_flexflow(data, path.name)
    if path.name.removesuffix(".gz").endswith(".pb") or b"\0" in data[:4096]:
        return read_taso(data, path.name)
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise RuleError("neither JSON nor text", where=path.name, remedy=_REMEDY) from None
    return read_tensat(text, path.name)


def _content(path: Path) -> bytes:
    try:
        if not path.is_file():
            what = "not a file" if path.exists() else "no such file"
            raise RuleError(what, where=str(path), remedy=_REMEDY)
        with path.open("rb") as file:
            packed = file.read(2) == GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise RuleError(f"cannot be read: {error}", where=str(path)) from None
    if len(data) > MOST_BYTES:
        raise RuleError(f"larger than {MOST_BYTES} bytes", where=path.name)
    if not data.strip():
        raise RuleError("the file is empty", where=path.name, remedy=_REMEDY)
    return data

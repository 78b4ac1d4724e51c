"""Words of the text form of graphs: quoting, and lines cut into tokens."""

from __future__ import annotations

import re
from typing import NoReturn

from .errors import IRError

MAX_DIGITS = 1000  # of a number; Python itself refuses more than 4300
TOO_LARGE = 10**MAX_DIGITS
RESERVED = frozenset({"body", "input", "return"})  # quoted as the name of an op

_WORD = r"[A-Za-z_][A-Za-z0-9_.-]*"
_REAL = rf"(?:inf|nan|[0-9]{{1,{MAX_DIGITS}}}(?:\.[0-9]{{0,400}})?(?:e[+-]?[0-9]{{1,4}})?)"
_ESCAPE = r"\\(?:[\"\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U00(?:0[0-9a-f]|10)[0-9a-f]{4})"
STRING = rf'"[^"\\]*(?:{_ESCAPE}[^"\\]*)*"'
_TOKEN = re.compile(  # frequent kinds first
    rf"\s*(?:(?P<value>%[0-9]{{1,9}})|(?P<mark>[){{}},:=])|(?P<number>-?{_REAL}(?![\w.-]))"
    rf"|(?P<complex>\(-?{_REAL}[+-]{_REAL}j\)|-?{_REAL}j(?![\w.-]))|(?P<open>\()"
    rf"|(?P<type>[a-z]\w*\[[0-9,]*\])|(?P<word>{_WORD})|(?P<string>{STRING})"
    r"|(?P<comment>#.*)|(?P<end>$))",
    re.ASCII | re.DOTALL,
)
_PLAIN_WORD = re.compile(rf"(?!(?:inf|nan)j?$){_WORD}", re.ASCII)
_CODES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_MARKS = {char: f"\\{code}" for code, char in _CODES.items()}


class Line:
    """The tokens of one line, read from left to right."""

    def __init__(self, number: int, content: str) -> None:
        self.number = number
        self.tokens: list[tuple[str, str]] = []
        self.place = 0
        self.comment: str | None = None
        position = 0
        while position < len(content):
            match = _TOKEN.match(content, position)
            kind = match.lastgroup if match else None
            if match is None or kind is None:
                raise IRError(f"line {number}: cannot read {clip(content[position:])!r}")
            position = match.end()
            if kind == "comment":
                self.comment = match[kind][1:].strip()
            elif kind != "end":
                self.tokens.append((kind, match[kind]))

    def fail(self, expected: str) -> NoReturn:
        found = repr(clip(self.peek()[1])) if self.peek()[0] else "the end"
        raise IRError(f"line {self.number}: found {found}, expected {expected}")

    def peek(self) -> tuple[str, str]:
        """Kind and text of the next token; empty at the end of the line."""
        return self.tokens[self.place] if self.place < len(self.tokens) else ("", "")

    def take(self, kind: str, expected: str) -> str:
        if self.peek()[0] != kind:
            self.fail(expected)
        self.place += 1
        return self.tokens[self.place - 1][1]

    def accept(self, text: str) -> bool:
        """Takes the next token if it is that mark or word."""
        kind, found = self.peek()
        if found != text or kind not in ("mark", "open", "word"):
            return False
        self.place += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"'{text}'")

    def end(self) -> None:
        if self.peek()[0]:
            self.fail("the end of the line")


def clip(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def word(text: str) -> str:
    return text if _PLAIN_WORD.fullmatch(text) else quote(text)


def quote(text: str) -> str:
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(char: str) -> str:
    if char in _MARKS:
        return _MARKS[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unquote(token: str) -> str:
    inner = token[1:-1]
    return re.sub(_ESCAPE, _decode, inner) if "\\" in inner else inner


def _decode(match: re.Match[str]) -> str:
    code = match[0][1:]
    return _CODES[code] if code in _CODES else chr(int(code[1:], 16))

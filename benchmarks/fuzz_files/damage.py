"""Damage to bytes, as disks, networks, editors and attackers do it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from random import Random

HUGE = (b"1" * 400, b"-1", b"1e999", b"-1e308", b"9223372036854775808", b"0.1e-400", b"NaN",
        b"Infinity", b"-0", b"1_000", b"0x10", b"true")  # fmt: skip
ODD = (b"\x00", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\xa1", b"\\ud800", b"\xe2\x80\xa8",
       b"\r", b"\t", b"\x1b[31m", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"&a *a",
       b"!!python/object:os.system", b"<<", b"---", b"...", b"%")  # fmt: skip


def flip_bit(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def set_byte(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def insert(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(ODD) + data[at:]


def overwrite(rng: Random, data: bytes) -> bytes:
    at, new = rng.randrange(len(data)), rng.choice(ODD)
    return data[:at] + new + data[at + len(new) :]


def delete(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + 1 + rng.randrange(min(64, len(data))) :]


def truncate(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def cut_head(rng: Random, data: bytes) -> bytes:
    return data[rng.randrange(len(data)) :]


def duplicate(rng: Random, data: bytes) -> bytes:
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:b] + data[a:b] + data[b:]


def swap(rng: Random, data: bytes) -> bytes:
    a, b, c = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def zeros(rng: Random, data: bytes) -> bytes:
    """A block that was never written."""
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:a] + bytes(b - a) + data[b:]


def number(rng: Random, data: bytes) -> bytes:
    """One number in a text is another one."""
    places = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    if not places:
        return insert(rng, data)
    start = end = rng.choice(places)
    while start and data[start - 1] in b"0123456789.eE+-":
        start -= 1
    while end < len(data) and data[end] in b"0123456789.eE+-":
        end += 1
    old = data[start:end]
    new = rng.choice((*HUGE, b"-" + old, old + b"0", b"0", b"1", b"2", b"3.5", old + old))
    return data[:start] + new + data[end:]


def nest(rng: Random, data: bytes) -> bytes:
    at, deep = rng.randrange(len(data) + 1), rng.choice((50, 500, 5_000, 100_000))
    opening = rng.choice((b"[", b'{"a":', b"(", b"- ", b"{a: "))
    return data[:at] + opening * deep + data[at:]


def mark(rng: Random, data: bytes) -> bytes:
    return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")) + data


def bomb(rng: Random, data: bytes) -> bytes:
    """Parts that name parts: little text, much data."""
    way = rng.choice((b"[%s]", b"{<<: [%s]}"))
    lines = [b"a0: &a0 {k: 1}"]
    for n in range(1, rng.choice((5, 12, 40))):
        many = b", ".join([b"*a%d" % (n - 1)] * rng.randrange(2, 10))
        lines.append(b"a%d: &a%d " % (n, n) + way % many)
    return data + b"\n" + b"\n".join(lines) + b"\n"


def recode(rng: Random, data: bytes) -> bytes:
    """In another encoding, with other ends of lines, packed, or packed twice."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return zlib.compress(data)
    way = rng.randrange(4)
    if way == 0:
        return text.encode(rng.choice(("utf-16", "utf-32", "utf-7", "cp037")), "replace")
    if way == 1:
        return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\x85", b"")))
    return zlib.compress(data) if way == 2 else data[::-1]


def other(rng: Random, data: bytes) -> bytes:
    """Something else altogether."""
    return rng.choice((
        b"", b"\n", b"null", b"{}", b"[]", b"0", b'""', b"\x80\x04K\x01.", b"SQLite format 3\x00",
        b"\x1f\x8b\x08", b"%PDF-1.4", rng.randbytes(200), b"a" * 100_000, b"[" * 100_000,
    ))  # fmt: skip


WAYS: Mapping[str, Callable[[Random, bytes], bytes]] = {
    way.__name__: way
    for way in (
        flip_bit, set_byte, insert, overwrite, delete, truncate, cut_head, duplicate, swap, zeros,
        number, nest, mark, bomb, recode, other,
    )
}  # fmt: skip


def damaged(rng: Random, data: bytes) -> tuple[str, bytes]:
    """Some bytes damaged once or a few times, and how."""
    names: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        name = rng.choice(tuple(WAYS))
        data = WAYS[name](rng, data) if data else other(rng, data)
        names.append(name)
    return "+".join(names), data

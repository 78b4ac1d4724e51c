"""TASO's substitutions: a proto2 message, read with a wire reader of our own.

RuleCollection{repeated Rule rule=1}; Rule{repeated Operator srcOp=1, dstOp=2;
repeated MapOutput mappedOutput=3}; Operator{int32 type=1; repeated Tensor input=2;
repeated Parameter para=3}; Tensor{opId=1, tsId=2}; Parameter{key=1, value=2};
MapOutput{srcOpId=1, dstOpId=2, srcTsId=3, dstTsId=4}.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ..errors import RuleError
from ..rule import Rule, Unread
from .graph import RawOp, RawRule, kept, rule_of
from .limits import MOST_RULES
from .names import TASO_OPS, TASO_PARAMETERS, taso_rank

_VARINT, _BYTES = 0, 2
_LONGEST_VARINT = 10
_RANKS = {number: taso_rank(number) for number in range(1, 21)}


def read_taso(data: bytes, where: str) -> tuple[Rule | Unread, ...]:
    """Rules of TASO's protobuf file, those with errors as such.

    Raises:
        RuleError: if the bytes are not such a message.
    """
    found: list[Rule | Unread] = []
    for i, rule in enumerate(_messages(data, 1, where)):
        if i >= MOST_RULES:
            raise RuleError(f"more than {MOST_RULES} rules", where=where)
        found.append(kept(partial(_rule, rule, i), f"taso-{i}", f"{where}: rule {i}"))
    if not found:
        raise RuleError("no rules: the file is empty", where=where)
    return tuple(found)


def _rule(data: bytes, index: int, where: str) -> Rule:
    sides: dict[int, list[RawOp]] = {1: [], 2: []}
    mapped: list[tuple[int, int, int, int]] = []
    for field, value in _fields(data, where):
        if not isinstance(value, bytes) or field not in (1, 2, 3):
            raise RuleError(f"a rule has no field {field} of this kind", where=where)
        if field == 3:
            a, b, i, j = _numbers(value, 4, where)
            if min(a, b) < 0:
                raise RuleError("a mapped output is a graph input", where=where)
            mapped.append((a, i, b, j))
        else:
            sides[field].append(_op(value, where))
    raw = RawRule(f"taso-{index}", tuple(sides[1]), tuple(sides[2]), tuple(mapped))
    try:
        return rule_of(raw, _RANKS, parallel=False)
    except RuleError as error:
        raise RuleError(error.message, where=where) from None


def _op(data: bytes, where: str) -> RawOp:
    kind = 0
    inputs: list[tuple[int, int]] = []
    params: dict[str, int] = {}
    for field, value in _fields(data, where):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 2 and isinstance(value, bytes):
            op, output = _numbers(value, 2, where)
            inputs.append((op, output))
        elif field == 3 and isinstance(value, bytes):
            key, number = _numbers(value, 2, where)
            if key not in TASO_PARAMETERS:
                raise RuleError(f"unknown parameter {key}", where=where)
            params[TASO_PARAMETERS[key]] = number
        else:
            raise RuleError(f"an operator has no field {field} of this kind", where=where)
    if kind not in TASO_OPS:
        known = ", ".join(f"{number} {name}" for number, name in TASO_OPS.items())
        raise RuleError(f"unknown op type {kind}; known: {known}", where=where)
    return RawOp(TASO_OPS[kind], tuple(inputs), params)


def _numbers(data: bytes, count: int, where: str) -> list[int]:
    """The integer fields 1 to `count` of a message; absent ones are 0."""
    found = [0] * count
    for field, value in _fields(data, where):
        if not isinstance(value, int) or not 1 <= field <= count:
            raise RuleError(f"unexpected field {field}", where=where)
        found[field - 1] = value
    return found


def _messages(data: bytes, field: int, where: str) -> Iterator[bytes]:
    for number, value in _fields(data, where):
        if number != field or not isinstance(value, bytes):
            raise RuleError(f"unexpected field {number}; is this a rule file?", where=where)
        yield value


def _fields(data: bytes, where: str) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at, where)
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at, where)
            if value >= 2**63:  # proto2 writes negative numbers as 64-bit two's complement
                value -= 2**64
            if abs(value) >= 2**31:
                raise RuleError(f"{value} is not a 32-bit integer (byte {at})", where=where)
            yield field, value
        elif wire == _BYTES:
            size, at = _varint(data, at, where)
            if size > len(data) - at:
                text = f"a field of {size} bytes at byte {at}, {len(data) - at} are left"
                raise RuleError(text, where=where, remedy="the file is cut short")
            yield field, data[at : at + size]
            at += size
        else:
            raise RuleError(f"wire type {wire} at byte {at}; this is no rule file", where=where)


def _varint(data: bytes, at: int, where: str) -> tuple[int, int]:
    value = 0
    for i in range(_LONGEST_VARINT):
        if at + i >= len(data):
            raise RuleError(f"ends inside a number (byte {at})", where=where, remedy="cut short")
        byte = data[at + i]
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            if value >= 2**64:
                break
            return value, at + i + 1
    raise RuleError(f"a number longer than 64 bits at byte {at}", where=where)

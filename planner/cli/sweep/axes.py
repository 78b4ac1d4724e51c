"""What is swept: `devices=8..512,batch=64,128` as axes of values."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...common.errors import PlanError
from ...inspect.sweep import DEVICES, PER_DEVICE

MOST_ROWS = 10_000
_RANGE = re.compile(r"([1-9]\d{0,8})\.\.([1-9]\d{0,8})")
_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class PerDevice:
    """So many for each device: the value grows with the number of devices."""

    count: int

    def __str__(self) -> str:
        return f"{self.count}{PER_DEVICE}"


Value = int | float | str | PerDevice


@dataclass(frozen=True, slots=True)
class Axis:
    """A name and the values that it takes in turn."""

    name: str
    values: tuple[Value, ...]


def parse_axes(texts: Sequence[str]) -> tuple[Axis, ...]:
    """Axes of `devices=8..512,batch=64,128`; a text after a comma without `=` is one more value.

    `8..512` doubles from 8 as far as 512, `4/device` is 4 times the number of devices. Other values
    are whole numbers, numbers or words.

    Raises:
        PlanError: if a text is malformed, a name or value occurs twice, or there are too many rows.
    """
    found: dict[str, list[Value]] = {}
    for text in texts:
        name = ""
        for part in text.split(","):
            head, equals, rest = part.partition("=")
            if equals:
                name, part = head.strip(), rest
                if not _NAME.fullmatch(name):
                    raise _bad(f"'{name}' is not a name")
                if name in found:
                    raise _bad(f"{name} is given twice")
                found[name] = []
            if not name:
                raise _bad(f"'{text}' is not of the form NAME=VALUES")
            found[name].extend(_values(name, part.strip()))
    _check(found)
    return tuple(Axis(name, tuple(values)) for name, values in found.items())


def _check(found: dict[str, list[Value]]) -> None:
    for name, values in found.items():
        if len(set(values)) != len(values):
            raise _bad(f"{name} has a value twice")
        if DEVICES not in found and any(isinstance(v, PerDevice) for v in values):
            raise _bad(f"{name} is per device, and devices are not swept")
    rows = math.prod(map(len, found.values()))
    if rows > MOST_ROWS:
        raise _bad(f"{rows} combinations are too many, the most is {MOST_ROWS}")


def combinations(axes: Sequence[Axis]) -> Iterator[dict[str, Value]]:
    """Every combination, the last axis fastest."""
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip((axis.name for axis in axes), values, strict=True))


def settled(values: dict[str, Value]) -> dict[str, int | float | str]:
    """The values of one combination, those per device times the number of devices."""
    devices = values.get(DEVICES, 1)
    assert isinstance(devices, int)
    return {
        name: value.count * devices if isinstance(value, PerDevice) else value
        for name, value in values.items()
    }


def _values(name: str, text: str) -> list[Value]:
    if not text:
        raise _bad(f"{name} has an empty value")
    if text.endswith(PER_DEVICE) and name != DEVICES:
        counts = _values(name, text.removesuffix(PER_DEVICE))
        if not all(isinstance(count, int) and count > 0 for count in counts):
            raise _bad(f"'{text}' is not a whole number for each device")
        return [PerDevice(count) for count in counts if isinstance(count, int)]
    if match := _RANGE.fullmatch(text):
        first, last = int(match[1]), int(match[2])
        if first > last:
            raise _bad(f"{name} runs from {first} down to {last}")
        return [first << k for k in range((last // first).bit_length())]
    value = _number(text)
    if name == DEVICES and (not isinstance(value, int) or value < 1):
        raise _bad(f"'{text}' is not a number of devices")
    return [value]


def _number(text: str) -> Value:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else text
    return text


def _bad(message: str) -> PlanError:
    return PlanError(
        message, kind="bad-option", where="--sweep",
        remedy="write for example devices=8..512,batch=64,128, or batch=4/device",
    )  # fmt: skip

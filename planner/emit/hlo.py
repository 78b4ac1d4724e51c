"""Collectives in the text of a compiled program."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from costmodel import KINDS

# Bits of XLA's element types; a name that is not here has its bits in it, as f32 and s8 do.
_BITS = {"pred": 8, "c64": 64, "c128": 128, "bf16": 16, "token": 0, "opaque": 0}

_COMPUTATION = re.compile(r"^\s*(?:ENTRY\s+)?%?([\w.\-]+)\s*(?:\([^)]*.*)?\{\s*$")
_COLLECTIVE = re.compile(
    r"^\s*(?:ROOT\s+)?%?[\w.\-]+\s*=\s*(?P<type>.*?)\s(?P<kind>"
    + "|".join(KINDS)
    + r"|ragged-all-to-all|collective-broadcast)(?P<start>-start)?\("
)
_TENSOR = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_WHILE = re.compile(r"\bwhile\(.*?body=%?([\w.\-]+)")
_TRIPS = re.compile(r'known_trip_count"?\s*:\s*\{\s*"?n"?\s*:\s*"?(\d+)')
_CALLEES = re.compile(
    r"(?:calls|to_apply|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"(?:branch_computations|called_computations|calls)=\{([^}]*)\}")
_GROUPS = re.compile(r"replica_groups=(\{\{.*?\}\}|\{\}|\[[\d,]*\]<=\[[\d,]*\])")
_PAIRS = re.compile(r"source_target_pairs=\{(\{.*?\})\}")


@dataclass(frozen=True, slots=True)
class HloCollective:
    """Equal collectives of a program.

    group_size: devices that one of them joins; of a permute the longest cycle.
    bytes: the whole tensor of the group: output of an all-gather, input of a reduce-scatter,
        else the operand of one device.
    count: how often one call runs it; a loop of unknown length counts as one iteration, and
        every branch of a conditional as taken.
    """

    kind: str
    group_size: int
    bytes: int
    count: int


def count_collectives(text: str, *, devices: int = 0) -> tuple[HloCollective, ...]:
    """Collectives of a compiled program, sorted; asynchronous pairs count once.

    Args:
        text: `compiled.as_text()` of a program for CPU, GPU or TPU.
        devices: of the program; the group size where the text leaves the groups out.
    """
    bodies, entry = _computations(text)
    runs = _runs(bodies, entry)
    found: Counter[tuple[str, int, int]] = Counter()
    for name, lines in bodies.items():
        for line in lines:
            item = _collective(line, devices)
            if item is not None and item[1] > 1:
                found[item] += runs.get(name, 0)
    return tuple(HloCollective(*key, count) for key, count in sorted(found.items()) if count)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Lines of each computation, and the name of the entry."""
    bodies: dict[str, list[str]] = {}
    current, entry = "", ""
    for line in text.splitlines():
        head = _COMPUTATION.match(line) if "=" not in line.split("(", 1)[0] else None
        if head is not None and not line.startswith("HloModule"):
            current = head.group(1)
            bodies[current] = []
            if line.lstrip().startswith("ENTRY"):
                entry = current
        elif current:
            bodies[current].append(line)
    return bodies, entry


def _runs(bodies: dict[str, list[str]], entry: str) -> dict[str, int]:
    """How often each computation runs in one call of the entry."""
    runs: Counter[str] = Counter()

    def visit(name: str, times: int) -> None:
        runs[name] += times
        for line in bodies.get(name, ()):
            for callee, factor in _called(line):
                if callee in bodies:
                    visit(callee, times * factor)

    visit(entry, 1)
    return runs


def _called(line: str) -> Iterator[tuple[str, int]]:
    loop = _WHILE.search(line)
    if loop is not None:
        trips = _TRIPS.search(line)
        yield loop.group(1), int(trips.group(1)) if trips else 1
    for match in _CALLEES.finditer(line):
        yield match.group(1), 1
    for match in _BRANCHES.finditer(line):
        for name in match.group(1).split(","):
            yield name.strip().lstrip("%"), 1


def _collective(line: str, devices: int) -> tuple[str, int, int] | None:
    match = _COLLECTIVE.match(line)
    if match is None:
        return None
    kind, group = match.group("kind"), _group_size(line, devices)
    sizes = [_bytes(*tensor) for tensor in _TENSOR.findall(match.group("type"))]
    if match.group("start") and kind != "all-reduce":  # whose start has the type of its results
        sizes = _started(kind, sizes)
    total = sum(sizes)
    return kind, group, total * group if kind == "reduce-scatter" else total


def _started(kind: str, sizes: list[int]) -> list[int]:
    """Results of an asynchronous start, whose type lists operands, results and contexts."""
    if kind == "collective-permute":
        return sizes[1:2]
    return sizes[len(sizes) // 2 :]


def _bytes(dtype: str, dims: str) -> int:
    bits = _BITS.get(dtype)
    if bits is None:
        digits = re.search(r"\d+", dtype)
        bits = int(digits.group()) if digits else 0
    count = math.prod(int(size.lstrip("<=")) for size in dims.split(",") if size)
    return count * max(bits, 8 if bits else 0) // 8


def _group_size(line: str, devices: int) -> int:
    pairs = _PAIRS.search(line)
    if pairs is not None:
        return _longest_cycle(pairs.group(1))
    groups = _GROUPS.search(line)
    if groups is None or groups.group(1) == "{}":
        return devices
    text = groups.group(1)
    if text.startswith("["):  # [groups,size]<=[...]
        return int(text[1 : text.index("]")].split(",")[-1])
    return max(len(group.split(",")) for group in text.strip("{}").split("},{"))


def _longest_cycle(text: str) -> int:
    """Devices on the longest cycle, or chain, of {{from,to},...}."""
    target = {int(a): int(b) for a, b in re.findall(r"\{(\d+),(\d+)\}", text)}
    longest = 1
    for start in target:
        seen, here = {start}, target[start]
        while here in target and here not in seen:
            seen.add(here)
            here = target[here]
        longest = max(longest, len(seen | {here}))
    return longest

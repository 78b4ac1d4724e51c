"""Collectives in the text of a compiled program."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from costmodel import KINDS, wire_fraction
from ir import EXCHANGE, TILE_STEPS
from profiles import CollectiveKind

from .hlo_groups import group_size

# Bits of XLA's element types; a name that is not here has its bits in it, as f32 and s8 do.
_BITS = {"pred": 8, "c64": 64, "c128": 128, "bf16": 16, "token": 0, "opaque": 0}

_RAGGED, _BROADCAST = "ragged-all-to-all", "collective-broadcast"
# Kinds of the compiler -> the kind of ours that sends as many bytes.
_LIKE: dict[str, CollectiveKind] = {
    **{kind: kind for kind in KINDS},
    _RAGGED: "all-to-all",
    _BROADCAST: "collective-permute",
}
_COMPUTATION = re.compile(r"^\s*(?:ENTRY\s+)?%?([\w.\-]+)\s*(?:\([^)]*.*)?\{\s*$")
_COLLECTIVE = re.compile(
    r"^\s*(?:ROOT\s+)?%?[\w.\-]+\s*=\s*(?P<type>.*?)\s(?P<kind>"
    + "|".join((*KINDS, _RAGGED, _BROADCAST))
    + r")(?P<start>-start)?\("
)
_TENSOR = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_WHILE = re.compile(r"\bwhile\(.*?body=%?([\w.\-]+)")
_TRIPS = re.compile(r'known_trip_count"?\s*:\s*\{\s*"?n"?\s*:\s*"?(\d+)')
_CALLEES = re.compile(r"(?:calls|to_apply|condition)=%?([\w.\-]+)")
_CASES = re.compile(r"(?:true_computation|false_computation)=%?([\w.\-]+)")
_CALLED = re.compile(r"(?:called_computations|calls)=\{([^}]*)\}")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
# XLA sums 16-bit numbers in 32 bits where the hardware has no such sum, and says so in this name.
_PROMOTED = re.compile(r"to_apply=%?[\w.\-]*promoted")
# Loops of `row_exchange`: rounds after the first, of which a plan has none.
_EXCHANGED = re.compile(rf'op_name="[^"]*/{EXCHANGE}/while"')
# Loops of `group_tiles`, which end with the last tile there is, and the steps that are expected.
_TILES = re.compile(rf'op_name="[^"]*/{TILE_STEPS}(\d+)/while"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')


def like(kind: str) -> CollectiveKind:
    """The kind of ours that sends as many bytes as one of the compiler's."""
    return _LIKE[kind]


@dataclass(frozen=True, slots=True)
class HloCollective:
    """Equal collectives of a program.

    group_size: devices that one of them joins; of a permute the longest cycle.
    bytes: the whole tensor of the group: output of an all-gather, input of a reduce-scatter,
        else the operand of one device.
    count: how often one call runs it; see `count_collectives`.
    """

    kind: str
    group_size: int
    bytes: int
    count: float

    @property
    def wire_bytes(self) -> float:
        """Bytes that each device sends in one run, by the ring convention."""
        return self.bytes * wire_fraction(_LIKE[self.kind], self.group_size)


@dataclass(frozen=True, slots=True)
class HloInstruction:
    """One collective instruction.

    tensors: that it was combined of.
    promoted: XLA widened 16-bit numbers to 32 bits for it.
    op_name: what it was made for, as the compiler's metadata says.
    """

    collective: HloCollective
    tensors: int
    promoted: bool
    op_name: str


def count_collectives(
    text: str, *, devices: int = 0, unknown_trips: int = 1
) -> tuple[HloCollective, ...]:
    """Collectives of a compiled program, sorted; asynchronous pairs count once.

    Args:
        text: `compiled.as_text()` of a program for CPU, GPU or TPU.
        devices: of the program; the group size where the text leaves the groups out.
        unknown_trips: iterations of a loop whose length the compiler does not know. Of n
            branches of a conditional each counts 1/n, as in a plan.
    """
    found: dict[tuple[str, int, int], float] = {}
    for item in collective_instructions(text, devices=devices, unknown_trips=unknown_trips):
        c = item.collective
        key = (c.kind, c.group_size, c.bytes)
        found[key] = found.get(key, 0.0) + c.count
    return tuple(HloCollective(*key, count) for key, count in sorted(found.items()))


def collective_instructions(
    text: str, *, devices: int = 0, unknown_trips: int = 1
) -> tuple[HloInstruction, ...]:
    """Every collective of a compiled program with its runs; arguments as `count_collectives`."""
    bodies, entry = computations(text)
    runs = _runs(bodies, entry, unknown_trips)
    found: list[HloInstruction] = []
    for name, lines in bodies.items():
        for line in lines:
            item = collective_of(line, devices, runs.get(name, 0.0))
            if item is not None and item.collective.group_size > 1 and item.collective.count:
                found.append(item)
    return tuple(found)


def computations(text: str) -> tuple[dict[str, list[str]], str]:
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


def _runs(bodies: dict[str, list[str]], entry: str, unknown_trips: int) -> dict[str, float]:
    """How often each computation runs in one call of the entry."""
    runs: dict[str, float] = {}
    calls = {
        name: [call for line in lines for call in _called(line, unknown_trips)]
        for name, lines in bodies.items()
    }

    def visit(name: str, times: float) -> None:
        runs[name] = runs.get(name, 0.0) + times
        for callee, factor in calls.get(name, ()):
            if callee in bodies:
                visit(callee, times * factor)

    visit(entry, 1.0)
    return runs


def trips_of(line: str, unknown_trips: int) -> float:
    """Iterations of the loop of a line, if the compiler knows them or its name says them."""
    trips = _TRIPS.search(line) or _TILES.search(line)
    if trips:
        return float(trips.group(1))
    return 0.0 if _EXCHANGED.search(line) else float(unknown_trips)


def _called(line: str, unknown_trips: int) -> Iterator[tuple[str, float]]:
    loop = _WHILE.search(line)
    if loop is not None:
        yield loop.group(1), trips_of(line, unknown_trips)
    for match in _CALLEES.finditer(line):
        yield match.group(1), 1.0
    for match in _CALLED.finditer(line):
        for name in _names(match.group(1)):
            yield name, 1.0
    cases = [name for match in _BRANCHES.finditer(line) for name in _names(match.group(1))]
    cases += _CASES.findall(line)
    for name in cases:
        yield name, 1.0 / len(cases)


def _names(text: str) -> list[str]:
    return [name.strip().lstrip("%") for name in text.split(",")]


def collective_of(line: str, devices: int, runs: float) -> HloInstruction | None:
    """The collective that a line runs or starts; None where it has none."""
    match = _COLLECTIVE.match(line)
    if match is None:
        return None
    kind, group = match.group("kind"), group_size(line, devices)
    sizes = [
        tensor_bytes(dtype, (int(size.lstrip("<=")) for size in sizes.split(",") if size))
        for dtype, sizes in _results(match)
    ]
    total = sum(sizes)
    op_name = _OP_NAME.search(line)
    return HloInstruction(
        HloCollective(kind, group, total * group if kind == "reduce-scatter" else total, runs),
        len(sizes),
        _PROMOTED.search(line) is not None,
        op_name.group(1) if op_name else "",
    )


def _results(match: re.Match[str]) -> list[tuple[str, str]]:
    """Types of the results; a start lists operands, results and, of a permute, two contexts."""
    tensors: list[tuple[str, str]] = _TENSOR.findall(match.group("type"))
    kind = match.group("kind")
    if not match.group("start") or kind == "all-reduce":  # its start has the type of its results
        return tensors
    if kind == "collective-permute" and tensors[-2:] == [("u32", ""), ("u32", "")]:
        tensors = tensors[:-2]
    if kind == _RAGGED:  # whose sizes and places are operands too
        return tensors[-1:]
    return tensors[len(tensors) // 2 :]


def tensors_of(text: str) -> list[tuple[str, str]]:
    """Element types and sizes, separated by commas, of the tensors in a type."""
    return _TENSOR.findall(text)


def tensor_bytes(dtype: str, sizes: Iterable[int]) -> int:
    """Bytes of a tensor; those of less than a byte take a whole one."""
    bits = _BITS.get(dtype)
    if bits is None:
        digits = re.search(r"\d+", dtype)
        bits = int(digits.group()) if digits else 0
    return math.prod(sizes) * max(bits, 8 if bits else 0) // 8

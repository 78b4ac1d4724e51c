"""Instructions of a compiled program, in the order in which a device starts them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..hlo import computations, tensor_bytes, tensors_of, trips_of

_DEFINED = re.compile(r"^\s*(?P<root>ROOT\s+)?%?(?P<name>[\w.\-]+)\s*=\s*(?P<rest>.*)$")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body|async_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_CASES = re.compile(r"(?:true|false)_computation=%?([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Tensor:
    """Element type, as XLA writes it, and sizes of a tensor."""

    dtype: str
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def nbytes(self) -> int:
        return tensor_bytes(self.dtype, self.sizes)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    results: tensors of its result, those of a tuple one after another.
    operands: names of instructions of the same computation.
    line: its text.
    """

    name: str
    opcode: str
    results: tuple[Tensor, ...]
    operands: tuple[str, ...]
    line: str
    is_root: bool

    @property
    def op_name(self) -> str:
        """What it was made for, as the compiler's metadata says."""
        found = _OP_NAME.search(self.line)
        return found.group(1) if found else ""

    @property
    def called(self) -> str:
        """The computation that it calls: of a fusion, a call or a loop's body; else empty."""
        found = _CALLED.search(self.line)
        return found.group(1) if found else ""

    @property
    def branches(self) -> tuple[str, ...]:
        """Computations of which a conditional runs one."""
        listed = _BRANCHES.search(self.line)
        if listed is None:
            return tuple(_CASES.findall(self.line))
        return tuple(name.strip().lstrip("%") for name in listed.group(1).split(","))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.results)

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.results)


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation by the names of its instructions, in order."""

    name: str
    instructions: Mapping[str, Instruction]

    def operands(self, of: Instruction) -> Iterator[Instruction]:
        """Instructions that give the operands of one."""
        return (self.instructions[name] for name in of.operands if name in self.instructions)

    def users(self, name: str) -> Iterator[Instruction]:
        """Instructions that read the result of one."""
        return (i for i in self.instructions.values() if name in i.operands)

    @property
    def root(self) -> Instruction:
        """What it returns."""
        return next(i for i in reversed([*self.instructions.values()]) if i.is_root)


@dataclass(frozen=True)
class HloProgram:
    """A compiled program.

    text: as the compiler writes it.
    unknown_trips: iterations of a loop whose length the compiler does not know.
    """

    text: str
    unknown_trips: int = 1

    @property
    def is_scheduled(self) -> bool:
        """Whether instructions stand in the order in which they are started."""
        return "is_scheduled=true" in self.text[:2000]

    @cached_property
    def computations(self) -> Mapping[str, Computation]:
        found = computations(self.text)[0]
        return {name: _computation(name, lines) for name, lines in found.items()}

    @cached_property
    def entry(self) -> Computation:
        return self.computations[computations(self.text)[1]]

    def trips(self, loop: Instruction) -> float:
        """Iterations of a loop."""
        return trips_of(loop.line, self.unknown_trips)


def _computation(name: str, lines: list[str]) -> Computation:
    found = (instruction(line) for line in lines)
    return Computation(name, {i.name: i for i in found if i is not None})


def instruction(line: str) -> Instruction | None:
    """The instruction of a line; None where it has none."""
    defined = _DEFINED.match(line)
    if defined is None:
        return None
    rest = defined.group("rest")
    end = _closing(rest, 0) if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.match(rest, end)
    if opcode is None:
        return None
    start = opcode.end() - 1
    operands = rest[start : _closing(rest, start)]
    results = (
        Tensor(dtype, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size))
        for dtype, sizes in tensors_of(rest[:end])
    )
    return Instruction(
        defined.group("name"), opcode.group(1), tuple(results),
        tuple(_OPERAND.findall(operands)), line, defined.group("root") is not None,
    )  # fmt: skip


def _closing(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at + 1
    return len(text)

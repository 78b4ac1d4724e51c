"""What a compiled program runs beside its collectives, in the order that its compiler chose.

A device starts the instructions of a computation one after another. A collective is on the link
from its start, or from the end of the collective before it, and compute goes on until its `done`.
Of a collective of n seconds that has c seconds of compute beside it, h = min(n, i c) run beside
compute, which they slow down by the factor i of interference: it exposes n - h/i. A loop is the
same round, as often as it runs; collectives that are under way as a loop begins go on in the time
in which its rounds leave the link free.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from costmodel import INTERFERENCE

from ..hlo import HloInstruction, collective_of
from .instructions import Computation, HloProgram, Instruction
from .kernels import KernelPrices

Price = Callable[[str, HloInstruction], float]
_NAMED = re.compile(r"reshard(\d+)")
_LINK_TIME = 1e-12  # seconds below which a collective has ended


@dataclass(slots=True)
class Played:
    """One collective instruction of a program.

    reshards: numbers of the reshards of the lowered plan that it was made for.
    runs: in one call.
    seconds: of one run.
    beside_s: compute between its start and its end, of one run.
    exposed_s: of all runs, in which compute waits or is slowed down.
    in_loop: the loop whose body it is in; empty outside of loops.
    """

    name: str
    kind: str
    group_size: int
    bytes: int
    reshards: tuple[int, ...]
    in_loop: str
    seconds: float
    runs: float = 0.0
    beside_s: float = 0.0
    exposed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """A compiled program, played.

    compute_s: of all kernels.
    collectives: in program order.
    """

    compute_s: float
    collectives: tuple[Played, ...]

    @property
    def communication_s(self) -> float:
        return sum(c.seconds * c.runs for c in self.collectives)

    @property
    def exposed_s(self) -> float:
        return sum(c.exposed_s for c in self.collectives)


@dataclass(slots=True)
class _Sent:
    """A collective under way."""

    what: Played
    left_s: float


@dataclass(slots=True)
class _Clock:
    """Seconds of one run of a computation, and the collectives under way, in their order."""

    runs: float
    compute_s: float = 0.0
    elapsed_s: float = 0.0
    link_s: float = 0.0
    sent: dict[str, _Sent] = field(default_factory=dict[str, _Sent])

    def _use(self, sent: _Sent, link_s: float, hidden_s: float) -> None:
        """Some seconds of the link in which so much compute got done."""
        sent.left_s -= link_s
        sent.what.exposed_s += self.runs * (link_s - hidden_s)
        self.link_s += link_s
        self.elapsed_s += link_s

    def compute(self, seconds: float) -> None:
        """Runs a kernel."""
        self.compute_s += seconds
        whole_s = seconds
        for sent in self.sent.values():
            sent.what.beside_s += whole_s
            if seconds > 0.0 and sent.left_s > _LINK_TIME:
                beside = min(seconds, sent.left_s / INTERFERENCE)
                self._use(sent, beside * INTERFERENCE, beside)
                seconds -= beside
        self.elapsed_s += seconds

    def wait(self, name: str) -> None:
        """Waits for a collective, and for those before it."""
        if name not in self.sent:
            return
        for sent in self.sent.values():
            self._use(sent, max(sent.left_s, 0.0), 0.0)
            if sent is self.sent[name]:
                break
        del self.sent[name]

    def beside_region(self, free_s: float, compute_s: float) -> None:
        """Lets what is under way use the link while a loop or a branch leaves it free."""
        for sent in self.sent.values():
            sent.what.beside_s += compute_s
            used = min(sent.left_s, free_s)
            if used > 0.0:
                sent.left_s -= used
                sent.what.exposed_s += self.runs * (used - used / INTERFERENCE)
                self.elapsed_s += used - used / INTERFERENCE
                self.link_s += used
                free_s -= used


class _Player:
    """Plays computations."""

    def __init__(self, program: HloProgram, kernels: KernelPrices, price: Price, devices: int):
        self.program, self.kernels, self.price, self.devices = program, kernels, price, devices
        self.found: list[Played] = []

    def play(self, at: Computation, runs: float, loop: str) -> _Clock:
        """One run of a computation that runs so often."""
        clock = _Clock(runs)
        for each in at.instructions.values():
            self._step(clock, each, at, runs, loop)
        for name in tuple(clock.sent):
            clock.wait(name)
        return clock

    def _step(
        self, clock: _Clock, each: Instruction, at: Computation, runs: float, loop: str
    ) -> None:
        if each.opcode.endswith("-done") and each.operands:
            clock.wait(each.operands[0])
        elif each.opcode == "while":
            trips = self.program.trips(each)
            inside = self.play(self.program.computations[each.called], runs * trips, each.name)
            self._region(clock, inside, trips)
        elif each.opcode == "conditional" and each.branches:
            share = 1.0 / len(each.branches)
            for name in each.branches:
                inside = self.play(self.program.computations[name], runs * share, loop)
                self._region(clock, inside, share)
        elif each.opcode == "call":
            self._region(clock, self.play(self.program.computations[each.called], runs, loop), 1.0)
        elif (sent := self._collective(each, at)) is not None:
            self._start(clock, sent, each, at, runs, loop)
        elif not each.opcode.endswith("-start"):
            clock.compute(self.kernels.seconds(each, at))

    def _region(self, clock: _Clock, inside: _Clock, times: float) -> None:
        clock.compute_s += times * inside.compute_s
        clock.elapsed_s += times * inside.elapsed_s
        clock.link_s += times * inside.link_s
        clock.beside_region(times * (inside.elapsed_s - inside.link_s), times * inside.compute_s)

    def _collective(self, each: Instruction, at: Computation) -> HloInstruction | None:
        """The collective that an instruction runs, starts or wraps."""
        found = collective_of(each.line, self.devices, 1.0)
        if found is None and each.opcode == "async-start":
            inner = self.program.computations[each.called].instructions.values()
            wrapped = (collective_of(i.line, self.devices, 1.0) for i in inner)
            found = next((c for c in wrapped if c is not None), None)
        return found if found is not None and found.collective.group_size > 1 else None

    def _start(
        self, clock: _Clock, sent: HloInstruction, each: Instruction, at: Computation,
        runs: float, loop: str,
    ) -> None:  # fmt: skip
        c = sent.collective
        played = Played(
            each.name, c.kind, c.group_size, c.bytes, _reshards(each, at), loop,
            self.price(each.line, sent), runs,
        )  # fmt: skip
        self.found.append(played)
        clock.sent[each.name] = _Sent(played, played.seconds)
        if not each.opcode.endswith("-start"):
            clock.wait(each.name)


def _reshards(start: Instruction, at: Computation) -> tuple[int, ...]:
    """Numbers of the reshards in the names of a collective and of what takes its results apart.

    A collective that was combined of several has the name of one of them; their results have
    their own.
    """
    sources = [start, *(i for i in at.users(start.name) if i.opcode.endswith("-done"))]
    names = [i.op_name for i in sources]
    names += [
        i.op_name for source in sources for i in at.users(source.name)
        if i.opcode == "get-tuple-element"
    ]  # fmt: skip
    found = {int(number) for name in names for number in _NAMED.findall(name)}
    return tuple(sorted(found))


def play(program: HloProgram, kernels: KernelPrices, price: Price, *, devices: int) -> Schedule:
    """Plays the schedule of a compiled program.

    Args:
        program: scheduled.
        kernels: prices of its kernels.
        price: seconds of a collective, by its line and what that says.
        devices: of the program.
    """
    player = _Player(program, kernels, price, devices)
    clock = player.play(program.entry, 1.0, "")
    return Schedule(clock.compute_s, tuple(player.found))

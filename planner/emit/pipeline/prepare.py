"""Writes the tasks of a pipeline as starts, see `prepared.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from ...pipeline.schedule import Kind, Schedule, Task
from .prepared import Env, Port, Prepared, Start
from .programs import ChunkPrograms, Compiled
from .transfer import Devices

ProgramValue = tuple[int, int, int]  # chunk, micro-batch, value of its program


class StartWriter:
    """Numbers arrays, and writes a start for each program of a task.

    Args:
        schedule: whose tasks they are.
        chunks: programs of each chunk.
        groups: devices of each device of the schedule.
        route: micro-batch -> chunk of every stage.
        goals: (chunk, takes or sender, value) -> sharding on arrival.
        finish: (stage, key) of the loss and of each leaf of aux.
        rows: (chunk, leaf of the batch) -> how many micro-batches it is given.
    """

    def __init__(
        self,
        schedule: Schedule,
        chunks: Sequence[ChunkPrograms],
        groups: Sequence[Devices],
        route: Sequence[Sequence[int]],
        goals: Mapping[tuple[Any, ...], Any],
        finish: Sequence[tuple[int, Any]],
        rows: Mapping[tuple[int, int], int],
    ) -> None:
        self.chunks, self.route, self.goals = chunks, route, goals
        self.finish = finish
        self.stage = schedule.placement.stage
        self.devices = [groups[device] for device in schedule.placement.device]
        self.count = 0
        self.starts: list[Start] = []
        self.ports: dict[tuple[int, int, Any], Port] = {}
        self.read: dict[ProgramValue, int] = {}  # arrays that programs read
        # (stage, micro-batch, key or slope) -> copy that was sent to it
        self.copies: dict[tuple[Any, ...], int] = {}
        self.results: dict[tuple[int, int], int] = {}
        self.params = [self._block(len(c.program.args["params"])) for c in chunks]
        self.zeros = [self._block(len(c.program.args["sums"])) for c in chunks]
        self.sums = list(self.zeros)
        self.rows = {at: self._block(n) for at, n in rows.items()}
        self.seeds = {
            c: self._block(1).start for c, s in enumerate(self.stage) if s == finish[0][0]
        }

    def _block(self, count: int) -> slice:
        """Numbers of new arrays."""
        self.count += count
        return slice(self.count - count, self.count)

    def prepared(self, order: Sequence[Task]) -> Prepared:
        """The starts of a step.

        Args:
            order: tasks in the order of their starts.
        """
        for task in order:
            self._write(task)
        return self._done()

    def _write(self, task: Task) -> None:
        """Writes the programs of a task."""
        c, m, chunk = task.chunk, task.microbatch, self.chunks[task.chunk]
        if task.kind is Kind.FORWARD:
            self._forward(task)
            return
        self._again(task)
        if task.kind is Kind.RECOMPUTE:
            return
        if task.kind is not Kind.WEIGHT_GRADIENT:
            self._slopes(c, m)
        program = chunk.program
        sent = len(program.outgoing)
        if task.kind is Kind.BACKWARD:
            outs = self._start(task, chunk.backward)
            self._sum(c, outs[sent:])
        elif task.kind is Kind.INPUT_GRADIENT:
            outs = self._start(task, chunk.input_gradient)
            self._keep(c, m, program.parts.between, outs[sent:])
        else:
            outs = self._start(task, chunk.weight_gradient)
            self._sum(c, outs)
            return  # its gradients were sent
        self._send_back(c, m, outs[:sent])

    def _forward(self, task: Task) -> None:
        c, m, chunk = task.chunk, task.microbatch, self.chunks[task.chunk]
        args, stage, s = chunk.program.args, chunk.stage, self.stage[task.chunk]
        self._keep(c, m, args["params"], _numbers(self.params[c]))
        for value, leaf in zip(args["batch"], stage.batch, strict=True):
            self.read[c, m, value] = _numbers(self.rows[c, leaf])[m]
        for value, key in zip(args["takes"], stage.takes, strict=True):
            self.read[c, m, value] = self.copies.pop((s, m, key))
        outs = self._start(task, chunk.forward)
        gives, saved = outs[: len(stage.gives)], outs[len(stage.gives) :]
        if not chunk.recompute:
            self._keep(c, m, chunk.program.parts.saved, saved)
        for key, number in zip(stage.gives, gives, strict=True):
            for reader in chunk.readers[key]:
                self._send(reader, m, (c, "takes", key), number, key)
        for position, (at, key) in enumerate(self.finish):
            if at == s:
                self.results[position, m] = gives[stage.gives.index(key)]

    def _again(self, task: Task) -> None:
        """What the forward program would have saved, computed before its first reader."""
        c, m, chunk = task.chunk, task.microbatch, self.chunks[task.chunk]
        saved = chunk.program.parts.saved
        if chunk.again is not None and any((c, m, value) not in self.read for value in saved):
            self._keep(c, m, saved, self._start(task, chunk.again))

    def _slopes(self, c: int, m: int) -> None:
        program, s = self.chunks[c].program, self.stage[c]
        numbers = [self.copies.pop((s, m, slope.key, slope.source)) for slope in program.incoming]
        if s == self.finish[0][0]:
            numbers.append(self.seeds[c])
        self._keep(c, m, program.args["slopes"], numbers)

    def _send_back(self, c: int, m: int, numbers: Sequence[int]) -> None:
        for slope, number in zip(self.chunks[c].program.outgoing, numbers, strict=True):
            to = slope.target, m, (c, slope.source, slope.key)
            self._send(*to, number, slope.key, slope.source)

    def _send(self, stage: int, m: int, name: tuple[int, Any, Any], number: int, *key: Any) -> None:
        """Sends a result of the last start to a stage.

        Args:
            stage: that reads it.
            m: micro-batch.
            name: chunk that sends, then "takes" or the stage that sends, and the value.
            number: of the array.
            *key: by which the stage asks for it.
        """
        target = self.route[m][stage]
        port = self.ports.setdefault(
            (target, stage, name), Port(self.devices[target], self.goals[(target, *name[1:])])
        )
        copy = self._block(1).start
        self.copies[(stage, m, *key)] = copy
        last = self.starts[-1]
        self.starts[-1] = replace(last, sends=(*last.sends, (number, copy, port)))

    def _sum(self, c: int, numbers: Sequence[int]) -> None:
        self.sums[c] = slice(numbers[0], numbers[-1] + 1) if numbers else self.sums[c]

    def _keep(self, c: int, m: int, values: Sequence[int], numbers: Sequence[int]) -> None:
        self.read.update(zip([(c, m, value) for value in values], numbers, strict=True))

    def _start(self, task: Task, program: Compiled) -> list[int]:
        """Writes the start of a program, and numbers its results."""
        c, m = task.chunk, task.microbatch
        self._keep(c, m, self.chunks[c].program.args["sums"], _numbers(self.sums[c]))
        reads = tuple(self.read[c, m, value] for value in program.reads)
        outs = self._block(program.count)
        self.starts.append(
            Start(task, self.devices[c], program.call, _taken(reads), reads, outs, ())
        )
        return _numbers(outs)

    def _done(self) -> Prepared:
        """The starts, each with what nothing reads after it."""
        last: dict[int, int] = {}
        for k, start in enumerate(self.starts):
            numbers = (*start.reads, *_numbers(start.outs), *(copy for _, copy, _ in start.sends))
            last.update(dict.fromkeys(numbers, k))
        kept = {*self.seeds.values(), *self.results.values()}
        kept |= {n for part in self.sums for n in _numbers(part)}
        dead: dict[int, list[int]] = {}
        for number, k in last.items():
            if number not in kept:
                dead.setdefault(k, []).append(number)
        starts = [replace(s, dead=_runs(dead.get(k, ()))) for k, s in enumerate(self.starts)]
        return Prepared(
            tuple(starts), self.count, tuple(self.params), tuple(self.zeros), tuple(self.sums),
            self.rows, self.seeds, self.results,
        )  # fmt: skip


def _numbers(part: slice) -> list[int]:
    return list(range(part.start, part.stop))


def _taken(reads: Sequence[int]) -> Callable[[Env], Sequence[Any]]:
    """Takes the arrays of some numbers."""
    if len(reads) > 1:
        return itemgetter(*reads)
    return lambda env: [env[k] for k in reads]


def _runs(numbers: Sequence[int]) -> tuple[tuple[slice, list[None]], ...]:
    """Numbers in runs of neighbours, each with as many Nones."""
    found: list[slice] = []
    for k in sorted(numbers):
        if found and found[-1].stop == k:
            found[-1] = slice(found[-1].start, k + 1)
        else:
            found.append(slice(k, k + 1))
    return tuple((part, [None] * (part.stop - part.start)) for part in found)

"""Facts about a flat program that hold on every mesh: makers, readers, lifetimes, factor specs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy
from functools import cached_property

import numpy as np

from costmodel import ComputeModel
from costmodel.compiler import Lifetimes, Traffic, analyse, bounded, lifetimes
from ir import FactorSpec, Literal
from ir.analysis import (
    FlatOp,
    FlatProgram,
    Groups,
    Specs,
    accumulators,
    any_partial,
    host_values,
    is_float,
    may_be_partial,
    uses,
)

Span = tuple[int, int]
Paid = tuple[tuple[int, ...], tuple[int, ...], int, tuple[tuple[str, int, float], ...], int | None]


class Facts:
    """Facts of one program that all its problems share.

    Attributes:
        tied_in: result position -> argument that it shares one state with.
        overwriting: positions of results that take the buffer of their donated argument.
        partial: values that some strategy leaves as partial sums worth keeping.
        shared: values of ops that get a node of their own: read more than once or never, or one of
            several results.
        in_place: results written into the buffer of their donated argument.
        on_host: values in the memory of the host.
        stack_of: port -> the stacked value whose slices it is.
        read_only: ports that a region only reads: the buffer outside, unless in another state.
        spans: moments [start, end) in which a value's own node is alive.
        waits: results of ops that run only when they are read, and may be partial sums: the
            reductions are not delayed, since compilers start a reduction as soon as they can, and
            wait.
        overwriters: of these, those read once, by an op that overwrites an argument -> that op and
            the position at which it reads. If it reads the partial sum itself, nothing waits: the
            sum is computed when the argument is overwritten, which can be at once.
    """

    def __init__(
        self,
        flat: FlatProgram,
        ties: tuple[tuple[int, int], ...],
        donated: frozenset[int],
        *,
        alone: bool = False,
    ) -> None:
        self.flat, self.traffic = flat, analyse(flat)
        self._priced: dict[ComputeModel, Traffic] = {}
        self.tied_in = {out: flat.inputs[a] for a, out in ties}
        self.overwriting = {out for a, out in ties if a in donated}
        self.specs = Specs(flat)
        self.partial = may_be_partial(flat, self.specs)
        self.uses = uses(flat)
        self._donated_pairs, self._alone = [pair for pair in ties if pair[0] in donated], alone
        self.on_host = host_values(flat)
        self.stack_of = {port: outer for outer, port in flat.stacked.items()}
        self.shared = {
            v for op in flat.ops for v in op.outputs
            if self.uses.get(v, 0) != 1 or len(op.outputs) > 1
        }  # fmt: skip
        self.read_only = self._read_only()

    # --- what prices do not need, worked out once it is asked for ---

    @cached_property
    def lifetimes(self) -> Lifetimes:
        """When the buffer of each value is made, and last needed."""
        found = (self.flat.outputs[k] for _, k in self._donated_pairs)
        reused = {v for v in found if isinstance(v, int)}
        return lifetimes(self.flat, self.traffic.stored, reused, alone=self._alone)

    @cached_property
    def in_place(self) -> set[int]:
        return self._in_place(self._donated_pairs)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        return tuple(self._span(v) for v in range(len(self.flat.values)))

    @cached_property
    def waits(self) -> set[int]:
        return {
            v for op in self.flat.ops for v in op.outputs
            if self.partial[v] and self.lifetimes.owns[v] and self.lifetimes.made[v] > op.time
        }  # fmt: skip

    @cached_property
    def overwriters(self) -> dict[int, tuple[int, int]]:
        return dict(self._overwriters())

    def running(self, flat: FlatProgram) -> Facts:
        """The facts of a program that differs in how often its ops and links run."""
        found = copy(self)
        found.flat = flat
        return found

    def _in_place(self, ties: list[tuple[int, int]]) -> set[int]:
        """Results written into the buffer of their donated argument, dead by then.

        The carries of loops that such results leave are written there too; an argument that is
        returned unchanged holds its buffer itself.
        """
        flat = self.flat
        found: set[int] = set()
        for a, out in ties:
            v, argument = flat.outputs[out], flat.inputs[a]
            if isinstance(v, Literal):
                continue
            made = self.lifetimes.made[v] if v in flat.maker else flat.clock
            if self.lifetimes.needed.get(argument, 0) <= made:
                found.add(v)
        found |= {link.source for link in flat.links if link.target in found}
        found |= self._added_up() | self._sliced_over()
        return found - set(flat.inputs)

    def _overwriters(self) -> Iterator[tuple[int, tuple[int, int]]]:
        for j, op in enumerate(self.flat.ops):
            if all(v in self.in_place for v in op.outputs):
                for k, v in enumerate(op.inputs):
                    if isinstance(v, int) and v in self.waits and self.uses.get(v) == 1:
                        yield v, (j, k)

    def _added_up(self) -> set[int]:
        """Sums carried by a loop and written in place: nothing else reads the previous one."""
        ports = set(accumulators(self.flat))
        readers = Counter(v for op in self.flat.ops for v in op.inputs if v in ports)
        return {
            link.source
            for link in self.flat.links
            if link.target in ports and readers[link.target] == 1
            and (made := self.flat.made_by(link.source)) and link.target in made.inputs
        }  # fmt: skip

    def _sliced_over(self) -> set[int]:
        """Carries of loops that an iteration writes one slice of, after all that reads them."""
        flat, found = self.flat, set[int]()
        for link in flat.links:
            op = flat.made_by(link.source)
            if op is None or op.node.op != "dynamic_update_slice" or op.inputs[0] != link.target:
                continue
            if all(reader.time <= op.time for reader in flat.readers.get(link.target, ())):
                found.add(link.source)
        return found

    def _read_only(self) -> set[int]:
        links = Counter(link.target for link in self.flat.links)
        written = set(self.flat.stacked.values())  # slices of results
        return {
            link.target
            for link in self.flat.links
            if not link.lift and links[link.target] == 1 and link.target not in written
            and self.flat.values[link.target].region_end > link.time
        }  # fmt: skip

    def _span(self, v: int) -> Span:
        value = self.flat.values[v]
        if value.kind == "argument":
            return 0, self.flat.clock
        made, needed = self.lifetimes.made[v], self.lifetimes.needed
        end = max(needed.get(v, made), value.region_end) + 1
        outer = self.stack_of.get(v)
        if outer is not None:
            end = max(end, needed.get(outer, 0) + 1)
        return made, end

    def op_span(self, op: FlatOp) -> Span:
        """Moments [start, end) of the results of an op that have no node of their own."""
        inner = [v for v in op.outputs if v not in self.shared]
        at = self.at(op)
        return at, max((self.lifetimes.needed.get(v, at) for v in inner), default=at) + 1

    def at(self, op: FlatOp) -> int:
        """Moment at which the op runs."""
        return self.lifetimes.made[op.outputs[0]] if op.outputs else op.time

    def is_made(self, op: FlatOp) -> bool:
        """Whether the op has a node; ops on literals alone have none."""
        return not all(self.traffic.free[v] for v in op.outputs)

    def least_peak(self, devices: int) -> float:
        """Bound of a plan's peak [byte]: that of buffers split over all devices."""
        change = np.zeros(self.flat.clock + 2)
        for v, value in enumerate(self.flat.values):
            op = None if v in self.shared else self.flat.made_by(v)
            start, end = self.op_span(op) if op else self.spans[v]
            if end > start:
                size = value.type.nbytes * self.buffers(v) / devices
                change[start] += size
                change[min(end, len(change) - 1)] -= size
        return float(np.cumsum(change).max())

    def held_bytes(self) -> float:
        """Bytes of arguments on devices, held whatever is computed again."""
        return float(
            sum(self.flat.values[v].type.nbytes * self.buffers(v) for v in self.flat.inputs)
        )

    def buffers(self, v: int) -> int:
        """Number of buffers of a value's size on a device: slices of a stack, padded copies."""
        return 0 if v in self.on_host else self._buffers(v)

    def host_buffers(self, v: int) -> int:
        """The same in the memory of the host."""
        return self._buffers(v) if v in self.on_host else 0

    def _buffers(self, v: int) -> int:
        elsewhere = v in self.in_place or v in self.read_only or v in self.flat.stacked
        if not self.lifetimes.owns[v] or self.traffic.free[v] or elsewhere:
            return 0
        if v not in self.stack_of:
            return 2 if v in self.traffic.copied else 1
        outer = self.flat.values[self.stack_of[v]].type.size
        return outer // max(self.flat.values[v].type.size, 1)

    def traffic_on(self, compute: ComputeModel) -> Traffic:
        """What each op moves and computes on a device, by what bounds its fusion there."""
        if compute not in self._priced:
            self._priced[compute] = bounded(self.flat, self.traffic, compute)
        return self._priced[compute]

    def paid(self, i: int, compute: ComputeModel) -> Paid:
        """Reads, writes, launches, what loops move, and arithmetic of an op (`Traffic`)."""
        traffic = self.traffic_on(compute)
        assert traffic.computed is not None
        return (
            traffic.reads[i], traffic.writes[i], traffic.launches[i], traffic.moved.get(i, ()),
            traffic.computed[i],
        )  # fmt: skip

    def spec(self, op: FlatOp) -> FactorSpec:
        """Factors of an op; equal ops share one object."""
        return self.specs.of(op)

    def groups(self, op: FlatOp) -> Groups:
        """Groups of operands in which an op is linear together, so that partial sums may pass."""
        return self.specs.groups(op)

    def passing(self, op: FlatOp) -> tuple[int, ...]:
        """Groups in which some operand may be a partial sum."""
        if not all(is_float(t) for t in op.node.outputs):
            return ()
        groups = enumerate(self.groups(op))
        return tuple(g for g, members in groups if any_partial(op, members, self.partial))

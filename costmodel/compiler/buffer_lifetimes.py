"""When the buffers of values are made and until when they are needed, as a compiler has it.

Three things differ from the order and the names of the program:

    fusion      a value that is not stored is computed where it is read, out of the stored values
                it is made of: those live until then
    renaming    a reshape of a stored value is that buffer, which lives until the reshape is read
                for the last time
    scheduling  an op that allocates more than it frees runs when its result is first read, but for
                copies to the host, which start at once;
                another op, such as a product that is the last to read scores, runs at once.
                The last products on their way to results, those that make gradients of weights,
                wait on several devices: collectives of gradients follow each other at the end,
                and what latency-hiding schedulers put beside them is filled in from there. No
                product waits for the end of a loop if that keeps more than it makes.
                What leads to nothing but a number that is returned, such as a loss, runs last.
    adding      what is added to a scatter into zeros is the buffer that is scattered into
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ir import TO_HOST, Literal
from ir.analysis import FlatOp, FlatProgram

from ..opcost import VIEWS
from .fusion_roots import turned_copies

_NONE: frozenset[int] = frozenset()
PRODUCTS = ("conv_general_dilated", "dot_general")


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Of every flat value.

    owns: it has a buffer of its own.
    made: the moment at which the op that makes it runs.
    needed: the last moment at which its buffer is read; absent where nothing reads it.
    """

    owns: tuple[bool, ...]
    made: tuple[int, ...]
    needed: dict[int, int]


def lifetimes(
    flat: FlatProgram, stored: Sequence[bool], reused: Collection[int], *, alone: bool = False
) -> Lifetimes:
    """Buffers of a program in the order in which a compiler runs it.

    Args:
        flat: the program.
        stored: whether a value reaches memory.
        reused: results that may be written into buffers of arguments.
        alone: one device runs the program, without collectives.
    """
    owns = _owners(flat, stored)
    made = [value.time for value in flat.values]
    reads = _Reads({}, {})
    reads.at_borders(flat)
    scattered, last = _scattered_into(flat, owns), _last(flat, stored)
    roots = _roots(flat, owns, scattered)
    regions = [(r.start, r.end) for r in flat.regions]
    delayed = _last_products(flat, alone)
    sizes = [value.type.nbytes for value in flat.values]

    def waits(op: FlatOp, begin: int) -> bool:
        """Whether an op runs at `begin`, where its result is first read, and not in its place."""
        if begin <= op.time or op.node.op == TO_HOST:  # takes no memory of the device
            return False
        if op.outputs and op.outputs[0] in last:
            return True
        passed = any(op.time < start and end <= begin + 1 for start, end in regions)
        if op.outputs and op.outputs[0] in delayed and not passed:
            return True
        sources = _NONE.union(*(roots[v] for v in op.reads))
        kept = sum([sizes[v] for v in sources if reads.last.get(v, -1) < begin])
        made = sum([sizes[v] for v in op.outputs if v not in reused])
        return made > kept

    for op in reversed(flat.ops):
        through = [v for v in op.outputs if not owns[v]]
        begin = min((reads.first.get(v, op.time) for v in op.outputs), default=op.time)
        at = begin if through or waits(op, begin) else op.time
        until = max((reads.last.get(v, at) for v in through), default=at)
        buffer = next((scattered[v] for v in through if v in scattered), None)
        if buffer is not None:
            at = max(op.time, begin - 1)
        for v in op.outputs:
            made[v] = at
        for v in op.reads:
            reads.add(v, at, until if buffer in (None, v) else at)
    return Lifetimes(tuple(owns), tuple(made), reads.last)


@dataclass(frozen=True, slots=True)
class _Reads:
    """The first and the last moment at which each value is read."""

    first: dict[int, int]
    last: dict[int, int]

    def add(self, v: int, at: int, until: int) -> None:
        """Notes a read at `at`, whose buffer is needed until `until`."""
        self.first[v] = min(self.first.get(v, at), at)
        self.last[v] = max(self.last.get(v, until), until)

    def at_borders(self, flat: FlatProgram) -> None:
        """Notes the reads of results and of what enters and leaves regions."""
        for v in flat.outputs:
            if isinstance(v, int):
                self.add(v, max(flat.clock - 1, 0), flat.clock)
        for link in flat.links:
            # a value that enters a region stays alive inside it: the port may be the same buffer
            end = flat.values[link.target].region_end
            entered = flat.values[link.source].time < link.time
            self.add(link.source, link.time, max(link.time, end if entered else 0))
        for v, begin in flat.barriers:
            self.add(v, begin, begin)


def _owners(flat: FlatProgram, stored: Sequence[bool]) -> list[bool]:
    """Stored values, but for those that are another stored one by a new name."""
    owns = list(stored)
    has_memory = list(stored)
    copies = turned_copies(flat, stored)
    for i, op in enumerate(flat.ops):
        if op.node.op in VIEWS and op.reads and i not in copies:
            renamed = has_memory[op.reads[0]]
            for v in op.outputs:
                has_memory[v] = renamed or stored[v]
                owns[v] = stored[v] and not renamed
    return owns


def _last(flat: FlatProgram, stored: Sequence[bool]) -> set[int]:
    """Values that lead to nothing but returned numbers, and are in no fusion with others."""
    numbers = {v for v in flat.outputs if isinstance(v, int) and flat.values[v].type.size == 1}
    others = {link.source for link in flat.links} | set(flat.inputs)
    others |= {v for v in flat.outputs if isinstance(v, int)} - numbers
    read_by: dict[int, list[int]] = {}
    for op in flat.ops:
        for v in op.reads:
            read_by.setdefault(v, []).extend(op.outputs)
    found = {v for op in flat.ops for v in op.outputs} - others
    before = -1
    while len(found) != before:
        before = len(found)
        for op in reversed(flat.ops):
            if found.isdisjoint(op.outputs):
                continue
            fused = [v for v in op.reads if v in flat.maker and not stored[v]]
            ends = all((v in numbers or v in read_by) and v in found for v in op.outputs)
            if not (ends and found.issuperset(fused) and _all_in(op, read_by, found)):
                found.difference_update(op.outputs)
    return found


def _last_products(flat: FlatProgram, alone: bool) -> set[int]:
    """Products and convolutions of which no other is made; of one device those in loops.

    Whether they are made at once does not depend on sizes: with more micro-batches the memory of a
    step falls as `least_needed` in planner/sharding/fewest_microbatches.py has it.
    """
    passed = [(link.source, link.target) for link in flat.links]
    passed += [(port, outer) for outer, port in flat.stacked.items()]
    leading, before = set[int](), -1
    while len(leading) != before:
        before = len(leading)
        leading.update(source for source, target in reversed(passed) if target in leading)
        for op in reversed(flat.ops):
            if op.node.op in PRODUCTS or not leading.isdisjoint(op.outputs):
                leading.update(op.reads)
    return {
        v for op in flat.ops for v in op.outputs
        if op.node.op in PRODUCTS and v not in leading and not (alone and len(op.place) == 1)
    }  # fmt: skip


def _all_in(op: FlatOp, read_by: Mapping[int, list[int]], found: Collection[int]) -> bool:
    """Whether all that is made of an op's results is among some values."""
    return all(x in found for v in op.outputs for x in read_by.get(v, ()))


def _scattered_into(flat: FlatProgram, owns: Sequence[bool]) -> dict[int, int]:
    """A sum with what a scatter adds to zeros -> the scatter's result: it is added to the rest.

    Where the rest is computed of a value in another order of dimensions, more of it is stored.
    """
    found: dict[int, int] = {}
    for op in flat.ops:
        if op.node.op != "scatter-add" or not _is_zeros(flat, op.inputs[0]):
            continue
        read = flat.readers.get(op.outputs[0], [])
        if len(read) != 1 or read[0].node.op not in ("add", "add_any") or len(read[0].reads) != 2:
            continue
        same = op.node.outputs == read[0].node.outputs
        if not owns[read[0].outputs[0]] and same and not _is_turned(flat, owns, read[0]):
            found[read[0].outputs[0]] = op.outputs[0]
    return found


def _is_turned(flat: FlatProgram, owns: Sequence[bool], op: FlatOp) -> bool:
    """Whether an op is fused with a transpose of what it reads."""
    seen, waiting = set[int](), [v for v in op.reads if not owns[v]]
    while waiting:
        made = flat.made_by(waiting.pop())
        if made is None:
            continue
        if made.node.op == "transpose":
            return True
        new = {v for v in made.reads if not owns[v]} - seen
        seen |= new
        waiting += new
    return False


def _is_zeros(flat: FlatProgram, value: int | Literal) -> bool:
    op = flat.made_by(value) if isinstance(value, int) else None
    if op is not None:
        return op.node.op == "broadcast_in_dim" and _is_zeros(flat, op.inputs[0])
    return isinstance(value, Literal) and value.value == 0


def _roots(
    flat: FlatProgram, owns: Sequence[bool], scattered: dict[int, int]
) -> list[frozenset[int]]:
    """The values with buffers, arguments left out, out of which each value is computed."""
    found = [
        frozenset({v}) if owns[v] and value.kind != "argument" else _NONE
        for v, value in enumerate(flat.values)
    ]
    for op in flat.ops:
        for v in op.outputs:
            if not owns[v]:
                sources = [found[u] for u in op.reads if scattered.get(v, u) == u]
                found[v] = sources[0] if len(sources) == 1 else _NONE.union(*sources)
    return found

"""When the buffers of values are made and until when they are needed, as a compiler has it.

Three things differ from the order and the names of the program:

    fusion      a value that is not stored is computed where it is read, out of the stored values
                it is made of: those live until then
    renaming    a reshape of a stored value is that buffer, which lives until the reshape is read
                for the last time
    scheduling  a product or convolution, and an op that allocates more than it frees, runs when
                its result is first read: latency-hiding schedulers fill the program from its
                end; another op runs at once
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ir.analysis import FlatOp, FlatProgram

from ..opcost import VIEWS

_NONE: frozenset[int] = frozenset()
LATE = ("conv_general_dilated", "dot_general")


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


def lifetimes(flat: FlatProgram, stored: Sequence[bool], reused: Collection[int]) -> Lifetimes:
    """Buffers of a program in the order in which a compiler runs it.

    Args:
        flat: the program.
        stored: whether a value reaches memory.
        reused: results that may be written into buffers of arguments.
    """
    owns = _owners(flat, stored)
    made = [value.time for value in flat.values]
    first: dict[int, int] = {}
    needed: dict[int, int] = {}

    def read(v: int, at: int, until: int) -> None:
        first[v] = min(first.get(v, at), at)
        needed[v] = max(needed.get(v, until), until)

    for v in flat.outputs:
        if isinstance(v, int):
            read(v, max(flat.clock - 1, 0), flat.clock)
    for link in flat.links:
        # a value that enters a region stays alive inside it: the port may be the same buffer
        end = flat.values[link.target].region_end
        entered = flat.values[link.source].time < link.time
        read(link.source, link.time, max(link.time, end if entered else 0))
    roots = _roots(flat, owns)
    sizes = [value.type.nbytes for value in flat.values]

    def waits(op: FlatOp, begin: int) -> bool:
        """Whether an op runs at `begin`, where its result is first read, and not in its place."""
        if begin <= op.time or op.node.op in LATE:
            return begin > op.time
        sources = _NONE.union(*(roots[v] for v in op.reads))
        kept = sum([sizes[v] for v in sources if needed.get(v, -1) < begin])
        made = sum([sizes[v] for v in op.outputs if v not in reused])
        return made > kept

    for op in reversed(flat.ops):
        through = [v for v in op.outputs if not owns[v]]
        begin = min((first.get(v, op.time) for v in op.outputs), default=op.time)
        at = begin if through or waits(op, begin) else op.time
        until = max((needed.get(v, at) for v in through), default=at)
        for v in op.outputs:
            made[v] = at
        for v in op.reads:
            read(v, at, until)
    return Lifetimes(tuple(owns), tuple(made), needed)


def _owners(flat: FlatProgram, stored: Sequence[bool]) -> list[bool]:
    """Stored values, but for those that are another stored one by a new name."""
    owns = list(stored)
    has_memory = list(stored)
    for op in flat.ops:
        if op.node.op in VIEWS and op.reads:
            renamed = has_memory[op.reads[0]]
            for v in op.outputs:
                has_memory[v] = renamed or stored[v]
                owns[v] = stored[v] and not renamed
    return owns


def _roots(flat: FlatProgram, owns: Sequence[bool]) -> list[frozenset[int]]:
    """The values with buffers, arguments left out, out of which each value is computed."""
    found = [
        frozenset({v}) if owns[v] and value.kind != "argument" else _NONE
        for v, value in enumerate(flat.values)
    ]
    for op in flat.ops:
        for v in op.outputs:
            if not owns[v]:
                sources = [found[u] for u in op.reads]
                found[v] = sources[0] if len(sources) == 1 else _NONE.union(*sources)
    return found

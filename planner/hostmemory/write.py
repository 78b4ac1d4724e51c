"""A decided program as kernels of XLA's CPU compiler.

Sixteen-bit numbers are computed in 32 bits: a product makes 32 bits and is rounded where several
kernels read it, what it reads is widened once for all products, a loop's stack or constant is
widened as a whole before the loop, and collectives send 32 bits. All-reduces of a body that do
not depend on each other are one. What is gathered of an argument is gathered anew by each reader,
as the emitter writes it; parts along an inner dimension are put in another order for it, and back.
A slice of a stack is an array where a call reads it. A sum along the last dimension takes in what
is computed for it alone; a smaller operand that is spread out for it and for others is a whole
array.

Source: as `stored.py`; `WhileLoopInvariantCodeMotion`, `AllReduceCombiner`, `CopyInsertion`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from costmodel import VIEWS, Step
from ir import Sharding, lookup

from ..flatten import Place, Region
from .decided import Decided, is_fused
from .kernels import CONSTANT, Body, Kernel
from .stored import LIBRARY, PLAIN, REDUCED_BY, Stored, is_row_sum, wanted_order

Blocks = frozenset[int]
NONE: Blocks = frozenset()
# A random draw is a loop over two halves of counters and two of keys, which are there twice; its
# result is two arrays that are joined where they are read.
DRAWN, DRAWING = 2, 4


def written(program: Decided) -> Body:
    """The whole program."""
    top = _Writer(program, Stored(program), ())
    for position, v in enumerate(program.flat.outputs):
        if isinstance(v, int) and not program.free[v]:
            top.body.held |= top.read(program.one(v), program.result(position))
    return top.body


class _Writer:
    """Writes one body."""

    def __init__(self, program: Decided, stored: Stored, place: Place) -> None:
        self.program, self.stored, self.place = program, stored, place
        self.body, self.moment = Body(), 0
        self.kept: dict[int, Blocks] = {}  # value -> where it is, as it is kept
        self.moved: dict[Hashable, Blocks] = {}  # (value, state, ...) -> where it is so
        self.wide: set[int] = set()  # blocks with 32 bits for 16
        self.zeros: dict[Hashable, int] = {}
        self.sliced = {link.target for link in program.flat.links if link.lift}
        self.slices: dict[int, int] = {}  # source of a slice of a stack -> the slice
        self.spread_by: dict[int, list[int]] = {}
        for i, op in enumerate(program.flat.ops):
            if i in program.strategies and i not in program.left_out and program.bodies[i] == place:
                for _, u, _ in program.operands(i):
                    if (
                        program.flat.values[u].type.size
                        < program.flat.values[op.outputs[0]].type.size
                    ):
                        self.spread_by.setdefault(u, []).append(i)
        self.squares = {i for i in program.squares.values() if program.bodies[i] == place}
        for item in self._items():
            if isinstance(item, Region):
                self.moment = item.start
                self._region(item)
            else:
                self.moment = program.flat.ops[item].time
                self._op(item)

    def _items(self) -> list[int | Region]:
        """Ops and regions of the body, in order."""
        program = self.program
        ops = [(op.time, i) for i, op in enumerate(program.flat.ops)
               if program.bodies[i] == self.place]  # fmt: skip
        regions = [(r.start, r) for p, r in program.regions.items()
                   if program.body(p) == self.place]  # fmt: skip
        return [item for _, item in sorted([*ops, *regions], key=lambda pair: pair[0])]

    def _kernel(
        self,
        reads: Iterable[int],
        sizes: Sequence[int],
        *,
        overwrites: bool = False,
        extra_bytes: int = 0,
        inner: tuple[Body, ...] = (),
        joins: Hashable = None,
    ) -> list[int]:
        """A kernel and the blocks that it writes."""
        blocks = [self.body.block(size) for size in sizes]
        read = tuple(sorted(reads)) or (self.body.source(CONSTANT),)
        self.body.kernels.append(
            Kernel(self.moment, read, tuple(blocks), overwrites, extra_bytes, inner, joins)
        )
        return blocks

    # --- reading --------------------------------------------------------------------------

    def read(self, v: int, wanted: Sharding, by: Hashable = None) -> Blocks:
        """Blocks that a kernel reads for a value in a state: it, or what it is computed of."""
        program = self.program
        if program.free[v]:
            return NONE
        if program.steps(v, wanted):
            return self._gathered(v, wanted, by)
        if v not in self.kept and program.makers.get(v) in self.squares:
            self._op(program.makers[v])
        if v in self.kept:
            return self.kept[v]
        if program.flat.values[v].kind != "op" or self.stored.written[v]:
            source = self.body.source(v)
            if v in self.sliced:
                self.slices[source] = v
            return frozenset({source})
        key = ("computed", v)
        if key not in self.moved:
            parts = (self.read(u, s, i) for i in (program.makers[v],)
                     for _, u, s in program.operands(i))  # fmt: skip
            self.moved[key] = NONE.union(*parts)
        return self.moved[key]

    def _again(self, v: int, wanted: Sharding, by: Hashable) -> Hashable:
        """Who reads, where each reader has an array of its own: of what is gathered anew."""
        return by if self.program.is_gathered_anew(v, wanted) else None

    def _gathered(self, v: int, wanted: Sharding, by: Hashable) -> Blocks:
        key = (v, wanted, self._again(v, wanted, by))
        if key not in self.moved:
            before = self.program.state(v)
            source = self._operand(v, before, PLAIN, by)
            self.moved[key] = self._collective(v, source, self.program.steps(v, wanted))
        return self.moved[key]

    def _collective(self, v: int, source: Blocks, steps: Sequence[Step]) -> Blocks:
        program = self.program
        sizes = [program.size(v, step.after, wide=True) for step in steps]
        one = steps[0].axes if len(steps) == 1 and steps[0].collective == "all-reduce" else None
        turned = not program.is_half(v) and program.is_turned(v, steps[-1])
        if turned:
            source = frozenset(self._kernel(source, [program.size(v, steps[0].before)]))
        (block,) = self._kernel(
            source, sizes[-1:], extra_bytes=max(sizes[:-1], default=0), joins=one
        )
        if turned:
            (block,) = self._kernel([block], sizes[-1:])
        if program.is_half(v):
            self.wide.add(block)
        return frozenset({block})

    def _operand(self, v: int, wanted: Sharding, order: Hashable, by: Hashable) -> Blocks:
        """An operand of a library call: in 32 bits and in one order."""
        program = self.program
        if program.free[v]:
            return NONE
        key = ("operand", v, wanted, order, self._again(v, wanted, by))
        if key not in self.moved:
            source = self.read(v, wanted, by)
            as_is = order == PLAIN and self._is_array(v, wanted)
            if program.is_half(v):
                as_is = as_is and source <= self.wide
            if not as_is:
                size = program.size(v, wanted, wide=True)
                source = frozenset(self._kernel(source, [size]))
            self.moved[key] = self._cut(source)
        return self.moved[key]

    def _cut(self, reads: Blocks) -> Blocks:
        """What a call reads, slices of stacks as arrays of their own."""
        return frozenset(self._slice(b) if b in self.slices else b for b in reads)

    def _slice(self, source: int) -> int:
        key = ("slice", source)
        if key not in self.moved:
            v = self.slices[source]
            size = self.program.size(v, self.program.state(v), wide=True)
            self.moved[key] = frozenset(self._kernel([source], [size]))
        (block,) = self.moved[key]
        return block

    def _is_array(self, v: int, wanted: Sharding) -> bool:
        """Whether a value is in memory, perhaps by another name."""
        if self.program.steps(v, wanted):
            return True
        while not self.stored.written[v]:
            op = self.program.flat.ops[self.program.makers[v]]
            source = op.inputs[0] if op.inputs else None
            if op.node.op not in VIEWS or not isinstance(source, int):
                return False
            v = self.program.one(source)
        return True

    def _zeros(self, size: int, like: Hashable) -> int:
        """Zeros to write into: a copy of those that all of one shape share."""
        if like not in self.zeros:
            (self.zeros[like],) = self._kernel((), [size])
        (copy,) = self._kernel([self.zeros[like]], [size], overwrites=True)
        return copy

    # --- operations -----------------------------------------------------------------------

    def _op(self, i: int) -> None:
        program, op = self.program, self.program.flat.ops[i]
        if i not in program.strategies or i in program.left_out:
            return
        if any(i == scatter for scatter, _ in program.merged.values()):
            return  # part of the add
        results = [(v, s) for v, s in program.results(i) if self.stored.written[v]]
        if not results or results[0][0] in self.kept:
            return
        if i in program.merged:
            self._scatter_into(i)
        elif not is_fused(op):
            self._call(i)
        else:
            summed = any(self._in_row_sum(v) for v, _ in results)
            if summed and lookup(op.node.op).family == "elementwise":
                reads = self._taken_in(i, i)
            else:
                reads = NONE.union(*(self.read(v, s, i) for _, v, s in program.operands(i)))
            for v, state in results:
                if op.node.op in VIEWS and self._named(i):
                    self._made(v, state, reads)
                else:
                    blocks = self._kernel(reads, [self._size(v, state)], overwrites=True)
                    self._made(v, state, blocks)

    def _in_row_sum(self, v: int) -> bool:
        """Whether a value is computed in the call of a sum along the last dimension."""
        flat = self.program.flat
        return any(
            how == REDUCED_BY and isinstance(i, int) and is_row_sum(flat.ops[i], self.program)
            for how, i in self.stored.readers[v]
        )

    def _named(self, i: int) -> bool:
        """Whether a view is of something in memory."""
        return any(self.stored.written[v] for _, v, _ in self.program.operands(i))

    def _size(self, v: int, state: Sharding) -> int:
        """Bytes of a result, none of which writes over its argument."""
        return 0 if v in self.program.facts.in_place else self.program.size(v, state)

    def _scatter_into(self, i: int) -> None:
        """An add of a scatter into zeros: the scatter, into the other addend."""
        program = self.program
        scatter, position = program.merged[i]
        ((v, state),) = program.results(i)
        reads = NONE
        for k, u, s in program.operands(i):
            if k != position:
                reads |= self._addend(i, v, u, s)
        for _, u, s in program.operands(scatter):
            reads |= self._operand(u, s, PLAIN, i)
        size = program.size(v, state, wide=True)
        size = 0 if v in program.facts.in_place else size
        self._made(v, state, self._kernel(reads, [size], overwrites=True))

    def _addend(self, i: int, v: int, u: int, state: Sharding) -> Blocks:
        program = self.program
        if program.is_half(u) or self._is_array(u, state):
            return self._operand(u, state, PLAIN, i)
        size = 0 if v in program.facts.in_place else program.size(u, state)
        return frozenset(self._kernel(self.read(u, state, i), [size], overwrites=True))

    def _call(self, i: int) -> None:
        """A library call, a gather or scatter, a sort, a draw of random numbers."""
        program, op = self.program, self.program.flat.ops[i]
        family = lookup(op.node.op).family
        reads = NONE
        for k, u, s in program.operands(i):
            order = wanted_order(op, k, program) if family in LIBRARY else PLAIN
            if is_row_sum(op, program):
                reads |= self._cut(self._reduced(u, s, i))
            elif family == "reduction":
                reads |= self._cut(self.read(u, s, i))
            else:
                reads |= self._operand(u, s, order, i)
        updates = op.node.op.startswith("scatter") or op.node.op == "dynamic_update_slice"
        into = op.inputs[0] if op.inputs else None
        if updates and isinstance(into, int) and program.free[into]:
            state = program.strategies[i].operands[0]
            like = (program.flat.values[into].type, state)
            reads |= {self._zeros(program.size(into, state, wide=True), like)}
        draws = DRAWN if op.node.op == "random_bits" else 1
        sizes = [self._call_size(v, s, family) * draws for v, s in program.results(i)]
        extra = DRAWING * sum(sizes) // DRAWN if draws > 1 else 0
        blocks = self._kernel(reads, sizes, overwrites=updates, extra_bytes=extra)
        for (v, state), block in zip(program.results(i), blocks, strict=True):
            if program.is_half(v) and len(self.stored.readers[v]) > 1:
                (block,) = self._kernel([block], [program.size(v, state)])
            self._made(v, state, [block])

    def _reduced(self, v: int, wanted: Sharding, by: int) -> Blocks:
        """What a sum reads, with the chain that it is computed of; smaller parts are spread out."""
        program, written = self.program, self.stored.written
        i = program.makers.get(v, -1)
        if program.steps(v, wanted) or v in self.kept or i < 0 or written[v]:
            return self.read(v, wanted, by)
        spreads = program.flat.ops[i].node.op == "broadcast_in_dim"
        if not spreads and lookup(program.flat.ops[i].node.op).family != "elementwise":
            return self.read(v, wanted, by)
        return self._taken_in(i, by)

    def _taken_in(self, i: int, by: int) -> Blocks:
        """What an op reads that is computed in the call of a sum."""
        program = self.program
        reads, v = NONE, program.flat.ops[i].outputs[0]
        shape = program.flat.values[v].type.shape
        spreads = program.flat.ops[i].node.op == "broadcast_in_dim"
        times = program.flat.ops[i].node.op == "mul"
        for _, u, s in program.operands(i):
            if program.flat.values[u].type.shape == shape and not spreads:
                reads |= self._reduced(u, s, by)
            elif not times or not self._is_shared(u, shape):
                reads |= self.read(u, s, by)
            else:
                reads |= self._spread(u, s, v, by)
        return reads

    def _is_shared(self, u: int, shape: tuple[int, ...]) -> bool:
        """Whether several ops read a smaller value spread over one shape: no sum takes it in."""
        flat = self.program.flat
        found = [i for i in self.spread_by.get(u, ())
                 if flat.values[flat.ops[i].outputs[0]].type.shape == shape]  # fmt: skip
        return len(found) > 1 and flat.values[u].type.size > 1

    def _spread(self, u: int, state: Sharding, over: int, by: int) -> Blocks:
        """A smaller operand as a whole array of the shape of what is computed of it."""
        program = self.program
        type_ = program.flat.values[over].type
        key = ("spread", u, state, type_.shape)
        if key not in self.moved:
            share = program.flat.values[u].type.nbytes // program.flat.values[u].type.size
            size = program.state(over).local_bytes(type_, program.mesh)
            size = size // (type_.nbytes // type_.size) * max(share, 4)
            self.moved[key] = frozenset(self._kernel(self.read(u, state, by), [size]))
        return self.moved[key]

    def _call_size(self, v: int, state: Sharding, family: str) -> int:
        if v in self.program.facts.in_place and family not in LIBRARY:
            return 0 if not self.program.is_half(v) else self.program.size(v, state, wide=True)
        return self.program.size(v, state, wide=True)

    def _made(self, v: int, made: Sharding, blocks: Iterable[int]) -> None:
        """Where a value is, once it is in the state in which it is kept."""
        program, found = self.program, frozenset(blocks)
        steps = program.steps(v, program.state(v), made)
        if steps:
            if program.is_half(v) and not found <= self.wide:
                found = frozenset(self._kernel(found, [program.size(v, made, wide=True)]))
            found = self._collective(v, found, steps)
        self.kept[v] = found

    # --- regions --------------------------------------------------------------------------

    def _region(self, region: Region) -> None:
        """A loop or a branch, which runs its bodies one after the other."""
        program, flat = self.program, self.program.flat
        inner = tuple(
            _Writer(program, self.stored, place).body for place in self._bodies(region.place)
        )
        entered = set(region.entered)
        reads = NONE
        for link in flat.links:
            if link.target not in entered or program.free[link.source]:
                continue
            if link.time > region.start + 1:  # what the body hands on
                continue
            v = program.one(link.source)
            state = program.entered(link.target, link.lift)
            kept = link.lift or link.target in program.facts.read_only
            if program.is_half(v) and kept:
                reads |= self._operand(v, state, PLAIN, region.place)
            else:
                reads |= self.read(v, state, region.place)
        sizes = [self._size(v, program.state(v)) for v in region.stacks]
        for v, size in zip(region.stacks, sizes, strict=True):
            reads |= {self._zeros(size, (flat.values[v].type, program.state(v)))}
        left = [v for v in region.left if not program.free[v]]
        sizes += [self._size(v, program.state(v)) for v in left]
        blocks = self._kernel(reads, sizes, overwrites=True, inner=inner)
        for v, block in zip((*region.stacks, *left), blocks, strict=True):
            self.kept[v] = frozenset({block})

    def _bodies(self, place: Place) -> list[Place]:
        depth = len(place) + 1
        bodies = [*self.program.bodies, *map(self.program.body, self.program.regions)]
        return sorted({b for b in bodies if len(b) == depth and b[: depth - 1] == place})

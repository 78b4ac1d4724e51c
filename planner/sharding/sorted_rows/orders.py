"""Which sorts of rows may be done in blocks: all that reads their order treats rows alike.

A sort of N whole numbers brings rows into the order of their groups. Every value after it is

    rows      in that order along one dimension; permuting the order permutes them
    places    whole numbers that say where rows are in that order, as a sort of the order makes
    counts    of the rows of each group, whatever their order
    others    the same in any order

Ops that treat rows alike make rows of rows; sums over rows, additions to the places where rows came
from and lookups at the places of rows make others. An order that anything else reads, or that
leaves the program, is kept as it is. In an order that is not, grouped products may have their rows
in blocks, each in the order of its own groups: all others stay what they were, but for the order in
which numbers are added up.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ir import GROUPED, Graph, Literal, Node, grouped_sizes, lookup, moves_rows
from ir.analysis import FlatOp, Place, Specs, flatten
from ir.analysis.flat_program import Link, operand_types
from ir.factors import REDUCED
from ir.types import dtype_kind

from . import pointwise
from .pointwise import Pointwise
from .value_numbers import ValueNumbers

MOST_GROUPS: Final = 1024  # of which counts are recognised
_ALIKE: Final = (
    "broadcast_in_dim", "dot_general", "expand_dims", "reduce_max", "reduce_min", "reduce_sum",
    "reshape", "squeeze", "transpose",
)  # fmt: skip


@dataclass(frozen=True)
class Sorted:
    """Rows in an order, or places in it.

    root: the sort, through all loops that its order passes.
    order, key: the order and the numbers that were sorted, in this iteration of these loops.
    dim: dimension of the rows; -1 for places.
    lifted: dimensions of stacks before it.
    """

    root: Hashable
    order: Hashable
    key: Hashable
    dim: int
    lifted: int = 0

    @property
    def source(self) -> Hashable:
        """What whole numbers among them are functions of."""
        return ("places", self.order) if self.dim < 0 else self.order


@dataclass(frozen=True)
class Counts:
    """How many rows each group has, by the numbers that are sorted."""

    key: Hashable
    lifted: int = 0


Known = Sorted | Counts | None


@dataclass(frozen=True)
class Site:
    """An op that changes where rows are in blocks.

    kind: sort | product | lookup | add.
    root: of the order.
    table: of a lookup, or of what rows are added to: its rows.
    index: row of the table for each number of a row in the order.
    """

    kind: str
    root: Hashable
    table: int = 0
    index: Pointwise | None = None

    def fits(self, blocks: int) -> bool:
        """Whether rows of a block have to do with the rows of a block of the table alone."""
        if self.index is None:
            return True
        index = self.index.table.reshape(-1)
        if self.table % blocks or index.size % blocks:
            return False
        here = np.arange(blocks).repeat(index.size // blocks)
        return bool(np.array_equal(index // (self.table // blocks), here))


@dataclass
class Orders:
    """The orders of a program.

    rows: root of an order -> number of rows.
    sites: flat number of an op -> what it is.
    counts: the same, of ops that count the rows of groups -> flat number of the sorted numbers.
    known: of values.
    bad: roots of orders that are kept.
    """

    graph: Graph
    rows: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    sites: dict[int, Site] = field(default_factory=dict[int, Site])
    counts: dict[int, int] = field(default_factory=dict[int, int])
    known: dict[int, Known] = field(default_factory=dict[int, Known])
    bad: set[Hashable] = field(default_factory=set[Hashable])
    pointwise: dict[int, Pointwise | None] = field(default_factory=dict[int, Pointwise | None])

    def __post_init__(self) -> None:
        self.flat = flatten(self.graph)
        self.specs = Specs(self.flat)
        self.op_at: dict[Place, int] = {op.place: i for i, op in enumerate(self.flat.ops)}
        self.numbers = ValueNumbers(self.flat)
        sorts = [op for op in self.flat.ops if _sorts(op)]
        made = {self._number(v) for op in sorts for v in op.outputs}
        self.keys = {self._number(op.inputs[0]) for op in sorts} - made
        if not self.keys:
            return
        for i, op in enumerate(self.flat.ops):
            self._op(i, op)
        for link in self.flat.links:
            self._leaves(link)
        self._keep(self.of(v) for v in self.flat.outputs)

    def good(self, blocks: int) -> frozenset[Hashable]:
        """Roots of the orders that may be in blocks and have grouped products."""
        used = {site.root for site in self.sites.values() if site.kind == "product"}
        return frozenset(
            root for root in used - self.bad if self.rows[root] % blocks == 0
        )  # fmt: skip

    # --- values ------------------------------------------------------------------------------

    def of(self, v: int | Literal) -> Known:
        """What a value is."""
        if isinstance(v, Literal):
            return None
        if v not in self.known:
            self.known[v] = self._entered(v)
        return self.known[v]

    def _entered(self, v: int) -> Known:
        """What a port is, by what enters it."""
        if v in self.flat.stacked:
            port = self.of(self.flat.stacked[v])
            return None if port is None else replace(port, lifted=port.lifted + 1)
        link = self.numbers.only_link(v)
        if link is None:
            return None
        found = self.of(link.source)
        if found is None or not link.lift:
            return found
        if not found.lifted:
            return None  # a row at a time: `_leaves` keeps the order
        sliced = self.numbers.sliced(found.key, link.site.place)
        if isinstance(found, Counts):
            return Counts(sliced, found.lifted - 1)
        order = self.numbers.sliced(found.order, link.site.place)
        return replace(found, key=sliced, order=order, lifted=found.lifted - 1)

    def _leaves(self, link: Link) -> None:
        """Keeps an order that a loop carries, or that it takes a row at a time."""
        found = self.of(link.source)
        if isinstance(found, Sorted) and self.of(link.target) is None:
            self.bad.add(found.root)

    def _function(self, v: int | Literal) -> Pointwise | None:
        """A value as a function of the numbers that are sorted, or of an order."""
        if isinstance(v, Literal):
            return pointwise.of_literal(v)
        if v not in self.pointwise:
            self.pointwise[v] = self._entering_function(v)
        return self.pointwise[v]

    def _entering_function(self, v: int) -> Pointwise | None:
        type_ = self.flat.values[v].type
        if self._number(v) in self.keys and type_.rank == 1 and self.of(v) is None:
            table = pointwise.keys_to_try(type_.dtype, MOST_GROUPS)
            return Pointwise(table, ("key", self._number(v)), 0, v)
        if v in self.flat.stacked:
            # no op takes a stack of rows for a function of anything
            rows = isinstance(self.of(v), Sorted)
            return self._function(self.flat.stacked[v]) if rows else None
        link = self.numbers.only_link(v)
        if link is None:
            return None
        found = self._function(link.source)
        if found is None or not link.lift or found.source is None:
            return None if link.lift and found is not None else found
        before, known = self.of(link.source), self.of(v)
        if not isinstance(before, Sorted) or not isinstance(known, Sorted):
            return None
        # what a loop takes of a stack is a function of the order of the same iteration
        return replace(found, source=known.source) if found.source == before.source else None

    def _number(self, v: int | Literal) -> Hashable:
        return self.numbers.of(v)

    def _keep(self, known: Iterable[Known]) -> None:
        """Keeps the orders of some values as they are."""
        self.bad |= {x.root for x in known if isinstance(x, Sorted)}

    # --- ops ---------------------------------------------------------------------------------

    def _op(self, i: int, op: FlatOp) -> None:
        functions = [self._function(v) for v in op.inputs]
        made = pointwise.result_of(op, functions)
        for v in op.outputs:
            if self._number(v) in self.keys and self.flat.values[v].type.rank == 1:
                made = None
                self.pointwise.pop(v, None)
            else:
                self.pointwise[v] = made
        ins = [self.of(v) for v in op.inputs]
        if any(x is not None and x.lifted for x in ins):
            self._keep(ins)
            found: Sequence[Known] = [None] * len(op.outputs)
        else:
            found = self._results(i, op, ins, functions)
        for v, known in zip(op.outputs, found, strict=True):
            self.known[v] = known

    def _results(
        self, i: int, op: FlatOp, ins: Sequence[Known], functions: Sequence[Pointwise | None]
    ) -> Sequence[Known]:
        """What the results of an op are."""
        node, nothing = op.node, [None] * len(op.outputs)
        counted = self._counted(i, op, functions)
        if counted is not None:
            return [counted]
        if node.op == "optimization_barrier":
            for v, x in zip(op.outputs, functions, strict=True):
                self.pointwise[v] = x
            return list(ins)
        if node.op == "sort":
            return self._sort(i, op, ins, functions)
        if node.op == GROUPED:
            return self._product(i, op, ins)
        rows = [x for x in ins if isinstance(x, Sorted)]
        if not rows:
            (first,) = ins if len(ins) == 1 else (None,)
            kept = isinstance(first, Counts) and lookup(node.op).family == "elementwise"
            return [first] if kept and _keeps_numbers(node) else nothing
        if node.op in ("gather", "scatter-add"):
            return self._moved(i, op, ins, functions)
        if all(x.dim < 0 for x in rows):
            return self._of_places(op, rows)
        found = self._alike(op, ins, functions) if self._treats_alike(node) else None
        if found is None:
            self._keep(rows)
            return nothing
        return found

    def _treats_alike(self, node: Node) -> bool:
        return node.op in _ALIKE or lookup(node.op).family == "elementwise"

    def _counted(self, i: int, op: FlatOp, functions: Sequence[Pointwise | None]) -> Counts | None:
        """The counts of groups that an op makes of the numbers that are sorted."""
        if op.node.op not in ("reduce_sum", "scatter-add"):
            return None
        source = next((x for x in functions if x is not None and x.source is not None), None)
        if source is None or source.at < 0 or self._number(source.at) not in self.keys:
            return None
        dtype = self.flat.values[source.at].type.dtype
        keys = pointwise.keys_to_try(dtype, MOST_GROUPS)
        signed = not self.numbers.is_unsigned(source.at)
        at = pointwise.counts_groups(op, functions, keys, signed=signed)
        if at < 0:
            return None
        self.counts[i] = at
        return Counts(self._number(at))

    def _sort(
        self, i: int, op: FlatOp, ins: Sequence[Known], functions: Sequence[Pointwise | None]
    ) -> Sequence[Known]:
        nothing: list[Known] = [None] * len(op.outputs)
        if not _sorts(op):
            self._keep(ins)
            return nothing
        key, count = ins[0], self.flat.values[op.outputs[0]].type.shape[0]
        counted = [_is_counted(x, count) for x in functions]
        if isinstance(key, Sorted):
            order = functions[0]
            whole = key.dim == 0 and order is not None and order.source == key.source
            if any(ins[1:]) or not whole or not _is_all(order, count) or not all(counted[1:]):
                self._keep(ins)
                return nothing
            self.sites[i] = Site("sort", key.root)
            places = replace(key, dim=-1)
            for v in op.outputs[1:]:
                table = np.arange(count, dtype=np.int32)
                self.pointwise[v] = Pointwise(table, places.source, 0, v)
            return [None, *([places] * (len(op.outputs) - 1))]
        if any(isinstance(x, Sorted) for x in ins) or not any(counted[1:]):
            self._keep(ins)
            return nothing
        order = self._number(op.outputs[1])
        rows = Sorted(order, order, self._number(op.inputs[0]), 0)
        self.rows[order] = count
        self.sites[i] = Site("sort", order)
        for v, is_order in zip(op.outputs, counted, strict=True):
            table = np.arange(count, dtype=np.int32)
            self.pointwise[v] = Pointwise(table, order, 0, v) if is_order else None
        return [rows] * len(op.outputs)

    def _product(self, i: int, op: FlatOp, ins: Sequence[Known]) -> Sequence[Known]:
        """A grouped product, whose groups are those of its rows."""
        lhs, rhs, counts = ins
        rows = [x for x in ins if isinstance(x, Sorted)]
        if not rows:
            return [None]
        sizes = grouped_sizes(operand_types(self.flat, op), dict(op.node.attrs))
        first = rows[0]
        alike = (
            isinstance(lhs, Sorted) and isinstance(counts, Counts) and counts.key == lhs.key
            and sizes is not None and not sizes.blocks
            and len({x.order for x in rows}) == 1 and all(x.dim == 0 for x in rows)
            and isinstance(rhs, Sorted) == sizes.contracts_rows
        )  # fmt: skip
        if not alike or sizes is None:
            self._keep(rows)
            return [None]
        self.sites[i] = Site("product", first.root)
        return [None if sizes.contracts_rows else first]

    def _moved(
        self, i: int, op: FlatOp, ins: Sequence[Known], functions: Sequence[Pointwise | None]
    ) -> Sequence[Known]:
        """Rows that are looked up, or added to others."""
        types = operand_types(self.flat, op)
        index, rows = ins[1], [x for x in ins if isinstance(x, Sorted)]
        found: tuple[Known] | None = None
        if isinstance(index, Sorted) and index.lifted == 0 and moves_rows(op.node, types):
            by_order = self._by_order if index.dim == 0 else self._by_places
            found = by_order(op, index, ins, functions)
            function = functions[1]
            if found and function is not None and function.source == index.source:
                kind = "lookup" if op.node.op == "gather" else "add"
                self.sites[i] = Site(kind, index.root, types[0].shape[0], function)
        if found is None:
            self._keep(rows)
            return [None]
        return found

    def _by_order(
        self, op: FlatOp, index: Sorted, ins: Sequence[Known],
        functions: Sequence[Pointwise | None],
    ) -> tuple[Known] | None:  # fmt: skip
        """Rows that come from a table, or go to one, each by a number of its own."""
        if isinstance(ins[0], Sorted):
            return None
        if op.node.op == "gather":
            return (index,)
        added, function = ins[2], functions[2]
        if isinstance(added, Sorted):
            return (None,) if added.dim == 0 and added.order == index.order else None
        return (None,) if function is not None and function.same_along(0) else None

    def _by_places(
        self, op: FlatOp, index: Sorted, ins: Sequence[Known],
        functions: Sequence[Pointwise | None],
    ) -> tuple[Known] | None:  # fmt: skip
        """Rows in order that are looked up, or made, where they are."""
        function, in_order = functions[1], replace(index, dim=0)
        known = function is not None and function.source == index.source
        if not known or not _is_all(function, self.rows[index.root]):
            return None
        if op.node.op == "gather":
            return (None,) if ins[0] == in_order else None
        same = functions[0] is not None and functions[0].same_along(0)
        return (in_order,) if same and ins[0] is None and ins[2] is None else None

    def _of_places(self, op: FlatOp, rows: Sequence[Sorted]) -> Sequence[Known]:
        """A number that says where a row is, in another form."""
        first = rows[0]
        function = self.pointwise.get(op.outputs[0])
        known = function is not None and function.source == first.source
        if not known or len(op.outputs) > 1:
            self._keep(rows)
            return [None] * len(op.outputs)
        return [first]

    def _alike(
        self, op: FlatOp, ins: Sequence[Known], functions: Sequence[Pointwise | None]
    ) -> Sequence[Known] | None:
        """Results of an op that treats rows alike; None if it does not."""
        spec = self.specs.of(op)
        rows = [x for x in ins if isinstance(x, Sorted)]
        factors = {
            spec.operands[k][x.dim] for k, x in enumerate(ins) if isinstance(x, Sorted)
        }  # fmt: skip
        if len({x.order for x in rows}) > 1 or len(factors) != 1 or any(x.dim < 0 for x in rows):
            return None
        (factor,) = factors
        if len(factor) != 1 or spec.size(factor[0]) != self.rows[rows[0].root]:
            return None
        for k, (x, function) in enumerate(zip(ins, functions, strict=True)):
            if isinstance(x, Sorted):
                continue
            for d, dim in enumerate(spec.operands[k]):
                if factor[0] in dim and (function is None or not function.same_along(d)):
                    return None
        kind, found = spec.kind(factor[0]), list[Known]()
        if kind != "plain" and kind not in REDUCED:
            return None
        for dims in spec.results:
            at = [d for d, dim in enumerate(dims) if factor[0] in dim]
            if len(at) > 1 or (at and dims[at[0]] != factor) or (not at and kind == "plain"):
                return None
            found.append(replace(rows[0], dim=at[0]) if at else None)
        return found


def _sorts(op: FlatOp) -> bool:
    """Whether an op puts whole numbers into order, and others along with them."""
    node = op.node
    if node.op != "sort" or len(op.inputs) < 2 or node.attr("num_keys") != 1:
        return False
    first = node.outputs[0]
    return first.rank == 1 and dtype_kind(first.dtype) == "int" and first.shape[0] > 1


def _is_counted(x: Pointwise | None, count: int) -> bool:
    """Whether a value is 0, 1, 2, ..."""
    return x is not None and x.source is None and _is_all(x, count)


def _is_all(x: Pointwise | None, count: int) -> bool:
    """Whether a function gives every number itself."""
    return x is not None and np.array_equal(x.table.reshape(-1), np.arange(count))


def _keeps_numbers(node: Node) -> bool:
    """Whether an op of one operand leaves whole numbers what they are."""
    kept = ("convert_element_type", "copy", "name", "stop_gradient")
    return node.op in kept and dtype_kind(node.outputs[0].dtype) == "int"

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

from ir import GROUPED, Graph, Node, TensorType, dtype_kind, grouped_sizes, lookup, moves_rows
from ir.analysis import FlatOp, Link, Place, Specs, flatten, operand_types

from . import pointwise
from .order_values import MOST_GROUPS, Counts, Known, Sorted, Values
from .pointwise import Pointwise
from .value_numbers import ValueNumbers

_LEAST_BYTES: Final = 4  # of a number that holds any count of rows: 2^24 rows in float32
_ALIKE: Final = (
    "broadcast_in_dim", "dot_general", "expand_dims", "reduce_max", "reduce_min", "reduce_sum",
    "reshape", "squeeze", "transpose",
)  # fmt: skip


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
    bad: roots of orders that are kept.
    """

    graph: Graph
    rows: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    sites: dict[int, Site] = field(default_factory=dict[int, Site])
    counts: dict[int, int] = field(default_factory=dict[int, int])
    bad: set[Hashable] = field(default_factory=set[Hashable])

    def __post_init__(self) -> None:
        self.flat = flatten(self.graph)
        self.specs = Specs(self.flat)
        self.op_at: dict[Place, int] = {op.place: i for i, op in enumerate(self.flat.ops)}
        self.numbers = ValueNumbers(self.flat)
        sorts = [op for op in self.flat.ops if _sorts(op)]
        made = {self.numbers.of(v) for op in sorts for v in op.outputs}
        keys = {self.numbers.of(op.inputs[0]) for op in sorts} - made
        self.values = Values(self.flat, self.numbers, keys)
        if not keys:
            return
        for i, op in enumerate(self.flat.ops):
            self._op(i, op)
        for link in self.flat.links:
            self._leaves(link)
        self._keep(self.values.of(v) for v in self.flat.outputs)

    def good(self, blocks: int) -> frozenset[Hashable]:
        """Roots of the orders that may be in blocks and have grouped products."""
        used = {site.root for site in self.sites.values() if site.kind == "product"}
        return frozenset(
            root for root in used - self.bad if self.rows[root] % blocks == 0
        )  # fmt: skip

    # --- values ------------------------------------------------------------------------------

    def _leaves(self, link: Link) -> None:
        """Keeps an order that a loop carries, or that it takes a row at a time."""
        found = self.values.of(link.source)
        if isinstance(found, Sorted) and self.values.of(link.target) is None:
            self.bad.add(found.root)

    def _keep(self, known: Iterable[Known]) -> None:
        """Keeps the orders of some values as they are."""
        self.bad |= {x.root for x in known if isinstance(x, Sorted)}

    # --- ops ---------------------------------------------------------------------------------

    def _op(self, i: int, op: FlatOp) -> None:
        functions = [self.values.function(v) for v in op.inputs]
        same = self.values.same_of(op)
        self.values.same |= dict.fromkeys(op.outputs, same) if same else {}
        made = pointwise.result_of(op, functions, operand_types(self.flat, op))
        for v in op.outputs:
            if self.values.is_key(v):
                made = None
                self.values.functions.pop(v, None)
            else:
                self.values.functions[v] = made
        ins = [self.values.of(v) for v in op.inputs]
        if any(x is not None and x.lifted for x in ins):
            self._keep(ins)
            found: Sequence[Known] = [None] * len(op.outputs)
        else:
            found = self._results(i, op, ins, functions)
        for v, known in zip(op.outputs, found, strict=True):
            self.values.known[v] = known

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
                self.values.functions[v] = x
            return list(ins)
        if node.op == "sort":
            return self._sort(i, op, ins, functions)
        if node.op == GROUPED:
            return self._product(i, op, ins)
        rows = [x for x in ins if isinstance(x, Sorted)]
        if not rows:
            (first,) = ins if len(ins) == 1 else (None,)
            kept = isinstance(first, Counts) and lookup(node.op).family == "elementwise"
            return [first] if kept and _keeps_counts(node) else nothing
        if node.op in ("gather", "scatter-add"):
            return self._moved(i, op, ins, functions)
        if all(x.dim < 0 for x in rows):
            return self._of_places(op, rows)
        found = self._alike(op, ins) if self._treats_alike(node) else None
        if found is None:
            self._keep(rows)
            return nothing
        return found

    def _treats_alike(self, node: Node) -> bool:
        return node.op in _ALIKE or lookup(node.op).family == "elementwise"

    def _counted(self, i: int, op: FlatOp, functions: Sequence[Pointwise | None]) -> Counts | None:
        """The counts of groups that an op makes of the numbers that are sorted."""
        (out, *_) = op.node.outputs
        if op.node.op not in ("reduce_sum", "scatter-add") or not _holds_counts(out):
            return None
        source = next((x for x in functions if x is not None and x.source is not None), None)
        if source is None or source.at < 0 or self.numbers.of(source.at) not in self.values.keys:
            return None
        dtype = self.flat.values[source.at].type.dtype
        keys = pointwise.keys_to_try(dtype, MOST_GROUPS)
        signed = not self.numbers.is_unsigned(source.at)
        at = pointwise.counts_groups(op, functions, keys, signed=signed)
        if at < 0:
            return None
        self.counts[i] = at
        return Counts(self.numbers.of(at))

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
                self.values.functions[v] = Pointwise(table, places.source, 0, v)
            return [None, *([places] * (len(op.outputs) - 1))]
        if any(isinstance(x, Sorted) for x in ins) or not any(counted[1:]):
            self._keep(ins)
            return nothing
        order = self.numbers.of(op.outputs[1])
        rows = Sorted(order, order, self.numbers.of(op.inputs[0]), 0)
        self.rows[order] = count
        self.sites[i] = Site("sort", order)
        for v, is_order in zip(op.outputs, counted, strict=True):
            table = np.arange(count, dtype=np.int32)
            self.values.functions[v] = Pointwise(table, order, 0, v) if is_order else None
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
        added = ins[2]
        if isinstance(added, Sorted):
            return (None,) if added.dim == 0 and added.order == index.order else None
        return (None,) if self.values.same_along(op.inputs[2], 0) else None

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
        same = self.values.same_along(op.inputs[0], 0)
        return (in_order,) if same and ins[0] is None and ins[2] is None else None

    def _of_places(self, op: FlatOp, rows: Sequence[Sorted]) -> Sequence[Known]:
        """A number that says where a row is, in another form."""
        first = rows[0]
        function = self.values.functions.get(op.outputs[0])
        known = function is not None and function.source == first.source
        if not known or len(op.outputs) > 1:
            self._keep(rows)
            return [None] * len(op.outputs)
        return [first]

    def _alike(self, op: FlatOp, ins: Sequence[Known]) -> Sequence[Known] | None:
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
        for k, (x, v) in enumerate(zip(ins, op.inputs, strict=True)):
            along = [d for d, dim in enumerate(spec.operands[k]) if factor[0] in dim]
            if not isinstance(x, Sorted) and not all(self.values.same_along(v, d) for d in along):
                return None
        kind, found = spec.kind(factor[0]), list[Known]()
        if kind not in ("plain", "sum", "max", "min"):
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


def _keeps_counts(node: Node) -> bool:
    """Whether an op of one operand leaves counts what they are."""
    kept = ("convert_element_type", "copy", "name", "stop_gradient")
    return node.op in kept and _holds_counts(node.outputs[0])


def _holds_counts(type_: TensorType) -> bool:
    """Whether a type has a place for each of the groups that are tried, and all counts of rows."""
    few = type_.rank == 1 and type_.shape[0] <= MOST_GROUPS
    exact = type_.dtype in ("float32", "float64") or dtype_kind(type_.dtype) == "int"
    return few and exact and np.dtype(type_.dtype).itemsize >= _LEAST_BYTES

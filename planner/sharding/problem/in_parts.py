"""Prices of products in parts (collective matmuls), at the joins where a product meets a reshard.

A gather of a product's operand, or a reduce-scatter of its result, is in parts where that adds less
than the collective at its site, all that may hide there hidden. So a problem has no more options
with collective matmuls than without: the cost of a pair of options is the smaller of the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel import INTERFERENCE, InParts, OpWork, in_parts, is_within_host
from ir import (
    Mesh,
    Parts,
    Sharding,
    gather_in_parts,
    gathered_operand,
    is_product,
    lookup,
    scatter_in_parts,
)
from ir.analysis import FlatOp, operand_types

from ...solver.problem import Floats
from .facts import Facts
from .overlap_tables import Lengths, split_table
from .records import MenuCache, NodeRef, States
from .skeleton import End, Join, Outline


@dataclass(frozen=True, slots=True, eq=False)
class PartsTable:
    """Products in parts by the options of a join's two nodes, all runs together.

    added_s: seconds beside the product; infinite where it does not run in parts.
    hidden_s: seconds of its permutes that compute hides.
    """

    added_s: Floats
    hidden_s: Floats

    def less(self, pair: tuple[int, int], seconds: float, beside_s: float) -> bool:
        """Whether it is in parts at a site: if that adds less than a reshard that hides all it may.

        Args:
            pair: options of the two nodes.
            seconds: of the reshard, of all runs.
            beside_s: seconds of compute beside it, of all runs.
        """
        hidden = min(seconds, INTERFERENCE * beside_s) / INTERFERENCE
        return float(self.added_s[pair]) < seconds - hidden

    def at(self, lengths: Lengths, table: Floats) -> tuple[Floats, Floats]:
        """Paid and hidden seconds of a reshard at several sites, in parts where that is less.

        Args:
            lengths: seconds of compute beside it and number of such sites, of all runs.
            table: seconds of the reshard, of all runs; infinite where there is no way.
        """
        paid, hidden = np.zeros(table.shape), np.zeros(table.shape)
        for longest_s, times in lengths:
            behind = np.minimum(np.where(np.isfinite(table), table, 0.0), INTERFERENCE * longest_s)
            behind = behind / INTERFERENCE
            less = self.added_s < table - behind
            paid += times * np.where(less, self.added_s, table - behind)
            hidden += times * np.where(less, self.hidden_s, behind)
        return paid, hidden


def split_once(
    known: dict[object, Floats], table: Floats, lengths: Lengths, parts: PartsTable | None
) -> tuple[Floats, Floats]:
    """The paid and the hidden seconds of a table; one object for equal arguments."""
    key = id(table), lengths, parts
    if ("paid", *key) not in known:
        split = split_table(table, lengths) if parts is None else parts.at(lengths, table)
        known["paid", *key], known["hidden", *key] = split
        known["keep", id(table)] = table
    return known["paid", *key], known["hidden", *key]


class Products:
    """Products in parts on one mesh.

    Args:
        facts: facts of the program.
        cache: prices of the mesh.
        outline: outline of the program's problems.
    """

    def __init__(self, facts: Facts, cache: MenuCache, outline: Outline) -> None:
        self.facts, self.cache, self.outline = facts, cache, outline
        sites, windows = outline.sites, outline.windows
        late = windows.rounds[sites.passage] < 1.0  # sent beside the next round of a loop
        self.late = frozenset(sites.join[late].tolist())
        self.tables: dict[object, PartsTable | None] = {}

    def table(
        self, number: int, refs: Sequence[NodeRef], rows: States, columns: States
    ) -> PartsTable | None:
        """The table of a join; None if no product at it runs in parts.

        Args:
            number: of the join.
            refs: nodes of the problem.
            rows: states of the value at its maker, under each option.
            columns: states in which it is wanted, likewise.
        """
        join = self.outline.joins[number]
        if number in self.late or join.how != "reshard":
            return None
        ends = [(end, op) for end in (join.source, join.target) if (op := self._op(end, join))]
        if not ends:
            return None
        flat = self.facts.flat
        key = (
            id(rows), id(columns), join.weight,
            *((op.node.attrs, operand_types(flat, op), id(refs[end.node].menu), end[1:])
              for end, op in ends),
        )  # fmt: skip
        if key not in self.tables:
            self.tables[key] = self._made(join, refs, rows, columns)
            self.cache.columns[("keep", id(rows))] = rows
            self.cache.columns[("keep", id(columns))] = columns
        return self.tables[key]

    def _op(self, end: End, join: Join) -> FlatOp | None:
        """The product whose operand or result an end is, if it may run in parts."""
        slot = self.outline.slots[end.node]
        if slot.kind != "op" or end.how not in ("operand", "result"):
            return None
        op = self.facts.flat.ops[slot.number]
        if not is_product(op.node) or op.weight != join.weight:
            return None
        if end is join.target and end.position != gathered_operand(self.facts.spec(op)):
            return None
        return op

    def _made(
        self, join: Join, refs: Sequence[NodeRef], rows: States, columns: States
    ) -> PartsTable | None:
        added = np.full((len(rows), len(columns)), np.inf)
        hidden = np.zeros(added.shape)
        for end, states, others in ((join.target, columns, rows), (join.source, rows, columns)):
            op = self._op(end, join)
            if op is None:
                continue
            gathers = end is join.target
            found = list(self._pairs(end, op, refs[end.node], states, others, gathers=gathers))
            if not found:
                continue
            prices = self.prices(op, refs[end.node], [(k, parts) for k, _, parts in found])
            for n, (k, where, _) in enumerate(found):
                at = (where, k) if gathers else (k, where)
                added[at] = prices.added_s[n] * join.weight
                hidden[at] = prices.hidden_s[n] * join.weight
        return PartsTable(added, hidden) if np.isfinite(added).any() else None

    def _pairs(
        self, end: End, op: FlatOp, ref: NodeRef, states: States, others: States, *, gathers: bool
    ) -> Iterator[tuple[int, list[int], Parts]]:
        """Option of the product, options at the other end, and how it is cut for these."""
        spec, places = self.facts.spec(op), dict[Sharding, list[int]]()
        for k, state in enumerate(others):
            places.setdefault(state, []).append(k)
        near = {state: _near(state, places, self.cache.mesh) for state in {*states}}
        for k, state in enumerate(states):
            for other in near[state]:
                if gathers:
                    result = ref.menu[k].results[0]
                    parts = gather_in_parts(spec, end.position, result, other, state)
                else:
                    parts = scatter_in_parts(spec, state, other)
                if parts is not None and is_within_host(parts, self.cache.reshard):
                    yield k, places[other], parts

    def prices(self, op: FlatOp, ref: NodeRef, cuts: Sequence[tuple[int, Parts]]) -> InParts:
        """Prices of a product in parts, by its option and how it is cut; of one kind."""
        spec, types = self.facts.spec(op), operand_types(self.facts.flat, op)
        work = OpWork(op.node, lookup(op.node.op), types, spec, (0, 1), (0,), 1)
        each = self.cache.parts(spec, ref.menu)
        options = [k for k, _ in cuts]
        ways = {name: w[options] for name, w in each.items()}
        return in_parts([parts for _, parts in cuts], work, ways, self.cache.compute,
                        self.cache.reshard)  # fmt: skip


def _near(state: Sharding, known: dict[Sharding, list[int]], mesh: Mesh) -> list[Sharding]:
    """Known states that split a dimension further than a state: by unused axes, or partial ones."""
    partial = dict(state.partial)
    free = [a for a, n in mesh.axes if n > 1 and a not in state.axes and a not in partial]
    axes, found = tuple(partial) if partial else tuple(free), list[Sharding]()
    for count in range(1, len(axes) + 1):
        for some in itertools.combinations(axes, count):
            left = tuple((a, kind) for a, kind in state.partial if a not in some)
            for d, old in enumerate(state.dims):
                dims = (*state.dims[:d], (*old, *some), *state.dims[d + 1 :])
                further = Sharding(dims, left)
                if further in known:
                    found.append(further)
    return found

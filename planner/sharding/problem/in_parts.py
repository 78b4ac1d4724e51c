"""Prices of products in parts (collective matmuls), at the joins where a product meets a reshard.

A gather of a product's operand, or a reduce-scatter of its result, is in parts where that adds less
than the collective at its site, all that may hide there hidden. So a problem has no more options
with collective matmuls than without: the cost of a pair of options is the smaller of the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from costmodel import InParts, OpWork, in_parts, is_within_host
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
from .overlap_tables import PartsTable
from .records import MenuCache, NodeRef, States
from .reshard_tables import by_state, reshards
from .skeleton import End, Join, Outline


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
        flat, cache = self.facts.flat, self.cache
        seconds = reshards(cache, rows, columns, self.outline.types[number], join.weight)
        key = (
            id(rows), id(columns), seconds, join.weight,
            *((op.node.attrs, operand_types(flat, op), id(refs[end.node].menu), end[1:])
              for end, op in ends),
        )  # fmt: skip
        if key not in cache.products:
            cache.products[key] = self._made(join, refs, rows, columns, seconds.table)
            cache.columns[("keep", id(rows))] = rows
            cache.columns[("keep", id(columns))] = columns
        return cache.products[key]

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
        self, join: Join, refs: Sequence[NodeRef], rows: States, columns: States, seconds: Floats
    ) -> PartsTable | None:
        """Prices of what runs in parts; `seconds` are those of the reshard in its place."""
        added = np.full((len(rows), len(columns)), np.inf)
        hidden = np.zeros(added.shape)
        for end, states, others in ((join.target, columns, rows), (join.source, rows, columns)):
            op = self._op(end, join)
            if op is None:
                continue
            gathers = end is join.target
            there, cuts = self._cuts(end, op, refs[end.node], states, others, gathers=gathers)
            if not cuts:
                continue
            prices = self.prices(op, refs[end.node], [(k, parts) for _, k, parts in cuts])
            # by the state at the other end, and the option of the product
            at = [number for number, _, _ in cuts], [k for _, k, _ in cuts]
            shape = max(there) + 1, len(states)
            more, beside = np.full(shape, np.inf), np.zeros(shape)
            more[at], beside[at] = prices.added_s * join.weight, prices.hidden_s * join.weight
            more, beside = more[there], beside[there]
            # no pair of options gathers an operand and reduces a result
            added = np.minimum(added, more if gathers else more.T)
            hidden += beside if gathers else beside.T
        added[added >= seconds] = np.inf  # not in parts, even where nothing hides the reshard
        return PartsTable(added, hidden) if np.isfinite(added).any() else None

    def _cuts(
        self, end: End, op: FlatOp, ref: NodeRef, states: States, others: States, *, gathers: bool
    ) -> tuple[list[int], list[tuple[int, int, Parts]]]:
        """How the product may be cut.

        Returns:
            Number of the state of each option at the other end; and cuts, each with the number of
            such a state and an option of the product.
        """
        spec, reshard = self.facts.spec(op), self.cache.reshard
        found: list[tuple[int, int, Parts]] = []
        numbers, near = self._near(states, others)
        for options, number, other in near:
            state = states[options[0]]
            if gathers:
                options = [k for k in options if not ref.menu[k].results[0].partial]
                if not options:
                    continue
                result = ref.menu[options[0]].results[0]
                parts = gather_in_parts(spec, end.position, result, other, state)
            else:
                parts = scatter_in_parts(spec, state, other)
            if parts is not None and is_within_host(parts, reshard):
                found += [(number, k, parts) for k in options]
        return numbers, found

    def _near(
        self, states: States, others: States
    ) -> tuple[list[int], list[tuple[list[int], int, Sharding]]]:
        """Which states split a dimension of another further.

        Returns:
            Number of each of the other states; and options of a state, with the number of another
            that splits it further, and that state.
        """
        known, key = self.cache.near, (id(states), id(others))
        if key not in known:
            number = {state: n for n, state in enumerate(dict.fromkeys(others))}
            there = {(state.dims, state.partial): state for state in number}
            known[key] = (
                [number[state] for state in others],
                [
                    (at, number[other], other)
                    for state, at in by_state(states).items()
                    for other in _further(state, there, self.cache.mesh)
                ],
            )
        return known[key]

    def prices(self, op: FlatOp, ref: NodeRef, cuts: Sequence[tuple[int, Parts]]) -> InParts:
        """Prices of a product in parts, by its option and how it is cut; of one kind."""
        spec, types = self.facts.spec(op), operand_types(self.facts.flat, op)
        work = OpWork(op.node, lookup(op.node.op), types, spec, (0, 1), (0,), 1)
        each = self.cache.parts(spec, ref.menu)
        options = [k for k, _ in cuts]
        ways = {name: w[options] for name, w in each.items()}
        return in_parts([parts for _, parts in cuts], work, ways, self.cache.compute,
                        self.cache.reshard)  # fmt: skip


# Dimensions and partial sums of a state.
_State = tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, str], ...]]


def _further(state: Sharding, known: Mapping[_State, Sharding], mesh: Mesh) -> Iterator[Sharding]:
    """Known states that split a dimension further than a state: by unused axes, or partial ones.

    known: by their dimensions and partial sums.
    """
    partial, used = dict(state.partial), state.axes
    free = [a for a, n in mesh.axes if n > 1 and a not in used and a not in partial]
    axes, dims = tuple(partial) if partial else tuple(free), state.dims
    for count in range(1, len(axes) + 1):
        for some in itertools.combinations(axes, count):
            left = tuple([(a, kind) for a, kind in state.partial if a not in some])
            for d, old in enumerate(dims):
                further = known.get(((*dims[:d], (*old, *some), *dims[d + 1 :]), left))
                if further is not None:
                    yield further

"""Dimensions that hold examples of the batch beside those that the batch came in.

Training steps cut the batch into parts for a loop (`x.reshape(parts, -1, ...)`), merge it with the
steps of a rollout, and look up the merged rows in a random order. Then

- a dimension that is cut out of all of the batch holds examples;
- so do the rows that are looked up, as often or a whole part as often as there are rows, along a
  dimension that the batch is a factor of; and what is cut out of these.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from ..factors import Dim, FactorSpec
from ..ops.gather import SUMMED
from .dimension_classes import Classes

Sized = tuple[int, int]  # class and size of a dimension


def batch_parts(
    classes: Classes, specs: Sequence[FactorSpec], batch: Mapping[int, int], others: Collection[int]
) -> set[int]:
    """The classes of dimensions that hold examples.

    Args:
        classes: the classes of the program's dimensions.
        specs: factors of every op.
        batch: the batch dimension of each argument that has one.
        others: classes of other dimensions: features, time, experts.
    """
    types = {v: classes.flat.values[v].type for v in batch}
    found = {classes.of_dim(v, d) for v, d in batch.items()}
    whole = {(classes.of_dim(v, d), types[v].shape[d]) for v, d in batch.items()}
    merged = set[Sized]()
    composed, lookups = [*_composed(classes, specs)], [*_lookups(classes, specs)]
    while True:
        before = len(found), len(merged)
        for own, size, members in composed:
            if (own, size) in whole:
                found.update(member for member in members if member not in others)
            elif found.intersection(members):
                merged.add((own, size))
        for (table, size), rows in lookups:
            if (table in found or (table, size) in merged) and rows[0] not in others:
                found.add(rows[0])
                whole.add(rows)
        if (len(found), len(merged)) == before:
            return found


def _composed(
    classes: Classes, specs: Sequence[FactorSpec]
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Class, size and classes of the factors of every dimension that several factors make up."""
    known: dict[int, list[Dim]] = {}
    for i, spec in enumerate(specs):
        if id(spec) not in known:
            touched = (*spec.operands, *spec.results)
            known[id(spec)] = [dim for dims in touched for dim in dims if len(dim) > 1]
        for dim in known[id(spec)]:
            members = tuple(classes.of_factor(i, name) for name in dim)
            yield members[0], math.prod(map(spec.size, dim)), members


def _lookups(classes: Classes, specs: Sequence[FactorSpec]) -> Iterator[tuple[Sized, Sized]]:
    """Of lookups of rows in a table: class and size of its dimension, and those of the rows."""
    for i, (op, spec) in enumerate(zip(classes.flat.ops, specs, strict=True)):
        if op.node.op == "gather" and spec.kind(SUMMED) == "sum" and len(spec.operands[1]) == 2:
            row = spec.operands[1][0]
            table, rows = spec.size(SUMMED), math.prod(map(spec.size, row))
            if row and table % rows == 0:
                yield (
                    (classes.of_factor(i, SUMMED), table),
                    (classes.of_factor(i, row[0]), rows),
                )

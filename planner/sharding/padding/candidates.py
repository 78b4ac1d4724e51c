"""Which dimensions of a program could be padded, and to which sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from ir import flops_of, lookup
from ir.analysis import operand_types

from .classified import Classified, Padding
from .rules import PRODUCTS

# Padding's share of a padded dimension: 12 rows on 8 devices become 16, of which 4 are padding.
MOST_WASTE = 0.25


@dataclass
class Class:
    """A class of dimensions.

    size: of its smallest dimension, which divides all others.
    at: one dimension of that size: body, number of the value in it, dimension.
    ops: products that have a factor of the class, by number.
    flops: theirs in one call.
    """

    number: int
    size: int
    at: tuple[tuple[int, ...], int, int]
    ops: list[int] = field(default_factory=list[int])
    flops: float = 0.0

    def padding(self, size: int) -> Padding:
        """The class padded so that its smallest dimension has a size."""
        return Padding(*self.at, size)


def classes_of(known: Classified) -> list[Class]:
    """The classes of a program's dimensions whose sizes go together, in order of appearance."""
    flat, found, odd = known.flat, dict[int, Class](), set[int]()
    for (place, number), v in sorted(flat.names.items()):
        for d, size in enumerate(flat.values[v].type.shape):
            if size > 1:
                name = known.classes.of_dim(v, d)
                one = found.setdefault(name, Class(name, size, (place, number, d)))
                if size < one.size:
                    one.size, one.at = size, (place, number, d)
    for (_, _), v in flat.names.items():
        for d, size in enumerate(flat.values[v].type.shape):
            name = known.classes.of_dim(v, d)
            if size > 1 and size % found[name].size:
                odd.add(name)
    for i, flops, names in products(known):
        for name in names & found.keys():
            found[name].ops.append(i)
            found[name].flops += flops
    return [one for one in found.values() if one.number not in odd]


def products(known: Classified) -> Iterator[tuple[int, float, set[int]]]:
    """Products of a program: number of the op, flops in one call, classes of its factors."""
    for i, op in enumerate(known.flat.ops):
        if op.node.op in PRODUCTS:
            spec = known.specs.of(op)
            names = {known.classes.of_factor(i, name) for name in spec.names}
            types = operand_types(known.flat, op)
            yield i, flops_of(lookup(op.node.op), op.node, types) * op.weight, names


def padded_size(size: int, devices: int) -> int | None:
    """The size to which a dimension is padded; None if it need not be, or too much is wasted.

    It is the least multiple of d, with d the largest divisor of the number of devices for which
    padding is at most `MOST_WASTE` of the dimension.

    Args:
        size: elements of the dimension.
        devices: number of devices.
    """
    for ways in range(devices, 1, -1):
        if devices % ways == 0:
            if size % ways == 0:
                return None
            bigger = math.ceil(size / ways) * ways
            if bigger - size <= MOST_WASTE * bigger:
                return bigger
    return None

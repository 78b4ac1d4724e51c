"""Which dimensions of a program could be padded, and to which sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ir import Literal

from .classified import Classified, Padding, Sizes
from .rules import PRODUCTS

# Padding's share of a padded dimension: 12 rows on 8 devices become 16, of which 4 are padding.
MOST_WASTE = 0.25


@dataclass
class Class:
    """A class of dimensions.

    size: of its smallest dimension, which divides all others.
    at: one dimension of that size: body, number of the value in it, dimension.
    """

    number: int
    size: int
    at: tuple[tuple[int, ...], int, int]

    def padding(self, size: int, parts: int = 0) -> Padding:
        """The padding of its smallest dimension to a size, in a group with a number of parts."""
        return Padding(*self.at, size, parts)


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
    return [one for one in found.values() if one.number not in odd]


def products(known: Classified) -> Iterator[tuple[int, set[int]]]:
    """Products of a program: number of the op, classes of its factors that can be split."""
    for i, op in enumerate(known.flat.ops):
        if op.node.op in PRODUCTS:
            spec = known.specs.of(op)
            able = (name for name in spec.names if spec.can_split(name))
            yield i, {known.classes.of_factor(i, name) for name in able}


def whole_in_products(known: Classified) -> set[int]:
    """Classes of dimensions that some product cannot split, such as a window that slides."""
    found, flat = set[int](), known.flat
    for i, names in products(known):
        op = flat.ops[i]
        for v in (*op.inputs, *op.outputs):
            if not isinstance(v, Literal):
                rank = flat.values[v].type.rank
                found |= {known.classes.of_dim(v, d) for d in range(rank)} - names
    return found


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


def padded_at_once(known: Classified, sizes: Sizes) -> list[bool]:
    """Which arguments are padded where they enter, and not only for ops that gain by it.

    A product pads its weights; their update reads them as they are held. No product does so for
    the state of a field.
    """
    of_products = {c for _, classes in products(known) for c in classes}.intersection(sizes)
    found: list[bool] = []
    for k, item in enumerate(known.graph.inputs):
        value = known.flat.names[(), k]
        classes = {known.classes.of_dim(value, d) for d in known.dims((), k, sizes)}
        held = item.role in ("parameter", "optimizer-state")
        found.append(item.role != "constant" and not (held and classes & of_products))
    return found

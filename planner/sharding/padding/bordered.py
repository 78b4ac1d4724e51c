"""Classes of dimensions whose sizes differ by borders, padded together.

A window without a pad makes 4,094 elements of 4,096, a slice x[1:-1] too, every second element
half as many and one less. No number of devices divides all of these. An op that moves elements
joins the dimension of its operand and that of its result with a ratio of their sizes, 1 or that of
its steps, and its sizes are near that ratio. From one class and its padded size those of the
classes around it follow; a class belongs to the group if its size is a multiple of the parts and
at least that of its elements, and padding is no more of it than of a class that is padded alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ir import Literal, Node, TensorType, fields, ints, whole_number
from ir.analysis import FlatOp

from .candidates import MOST_WASTE, Class, classes_of, padded_size, products, whole_in_products
from .classified import Classified, Sizes
from .moving import MOVING, edges_of, is_setting
from .rules import CUMULATIVE

# Of a cumulative op, factors of the operand and of the result are two.
_JOINING = (*MOVING, *CUMULATIVE)
MOST_STEPS = 12  # doublings of a size of which a multiple is taken


@dataclass(frozen=True)
class Link:
    """Two dimensions of an op that moves elements: classes, and the ratio of their sizes."""

    source: int
    target: int
    ratio: Fraction


@dataclass(frozen=True)
class Group:
    """Classes that are padded together; or one of which no product could say what it gains.

    one, size: the class from which sizes follow, and its padded size.
    parts: of which padded sizes are multiples.
    growth: class -> its padded size, over that without.
    """

    one: Class
    size: int
    parts: int
    growth: Mapping[int, float]


@dataclass
class Borders:
    """The classes of a program with the links between them."""

    known: Classified
    classes: dict[int, Class] = field(init=False)
    links: list[Link] = field(init=False)
    nbytes: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.classes = {one.number: one for one in classes_of(self.known)}
        self.links = [*_links(self.known, self.classes)] if self._moves() else []
        self.nbytes = defaultdict(int)
        for value in self.known.flat.names.values():
            type_ = self.known.flat.values[value].type
            for c in {self.known.classes.of_dim(value, d) for d in range(type_.rank)}:
                self.nbytes[c] += type_.nbytes

    def alone(self, devices: int) -> set[int]:
        """Classes of no product whose sizes do not divide: they may be a group by themselves."""
        in_products = {c for _, classes in products(self.known) for c in classes}
        in_products |= whole_in_products(self.known)
        return {
            c for c, one in self.classes.items()
            if c not in in_products and padded_size(one.size, devices) is not None
        }  # fmt: skip

    def _moves(self) -> bool:
        return any(op.node.op in _JOINING for op in self.known.flat.ops)

    def sizes(self, start: int, size: int, parts: int) -> dict[int, tuple[int, int]]:
        """The group of a class that is padded to a size: class -> size before and after."""
        found = {start: (self.classes[start].size, size)}
        near = defaultdict[int, list[tuple[int, Fraction]]](list)
        for link in self.links:
            near[link.source].append((link.target, link.ratio))
            near[link.target].append((link.source, 1 / link.ratio))
        ahead = [start]
        for here in ahead:
            for there, ratio in near[here]:
                if there in found:
                    continue
                more, least = found[here][1] * ratio, self.classes[there].size
                if more.denominator != 1 or more % parts or more < least:
                    continue
                if more - least <= MOST_WASTE * more:
                    found[there] = least, int(more)
                    ahead.append(there)
        return found

    def groups(self, devices: int) -> list[Group]:
        """Groups that have no class in common, that of the largest class first.

        Each has the padded size that makes the most of it.
        """
        alone = self.alone(devices)
        starts = alone | {c for link in self.links for c in (link.source, link.target)}
        taken, found = set[int](), list[Group]()
        for c in sorted(starts, key=lambda c: (-self.classes[c].size, self.classes[c].at)):
            least = 1 if c in alone else 2
            size, parts = (0, 0) if c in taken else self._best(c, devices, least)
            if size:
                members = self.sizes(c, size, parts)
                if len(members) >= least and taken.isdisjoint(members):
                    taken |= members.keys()
                    growth = {k: more / n for k, (n, more) in members.items()}
                    found.append(Group(self.classes[c], size, parts, growth))
        return found

    def _best(self, start: int, devices: int, least: int) -> tuple[int, int]:
        """The padded size of a class, and its parts: as many bytes as can be, less padding.

        Its group has at least this number of classes.
        """
        elements = self.classes[start].size
        for parts in range(devices, 1, -1):
            if devices % parts:
                continue
            best = 0.0, 0
            for step in range(MOST_STEPS):
                unit = parts << step
                size = -(-elements // unit) * unit
                if size - elements > MOST_WASTE * size:
                    break
                group = self.sizes(start, size, parts)
                gain = sum(self.nbytes[c] * (2 - more / n) for c, (n, more) in group.items())
                if len(group) >= least and gain > best[0]:
                    best = gain, size
            if best[1]:
                return best[1], parts
        return 0, 0


def group_of(known: Classified, place: Sequence[int], number: int, dim: int, size: int, parts: int
             ) -> Sizes:  # fmt: skip
    """Sizes of a class, or of all classes of its group: class -> size before and after padding.

    Args:
        known: the program.
        place: body of a dimension of the class.
        number: of the value in it.
        dim: the dimension.
        size: elements of that dimension with padding.
        parts: of the group; 0 for the class alone.
    """
    value = known.flat.names[tuple(place), number]
    start = known.classes.of_dim(value, dim)
    if not parts:
        return {start: (known.flat.values[value].type.shape[dim], size)}
    return Borders(known).sizes(start, size, parts)


def _links(known: Classified, classes: Mapping[int, Class]) -> Iterator[Link]:
    for op in known.flat.ops:
        if op.node.op not in _JOINING:
            continue
        types = tuple(_type(known, v) for v in op.inputs)
        joined = _of_totals(op.node) if op.node.op in CUMULATIVE else _joined(op.node, types)
        for k, d, e, step, spread, is_input in joined:
            source, target = op.inputs[k], op.inputs[0] if is_input else op.outputs[0]
            if isinstance(source, Literal) or isinstance(target, Literal):
                continue
            n, m = types[k].shape[d], _type(known, target).shape[e]
            a, b = (known.classes.of_dim(v, x) for v, x in ((source, d), (target, e)))
            if min(n, m) < 2 or a not in classes or b not in classes:
                continue
            if abs(n * spread - m * step) > MOST_WASTE * max(n * spread, m * step):
                continue
            # with padding n * spread = m * step; n, m are multiples of the sizes of their classes
            times = Fraction(n, classes[a].size), Fraction(m, classes[b].size)
            if a != b:
                yield Link(a, b, Fraction(spread, step) * times[0] / times[1])


def _type(known: Classified, value: int | Literal) -> TensorType:
    return value.type if isinstance(value, Literal) else known.flat.values[value].type


_Join = tuple[int, int, int, int, int, bool]


def _of_totals(node: Node) -> Iterator[_Join]:
    """The dimension of a cumulative op, of its operand and of its result."""
    d = whole_number(node.attr("axis"))
    yield 0, d, d, 1, 1, False


def _joined(node: Node, types: Sequence[TensorType]) -> Iterator[_Join]:
    """Dimensions that an op joins: operand, its dimension, that of the result, step and spread.

    Elements of the result are `step` apart in the operand, or those of the operand `spread` apart
    in the result. The last entry says that the second dimension is of the first operand.
    """
    attrs, made = dict(node.attrs), node.outputs[0]
    if node.op == "slice":
        steps = ints(attrs["strides"]) if attrs.get("strides") is not None else (1,) * made.rank
        yield from ((0, d, d, steps[d], 1, False) for d in range(made.rank))
    elif node.op == "pad":
        config = edges_of(attrs["padding_config"])
        yield from ((0, d, d, 1, config[d][2] + 1, False) for d in range(made.rank))
    elif node.op == "concatenate":
        d = whole_number(attrs["dimension"])
        yield from ((k, d, d, 1, 1, False) for k in range(len(types)))
    elif is_setting(node.op):
        k = 1 if node.op == "dynamic_update_slice" else 2
        gone = () if k == 1 else ints(fields(attrs["dimension_numbers"])["inserted_window_dims"])
        kept = [d for d in range(made.rank) if d not in gone]
        if len(kept) == types[k].rank:
            yield from ((k, i, d, 1, 1, False) for i, d in enumerate(kept))
    elif node.op == "conv_general_dilated":
        numbers = fields(attrs["dimension_numbers"])
        lhs, rhs, out = (ints(numbers[f"{side}_spec"])[2:] for side in ("lhs", "rhs", "out"))
        steps, spread, base = (
            ints(attrs[key]) for key in ("window_strides", "rhs_dilation", "lhs_dilation")
        )
        for i, (a, b, c) in enumerate(zip(lhs, rhs, out, strict=True)):
            yield 0, a, c, steps[i], base[i], False
            yield 1, b, a, base[i], spread[i], True
    elif node.op == "select_and_scatter_add":
        steps = ints(attrs["window_strides"])
        yield from ((1, d, d, steps[d], 1, True) for d in range(made.rank))
    elif "window_strides" in attrs:
        ones = (1,) * made.rank
        steps, base = ints(attrs["window_strides"]), ints(attrs.get("base_dilation", ones))
        yield from ((0, d, d, steps[d], base[d], False) for d in range(made.rank))


def starts_of(known: Classified, op: FlatOp) -> tuple[int, ...] | None:
    """Where an op writes its updates, for each dimension; None if that is not known."""
    rank = op.node.outputs[0].rank
    if op.node.op == "dynamic_update_slice":
        places = [_numbers(known, v) for v in op.inputs[2:]]
        return None if None in places else tuple(n for p in places if p is not None for n in p)
    numbers = fields(op.node.attr("dimension_numbers"))
    along = ints(numbers["scatter_dims_to_operand_dims"])
    apart = ("operand_batching_dims", "scatter_indices_batching_dims")
    if any(ints(numbers[name]) for name in apart):
        return None
    index, update = _type(known, op.inputs[1]), _type(known, op.inputs[2])
    if index.rank != 1 or len(ints(numbers["update_window_dims"])) != update.rank:
        return None
    places = _numbers(known, op.inputs[1])
    if places is None or len(places) != len(along):
        return None
    found = [0] * rank
    for d, n in zip(along, places, strict=True):
        found[d] = n
    return tuple(found)


def _numbers(known: Classified, value: int | Literal, depth: int = 8) -> tuple[int, ...] | None:
    """The whole numbers of a small value that the program is written with."""
    if isinstance(value, Literal):
        number = value.value
        return (number,) if isinstance(number, int) and not isinstance(number, bool) else None
    maker = known.maker.get(value)
    if maker is None or not depth or math.prod(known.flat.values[value].type.shape) > 8:
        return None
    op = known.flat.ops[maker]
    parts = [_numbers(known, v, depth - 1) for v in op.inputs]
    found = [p for p in parts if p is not None]
    if len(found) < len(parts) or not found:
        return None
    count = math.prod(op.node.outputs[0].shape)
    if op.node.op == "concatenate" and op.node.outputs[0].rank == 1:
        return tuple(n for p in found for n in p)
    if op.node.op in ("broadcast_in_dim", "convert_element_type", "reshape", "squeeze"):
        return found[0] * count if len(found[0]) == 1 else found[0]
    return None

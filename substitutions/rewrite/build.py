"""The bridge to programs, right half: how each op of the rules is written with nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ir import Literal, Node, TensorType, dtype_kind

from ..text import Term
from .conv import conv_axes
from .lookup import fills_alike, lookup_attrs
from .match import Match
from .net import Item, Net, Source
from .nodes import binary, joined, like, part, reshaped, spread, transposed
from .pattern import axis_of
from .views import Cut, Groups, View, sizes

Cuts = tuple[tuple[Cut, ...], ...]  # for every axis where its parts meet, the last first


class NoFitError(Exception):
    """The right side cannot be written here; the place is left as it is."""


@dataclass(frozen=True, slots=True)
class Built:
    """A value that was written, as a view."""

    source: Source
    groups: Groups
    cuts: Cuts


@dataclass
class Build:
    """Writes terms of one instance into a net."""

    net: Net
    match: Match
    done: dict[Term, Built] = field(default_factory=dict[Term, Built])

    def type_of(self, x: Built) -> TensorType:
        return self.net.type_of(x.source)

    def sizes(self, x: Built | View, axis: int) -> tuple[int, ...]:
        """Lengths of the dimensions of an axis."""
        return sizes(x.groups[axis], self.net.type_of(x.source))

    def write(self, term: Term) -> Built:
        """The value of a term.

        Raises:
            NoFitError: if it cannot be written.
        """
        if term not in self.done:
            if term.kind:
                self.done[term] = WRITERS[term.kind](self, term)
            else:
                view = self.match.views[term]
                self.done[term] = Built(view.source, view.groups, ((),) * len(view.groups))
        return self.done[term]

    def sample(self, op: str) -> Item:
        """The node of the pattern that a new one of the kind is like; all of them are alike."""
        found = [item for _, item in self.match.items if item.node.op == op]
        if len({_manner(item.node) for item in found}) != 1:
            raise NoFitError
        return found[0]

    @property
    def may_stack(self) -> bool:
        """Whether parts of equal shape may be joined along a new dimension.

        A product does not mind how many dimensions an axis has, a convolution or a lookup does.
        """
        text = self.match.pattern.row.right
        return "matmul" in text and "gather" not in text


def _manner(node: Node) -> object:
    """What of a product, convolution or lookup its operands do not say."""
    own = ("dimension_numbers", "slice_sizes", "indices_are_sorted", "unique_indices")
    return tuple((k, repr(v)) for k, v in node.attrs if k not in own)


def as_root(build: Build, built: Built, root: View) -> Source:
    """What was written, with the dimensions of the output that it replaces.

    Raises:
        NoFitError: if they do not fit.
    """
    net, wanted = build.net, build.net.type_of(root.source)
    if len(built.groups) != len(root.groups):
        raise NoFitError
    order: list[int] = []
    places = sorted((d, axis, k) for axis, g in enumerate(root.groups) for k, d in enumerate(g))
    for axis in range(len(root.groups)):
        if build.sizes(built, axis) != build.sizes(root, axis):
            raise NoFitError
    order = [built.groups[axis][k] for _, axis, k in places]
    loose = [d for d in range(build.type_of(built).rank) if d not in order]
    found = reshaped(net, transposed(net, built.source, (*loose, *order)), wanted.shape)
    if net.type_of(found) != wanted:
        raise NoFitError
    return found


def _aligned(build: Build, x: Built, to: Built) -> Source:
    """A value with its dimensions in the order of those of `to`."""
    for axis in range(len(to.groups)):
        if build.sizes(x, axis) != build.sizes(to, axis):
            raise NoFitError
    place = {d: (axis, k) for axis, g in enumerate(to.groups) for k, d in enumerate(g)}
    rank = build.type_of(to).rank
    order = [x.groups[place[d][0]][place[d][1]] for d in range(rank) if d in place]
    loose = [d for d in range(build.type_of(x).rank) if d not in order]
    moved = transposed(build.net, x.source, (*loose, *order))
    return reshaped(build.net, moved, build.type_of(to).shape)


def _sampled(op: str, build: Build, term: Term) -> Built:
    x, item = build.write(term.args[0]), build.sample(op)
    source = build.net.make(op, (x.source,), build.type_of(x), item.node.attrs, item)
    return replace(x, source=source)


def _relu(build: Build, term: Term) -> Built:
    x = build.write(term.args[0])
    type_ = build.type_of(x)
    zero = Literal(0.0 if dtype_kind(type_.dtype) == "float" else 0, TensorType((), type_.dtype))
    return replace(x, source=build.net.make("max", (x.source, zero), type_, ()))


def _cast(build: Build, term: Term) -> Built:
    x, item = build.write(term.args[0]), build.sample("convert_element_type")
    if term.args[0].kind == "transpose":
        x = _settled(build, x)
    node = item.node
    type_ = TensorType(build.type_of(x).shape, str(node.attr("new_dtype")))
    return replace(x, source=build.net.make(node.op, (x.source,), type_, node.attrs, item))


def _binary(op: str, build: Build, term: Term) -> Built:
    x, y = map(build.write, term.args)
    other = _aligned(build, y, x)
    return replace(x, source=binary(build.net, op, x.source, other))


def _scale(build: Build, term: Term) -> Built:
    x, s = map(build.write, term.args)
    if build.type_of(s).dtype != build.type_of(x).dtype:
        raise NoFitError
    return replace(x, source=binary(build.net, "mul", x.source, s.source))


def _transpose(build: Build, term: Term) -> Built:
    x = build.write(term.args[0])
    return replace(x, groups=x.groups[::-1], cuts=x.cuts[::-1])


def _settled(build: Build, x: Built) -> Built:
    """A value whose dimensions lie in the order of its axes: a transpose is not left to readers."""
    lengths = [len(group) for group in x.groups]
    starts = [sum(lengths[:k]) for k in range(len(lengths))]
    groups = tuple(tuple(range(s, s + n)) for s, n in zip(starts, lengths, strict=True))
    return Built(_laid(build, x, [0] * len(lengths))[0], groups, x.cuts)


def _reduced(op: str, build: Build, term: Term) -> Built:
    x, axis = build.write(term.args[0]), axis_of(term)
    gone, type_ = x.groups[axis], build.type_of(x)
    kept = [d for d in range(type_.rank) if d not in gone]
    to = {d: k for k, d in enumerate(kept)}
    rest = (*x.groups[:axis], *x.groups[axis + 1 :])
    attrs = (("axes", tuple(sorted(gone))),)
    sample = build.sample(op)
    extra = tuple((key, value) for key, value in sample.node.attrs if key != "axes")
    source = build.net.make(
        op, (x.source,), like(type_, [type_.shape[d] for d in kept]),
        tuple(sorted((*attrs, *extra), key=lambda pair: pair[0])), sample,
    )  # fmt: skip
    groups = tuple(tuple(to[d] for d in group) for group in rest)
    return Built(source, groups, (*x.cuts[:axis], *x.cuts[axis + 1 :]))


def _laid(build: Build, x: Built, lead: Sequence[int]) -> tuple[Source, tuple[int, ...]]:
    """A value with its axes in order, and in front of axis k a new dimension if lead[k]."""
    type_ = build.type_of(x)
    order = [d for group in x.groups for d in group]
    loose = [d for d in range(type_.rank) if d not in order]
    moved = transposed(build.net, x.source, (*loose, *order))
    shape: list[int] = []
    for axis, group in enumerate(x.groups):
        shape += [1] * lead[axis] + [type_.shape[d] for d in group]
    return reshaped(build.net, moved, shape), tuple(shape)


def _concat(build: Build, term: Term) -> Built:
    parts, axis = [build.write(arg) for arg in term.args], axis_of(term)
    a, b = parts
    if build.type_of(a).dtype != build.type_of(b).dtype:
        raise NoFitError
    for k in range(len(a.groups)):
        if k != axis and build.sizes(a, k) != build.sizes(b, k):
            raise NoFitError
    left, right = build.sizes(a, axis), build.sizes(b, axis)
    if build.may_stack and left and left == right:
        cut = Cut((1, 1), (True, True))
    elif build.may_stack and len(right) > 0 and left[1:] == right and len(left) > 1:
        cut = Cut((left[0], 1), (False, True))
    elif build.may_stack and len(left) > 0 and right[1:] == left and len(right) > 1:
        cut = Cut((1, right[0]), (True, False))
    elif left and right and left[1:] == right[1:]:
        cut = Cut((left[0], right[0]), (False, False))
    else:
        raise NoFitError
    laid: list[Source] = []
    for x, single in zip(parts, cut.single, strict=True):
        lead = [int(single and k == axis) for k in range(len(x.groups))]
        laid.append(_laid(build, x, lead)[0])
    counts = [len(g) + int(cut.single[0] and k == axis) for k, g in enumerate(a.groups)]
    starts = [sum(counts[:k]) for k in range(len(counts))]
    groups = tuple(tuple(range(s, s + n)) for s, n in zip(starts, counts, strict=True))
    cuts = tuple((cut, *c) if k == axis else c for k, c in enumerate(a.cuts))
    return Built(joined(build.net, laid, starts[axis]), groups, cuts)


def _split(build: Build, term: Term) -> Built:
    x, axis = build.write(term.args[0]), axis_of(term)
    if not x.cuts[axis]:
        raise NoFitError
    cut, number = x.cuts[axis][0], term.part
    dim = x.groups[axis][0]
    start = cut.lengths[0] * number
    source = part(build.net, x.source, dim, start, start + cut.lengths[number])
    groups = x.groups
    if cut.single[number]:
        type_ = build.net.type_of(source)
        shape = [n for d, n in enumerate(type_.shape) if d != dim]
        source = reshaped(build.net, source, shape)
        groups = tuple(
            tuple(d - (d > dim) for d in (g[1:] if k == axis else g)) for k, g in enumerate(groups)
        )
    cuts = tuple(c[1:] if k == axis else c for k, c in enumerate(x.cuts))
    return Built(source, groups, cuts)


def _spread(kind: str, build: Build, term: Term) -> Built:
    """`along` and `expand`: a smaller array repeated over the other axes of `shape`'s."""
    x, axis = build.write(term.args[0]), axis_of(term)
    held = term.args[1]
    view = build.match.views.get(held)
    to = Built(view.source, view.groups, ((),) * len(view.groups)) if view else build.write(held)
    type_ = build.type_of(to)
    axes = [axis] if kind == "along" else [k for k in range(len(to.groups)) if k != axis]
    dims: dict[int, int] = {}
    for own, k in enumerate(axes):
        if build.sizes(x, own) != build.sizes(to, k):
            raise NoFitError
        dims |= dict(zip(x.groups[own], to.groups[k], strict=True))
    order = sorted(dims, key=dims.__getitem__)
    loose = [d for d in range(build.type_of(x).rank) if d not in dims]
    moved = transposed(build.net, x.source, (*loose, *order))
    small = reshaped(build.net, moved, [build.type_of(x).shape[d] for d in order])
    source = spread(build.net, small, type_.shape, [dims[d] for d in order])
    return Built(source, to.groups, ((),) * len(to.groups))


def _product(build: Build, term: Term) -> Built:
    """A product, its factors in the order of the one that it replaces.

    Libraries are much slower where a small factor comes second, transposed.
    """
    x, y = map(build.write, term.args)
    if not build.match.swapped:
        return _product_of(build, x, y)
    found = _product_of(build, _turned(y), _turned(x))
    return _turned(found)


def _turned(x: Built) -> Built:
    """The transpose, of each matrix where there are several."""
    order = (*range(len(x.groups) - 2), -1, -2)
    return replace(
        x, groups=tuple(x.groups[k] for k in order), cuts=tuple(x.cuts[k] for k in order)
    )


def _product_of(build: Build, x: Built, y: Built) -> Built:
    sample = build.sample("dot_general")
    batched = len(x.groups) == 3
    if build.sizes(x, -1) != build.sizes(y, -2):
        raise NoFitError
    if batched and build.sizes(x, 0) != build.sizes(y, 0):
        raise NoFitError
    allowed = {build.net.type_of(s).dtype for s in sample.inputs}
    types = build.type_of(x), build.type_of(y)
    if len(allowed) != 1 or {t.dtype for t in types} != allowed:
        raise NoFitError
    precision = sample.node.attr("precision")
    if isinstance(precision, tuple) and len(set(precision)) > 1:
        raise NoFitError  # it is of each operand, which may be another one here
    batch = (x.groups[0], y.groups[0]) if batched else ((), ())
    numbers = ((x.groups[-1], y.groups[-2]), batch)
    free = [
        [d for d in range(t.rank) if d not in v.groups[inner] and d not in batch[k]]
        for k, (t, v, inner) in enumerate(((types[0], x, -1), (types[1], y, -2)))
    ]
    shape = [types[0].shape[d] for d in (*batch[0], *free[0])] + [
        types[1].shape[d] for d in free[1]
    ]
    attrs = tuple((k, numbers if k == "dimension_numbers" else v) for k, v in sample.node.attrs)
    type_ = TensorType(tuple(shape), sample.node.outputs[0].dtype)
    source = build.net.make("dot_general", (x.source, y.source), type_, attrs, sample)
    first, second = len(batch[0]), len(batch[0]) + len(free[0])
    rows = tuple(first + free[0].index(d) for d in x.groups[-2])
    cols = tuple(second + free[1].index(d) for d in y.groups[-1])
    if batched:
        return Built(source, (tuple(range(first)), rows, cols), (x.cuts[0], x.cuts[1], y.cuts[2]))
    return Built(source, (rows, cols), (x.cuts[0], y.cuts[1]))


def _gather(build: Build, term: Term) -> Built:
    x, i = map(build.write, term.args)
    sample = build.sample("gather")
    table = _laid(build, x, (0, 0))[0]
    if len(x.groups[0]) != 1:
        raise NoFitError
    asked = i.source
    type_, rows = build.net.type_of(table), build.net.type_of(asked)
    if not fills_alike(sample.node, type_, moves=build.match.pattern.moves):
        raise NoFitError
    if i.groups[0] != tuple(range(rows.rank - 1)):
        # joined indices have lost the dimension of one element that a gather wants at the end
        asked = reshaped(build.net, asked, (*build.sizes(i, 0), 1))
        rows = build.net.type_of(asked)
    count = rows.rank - 1
    shape = like(type_, (*rows.shape[:-1], *type_.shape[1:]))
    attrs = lookup_attrs(sample.node, type_, rows)
    source = build.net.make("gather", (table, asked), shape, attrs, sample)
    groups = (tuple(range(count)), tuple(range(count, shape.rank)))
    return Built(source, groups, (i.cuts[0], x.cuts[1]))


def _conv(build: Build, term: Term) -> Built:
    x, w = map(build.write, term.args)
    item = build.sample("conv_general_dilated")
    node = item.node
    old = [build.net.type_of(s) for s in item.inputs]
    axes = conv_axes(node, old)
    if axes is None:
        raise NoFitError
    sources: list[Source] = []
    for built, wanted in ((x, axes[0]), (w, axes[1])):
        order = sorted(range(4), key=lambda k, wanted=wanted: wanted[k])
        sources.append(transposed(build.net, built.source, [built.groups[k][0] for k in order]))
    image, kernel = map(build.net.type_of, sources)
    before, wide = old[0].shape, image.shape
    if [before[g[0]] for g in axes[0][2:]] != [wide[g[0]] for g in axes[0][2:]]:
        raise NoFitError
    if old[1].shape[axes[1][2][0]] != kernel.shape[axes[1][2][0]]:
        raise NoFitError
    if old[1].shape[axes[1][3][0]] != kernel.shape[axes[1][3][0]]:
        raise NoFitError
    shape = list(node.outputs[0].shape)
    shape[axes[2][0][0]] = wide[axes[0][0][0]]
    shape[axes[2][1][0]] = kernel.shape[axes[1][0][0]]
    type_ = TensorType(tuple(shape), node.outputs[0].dtype)
    source = build.net.make(node.op, sources, type_, node.attrs, item)
    return Built(source, axes[2], (x.cuts[0], w.cuts[0], (), ()))


Writer = Callable[[Build, Term], Built]
WRITERS: Mapping[str, Writer] = {
    "add": partial(_binary, "add"),
    "along": partial(_spread, "along"),
    "batch-matmul": _product,
    "cast": _cast,
    "concat": _concat,
    "conv": _conv,
    "exp": partial(_sampled, "exp"),
    "expand": partial(_spread, "expand"),
    "gather": _gather,
    "matmul": _product,
    "max": partial(_reduced, "reduce_max"),
    "mul": partial(_binary, "mul"),
    "neg": partial(_sampled, "neg"),
    "relu": _relu,
    "rsqrt": partial(_sampled, "rsqrt"),
    "scale": _scale,
    "split": _split,
    "sum": partial(_reduced, "reduce_sum"),
    "tanh": partial(_sampled, "tanh"),
    "transpose": _transpose,
}

"""What ops that move elements along a padded dimension become: shifts, windows, rows and masks.

A padded dimension of an op's operand and one of its result have sizes N and M that go together:
with a step s between elements that are read, or t between those that are written, M s = N t. Shards
of both then begin at the same elements, and the op is one that borders of shards are enough for:

    x[a:b:s]                 x shifted by -(a - a mod s), as rows of s, of which one is kept
    x around the end         x around the end of its elements
    x[a:a+1]                 a lookup of these rows, a sum over shards
    pad(x, low, inside t-1)  x as rows of one, padded to rows of t, shifted by low - low mod t
    window, convolution      the same with another padding behind
    concatenate(x, y)        both shifted to their places; a mask chooses
    x.at[a:b].set(y)         y shifted by a; a mask chooses

What is beyond the elements of the result is anything. What an op reads beyond those of an operand
is filled in first. A piece that is not padded is padded to its place; a boundary of one element is
repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ir import SHIFT, Attr, Literal, Node, TensorType, fields, ints, whole_number

from ..recompute.draft import Item, Value
from .moved_nodes import MovedWriter
from .rules import Number, least, most

Dims = Mapping[int, int]  # padded dimension -> its elements with padding
Write = Callable[[MovedWriter, list[Value], Item], Value]


@dataclass(frozen=True)
class Move:
    """A node that moves elements along padded dimensions.

    fills: for each operand the number that its padding must be; None if anything may be there.
    write: writes what it becomes, given its operands, padded where they can be.
    """

    fills: tuple[Number | None, ...]
    write: Write


@dataclass(frozen=True)
class Moved:
    """A node with the sizes that its dimensions get.

    types, dims: of its operands.
    made: type of its result; out: its padded dimensions.
    starts: where a scatter writes its updates, for each dimension; None if that is not known.
    parts: of which padded sizes are multiples; 0 if that is not known.
    """

    node: Node
    types: tuple[TensorType, ...]
    dims: tuple[Dims, ...]
    made: TensorType
    out: Dims
    starts: tuple[int, ...] | None = None
    parts: int = 0

    def together(self, d: int, step: int = 1, spread: int = 1) -> bool | None:
        """Whether sizes go together in a dimension; None if none is padded there."""
        before, after = self.dims[0].get(d), self.out.get(d)
        if before is None and after is None:
            return None
        return before is not None and after is not None and after * step == before * spread


def move_of(moved: Moved) -> Move | None:
    """What a node that moves elements along padded dimensions becomes; None if it cannot."""
    rule = _RULES.get(moved.node.op)
    return rule(moved) if rule else None


def _slice(at: Moved) -> Move | None:
    (x,), attrs = at.types, dict(at.node.attrs)
    starts, ends = ints(attrs["start_indices"]), ints(attrs["limit_indices"])
    steps = ints(attrs["strides"]) if attrs.get("strides") is not None else (1,) * x.rank
    fits = [at.together(d, steps[d]) for d in range(x.rank)]
    few = [
        d for d in range(x.rank)
        if fits[d] is False and d not in at.out and 2 * at.made.shape[d] <= x.shape[d]
        and steps[d] == 1
    ]  # fmt: skip
    if any(fits[d] is False for d in range(x.rank) if d not in few):
        return None
    plain = [
        (starts[d], ends[d], steps[d]) if fits[d] is None else (0, at.dims[0][d], 1)
        for d in range(x.rank)
    ]

    by = [starts[d] % steps[d] - starts[d] if fits[d] else 0 for d in range(x.rank)]
    # shifts of all of x serve other slices of it too
    first = 2 * at.made.size * math.prod(steps) >= x.size

    def moved(writer: MovedWriter, found: Value, like: Item) -> Value:
        for d in range(x.rank):
            found = writer.shifted(found, d, by[d], like)
        return found

    def write(writer: MovedWriter, ins: list[Value], like: Item) -> Value:
        found = moved(writer, ins[0], like) if first else ins[0]
        found = writer.sliced(found, plain, like)
        found = found if first else moved(writer, found, like)
        for d in few:
            found = writer.rows(found, d, starts[d], at.made.shape[d], like)
        for d in range(x.rank):
            if fits[d]:
                found = writer.every(found, d, steps[d], starts[d] % steps[d], like)
        return found

    return Move((None,), write)


def _pad(at: Moved) -> Move | None:
    x, config = at.types[0], edges_of(at.node.attr("padding_config"))
    fits = [at.together(d, 1, config[d][2] + 1) for d in range(x.rank)]
    if False in fits:
        return None
    fill = _number(at.node.inputs[1])
    moves = [fits[d] and config[d] != (0, 0, 0) for d in range(x.rank)]
    by = [low - low % (inside + 1) for low, _, inside in config]
    seen = (moves[d] and (by[d] > 0 or at.made.shape[d] > at.out[d] + by[d]) for d in range(x.rank))
    if any(seen) and (fill is None or fill != 0):
        return None  # zeros come in where the shift begins or ends
    beyond = any(moves[d] and config[d][1] > config[d][2] for d in range(x.rank))
    if beyond and fill is None:
        return None
    plain = [(0, 0, 0) if fits[d] else config[d] for d in range(x.rank)]

    def write(writer: MovedWriter, ins: list[Value], like: Item) -> Value:
        found = writer.with_edges(ins[0], plain, ins[1], like)
        for d in range(x.rank):
            if moves[d]:
                step, inner = config[d][2] + 1, config[d][0] % (config[d][2] + 1)
                found = writer.apart(found, d, step, inner, ins[1], like)
                found = writer.shifted(found, d, by[d], like)
        return found

    return Move((fill if beyond else None, None), write)


def _shift(at: Moved) -> Move | None:
    axis, by = whole_number(at.node.attr("axis")), whole_number(at.node.attr("by"))
    if any(at.together(d) is False for d in range(at.made.rank)):
        return None
    if at.node.attr("wraps"):
        return _around(at, axis, by)

    def write(writer: MovedWriter, ins: list[Value], like: Item) -> Value:
        return writer.shifted(ins[0], axis, by, like)

    return Move((0 if by < 0 else None,), write)


def _around(at: Moved, axis: int, by: int) -> Move | None:
    """A shift in a ring: one in the first elements of what is padded.

    Where a shard has fewer elements than that moves, two shifts around the padded end: the second
    goes as many places further as there is padding.
    """
    attrs, size = dict(at.node.attrs), at.out.get(axis, at.made.shape[axis])
    ring = whole_number(attrs.get("ring", at.made.shape[axis]))
    beyond = size - ring
    if (abs(by) + beyond) * max(at.parts, 2) <= size or not beyond:
        return Move((None,), lambda w, ins, like: w.around(ins[0], axis, by, ring, like))
    if "ring" in attrs:
        return None
    split = by if by > 0 else ring + by  # where elements from the other end begin or end
    further = by + beyond if by > 0 else by - beyond

    def write(writer: MovedWriter, ins: list[Value], like: Item) -> Value:
        near, far = (writer.around(ins[0], axis, k, size, like) for k in (by, further))
        first, second = (far, near) if by > 0 else (near, far)
        return writer.inside(first, second, {axis: (0, split)}, like)

    return Move((None,), write)


def _concatenate(at: Moved) -> Move | None:
    axis = whole_number(at.node.attr("dimension"))
    size, offset = at.out.get(axis), 0
    rest = {d: n for d, n in at.out.items() if d != axis}
    places: list[tuple[int, int, int]] = []  # operand, its first element, elements
    for k, (type_, dims) in enumerate(zip(at.types, at.dims, strict=True)):
        if {d: n for d, n in dims.items() if d != axis} != rest or dims.get(axis, size) != size:
            return None
        if type_.shape[axis]:
            places.append((k, offset, type_.shape[axis]))
        offset += type_.shape[axis]
    if size is None or not any(axis in dims for dims in at.dims):
        return None

    def write(writer: MovedWriter, ins: list[Value], like: Item) -> Value:
        found: Value | None = None
        for k, first, count in places:
            part = writer.placed(ins[k], {axis: first}, {axis: size}, like)
            later = {axis: (first, first + count)}
            found = part if found is None else writer.inside(part, found, later, like)
        assert found is not None
        return found

    return Move((None,) * len(at.types), write)


def _update(at: Moved) -> Move | None:
    """Updates of one block of an operand, at a place that is known."""
    k = 1 if at.node.op == "dynamic_update_slice" else 2
    starts, operand, update = at.starts, at.types[0], at.types[k]
    gone = () if k == 1 else ints(fields(at.node.attr("dimension_numbers"))["inserted_window_dims"])
    if starts is None or dict(at.dims[0]) != dict(at.out):
        return None
    kept = [d for d in range(operand.rank) if d not in gone]
    for d, n in zip(kept, update.shape, strict=True):
        small = at.dims[k].get(kept.index(d))
        if small is not None and small != at.out.get(d):
            return None
        if starts[d] < 0 or starts[d] + n > operand.shape[d]:
            return None
    counts = dict.fromkeys(gone, 1) | dict(zip(kept, update.shape, strict=True))
    inner = {
        d: (starts[d], starts[d] + n) for d, n in sorted(counts.items()) if n != operand.shape[d]
    }
    whole = {d: at.out.get(d, n) for d, n in enumerate(operand.shape)}
    adds = at.node.op == "scatter-add"

    def write(writer: MovedWriter, ins: list[Value], like: Item) -> Value:
        part = writer.widened(ins[k], gone, like) if gone else ins[k]
        part = writer.placed(part, {d: starts[d] for d in counts}, whole, like)
        if adds:
            part = writer.sum(ins[0], part, like)
        return writer.inside(part, ins[0], inner, like)

    return Move((None,) * len(at.types), write)


def _window(at: Moved) -> Move | None:
    attrs, x = dict(at.node.attrs), at.types[0]
    ones = (1,) * x.rank
    steps, windows = ints(attrs["window_strides"]), ints(attrs["window_dimensions"])
    base, spread = (ints(attrs.get(k, ones)) for k in ("base_dilation", "window_dilation"))
    padding, beyond = [*edges_of(attrs["padding"])], False
    for d in range(x.rank):
        fits = at.together(d, steps[d], base[d])
        if fits is None:
            continue
        meeting = _Meeting(windows[d], steps[d], spread[d], base[d], padding[d][0])
        if not fits or meeting.low < 0 or (high := meeting.high(at.dims[0][d], at.out[d])) < 0:
            return None
        padding[d] = (meeting.low, high)
        beyond |= meeting.reads_beyond(x.shape[d], at.made.shape[d])
    fill = _OF_WINDOW[at.node.op](x.dtype) if beyond else None
    return Move((fill,), lambda w, ins, like: w.changed(ins, at.made, at.out, padding, like))


def _back_into_windows(at: Moved) -> Move | None:
    """Each element of a source added to that element of its window which is chosen."""
    attrs, (source, x) = dict(at.node.attrs), at.types
    steps, windows = ints(attrs["window_strides"]), ints(attrs["window_dimensions"])
    padding, beyond = [*edges_of(attrs["padding"])], False
    if dict(at.dims[1]) != dict(at.out) or {*at.dims[0]} != {*at.out}:
        return None
    for d, size in at.out.items():
        meeting = _Meeting(windows[d], steps[d], 1, 1, padding[d][0])
        high = meeting.high(size, at.dims[0][d])
        if at.dims[0][d] * steps[d] != size or meeting.low < 0 or high < 0:
            return None
        padding[d] = (meeting.low, high)
        beyond |= meeting.reads_beyond(x.shape[d], source.shape[d])
    fill = {"ge": least, "le": most}.get(str(attrs["select_prim"]))
    if beyond and fill is None:
        return None
    return Move(
        (0, fill(x.dtype) if beyond and fill else None),
        lambda w, ins, like: w.changed(ins, at.made, at.out, padding, like),
    )


def _convolution(at: Moved) -> Move | None:
    attrs = dict(at.node.attrs)
    numbers = fields(attrs["dimension_numbers"])
    lhs, rhs, out = (ints(numbers[f"{side}_spec"]) for side in ("lhs", "rhs", "out"))
    if lhs[1] in at.dims[0] or {*rhs[:2]} & {*at.dims[1]} or out[1] in at.out:
        return None  # features are products' own
    if at.dims[0].get(lhs[0]) != at.out.get(out[0]):
        return None
    steps, spread, base = (
        ints(attrs[key]) for key in ("window_strides", "rhs_dilation", "lhs_dilation")
    )
    padding, fills = [*edges_of(attrs["padding"])], list[Number | None]([None, None])
    for i, (a, b, c) in enumerate(zip(lhs[2:], rhs[2:], out[2:], strict=True)):
        x, w, y = at.dims[0].get(a), at.dims[1].get(b), at.out.get(c)
        low = padding[i][0]
        if x is None and w is None and y is None:
            continue
        if x is not None and y is not None and w is None:
            size, made = at.types[0].shape[a], at.made.shape[c]
            meeting = _Meeting(at.types[1].shape[b], steps[i], spread[i], base[i], low)
            if y * steps[i] != x * base[i]:
                return None
            padding[i] = (low, meeting.high(x, y))
            if meeting.reads_beyond(size, made):
                fills[0] = 0
        elif x is not None and w is not None and y is None:
            if w * spread[i] != x * base[i]:
                return None
            meeting = _Meeting(w, steps[i], spread[i], base[i], low)
            padding[i] = (low, meeting.high(x, at.made.shape[c]))
            fills = [0, 0]
        else:
            return None
    return Move(tuple(fills), lambda w, ins, like: w.changed(ins, at.made, at.out, padding, like))


@dataclass(frozen=True)
class _Meeting:
    """How a window of `count` elements moves over an operand with `low` elements before it."""

    count: int
    step: int
    spread: int
    base: int
    low: int

    def high(self, size: int, made: int) -> int:
        """Padding behind `size` elements with which there are `made` results."""
        span = (self.count - 1) * self.spread + 1
        return (made - 1) * self.step + span - ((size - 1) * self.base + 1) - self.low

    def reads_beyond(self, size: int, made: int) -> bool:
        """Whether windows reach behind the last of `size` elements."""
        last = (made - 1) * self.step + (self.count - 1) * self.spread - self.low
        return last >= size * self.base


def edges_of(value: Attr) -> tuple[tuple[int, ...], ...]:
    """Padding of each dimension: numbers of elements."""
    return tuple(ints(row) for row in value) if isinstance(value, tuple) else ()


def _number(value: object) -> Number | None:
    """The number that a literal is."""
    if isinstance(value, Literal) and isinstance(value.value, bool | int | float):
        return value.value
    return None


_OF_WINDOW: Mapping[str, Callable[[str], Number]] = {
    "reduce_window_max": least, "reduce_window_min": most,
    "reduce_window_sum": lambda _: 0,
}  # fmt: skip
_RULES: Mapping[str, Callable[[Moved], Move | None]] = {
    "concatenate": _concatenate, "conv_general_dilated": _convolution,
    "dynamic_update_slice": _update, "pad": _pad, "reduce_window_max": _window,
    "reduce_window_min": _window, "reduce_window_sum": _window, "scatter": _update,
    "scatter-add": _update, "select_and_scatter_add": _back_into_windows, "slice": _slice,
    SHIFT: _shift,
}  # fmt: skip
MOVING: Sequence[str] = tuple(_RULES)


def is_setting(op: str) -> bool:
    """Whether an op writes updates over a part of its operand."""
    return _RULES.get(op) is _update

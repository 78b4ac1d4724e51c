"""The bridge to programs, left half: how each op of the rules is read off the nodes of a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from ir import Literal, Node, TensorType, dtype_kind

from ..text import Term
from .conv import conv_axes
from .look import Env, Found, Look, Partial, Reader
from .lookup import fills_alike, is_lookup
from .net import Item, Source
from .pattern import axis_of
from .views import Group, filled, unify

Dims = tuple[tuple[int, ...], ...]


def dot_dims(node: Node) -> Dims:
    """(lhs contracting, rhs contracting, lhs batch, rhs batch) of a product."""
    contracting, batch = cast("tuple[Dims, Dims]", node.attr("dimension_numbers"))
    return (*contracting, *batch)


def _item(look: Look, source: Source, ops: Sequence[str]) -> Item | None:
    item = look.net.maker(source)
    return item if item is not None and item.node.op in ops else None


def _moved(groups: Partial, to: Mapping[int, int]) -> Partial | None:
    """Groups with other numbers for the dimensions; None if one has none."""
    if any(d not in to for group in groups for d in group or ()):
        return None
    return tuple(None if g is None else tuple(to[d] for d in g) for g in groups)


def _same_shape(look: Look, a: Source, b: Source) -> bool:
    return look.net.type_of(a).shape == look.net.type_of(b).shape


# --- element by element ------------------------------------------------------------------------


def _unary(ops: Sequence[str], look: Look, term: Term, source: Source, known: Partial,
           env: Env) -> Found:  # fmt: skip
    item = _item(look, source, ops)
    if item is not None and len(item.inputs) == 1:
        yield from look.match(term.args[0], item.inputs[0], known, env)


def _relu(look: Look, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = _item(look, source, ("max",))
    for k in range(2 if item is not None else 0):
        assert item is not None
        x, zero = item.inputs[k], base(look, item.inputs[1 - k])
        if _is_zero(zero) and _same_shape(look, x, source):
            yield from look.match(term.args[0], x, known, env)


def _is_zero(source: Source) -> bool:
    """Whether a value is the number zero, and not the negative one: the larger of both is 0."""
    if not isinstance(source, Literal) or dtype_kind(source.type.dtype) not in ("float", "int"):
        return False
    value = source.value
    return value == 0 and not (isinstance(value, float) and math.copysign(1.0, value) < 0)


def _binary(ops: Sequence[str], look: Look, term: Term, source: Source, known: Partial,
            env: Env) -> Found:  # fmt: skip
    item = _item(look, source, ops)
    if item is None:
        return
    left, right = term.args
    spread = right.kind in ("along", "expand")
    for k in range(2 if item.inputs[0] != item.inputs[1] else 1):
        a, b = item.inputs[k], item.inputs[1 - k]
        # a variable on the left says nothing of the term on the right
        if not look.may_be(left, a, env) or not (left.kind or look.may_be(right, b, env)):
            continue
        if not _same_shape(look, a, source) or not (spread or _same_shape(look, b, source)):
            continue
        for groups, more in look.match(left, a, known, env):
            yield from look.match(right, b, groups, more)


def base(look: Look, source: Source) -> Source:
    """The scalar that was spread to this value, or the value itself."""
    item = look.net.maker(source)
    while item is not None and item.node.op in ("broadcast_in_dim", "reshape"):
        inner = item.inputs[0]
        kept = look.net.type_of(inner).size == look.net.type_of(source).size
        if not kept and look.net.type_of(inner).size != 1:
            break
        if kept and item.node.op == "reshape" and look.net.type_of(inner).size != 1:
            break
        source, item = inner, look.net.maker(inner)
    return source


def _scale(look: Look, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = _item(look, source, ("mul",))
    for k in range(2 if item is not None else 0):
        assert item is not None
        x, s = item.inputs[k], base(look, item.inputs[1 - k])
        if look.net.type_of(s).rank or not _same_shape(look, x, source):
            continue
        for groups, more in look.match(term.args[0], x, known, env):
            for _, last in look.match(term.args[1], s, (), more):
                yield groups, last


# --- shapes ------------------------------------------------------------------------------------


def _transpose(look: Look, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = _item(look, source, ("transpose",))
    if item is None:
        return
    order = cast("tuple[int, ...]", item.node.attr("permutation"))
    into, back = dict(enumerate(order)), {d: k for k, d in enumerate(order)}
    inner = _moved((known[1], known[0]), into)
    for groups, more in look.match(term.args[0], item.inputs[0], inner, env):
        found = _moved((groups[1], groups[0]), back)
        if found is not None:
            yield found, more


def _reduced(ops: Sequence[str], look: Look, term: Term, source: Source, known: Partial,
             env: Env) -> Found:  # fmt: skip
    item = _item(look, source, ops)
    if item is None:
        return
    axes, axis = cast("tuple[int, ...]", item.node.attr("axes")), axis_of(term)
    rank = look.net.type_of(item.inputs[0]).rank
    kept = [d for d in range(rank) if d not in axes]
    inner = _moved(known, dict(enumerate(kept)))
    if inner is None:
        return
    whole = (*inner[:axis], axes, *inner[axis:])
    for groups, more in look.match(term.args[0], item.inputs[0], whole, env):
        rest = (*groups[:axis], *groups[axis + 1 :])
        found = _moved(rest, {d: k for k, d in enumerate(kept)})
        if found is not None:
            yield found, more


def _concat(look: Look, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = _item(look, source, ("concatenate",))
    if item is None or len(item.inputs) != len(term.args):
        return
    axis, dim = axis_of(term), cast("int", item.node.attr("dimension"))
    group = known[axis]
    if group is not None and group[:1] != (dim,):
        return
    whole = (*known[:axis], group or (dim,), *known[axis + 1 :])
    for groups, more in look.match(term.args[0], item.inputs[0], whole, env):
        yield from look.match(term.args[1], item.inputs[1], groups, more)


def _split(look: Look, term: Term, source: Source, known: Partial, env: Env) -> Found:
    """A part of a concatenation, cut where its parts meet."""
    item = _item(look, source, ("split", "slice"))
    whole = None if item is None else look.net.maker(item.inputs[0])
    if item is None or whole is None or term.args[0].kind != "concat":
        return
    if whole.node.op != "concatenate" or len(whole.inputs) != 2:
        return
    dim = cast("int", whole.node.attr("dimension"))
    lengths = [look.net.type_of(s).shape[dim] for s in whole.inputs]
    if _is_part(look, item, source, dim, lengths, term.part):
        yield from look.match(term.args[0], item.inputs[0], known, env)


def _is_part(
    look: Look, item: Item, source: Source, dim: int, lengths: list[int], part: int
) -> bool:
    if item.node.op == "split":
        assert not isinstance(source, Literal)
        cut = item.node.attr("axis"), item.node.attr("sizes")
        return cut == (dim, tuple(lengths)) and source[1] == part
    before, after = look.net.type_of(item.inputs[0]).shape, look.net.type_of(source).shape
    start = cast("tuple[int, ...]", item.node.attr("start_indices"))
    others = [d for d in range(len(before)) if d != dim and before[d] != after[d]]
    plain = item.node.attr("strides") is None and not others
    return plain and after[dim] == lengths[part] and start[dim] == part * lengths[0]


def spread(look: Look, source: Source, groups: Partial, over: Sequence[int]
           ) -> tuple[Source, tuple[Group, ...]] | None:  # fmt: skip
    """What a value is spread from, if it is the same along all dimensions in `over`.

    Args:
        look: where.
        source: a value with the dimensions that `groups` speak of.
        groups: those dimensions of it that it must have in full.
        over: the other dimensions.
    """
    at = {d: d for d in range(look.net.type_of(source).rank)}  # dimension -> that of `source` now
    while True:
        shape = look.net.type_of(source).shape
        if all(d not in at or shape[at[d]] == 1 for d in over):
            break
        item = look.net.maker(source)
        if item is None or item.node.op != "broadcast_in_dim":
            return None
        inner = look.net.type_of(item.inputs[0])
        dims = cast("tuple[int, ...]", item.node.attr("broadcast_dimensions"))
        kept = {d: k for k, d in enumerate(dims) if inner.shape[k] == shape[d]}
        at = {d: kept[now] for d, now in at.items() if now in kept}
        source = item.inputs[0]
    wanted = [d for group in groups for d in group or ()]
    if any(d not in at for d in wanted):
        return None
    return source, tuple(tuple(at[d] for d in group or ()) for group in groups)


def _along(look: Look, term: Term, source: Source, known: Partial, env: Env) -> Found:
    axis = axis_of(term)
    if None in known:
        return
    over = [d for k, group in enumerate(known) if k != axis for d in group or ()]
    found = spread(look, source, (known[axis],), over)
    if found is None or _lacks(look, found, source, known[axis] or ()):
        return
    for _, more in look.match(term.args[0], found[0], found[1], env):
        for _, last in _beside(look, term.args[1], source, known, more):
            yield known, last


def _lacks(
    look: Look, found: tuple[Source, tuple[Group, ...]], source: Source, group: Group
) -> bool:
    """Whether what was spread has other lengths along the group than the value."""
    inner, outer = look.net.type_of(found[0]).shape, look.net.type_of(source).shape
    return [inner[d] for d in found[1][0]] != [outer[d] for d in group]


def _beside(look: Look, term: Term, source: Source, known: Partial, env: Env) -> Found:
    """The operand that gives a spread one its shape; it was read before, or is shaped alike."""
    if term in env:
        yield known, dict(env)
    else:
        yield from look.shape_of(term, source, known, env)


def _expand(look: Look, term: Term, source: Source, known: Partial, env: Env) -> Found:
    axis = axis_of(term)
    if known[axis] is not None:
        known = filled(known, look.net.type_of(source))
    if None in known:
        item = _item(look, source, ("broadcast_in_dim",))
        if item is None:
            return
        dims = cast("tuple[int, ...]", item.node.attr("broadcast_dimensions"))
        rank = look.net.type_of(source).rank
        new = tuple(d for d in range(rank) if d not in dims)
        rest = tuple(d for d in range(rank) if d in dims)
        if len(known) != 2 or not new:
            return
        both = unify(known, (new, rest) if axis == 0 else (rest, new))
        if both is None:
            return
        known = both
    others = (*known[:axis], *known[axis + 1 :])
    found = spread(look, source, others, known[axis] or ())
    if found is None:
        return
    for _, more in look.match(term.args[0], found[0], found[1], env):
        for _, last in _beside(look, term.args[1], source, known, more):
            yield known, last


# --- products ----------------------------------------------------------------------------------


def _ordered(dims: Sequence[int], like: Group | None) -> Group:
    """The dimensions, in the order of a group that has the same ones."""
    return like if like is not None and set(like) == set(dims) else tuple(dims)


def _product(batched: bool, look: Look, term: Term, source: Source, known: Partial,
             env: Env) -> Found:  # fmt: skip
    item = _item(look, source, ("dot_general",))
    if item is None or int(dict(term.params).get("activation", "0")):
        return
    dims = dot_dims(item.node)
    if bool(dims[2]) != batched:
        return
    types = [look.net.type_of(s) for s in item.inputs]
    for flip in (False, True):
        yield from _oriented(look, term, item, types, dims, flip, known, env)


def _oriented(
    look: Look, term: Term, item: Item, types: list[TensorType], dims: Dims, flip: bool,
    known: Partial, env: Env,
) -> Found:  # fmt: skip
    """The product as written, or with its operands exchanged."""
    left, right = (1, 0) if flip else (0, 1)
    free = [[d for d in range(t.rank) if d not in dims[k] and d not in dims[2 + k]]
            for k, t in enumerate(types)]  # fmt: skip
    batch = len(dims[2])
    first = {d: batch + k for k, d in enumerate(free[0])}
    second = {d: batch + len(free[0]) + k for k, d in enumerate(free[1])}
    to_out = (second, first) if flip else (first, second)
    head = known[: len(known) - 2]
    rows, cols = known[-2:]
    out_rows = _ordered(list(to_out[0].values()), rows)
    out_cols = _ordered(list(to_out[1].values()), cols)
    out_batch = _ordered(range(batch), head[0]) if head else ()
    out: Partial = (*((out_batch,) if head else ()), out_rows, out_cols)
    if unify(known, out) is None:
        return
    back = [{o: d for d, o in table.items()} for table in to_out]
    a_rows = tuple(back[0][o] for o in out_rows)
    b_cols = tuple(back[1][o] for o in out_cols)
    held = env.get(term.args[0])
    inner = _ordered(dims[left], held.groups[-1] if held is not None else None)
    if held is None and (other := env.get(term.args[1])) is not None:
        like = _ordered(dims[right], other.groups[-2])
        inner = tuple(dims[left][dims[right].index(d)] for d in like)
    paired = tuple(dims[right][dims[left].index(d)] for d in inner)
    a_batch = tuple(dims[2 + left][k] for k in out_batch)
    b_batch = tuple(dims[2 + right][k] for k in out_batch)
    lhs: Partial = (*((a_batch,) if head else ()), a_rows, inner)
    rhs: Partial = (*((b_batch,) if head else ()), paired, b_cols)
    for _, more in look.match(term.args[0], item.inputs[left], lhs, env):
        for _, last in look.match(term.args[1], item.inputs[right], rhs, more):
            yield out, last


def _gather(look: Look, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = _item(look, source, ("gather",))
    if item is None or not is_lookup(item.node, [look.net.type_of(s) for s in item.inputs]):
        return
    table, asked = (look.net.type_of(s) for s in item.inputs)
    if not fills_alike(item.node, table, moves=look.pattern.moves):
        return
    out: Partial = (
        tuple(range(asked.rank - 1)),
        tuple(range(asked.rank - 1, asked.rank - 1 + table.rank - 1)),
    )
    if unify(known, out) is None:
        return
    cols: Partial = ((0,), tuple(range(1, table.rank)))
    rows: Partial = (tuple(range(asked.rank - 1)),)
    for _, more in look.match(term.args[0], item.inputs[0], cols, env):
        for _, last in look.match(term.args[1], item.inputs[1], rows, more):
            yield out, last


def _conv(look: Look, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = _item(look, source, ("conv_general_dilated",))
    if item is None:
        return
    axes = conv_axes(item.node, [look.net.type_of(s) for s in item.inputs])
    if axes is None or unify(known, axes[2]) is None:
        return
    for _, more in look.match(term.args[0], item.inputs[0], axes[0], env):
        for _, last in look.match(term.args[1], item.inputs[1], axes[1], more):
            yield axes[2], last


# op of the rules -> (primitives that its value may be made by, how to read it)
_TABLE: Mapping[str, tuple[tuple[str, ...], Reader]] = {
    "add": (("add", "add_any"), partial(_binary, ("add", "add_any"))),
    "batch-matmul": (("dot_general",), partial(_product, True)),
    "cast": (("convert_element_type",), partial(_unary, ("convert_element_type",))),
    "concat": (("concatenate",), _concat),
    "conv": (("conv_general_dilated",), _conv),
    "exp": (("exp",), partial(_unary, ("exp",))),
    "expand": (("broadcast_in_dim",), _expand),
    "gather": (("gather",), _gather),
    "matmul": (("dot_general",), partial(_product, False)),
    "max": (("reduce_max",), partial(_reduced, ("reduce_max",))),
    "mul": (("mul",), partial(_binary, ("mul",))),
    "neg": (("neg",), partial(_unary, ("neg",))),
    "relu": (("max",), _relu),
    "rsqrt": (("rsqrt",), partial(_unary, ("rsqrt",))),
    "scale": (("mul",), _scale),
    "split": (("split", "slice"), _split),
    "sum": (("reduce_sum",), partial(_reduced, ("reduce_sum",))),
    "tanh": (("tanh",), partial(_unary, ("tanh",))),
    "transpose": (("transpose",), _transpose),
    "along": ((), _along),
}
FIRST_OPS: Mapping[str, tuple[str, ...]] = {kind: ops for kind, (ops, _) in _TABLE.items()}
READERS: Mapping[str, Reader] = {kind: read for kind, (_, read) in _TABLE.items()}
# Without those that are read off other primitives too: what is spread may be reshaped or a literal.
MAKERS: Mapping[str, tuple[str, ...]] = {k: ops for k, ops in FIRST_OPS.items() if k != "expand"}

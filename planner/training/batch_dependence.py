"""How a value depends on the examples of a batch, op by op.

With g a function of one example, x_i the i-th example and B the size of the batch, a value is

    same    B^p c                  the same for every batch of that size
    rows    B^p g(x_i)             one entry, or several consecutive ones, for each example
    total   B^p sum_i g(x_i)       a sum over examples is p = 0, a mean p = -1
    mixed                          anything else, with the first op that made it so

`same` of power p is `total` of power p - 1. The effect of an op follows from its record: from the
kind of the factor that runs over the examples, and from the operands in which it is linear.

With edits (see `edits`) there are no powers, a `total` of parts may include each part's share of a
value of kind `same`, and there is one more kind:

    late    f(total, ...)          computed once, from sums over all examples
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ir import Attr, Dim, FactorSpec, Node, OpDef, TensorType, dtype_kind, lookup

from .edits import POSITION, SHARE, Draw, Edits, Place
from .shares import ANY, ZERO, Relaid, Share, at, mixed

PRODUCTS = ("mul", "dot_general", "conv_general_dilated")
_SUMS = ("dot_general", "reduce_sum")
_IDENTITIES = (
    "copy", "device_put", "name", "optimization_barrier", "reshard",
    "sharding_constraint", "stop_gradient",
)  # fmt: skip
_KEEPS_ZERO = ("broadcast_in_dim", "convert_element_type", "neg", "reshape", "squeeze", "transpose")
_KEEPS_INDEX = ("broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "transpose")


@dataclass(frozen=True, slots=True)
class BatchedOp:
    """One op at the larger batch size, with the shares of its operands.

    scaled: for each result the dimensions that grow with the batch.
    edits: notes of necessary changes; None if nothing may change.
    place: place of the op; None if nothing may change there.
    drawn: collects names of ops that draw random numbers for all examples together.
    """

    node: Node
    types: tuple[TensorType, ...]
    shares: tuple[Share, ...]
    scaled: tuple[tuple[int, ...], ...]
    batch: int
    edits: Edits | None = None
    place: Place | None = None
    drawn: list[str] = field(default_factory=list[str])

    @property
    def record(self) -> OpDef:
        return lookup(self.node.op)

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups of operands in which the op is linear together."""
        rule, attrs = self.record.linear, dict(self.node.attrs)
        if self.node.op == "convert_element_type":  # counts of examples do not wrap
            before, after = (dtype_kind(t.dtype) for t in (self.types[0], self.node.outputs[0]))
            return ((0,),) if after == "float" or before == after == "int" else ()
        return rule(self.types, self.node.outputs, attrs) if rule else ()

    def all(self, share: Share) -> tuple[Share, ...]:
        return (share,) * len(self.node.outputs)

    def mixed(self, what: str) -> tuple[Share, ...]:
        return self.all(mixed(f"{at(self.node)} {what}"))

    def late(self, what: str) -> tuple[Share, ...]:
        """Shares of results that are computed after all parts, or mixed if that is not possible."""
        kind = "mixed" if self.edits is None else "late"
        return self.all(Share(kind, reason=f"{at(self.node)} {what}"))


def apply(step: BatchedOp) -> tuple[Share, ...]:
    """Shares of the results of an op without bodies."""
    found = _special(step)
    if found is not None:
        return _checked(step, found)
    broken = next((s for s in step.shares if s.kind == "mixed"), None)
    if broken is not None:
        return step.all(broken)
    if any(s.kind in ("total", "late") for s in step.shares):
        return _of_totals(step)
    if any(s.by_example for s in step.shares):
        return _checked(step, _of_rows(step))
    return _of_constants(step)


def _checked(step: BatchedOp, found: tuple[Share, ...]) -> tuple[Share, ...]:
    """Checks the shares against the dimensions that grow with the batch."""
    for share, scaled in zip(found, step.scaled, strict=True):
        expected = (share.dim,) if share.by_example else ()
        if share.kind != "mixed" and scaled != expected:
            return step.mixed("gives a shape that depends on the batch in another way")
    return found


# --- powers of the batch size ------------------------------------------------------------------


def _power(step: BatchedOp, powers: Sequence[int | None]) -> int | None:
    """Power of the result; operands of power None are zero. None if it has no power."""
    live = [p for p in powers if p is not None]
    if step.node.op in PRODUCTS:
        return sum(live)
    if step.node.op == "div":
        return (powers[0] or 0) - (powers[1] or 0)
    if step.node.op == "integer_pow":
        exponent = step.node.attr("y")
        return live[0] * exponent if isinstance(exponent, int) and live else None
    if not any(live):
        return 0
    for group in step.groups():
        inside = {powers[i] for i in group} - {None}
        outside = {p for i, p in enumerate(powers) if i not in group} - {None}
        if len(inside) == 1 and outside <= {0}:
            return inside.pop()
    return None


def _powers(step: BatchedOp) -> list[int | None]:
    return [None if s.kind == "zero" else s.power for s in step.shares]


# --- without examples, and with totals only ----------------------------------------------------


def _of_constants(step: BatchedOp) -> tuple[Share, ...]:
    op, shares = step.node.op, step.shares
    power = _power(step, _powers(step))
    if power is None:
        return step.mixed("is not linear in the size of the batch")
    results: list[Share] = []
    for scaled in step.scaled:
        if not scaled:
            zero = op in _KEEPS_ZERO and shares[0].kind == "zero"
            zero |= op == "mul" and any(s.kind == "zero" for s in shares)
            results.append(ZERO if zero else Share("same", power))
        elif step.record.family == "random":
            results.append(_drawn(step, len(results), scaled, power))
        elif len(scaled) == 1 and _repeats(step, scaled[0]):
            results.append(Share("rows", power, scaled[0]))
        elif op == "iota" and len(scaled) == 1 and _counts_examples(step, scaled[0]):
            results.append(Share("index", 0, scaled[0], 1))
        else:
            return step.mixed("gives a shape that depends on the batch in an unknown way")
    return tuple(results)


def _repeats(step: BatchedOp, dim: int) -> bool:
    """Whether all entries along a new dimension are equal."""
    if step.node.op == "iota":
        return step.node.attr("dimension") != dim
    return step.node.op in ("broadcast_in_dim", "empty", "empty2")


def _counts_examples(step: BatchedOp, dim: int) -> bool:
    """Whether an iota along a dimension numbers the examples."""
    return step.edits is None or step.node.outputs[0].shape[dim] == step.batch


def _drawn(step: BatchedOp, k: int, scaled: Sequence[int], power: int) -> Share:
    """Share of random numbers drawn for all examples; a part takes those of its examples."""
    step.drawn.append(at(step.node))
    size = step.node.outputs[k].shape[scaled[0]]
    if len(scaled) > 1 or (step.edits is not None and (step.place is None or size % step.batch)):
        return mixed(f"{at(step.node)} draws random numbers for all examples together")
    if step.edits is None or step.place is None:
        return Share("rows", power, scaled[0])
    known = step.edits.inner.get(step.place)
    inner = known or size // step.batch
    step.edits.draws[step.place] = Draw(scaled[0], size // (step.batch * inner), inner)
    own = ((step.place, inner),) if size > step.batch and known is None else ()
    return Share("rows", power, scaled[0], inner, drawn=own)


def _of_totals(step: BatchedOp) -> tuple[Share, ...]:
    shares = step.shares
    if any(s.by_example for s in shares):
        return step.mixed("combines single examples with a statistic over all of them")
    if any(step.scaled):
        return step.mixed("spreads a statistic over the examples to all of them")
    totals = {i for i, s in enumerate(shares) if s.kind == "total"}
    group = next((g for g in step.groups() if totals <= set(g)), None)
    if group is None or any(s.kind == "late" for s in shares):
        return step.late("is not linear in a value that depends on all examples")
    if step.edits is not None:
        return _shared_out(step, group)
    powers = _powers(step)
    for i in group:
        if shares[i].kind == "same":
            powers[i] = shares[i].power - 1
    power = _power(step, powers)
    if power is None:
        return step.mixed(
            "adds a sum over examples and a term that does not grow with them, or sums and means"
        )
    return step.all(Share("total", power))


def _shared_out(step: BatchedOp, group: Sequence[int]) -> tuple[Share, ...]:
    """Shares of a sum in which operands of kind `same` are divided among the parts."""
    alike = [k for k in group if step.shares[k].kind == "same"]
    if alike and (step.place is None or dtype_kind(step.node.outputs[0].dtype) != "float"):
        return step.late("adds a sum over examples and what is no such sum")
    for k in alike:
        assert step.edits is not None
        assert step.place is not None
        step.edits.operands[step.place, k] = SHARE
    return step.all(Share("total"))


# --- with examples -----------------------------------------------------------------------------


def _of_rows(step: BatchedOp) -> tuple[Share, ...]:
    node, shares = step.node, step.shares
    spec = step.record.factors(step.types, node.outputs, dict(node.attrs))
    rows = [(i, s) for i, s in enumerate(shares) if s.by_example]
    numbered = [i for i, s in rows if s.kind == "index" or s.columns]
    if node.op not in _KEEPS_INDEX and numbered:
        if not _positions(step, numbered):
            return step.mixed("uses the position of an example in the batch")
        rows = [(i, Share("rows", 0, s.dim, s.inner)) for i, s in rows]
    factors = {spec.operands[i][s.dim] for i, s in rows}
    inner = {s.inner for _, s in rows} - {ANY}
    if len(inner) > 1:
        _relay([s for _, s in rows if s.inner != ANY])
    if len(factors) != 1 or len(inner) > 1 or len(next(iter(factors))) != 1:
        return step.mixed("combines different examples")
    factor = next(iter(factors))[0]
    power = _power(step, _powers(step))
    if power is None:
        return step.mixed("is not linear in the size of the batch")
    kind = "index" if rows[0][1].kind == "index" and node.op in _KEEPS_INDEX else "rows"
    row = Share(kind, power, ANY, inner.pop() if inner else ANY, _columns(step))
    row = replace(row, drawn=_guessed([s for _, s in rows if s.inner != ANY]))
    return tuple(_result(step, spec, factor, j, row) for j in range(len(node.outputs)))


def _positions(step: BatchedOp, numbered: Sequence[int]) -> bool:
    """Notes that numbers of examples count from the whole batch; False if not possible."""
    if step.edits is None or step.place is None or any(step.shares[i].columns for i in numbered):
        return False
    for i in numbered:
        step.edits.operands[step.place, i] = POSITION
    return True


def _guessed(rows: Sequence[Share]) -> tuple[tuple[Place, int], ...]:
    """Draws whose assignment of entries to examples is a guess."""
    if not all(s.drawn for s in rows):
        return ()
    return tuple(dict.fromkeys(draw for s in rows for draw in s.drawn))


def _relay(rows: Sequence[Share]) -> None:
    """Restarts the analysis with the draws laid out like the values they are combined with.

    Raises:
        Relaid: if a draw has another layout.
    """
    wanted = next((s.inner for s in rows if not s.drawn), rows[0].inner)
    for share in rows:
        if share.drawn and share.inner != wanted:
            changed = {p: inner * wanted // share.inner for p, inner in share.drawn}
            if all(inner * wanted % share.inner == 0 for _, inner in share.drawn):
                raise Relaid(changed)


def _columns(step: BatchedOp) -> tuple[int, ...]:
    kept = step.node.op in _KEEPS_INDEX and step.node.op != "reshape"
    return step.shares[0].columns if kept else ()


def _result(step: BatchedOp, spec: FactorSpec, factor: str, j: int, row: Share) -> Share:
    kind = spec.kind(factor)
    if not spec.can_split(factor):
        return mixed(f"{at(step.node)} works across the examples")
    for d, dim in enumerate(spec.results[j]):
        if factor in dim:
            after = math.prod(spec.size(name) for name in dim[dim.index(factor) + 1 :])
            return replace(row, dim=d, inner=row.inner if row.inner == ANY else row.inner * after)
    if kind == "sum" and step.node.op in _SUMS:
        return Share("total", row.power)
    if step.node.op in ("scatter-add", "scatter-sub") and not _has(spec.operands[0], factor):
        base = step.shares[0]
        if base.kind == "zero" or (base.kind == "same" and base.power - 1 == row.power):
            return Share("total", row.power)
    what = {"max": "takes a maximum over", "min": "takes a minimum over"}.get(kind, "picks among")
    return mixed(f"{at(step.node)} {what} the examples")


def _has(dims: tuple[Dim, ...], factor: str) -> bool:
    return any(factor in dim for dim in dims)


# --- ops whose record does not say enough ------------------------------------------------------


def _special(step: BatchedOp) -> tuple[Share, ...] | None:
    op, shares = step.node.op, step.shares
    if op in _IDENTITIES and len(shares) == len(step.node.outputs):
        return shares
    if op == "select_n" and shares[0].kind == "never":
        return (shares[1],)
    if op in ("add", "add_any", "sub") and any(s.kind == "zero" for s in shares):
        return _with_zero(step)
    rule = {
        "lt": _less, "reshape": _reshape, "concatenate": _concatenate, "gather": _gather,
    }.get(op)  # fmt: skip
    return rule(step) if rule else None


def _with_zero(step: BatchedOp) -> tuple[Share, ...] | None:
    other = [s for s in step.shares if s.kind != "zero"]
    if not other:
        return (ZERO,)
    plain = other[0].kind in ("same", "total") and not step.scaled[0]
    return (other[0],) if plain else None


def _less(step: BatchedOp) -> tuple[Share, ...] | None:
    left, right = step.shares
    if left.kind == "index" and right.kind == "zero":
        return (replace(left, kind="never"),)
    return None


def _reshape(step: BatchedOp) -> tuple[Share, ...] | None:
    """Finds the examples by their row-major stride, which a reshape keeps."""
    share, before, after = step.shares[0], step.types[0].shape, step.node.outputs[0].shape
    if not share.by_example:
        return None
    if share.inner == ANY:
        return (replace(share, dim=step.scaled[0][0]),) if len(step.scaled[0]) == 1 else None
    stride = share.inner * math.prod(before[share.dim + 1 :])
    span = stride * step.batch
    for d, size in enumerate(after):
        under = math.prod(after[d + 1 :])
        fits = stride % under == 0 and (under * size) % span == 0
        if fits and step.scaled[0] == (d,):
            return (replace(share, dim=d, inner=stride // under, columns=()),)
    return step.mixed("joins several examples in one dimension with others")


def _concatenate(step: BatchedOp) -> tuple[Share, ...] | None:
    if not any(s.kind == "index" or s.columns for s in step.shares):
        return None
    axis = step.node.attr("dimension")
    rows = [s for s in step.shares if s.by_example]
    if len(rows) < len(step.shares) or len({s.dim for s in rows}) > 1 or axis == rows[0].dim:
        return step.mixed("uses the position of an example in the batch")
    assert isinstance(axis, int)
    columns: list[int] = []
    offset = 0
    for share, type_ in zip(step.shares, step.types, strict=True):
        width = type_.shape[axis]
        own = range(width) if share.kind == "index" else share.columns
        columns.extend(offset + c for c in own)
        offset += width
    inner = next((s.inner for s in rows if s.inner != ANY), ANY)
    return (Share("rows", 0, rows[0].dim, inner, tuple(columns)),)


def _gather(step: BatchedOp) -> tuple[Share, ...] | None:
    """`x[arange(B), ...]`: each example reads its own row."""
    operand, indices = step.shares
    columns = (0,) if indices.kind == "index" else indices.columns
    if not columns or not operand.by_example or operand.inner not in (1, ANY):
        return None
    numbers = _numbers(step.node.attr("dimension_numbers"))
    indexed, offsets = numbers["start_index_map"], numbers["offset_dims"]
    alone = operand.dim in numbers["collapsed_slice_dims"]
    single = step.types[0].shape[operand.dim] == step.batch
    if not (alone and single) or tuple(indexed[c] for c in columns) != (operand.dim,):
        return step.mixed("uses the position of an example in the batch")
    places = [d for d in range(step.node.outputs[0].rank) if d not in offsets]
    return (Share("rows", operand.power, places[indices.dim], 1),)


def _numbers(value: Attr) -> dict[str, tuple[int, ...]]:
    """Dimension numbers as their attribute encodes them: a tuple of (name, dimensions)."""
    found: dict[str, tuple[int, ...]] = {}
    for item in value if isinstance(value, tuple) else ():
        if isinstance(item, tuple) and isinstance(item[1], tuple):
            found[str(item[0])] = tuple(d for d in item[1] if isinstance(d, int))
    return found

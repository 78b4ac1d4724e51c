"""Dependence of a loss on the examples of a batch, derived from its graph.

The loss is traced at two batch sizes B and B/m. Both graphs have the same ops. One walk in
execution order gives each value its share (see `batch_dependence`). Literals that differ by the
ratio are powers of B, and the share of the loss says whether it is

    loss(batch) = (1/m) sum_j loss(micro-batch j)    mean        loss = (1/B) sum_i g(x_i)
    loss(batch) =       sum_j loss(micro-batch j)    sum         loss =       sum_i g(x_i)

With edits (see `edits`) the walk notes the necessary changes of the smaller program instead, so
that its values are slices, or terms of sums, of the larger program's values. Numbers of the batch
size then have no powers, values of the batch alone are computed beforehand, and sums over examples
may be inputs of a computation after all parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir import Literal, Operand
from ir.trace import Program

from .batch_dependence import BatchedOp, apply
from .edits import Called, Change, Place, Value
from .loop_dependence import REGIONS
from .paired_ops import INSIDE, Known, Lockstep, Pair, free, movable, number_of
from .shares import SAME, ZERO, Relaid, Share, at, mixed

_OF_BATCH = ("total", "late", "mixed")  # computed beforehand if of the batch alone


def reduction_of(share: Share) -> str:
    """`mean`, `sum`, or empty if the share is neither."""
    if share.kind == "zero":
        return "mean"
    power = share.power - 1 if share.kind == "same" else share.power
    if share.kind not in ("same", "total"):
        return ""
    return {-1: "mean", 0: "sum"}.get(power, "")


def shares_of(
    large: Program,
    small: Program,
    inputs: Sequence[Known],
    lockstep: Lockstep,
    *,
    is_open: bool = True,
) -> tuple[Share, ...]:
    """Shares of the outputs of a program traced at two batch sizes.

    Args:
        large: program at the larger batch size.
        small: program at the smaller size.
        inputs: knowledge of every input that is not a captured constant, in order.
        lockstep: the two sizes, and the edits.
        is_open: whether values may be computed beforehand or after all parts.
    """
    while True:
        try:
            found = _Body(large, small, lockstep, (), is_open).run(inputs)
            return tuple(known.share for known in found)
        except Relaid as other:  # a draw has another layout than the guess
            assert lockstep.edits is not None
            lockstep.edits.forget(())
            lockstep.edits.inner.update(other.inner)


class _Body:
    """One walk through two bodies.

    place: place of the bodies.
    is_open: whether their values may be computed beforehand or after all parts.
    """

    def __init__(
        self, large: Program, small: Program, lockstep: Lockstep, place: Place, is_open: bool
    ) -> None:
        self.large, self.small, self.lockstep = large, small, lockstep
        self.place, self.is_open = place, is_open
        self.env: list[Known] = []

    def run(self, inputs: Sequence[Known]) -> tuple[Known, ...]:
        """Knowledge of the outputs."""
        a, b = self.large.graph, self.small.graph
        if [n.op for n in a.nodes] != [n.op for n in b.nodes] or len(a.inputs) != len(b.inputs):
            other = Known(mixed("the program runs other operations at another batch size"))
            return (other,) * len(a.outputs)
        given = iter(inputs)
        for k, item in enumerate(a.inputs):
            self.env.append(self._constant(k) if item.role == "constant" else next(given))
        for i in range(len(a.nodes)):
            self.env.extend(self._results(self._pair(i)))
        self._note_calls()
        return tuple(self._end(k) for k in range(len(a.outputs)))

    def _constant(self, k: int) -> Known:
        x, y = self.large.graph.inputs[k], self.small.graph.inputs[k]
        share = SAME
        if x != y:
            broken = mixed(f"constant {x.name} depends on the batch size")
            place: Place = ("constant", *self.place)
            share = self._given(broken, (place, k), x.type.shape, y.type.shape)
        return Known(share, fixed=True)

    def _end(self, k: int) -> Known:
        x, y = self.large.graph.outputs[k], self.small.graph.outputs[k]
        share, edits = self._operand(x, y), self.lockstep.edits
        if isinstance(x, int):
            known = self.env[x]
            return known if share == known.share else Known(share)
        if edits is not None and isinstance(y, Literal) and x.value != y.value:
            edits.ends[self.place, k] = Change("number", number_of(x))
            share = SAME
        return Known(share, fixed=True)

    def _operand(self, x: Operand, y: Operand) -> Share:
        """Share of an operand; literals that differ are powers of the batch size."""
        if isinstance(x, int):
            same = x == y
            return self.env[x].share if same else mixed(
                "the program reads other values at another batch size"
            )  # fmt: skip
        if not isinstance(y, Literal):
            return mixed("the program reads other values at another batch size")
        if x.value == 0 and y.value == 0:
            return ZERO
        power = self.lockstep.power(x.value, y.value)
        if power is None:
            return mixed(f"the number {x.value} is {y.value} at another batch size")
        return Share("same", power)

    def _note_calls(self) -> None:
        """Notes the calls with custom derivatives that change."""
        edits = self.lockstep.edits
        if edits is None:
            return
        for large, small in zip(self.large.calls, self.small.calls, strict=False):
            place: Place = (*self.place, *large.path)
            changes = edits.changes_in(place) or place in edits.telling
            if large.path != small.path or not changes:
                continue
            for k, (x, y) in enumerate(zip(large.operands, small.operands, strict=True)):
                if isinstance(x, Literal) and isinstance(y, Literal) and x.value != y.value:
                    edits.operands[place[:-1], k] = Change("number", number_of(x))
            edits.called[place] = Called(
                tuple(map(self._called, large.operands)), tuple(map(self._called, large.results))
            )

    def _called(self, o: Operand | None) -> Share | None:
        return self.env[o].share if isinstance(o, int) else None if o is None else SAME

    # --- ops ----------------------------------------------------------------------------------

    def _pair(self, i: int) -> Pair:
        a, b = self.large.graph.nodes[i], self.small.graph.nodes[i]
        large, small = self.large.bindings[i], self.small.bindings[i]
        place: Place = (*self.place, *large.path)
        operands = tuple(
            self.env[x] if isinstance(x, int) else Known(SAME, fixed=True) for x in a.inputs
        )
        shares = tuple(map(self._operand, a.inputs, b.inputs))
        pair = Pair(
            a, b, large, small, tuple(map(self.large.graph.type_of, a.inputs)), place,
            self.lockstep, operands, shares, self._walked,
        )  # fmt: skip
        return replace(pair, shares=tuple(map(pair.operand, range(len(shares)))))

    def _results(self, pair: Pair) -> list[Known]:
        """Knowledge of the results of an op."""
        if pair.a.op == "remat" and pair.alike():
            return self._remat(pair)
        settled = [self._settled(pair, k, share) for k, share in enumerate(_shares(pair))]
        return [Known(share, pair.fixed, (pair.place, k)) for k, share in enumerate(settled)]

    def _walked(
        self, pair: Pair, number: int, inputs: Sequence[Known], is_open: bool = False
    ) -> tuple[Known, ...]:
        """A walk through a body."""
        programs = pair.large.bodies[number], pair.small.bodies[number]
        return _Body(*programs, self.lockstep, pair.body(number), is_open).run(inputs)

    def _remat(self, pair: Pair) -> list[Known]:
        """Walks a recomputed region as if it were inlined."""
        known = zip(pair.shares, pair.operands, strict=True)
        inputs = [replace(each, share=share) for share, each in known]
        return list(self._walked(pair, 0, inputs, self.is_open))

    # --- the whole batch ------------------------------------------------------------------------

    def _given(
        self, share: Share, value: Value, large: Sequence[int], small: Sequence[int]
    ) -> Share:
        """Marks a value of the batch alone as computed beforehand on the whole batch."""
        edits = self.lockstep.edits
        if edits is None or len(large) != len(small) or not self.is_open or not free(value[0]):
            return share
        scaled = [d for d, (n, k) in enumerate(zip(large, small, strict=True)) if n != k]
        if scaled and [large[d] for d in scaled] != [self.lockstep.batch]:
            return share
        edits.given[value] = scaled[0] if scaled else None
        return Share("rows", 0, scaled[0], 1) if scaled else SAME

    def _settled(self, pair: Pair, k: int, share: Share) -> Share:
        """Share of a result; notes it as given if of the batch alone, its sums if it is late."""
        edits = self.lockstep.edits
        if edits is None:
            return share
        if pair.fixed and share.kind in _OF_BATCH:
            shapes = pair.a.outputs[k].shape, pair.b.outputs[k].shape
            return self._given(share, (pair.place, k), *shapes)
        if share.kind != "late":
            return share
        if not self.is_open:
            return mixed(f"{share.reason}, in a loop or a branch")
        homes = [known.home for known in pair.operands if known.share.kind == "total"]
        if any(home is None or not free(home[0]) for home in homes):
            return mixed(f"{share.reason}, {INSIDE}")
        edits.sums.update({home: None for home in homes if home is not None})
        return share


def _shares(pair: Pair) -> tuple[Share, ...]:
    """Shares of the results of an op, from those of its operands."""
    a, b, lockstep = pair.a, pair.b, pair.lockstep
    if not pair.alike():
        return pair.mixed("has other settings at another batch size")
    if a.op in REGIONS:
        return _region(pair)
    results = list(zip(a.outputs, b.outputs, strict=True))
    if any(x.rank != y.rank or x.dtype != y.dtype for x, y in results):
        return pair.mixed("has other results at another batch size")
    grown = tuple(tuple(d for d in range(x.rank) if x.shape[d] != y.shape[d]) for x, y in results)
    place = pair.place if movable(pair.place) else None
    return apply(BatchedOp(
        a, pair.types, pair.shares, grown, lockstep.batch, lockstep.edits, place, lockstep.drawn
    ))  # fmt: skip


def _region(pair: Pair) -> tuple[Share, ...]:
    """Shares of the results of a loop or branch; late if not linear in sums over examples."""
    found = REGIONS[pair.a.op](pair)
    kinds = {"rows" if share.by_example else share.kind for share in pair.shares}
    once = kinds & {"total", "late"} and not kinds & {"rows", "mixed"}
    broken = any(share.kind == "mixed" for share in found)
    if pair.lockstep.edits is None or not once or not broken:
        return found
    for number in range(len(pair.large.bodies)):
        pair.body(number)  # drops its notes
    reason = f"{at(pair.a)} is not linear in a value that depends on all examples"
    return (Share("late", reason=reason),) * len(found)

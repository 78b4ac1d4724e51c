"""Dependence of the results of loops and branches on the examples of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ir import Scan, While, dtype_kind

from .paired_ops import Pair
from .shares import SAME, ZERO, Share, at, mixed

_ROUNDS = 6  # walks of a loop body until the shares of its carries are stable


def _scan(pair: Pair) -> tuple[Share, ...]:
    wiring = Scan.of(pair.a)
    consts, carry, xs = wiring.operands(pair.shares)
    if any(s.by_example and s.dim == 0 for s in xs):
        return pair.mixed("goes through the examples one by one")
    slices = tuple(s.moved(-1) for s in xs)
    for _ in range(_ROUNDS):
        ends, ys = wiring.results(pair.body_of(0, (*consts, *carry, *slices)))
        after = pair.joined(carry, ends)
        if after == carry:
            carry = _carried(pair, len(consts), carry, ends, 0)
            return (*carry, *(s.moved(1) for s in ys))
        carry = after
    return pair.mixed("changes how its carry depends on the examples")


def _carried(
    pair: Pair, first: int, carry: Sequence[Share], outs: Sequence[Share], body: int
) -> tuple[Share, ...]:
    """Shares of carries; a carry of kind `same` before or after is divided among parts in sums."""
    found: list[Share] = []
    for k, share in enumerate(carry):
        values = ((pair.place, first + k), (pair.inside(body), k))
        alike = share.kind == "total" and dtype_kind(pair.a.outputs[k].dtype) != "float"
        ends = (pair.shares[first + k], outs[k])
        if pair.lockstep.edits is not None and alike and any(s.kind == "same" for s in ends):
            share = mixed(f"{at(pair.a)} counts from a number that is not a sum over examples")
        found.append(pair.shared_out(values, ends, share))
    return tuple(found)


def _while(pair: Pair) -> tuple[Share, ...]:
    wiring = While.of(pair.a)
    of_test, of_step, carry = wiring.operands(pair.shares)
    first = len(of_test) + len(of_step)
    for _ in range(_ROUNDS):
        goes_on = pair.body_of(wiring.test, (*of_test, *carry))[0]
        if goes_on != SAME:
            return pair.mixed("runs as long as the examples want")
        outs = pair.body_of(wiring.step, (*of_step, *carry))
        after = pair.joined(carry, outs)
        if after == carry:
            return _carried(pair, first, carry, outs, wiring.step)
        carry = after
    return pair.mixed("changes how its carry depends on the examples")


def _cond(pair: Pair) -> tuple[Share, ...]:
    branches = range(len(pair.a.bodies))
    if pair.shares[0] not in (SAME, ZERO):
        return pair.mixed("branches on the examples")
    ends = [pair.body_of(number, pair.shares[1:]) for number in branches]
    found = ends[0]
    for other in ends[1:]:
        found = pair.joined(found, other)
    places = [pair.inside(number) for number in branches]
    return tuple(
        pair.shared_out([(p, k) for p in places], [end[k] for end in ends], share)
        for k, share in enumerate(found)
    )


REGIONS: Mapping[str, Callable[[Pair], tuple[Share, ...]]] = {
    "cond": _cond, "scan": _scan, "while": _while,
}  # fmt: skip

"""Loops and branches: how what they compute depends on the examples of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ir import Node, dtype_kind

from .paired_ops import Pair
from .shares import SAME, ZERO, Share, at, mixed

_ROUNDS = 6  # of a loop body until the shares of its carries stay as they are


def _scan(pair: Pair) -> tuple[Share, ...]:
    a, shares = pair.a, pair.shares
    fixed, carried = _count(a, "num_consts"), _count(a, "num_carry")
    consts, carry, xs = shares[:fixed], shares[fixed : fixed + carried], shares[fixed + carried :]
    if any(s.by_example and s.dim == 0 for s in xs):
        return pair.mixed("goes through the examples one by one")
    slices = tuple(s.moved(-1) for s in xs)
    for _ in range(_ROUNDS):
        outs = pair.body_of(a.attr("jaxpr"), (*consts, *carry, *slices))
        after = pair.joined(carry, outs[:carried])
        if after == carry:
            carry = _carried(pair, fixed, carry, outs, "body 0")
            return (*carry, *(s.moved(1) for s in outs[carried:]))
        carry = after
    return pair.mixed("changes how its carry depends on the examples")


def _carried(
    pair: Pair, first: int, carry: Sequence[Share], outs: Sequence[Share], body: str
) -> tuple[Share, ...]:
    """Shares of carries; what begins alike in all parts, or ends so, is shared out in sums."""
    found: list[Share] = []
    for k, share in enumerate(carry):
        inside = (*pair.place, body)
        values = ((pair.place, first + k), (inside, k))
        alike = share.kind == "total" and dtype_kind(pair.a.outputs[k].dtype) != "float"
        ends = (pair.shares[first + k], outs[k])
        if pair.lockstep.edits is not None and alike and any(s.kind == "same" for s in ends):
            share = mixed(f"{at(pair.a)} counts from a number that is not a sum over examples")
        found.append(pair.shared_out(values, ends, share))
    return tuple(found)


def _while(pair: Pair) -> tuple[Share, ...]:
    a, shares = pair.a, pair.shares
    asked, fixed = _count(a, "cond_nconsts"), _count(a, "body_nconsts")
    test, consts, carry = shares[:asked], shares[asked : asked + fixed], shares[asked + fixed :]
    for _ in range(_ROUNDS):
        goes_on = pair.body_of(a.attr("cond_jaxpr"), (*test, *carry))[0]
        if goes_on != SAME:
            return pair.mixed("runs as long as the examples want")
        outs = pair.body_of(a.attr("body_jaxpr"), (*consts, *carry))
        after = pair.joined(carry, outs)
        if after == carry:
            body = f"while {a.attr('body_jaxpr')}"
            return _carried(pair, asked + fixed, carry, outs, body)
        carry = after
    return pair.mixed("changes how its carry depends on the examples")


def _cond(pair: Pair) -> tuple[Share, ...]:
    branches = pair.a.attr("branches")
    if pair.shares[0] not in (SAME, ZERO) or not isinstance(branches, tuple):
        return pair.mixed("branches on the examples")
    ends = [pair.body_of(key, pair.shares[1:]) for key in branches]
    found = ends[0]
    for other in ends[1:]:
        found = pair.joined(found, other)
    places = [(*pair.place, str(key)) for key in branches]
    return tuple(
        pair.shared_out([(p, k) for p in places], [end[k] for end in ends], share)
        for k, share in enumerate(found)
    )


REGIONS: Mapping[str, Callable[[Pair], tuple[Share, ...]]] = {
    "cond": _cond, "scan": _scan, "while": _while,
}  # fmt: skip


def _count(node: Node, key: str) -> int:
    value = node.attr(key)
    assert isinstance(value, int)
    return value

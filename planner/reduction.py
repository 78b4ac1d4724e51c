"""Whether a loss is a mean or a sum over the examples of a batch, read off its graph.

The loss is traced at two batch sizes B and B/m. Both graphs have the same ops; literals that
differ by the ratio are powers of B. One walk in execution order gives each value its share (see
`batchwise`); the share of the loss decides:

    loss(batch) = (1/m) sum_j loss(micro-batch j)    mean        loss = (1/B) sum_i g(x_i)
    loss(batch) =       sum_j loss(micro-batch j)    sum         loss =       sum_i g(x_i)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ir import Attr, Graph, Literal, Node, Operand, TensorType

from .batchwise import ANY, SAME, ZERO, Share, Step, apply, at, mixed

# Attributes that repeat what the shapes of the results say.
_SHAPES = frozenset({"limit_indices", "new_sizes", "shape", "sizes", "slice_sizes"})
_HIGHEST_POWER = 3
_ROUNDS = 6  # of a loop body until the shares of its carries stay as they are


@dataclass(frozen=True, slots=True)
class Lockstep:
    """Sizes of the two traces: `batch` examples in the first, `ratio` times fewer in the second."""

    batch: int
    ratio: int

    def power(self, large: object, small: object) -> int | None:
        """The p of a number that is c B^p, None if it is not."""
        if large == small or (_is_nan(large) and _is_nan(small)):
            return 0
        if not isinstance(large, int | float) or not isinstance(small, int | float) or not small:
            return None
        for p in range(-_HIGHEST_POWER, _HIGHEST_POWER + 1):
            if p and math.isclose(large, small * float(self.ratio) ** p, rel_tol=1e-6):
                return p
        return None


def _is_nan(value: object) -> bool:
    return isinstance(value, float | complex) and value != value


def reduction_of(share: Share) -> str:
    """`mean`, `sum`, or empty if the share is neither."""
    if share.kind == "zero":
        return "mean"
    power = share.power - 1 if share.kind == "same" else share.power
    if share.kind not in ("same", "total"):
        return ""
    return {-1: "mean", 0: "sum"}.get(power, "")


def shares_of(
    large: Graph, small: Graph, inputs: Sequence[Share], lockstep: Lockstep
) -> tuple[Share, ...]:
    """How each output depends on the examples.

    Args:
        large: graph at the larger batch size.
        small: graph at the smaller one.
        inputs: share of every input that is not a captured constant, in order.
        lockstep: the sizes.
    """
    if [n.op for n in large.nodes] != [n.op for n in small.nodes]:
        reason = "the program runs other operations at another batch size"
        return (mixed(reason),) * len(large.outputs)
    given = iter(inputs)
    env: list[Share] = []
    for a, b in zip(large.inputs, small.inputs, strict=True):
        if a.role == "constant":
            env.append(SAME if a == b else mixed(f"constant {a.name} depends on the batch size"))
        else:
            env.append(next(given))
    for a, b in zip(large.nodes, small.nodes, strict=True):
        pairs = zip(a.inputs, b.inputs, strict=True)
        shares = tuple(_operand(x, y, env, lockstep) for x, y in pairs)
        env.extend(_node(a, b, tuple(map(large.type_of, a.inputs)), shares, lockstep))
    outputs = zip(large.outputs, small.outputs, strict=True)
    return tuple(_operand(x, y, env, lockstep) for x, y in outputs)


def _operand(a: Operand, b: Operand, env: list[Share], lockstep: Lockstep) -> Share:
    if isinstance(a, int):
        return env[a] if a == b else mixed("the program reads other values at another batch size")
    if not isinstance(b, Literal):
        return mixed("the program reads other values at another batch size")
    if a.value == 0 and b.value == 0:
        return ZERO
    power = lockstep.power(a.value, b.value)
    if power is None:
        return mixed(f"the number {a.value} is {b.value} at another batch size")
    return Share("same", power)


def _node(
    a: Node, b: Node, types: tuple[TensorType, ...], shares: tuple[Share, ...], lockstep: Lockstep
) -> tuple[Share, ...]:
    # written out, so that NaN, as a value to fill with, is equal to itself
    odd = [k for (k, x), (_, y) in zip(a.attrs, b.attrs, strict=False) if repr(x) != repr(y)]
    if len(a.attrs) != len(b.attrs) or not set(odd) <= _SHAPES:
        return (mixed(f"{at(a)} has other settings at another batch size"),) * len(a.outputs)
    if a.op in _REGIONS:
        return _REGIONS[a.op](a, b, shares, lockstep)
    results = list(zip(a.outputs, b.outputs, strict=True))
    if any(x.rank != y.rank or x.dtype != y.dtype for x, y in results):
        return (mixed(f"{at(a)} has other results at another batch size"),) * len(a.outputs)
    grown = tuple(tuple(d for d in range(x.rank) if x.shape[d] != y.shape[d]) for x, y in results)
    return apply(Step(a, types, shares, grown, lockstep.batch))


# --- loops and branches ------------------------------------------------------------------------


def _body(
    a: Node, b: Node, key: Attr, shares: Sequence[Share], lockstep: Lockstep
) -> tuple[Share, ...]:
    number = int(str(key).removeprefix("body "))
    return shares_of(a.bodies[number], b.bodies[number], shares, lockstep)


def _remat(a: Node, b: Node, shares: tuple[Share, ...], lockstep: Lockstep) -> tuple[Share, ...]:
    return shares_of(a.bodies[0], b.bodies[0], shares, lockstep)


def _scan(a: Node, b: Node, shares: tuple[Share, ...], lockstep: Lockstep) -> tuple[Share, ...]:
    fixed, carried = _count(a, "num_consts"), _count(a, "num_carry")
    consts, carry, xs = shares[:fixed], shares[fixed : fixed + carried], shares[fixed + carried :]
    if any(s.by_example and s.dim == 0 for s in xs):
        return (mixed(f"{at(a)} goes through the examples one by one"),) * len(a.outputs)
    slices = tuple(_moved(s, -1) for s in xs)
    for _ in range(_ROUNDS):
        outs = _body(a, b, a.attr("jaxpr"), (*consts, *carry, *slices), lockstep)
        after = _join_all(carry, outs[:carried], a)
        if after == carry:
            return (*carry, *(_moved(s, 1) for s in outs[carried:]))
        carry = after
    return (mixed(f"{at(a)} changes how its carry depends on the examples"),) * len(a.outputs)


def _while(a: Node, b: Node, shares: tuple[Share, ...], lockstep: Lockstep) -> tuple[Share, ...]:
    asked, fixed = _count(a, "cond_nconsts"), _count(a, "body_nconsts")
    test, consts, carry = shares[:asked], shares[asked : asked + fixed], shares[asked + fixed :]
    for _ in range(_ROUNDS):
        goes_on = _body(a, b, a.attr("cond_jaxpr"), (*test, *carry), lockstep)[0]
        if goes_on != SAME:
            return (mixed(f"{at(a)} runs as long as the examples want"),) * len(a.outputs)
        outs = _body(a, b, a.attr("body_jaxpr"), (*consts, *carry), lockstep)
        after = _join_all(carry, outs, a)
        if after == carry:
            return carry
        carry = after
    return (mixed(f"{at(a)} changes how its carry depends on the examples"),) * len(a.outputs)


def _cond(a: Node, b: Node, shares: tuple[Share, ...], lockstep: Lockstep) -> tuple[Share, ...]:
    branches = a.attr("branches")
    if shares[0] not in (SAME, ZERO) or not isinstance(branches, tuple):
        return (mixed(f"{at(a)} branches on the examples"),) * len(a.outputs)
    first, *others = (_body(a, b, key, shares[1:], lockstep) for key in branches)
    for other in others:
        first = _join_all(first, other, a)
    return first


_REGIONS = {"cond": _cond, "remat": _remat, "scan": _scan, "while": _while}


def _count(node: Node, key: str) -> int:
    value = node.attr(key)
    assert isinstance(value, int)
    return value


def _moved(share: Share, by: int) -> Share:
    if not share.by_example:
        return share
    kind = "rows" if by < 0 or share.kind == "rows" else share.kind
    return Share(kind, share.power, share.dim + by, share.inner)


def _join_all(first: Sequence[Share], second: Sequence[Share], node: Node) -> tuple[Share, ...]:
    return tuple(_join(a, b, node) for a, b in zip(first, second, strict=True))


def _join(a: Share, b: Share, node: Node) -> Share:
    """The narrowest share that holds for both."""
    if a == b or b.kind in ("zero", "mixed"):
        return b if b.kind == "mixed" else a
    if a.kind in ("zero", "mixed"):
        return a if a.kind == "mixed" else b
    if {a.kind, b.kind} == {"same", "total"}:
        same, total = (a, b) if a.kind == "same" else (b, a)
        if same.power - 1 == total.power:
            return total
    rows = a.by_example and b.by_example and (a.dim, a.power) == (b.dim, b.power)
    if rows and (ANY in (a.inner, b.inner) or a.inner == b.inner):
        return Share("rows", a.power, a.dim, max(a.inner, b.inner))
    return mixed(f"{at(node)} carries a value whose dependence on the examples changes")

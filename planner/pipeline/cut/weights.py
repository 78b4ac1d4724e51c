# pyright: basic
"""Bytes and operations of an equation: moved, saved for the backward pass, recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ir import lookup
from ir.inlined import bodies_of
from ir.jax_internals import REMAT, Literal, equations, opened, params_of

from .equations import flops, size_bytes


@dataclass(frozen=True, slots=True)
class Weight:
    """Bytes and operations of an equation's forward pass and of its recomputation.

    moved_bytes: bytes read and written; widest_bytes: the most by one equation.
    saved_bytes: bytes of results that the backward pass reads.
    kept_bytes: the part of these that selective recomputation keeps.
    again_flops, again_bytes: operations and moved bytes that selective recomputation repeats.
    """

    moved_bytes: float = 0.0
    saved_bytes: float = 0.0
    kept_bytes: float = 0.0
    again_flops: float = 0.0
    again_bytes: float = 0.0
    widest_bytes: float = 0.0

    def __add__(self, other: Weight) -> Weight:
        return Weight(
            self.moved_bytes + other.moved_bytes, self.saved_bytes + other.saved_bytes,
            self.kept_bytes + other.kept_bytes, self.again_flops + other.again_flops,
            self.again_bytes + other.again_bytes, max(self.widest_bytes, other.widest_bytes),
        )  # fmt: skip

    def scaled(self, by: float) -> Weight:
        """The weight of `by` such equations."""
        return Weight(
            self.moved_bytes * by, self.saved_bytes * by, self.kept_bytes * by,
            self.again_flops * by, self.again_bytes * by, self.widest_bytes,
        )  # fmt: skip


def weigh(eqn: Any, held: Sequence[bool]) -> Weight:
    """The weight of an equation.

    Args:
        eqn: equation of a jaxpr.
        held: whether each operand depends on parameters alone, and so is in memory anyway.
    """
    name, params = eqn.primitive.name, params_of(eqn)
    inner = bodies_of(eqn)  # bodies take the last of the operands
    if inner:
        each = [_inside(body, held[-len(opened(body)[0].invars) :]) for body in inner]
        one = max(each, key=lambda w: w.moved_bytes)  # the heaviest branch
        if name in REMAT:
            ins = [v.aval for v, h in zip(eqn.invars, held, strict=True) if not h]
            enters = sum(map(size_bytes, ins))
            return Weight(one.moved_bytes, enters, enters, widest_bytes=one.widest_bytes)
        return one.scaled(params["length"]) if name == "scan" else one
    out = sum(size_bytes(v.aval) for v in eqn.outvars)
    moved = out + sum(size_bytes(v.aval) for v in eqn.invars)
    family = lookup(name).family
    if all(held):
        return Weight(moved, widest_bytes=moved)
    if name == "dot_general" and not params["dimension_numbers"][1][0]:
        return Weight(moved, out, out, widest_bytes=moved)
    if family == "convolution":
        return Weight(moved, out, out, widest_bytes=moved)
    return Weight(moved, 0.0 if family == "layout" else out, 0.0, flops(eqn), moved, moved)


def recomputes(eqn: Any) -> bool:
    """Whether an equation contains a region that its derivative recomputes."""
    if eqn.primitive.name in REMAT:
        return True
    return any(recomputes(e) for body in bodies_of(eqn) for e in equations(body))


def _inside(body: Any, held: Sequence[bool]) -> Weight:
    jaxpr, _ = opened(body)
    known = {v for v, h in zip(jaxpr.invars, held, strict=False) if h} | set(jaxpr.constvars)
    total = Weight()
    for eqn in jaxpr.eqns:
        own = [isinstance(v, Literal) or v in known for v in eqn.invars]
        total += weigh(eqn, own)
        if all(own):
            known.update(eqn.outvars)
    return total

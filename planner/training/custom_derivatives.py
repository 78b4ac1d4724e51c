# pyright: basic
"""Custom derivatives of calls that change on a part of the batch.

Where such a call draws random numbers for all examples or uses the batch size, its derivative rule
may do so as well: both programs of the rule are analysed like the loss, and all three get edits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from ir import TraceError, lookup
from ir import jax_internals as internals
from ir.inlined import inlined

from .derivative_rules import chosen, flows, rule_of
from .edits import Called, Edits, Place, body_name
from .equation_list import bodies, equation_at
from .loss_reduction import shares_of
from .paired_ops import Known, Lockstep
from .shares import SAME, Share, mixed
from .sliced_program import Rule, Sliced

_OTHER = "whose derivative depends on the examples in another way"


def rules_of(large: Any, small: Any, edits: Edits, batch: int, count: int) -> str:
    """Notes the edits of the rules of all changed calls; returns a reason if that fails, else "".

    Args:
        large: jaxpr of the loss on the whole batch.
        small: jaxpr of the loss on a part.
        edits: edits of the loss.
        batch: number of examples.
        count: number of parts.
    """
    for place, called in edits.called.items():
        pair = equation_at(large, place[:-1]), equation_at(small, place[:-1])
        found = _rule(*pair, called, batch, count)
        if isinstance(found, str):
            return f"{place[-1]} is {found}"
        edits.rules[place] = found
    return ""


def telling(large: Any, small: Any) -> tuple[Place, ...]:
    """Places of `custom_vjp` calls whose rules use the batch size or draw for all examples.

    Such a rule is no part of the loss's program before the loss is differentiated.

    Args:
        large: jaxpr of the loss at one batch size.
        small: jaxpr of the loss at another.
    """
    found: list[Place] = []
    for place, a, b in _calls(large, small, ()):
        try:
            pairs = list(zip(rule_of(a), rule_of(b), strict=True))
        except TraceError:  # differentiating the loss raises the same error with its cause
            continue
        if not all(_says_alike(x.closed, y.closed) for x, y in pairs):
            found.append(place)
    return tuple(found)


def _calls(large: Any, small: Any, place: Place) -> Iterator[tuple[Place, Any, Any]]:
    """Calls with custom derivatives at both sizes, with their places."""
    pairs = zip(internals.equations(large), internals.equations(small), strict=False)
    for number, (a, b) in enumerate(pairs):
        name, here = a.primitive.name, (*place, number)
        if name != b.primitive.name:
            return
        if name.startswith("custom_vjp"):
            yield (*here, name), a, b
            continue
        called = inlined(a) is not None
        for k, (x, y) in enumerate(zip(bodies(a), bodies(b), strict=False)):
            yield from _calls(x, y, (*here, name if called else body_name(name, k)))


def _says_alike(large: Any, small: Any) -> bool:
    """Whether two programs differ only in shapes, none of them of random numbers."""
    pairs = list(zip_longest(internals.equations(large), internals.equations(small)))
    return all(a and b and _same(a, b) for a, b in pairs)


def _same(a: Any, b: Any) -> bool:
    if a.primitive.name != b.primitive.name:
        return False
    numbers = [
        [repr(var.val) for var in eqn.invars if isinstance(var, internals.Literal)]
        for eqn in (a, b)
    ]
    if numbers[0] != numbers[1]:
        return False
    shapes = [[getattr(var.aval, "shape", ()) for var in eqn.outvars] for eqn in (a, b)]
    if lookup(a.primitive.name).family == "random" and shapes[0] != shapes[1]:
        return all(getattr(var.aval, "shape", ()) for var in a.invars)
    return all(_says_alike(x, y) for x, y in zip(bodies(a), bodies(b), strict=False))


def _rule(large: Any, small: Any, called: Called, batch: int, count: int) -> Rule | str:
    (first, back), (first_part, back_part) = rule_of(large), rule_of(small)
    ahead, behind = Edits(), Edits()
    operands = [s or mixed("nothing reads it") for s in called.operands]
    outs = shares_of(
        first.program, first_part.program, [Known(s) for s in operands],
        Lockstep(batch, count, ahead), is_open=False,
    )  # fmt: skip
    results, kept = outs[: len(called.results)], outs[len(called.results) :]
    slopes = [_slope(s) for s in chosen(results, _floats(large))]
    grads = shares_of(
        back.program, back_part.program, [Known(s) for s in (*kept, *slopes)],
        Lockstep(batch, count, behind), is_open=False,
    )  # fmt: skip
    which = flows(large)
    pairs = list(zip(called.results, results, strict=True))
    pairs += zip(map(_slope, chosen(operands, which)), grads, strict=True)
    for wanted, share in pairs:
        if wanted is not None and not _fits(share, wanted):
            return f"a function {_OTHER}" + (f": {share.reason}" if share.reason else "")
    none, last = (False,) * len(outs), (False,) * len(grads)
    forward = Sliced(first.closed, first_part.closed, ahead, none, count, derived=True)
    backward = Sliced(back.closed, back_part.closed, behind, last, count, derived=True)
    return Rule(forward, backward, tuple(which))


def _floats(eqn: Any) -> list[bool]:
    return [str(var.aval.dtype).startswith(("float", "bfloat", "complex")) for var in eqn.outvars]


def _slope(share: Share) -> Share:
    """Share of the gradient of a value; of a value of kind `same` it is a sum over examples."""
    if share.by_example:
        return Share("rows", 0, share.dim, share.inner)
    return SAME if share.kind == "total" else Share("total")


def _fits(share: Share, wanted: Share) -> bool:
    """Whether a share is the required one."""
    if share.kind == "zero" or wanted.kind == "mixed":
        return True
    if share.by_example and wanted.by_example:
        return share.dim == wanted.dim
    return share.kind == wanted.kind

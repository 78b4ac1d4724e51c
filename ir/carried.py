# pyright: basic
"""State that comes in as an argument and goes out as a result, and the roles of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from .jaxpr import tensor_type

# Parts of an argument, as of Flax's TrainState, that are state of the optimizer.
OPTIMIZER = frozenset({"opt_state", "optimizer", "optimizer_state"})


@dataclass(frozen=True)
class Flat:
    """Arguments or results as a list of leaves.

    items: each argument, or each result.
    types: of all leaves.
    names: of all leaves.
    """

    items: tuple[Any, ...]
    types: Sequence[Any]
    names: Sequence[str]

    def spans(self) -> list[tuple[Any, range]]:
        """Structure of each item, and the positions of its leaves."""
        trees = [jax.tree.structure(item) for item in self.items]
        starts = np.cumsum([0, *(tree.num_leaves for tree in trees)]).tolist()
        return [(t, range(*ends)) for t, ends in zip(trees, pairwise(starts), strict=True)]


def operands(jaxpr: Any) -> frozenset[tuple[int, int]]:
    """Pairs (argument leaf, result leaf) with one operation between them, or none."""
    places = {id(var): n for n, var in enumerate(jaxpr.invars)}
    made = {id(var): eqn.invars for eqn in jaxpr.eqns for var in eqn.outvars}
    sources = (made.get(id(var), [var]) for var in jaxpr.outvars)
    return frozenset(
        (places[id(var)], b) for b, found in enumerate(sources) for var in found
        if id(var) in places
    )  # fmt: skip


def ties(
    args: Flat, results: Flat, donated: Sequence[int], near: frozenset[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """Pairs (argument leaf, result leaf) that carry one state from step to step.

    Whole arguments are matched with whole results of the same tree and types first: donated ones
    before others, those that are operands of their results before others, and in order. Then come
    results that have the name of an argument; donated leaves that are left are matched by type, as
    JAX does.

    Args:
        args: the arguments.
        results: the results.
        donated: positions of donated leaves.
        near: the `operands` of the function.
    """
    found: dict[int, int] = {}
    taken: set[int] = set()

    def tie(new: list[tuple[int, int]]) -> bool:
        """Whether these pairs are of the same types and new; they are kept if so."""
        fit = all(
            a not in found and b not in taken
            and tensor_type(args.types[a]) == tensor_type(results.types[b])
            for a, b in new
        )  # fmt: skip
        if fit:
            found.update(new)
            taken.update(b for _, b in new)
        return fit

    alike = [
        list(zip(span, other, strict=True))
        for tree, span in args.spans() if len(span) > 1 or (span and span[0] in donated)
        for form, other in results.spans() if form == tree
    ]  # fmt: skip
    for pairs in sorted(alike, key=lambda p: (-(p[0][0] in donated), -len(near.intersection(p)))):
        tie(pairs)
    named = {name: b for b, name in enumerate(results.names)}
    for a, name in enumerate(args.names):
        if name in named:
            tie([(a, named[name])])
    for a in donated:
        if a not in found:
            any(tie([(a, b)]) for b in range(len(results.types)))
    return tuple(sorted(found.items()))


def roles_of(heads: Sequence[str], args: Flat, tied: set[int], given: Sequence[str]) -> list[str]:
    """Role of each leaf: given, or from the argument's name, or from its use as a carry.

    Args:
        heads: name of each argument.
        args: the arguments.
        tied: leaves that come back as results.
        given: roles that the user gives to arguments.
    """
    roles: list[str] = []
    for i, (name, (_, leaves)) in enumerate(zip(heads, args.spans(), strict=True)):
        head = name.lower()
        if i < len(given):
            role = given[i]
        elif "opt" in head or "moment" in head:
            role = "optimizer-state"
        elif any(word in head for word in ("param", "weight", "variable", "model")):
            role = "parameter"
        elif leaves and all(j in tied for j in leaves):
            role = "optimizer-state" if "parameter" in roles else "parameter"
        elif leaves:
            role = "batch"
        else:
            role = "argument"
        inside = role == "parameter" and i >= len(given)
        for j in leaves:
            optimizer = inside and not OPTIMIZER.isdisjoint(args.names[j].split("/")[1:])
            roles.append("optimizer-state" if optimizer else role)
    return roles

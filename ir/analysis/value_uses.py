"""How often a value is read, and whether it may be kept as a partial sum."""

from __future__ import annotations

from collections import Counter

from .factor_specs import Groups, Specs
from .flat_program import FlatOp, FlatProgram, is_float


def uses(flat: FlatProgram) -> dict[int, int]:
    """How often every value is read."""
    uses = Counter({v: len(ops) for v, ops in flat.readers.items()})
    uses.update(link.source for link in flat.links)
    uses.update(v for v in flat.outputs if isinstance(v, int))
    return uses


def may_be_partial(flat: FlatProgram, specs: Specs) -> list[bool]:
    """Values that some strategy leaves as partial sums worth keeping."""
    partial = [False] * len(flat.values)
    for target in accumulators(flat):
        partial[target] = True
    stacks = _stacks(flat)
    known: dict[int, tuple[tuple[bool, ...], Groups]] = {}  # equal ops share one spec
    for op in flat.ops:
        spec = specs.of(op)
        found = known.get(id(spec))
        if found is None:
            found = known[id(spec)] = _partial_results(specs, op)
        leaves, groups = found
        passes = any(any_partial(op, members, partial) for members in groups)
        for leaf, v in zip(leaves, op.outputs, strict=False):
            for value in (v, *stacks.get(v, ())):
                partial[value] = leaf or passes
    return partial


def _stacks(flat: FlatProgram) -> dict[int, list[int]]:
    """The results of ops that loops stack up -> ports of the slices, and the stacks."""
    found: dict[int, list[int]] = {}
    ports = {port: outer for outer, port in flat.stacked.items()}
    for link in flat.links:
        if link.target in ports:
            found.setdefault(link.source, []).extend((link.target, ports[link.target]))
    return found


def _partial_results(specs: Specs, op: FlatOp) -> tuple[tuple[bool, ...], Groups]:
    """Whether each result lacks a summed factor, and the operands whose partial sums pass.

    Nothing at all of ops whose results cannot be added up.
    """
    if not all(is_float(t) for t in op.node.outputs):
        return (), ()
    leaves = tuple(_leaves_partial(specs, op, k) for k in range(len(op.outputs)))
    return leaves, specs.groups(op)


def accumulators(flat: FlatProgram) -> list[int]:
    """Carries of loops that each iteration only adds to."""
    found: list[int] = []
    for link in flat.links:
        op = flat.made_by(link.source)
        if op is None or link.lift or op.node.op not in ("add", "add_any"):
            continue
        if link.target in op.inputs and is_float(flat.values[link.target].type):
            found.append(link.target)
    return found


def _leaves_partial(specs: Specs, op: FlatOp, result: int) -> bool:
    """Whether a summed factor is missing in the result."""
    spec = specs.of(op)
    if not spec.kinds:
        return False
    here = {f for dim in spec.results[result] for f in dim}
    return any(
        kind == "sum" and name not in here and spec.size(name) > 1 for name, kind in spec.kinds
    )


def any_partial(op: FlatOp, members: tuple[int, ...], partial: list[bool]) -> bool:
    """Whether some operand of a linear group may be partial; the others then can be made so.

    A whole value is a partial sum whose terms are zero on all devices but the first.
    """
    values = [op.inputs[m] for m in members]
    return any(isinstance(v, int) and partial[v] for v in values)

"""A rule: two small graphs over shared inputs, and which outputs are claimed equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .errors import RuleError
from .graph import Ref, Side
from .ops import OPS, OTHER, PARAMETERS

MOST_OPS = MOST_OUTPUTS = 16  # a side; published rules have 3 ops
MOST_RANK = 8  # dimensions of an input; published rules have 4


@dataclass(frozen=True, slots=True)
class Rule:
    """`source` may be replaced by `target`: every pair in `outputs` is claimed equal.

    ranks: data dimensions of each input, the replica dimension not counted.
    parallel: whether tensors carry a replica dimension and degrees; then axis 0 is the replica
        dimension, and data dimensions count from 1.
    """

    name: str
    source: Side
    target: Side
    outputs: tuple[tuple[Ref, Ref], ...]
    ranks: tuple[tuple[str, int], ...]
    parallel: bool = False

    def __post_init__(self) -> None:
        for side in (self.source, self.target):
            _check_side(self.name, side)
        if not self.outputs:
            raise RuleError("the rule maps no output", where=self.name)
        if len(self.outputs) > MOST_OUTPUTS:
            text = f"{len(self.outputs)} outputs; at most {MOST_OUTPUTS} are read"
            raise RuleError(text, where=self.name)
        for pair in self.outputs:
            for ref, side in zip(pair, (self.source, self.target), strict=True):
                _check_ref(self.name, ref, side, len(side))
        named = {ref.name for ref in self.inputs()}
        if missing := sorted(named - dict(self.ranks).keys()):
            raise RuleError(f"inputs without a rank: {', '.join(missing)}", where=self.name)
        for name, rank in self.ranks:
            if not 0 <= rank <= MOST_RANK:
                text = f"input {name} has {rank} dimensions, expected 0 to {MOST_RANK}"
                raise RuleError(text, where=self.name)

    def inputs(self) -> tuple[Ref, ...]:
        """Inputs of both sides, in the order of their first use."""
        found: dict[Ref, None] = {}
        for ref in _refs(self.source, [a for a, _ in self.outputs]):
            found.setdefault(ref)
        for ref in _refs(self.target, [b for _, b in self.outputs]):
            found.setdefault(ref)
        return tuple(ref for ref in found if ref.op < 0)

    def free_inputs(self) -> tuple[str, ...]:
        """Inputs that the target reads and the source does not: no value is known for them."""
        left = {r.name for r in _refs(self.source, [a for a, _ in self.outputs]) if r.op < 0}
        right = {r.name for r in _refs(self.target, [b for _, b in self.outputs]) if r.op < 0}
        return tuple(sorted(right - left))

    def __str__(self) -> str:
        sides = ("; ".join(map(str, side)) for side in (self.source, self.target))
        pairs = ", ".join(f"{a} = {b}" for a, b in self.outputs)
        return f"{' ==> '.join(sides)} where {pairs}"


@dataclass(frozen=True, slots=True)
class Unread:
    """A rule of a file that breaks the form of rules: where it stands, and how."""

    name: str
    where: str
    reason: str


def _refs(side: Side, outputs: list[Ref]) -> Iterator[Ref]:
    for op in side:
        yield from op.inputs
    yield from outputs


def _check_side(name: str, side: Side) -> None:
    if len(side) > MOST_OPS:
        raise RuleError(f"{len(side)} ops on one side; at most {MOST_OPS} are read", where=name)
    for i, op in enumerate(side):
        if op.kind not in OPS:
            known = ", ".join(OPS)
            raise RuleError(f"unknown op '{op.kind}'; known: {known}", where=name)
        record = OPS[op.kind]
        least, most = record.operands
        if not least <= len(op.inputs) <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            text = f"op {i} ({op.kind}) has {len(op.inputs)} inputs, expected {expected}"
            raise RuleError(text, where=name)
        if missing := [key for key in record.needed if key not in dict(op.params)]:
            raise RuleError(f"op {i} ({op.kind}) lacks {', '.join(missing)}", where=name)
        for key, value in op.params:
            _check_parameter(name, i, op.kind, key, value)
        for ref in op.inputs:
            _check_ref(name, ref, side, i)


def _check_parameter(name: str, i: int, kind: str, key: str, value: int) -> None:
    allowed = PARAMETERS.get(key, OTHER).allowed
    if value not in allowed:
        few = len(allowed) == 2
        expected = " or ".join(map(str, allowed)) if few else f"{allowed[0]} to {allowed[-1]}"
        text = f"op {i} ({kind}): {key} is {value}, expected {expected}"
        raise RuleError(text, where=name)


def _check_ref(name: str, ref: Ref, side: Side, before: int) -> None:
    if ref.op < 0:
        return
    if ref.op >= before:
        raise RuleError(f"op {ref.op} is read before it is made: the graph is cyclic", where=name)
    made = OPS[side[ref.op].kind].results
    if not 0 <= ref.output < made:
        kind = side[ref.op].kind
        raise RuleError(f"output {ref.output} of a {kind}, which has {made}", where=name)

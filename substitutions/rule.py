"""A rule: two small graphs over shared inputs, and which outputs are claimed equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .errors import RuleError

# op -> (fewest inputs, most inputs, outputs, parameters that it must have)
SIGNATURES: Mapping[str, tuple[int, int, int, tuple[str, ...]]] = {
    "add": (2, 2, 1, ()),
    "mul": (2, 2, 1, ()),
    "scale": (2, 2, 1, ()),
    "relu": (1, 1, 1, ()),
    "transpose": (1, 1, 1, ()),
    "matmul": (2, 2, 1, ("activation",)),
    "linear": (2, 2, 1, ("activation",)),
    "conv": (2, 2, 1, ("stride_h", "stride_w", "padding", "activation")),
    "avgpool": (1, 1, 1, ("kernel_h", "kernel_w", "stride_h", "stride_w", "padding")),
    "maxpool": (1, 1, 1, ("kernel_h", "kernel_w", "stride_h", "stride_w", "padding")),
    "enlarge": (1, 1, 1, ("kernel_h", "kernel_w")),
    "concat": (2, 8, 1, ("axis",)),
    "split": (1, 1, 2, ("axis",)),
    "partition": (1, 1, 1, ("dim", "degree")),
    "combine": (1, 1, 1, ("dim", "degree")),
    "replicate": (1, 1, 1, ("dim", "degree")),
    "reduce": (1, 1, 1, ("dim", "degree")),
    "exp": (1, 1, 1, ()),
    "rsqrt": (1, 1, 1, ()),
    "tanh": (1, 1, 1, ()),
    "cast": (1, 1, 1, ()),
    "neg": (1, 1, 1, ()),
    "sub": (2, 2, 1, ()),
    "div": (2, 2, 1, ()),
    "sum": (1, 1, 1, ("axis",)),
    "max": (1, 1, 1, ("axis",)),
    "expand": (2, 2, 1, ("axis",)),
    "along": (2, 2, 1, ("axis",)),
    "batch-matmul": (2, 2, 1, ()),
    "gather": (2, 2, 1, ()),
    "ones": (0, 0, 1, ()),
    "identity-matrix": (0, 0, 1, ()),
    "identity-kernel": (0, 0, 1, ("kernel_h", "kernel_w")),
    "mean-kernel": (0, 0, 1, ("kernel_h", "kernel_w")),
}
CONSTANTS = ("ones", "identity-matrix", "identity-kernel", "mean-kernel")

SAME, VALID = 0, 1  # values of `padding`
PLAIN, RELU = 0, 2  # values of `activation`

LARGEST_PARAMETER = 64
MOST_OPS = MOST_OUTPUTS = 16  # a side; published rules have 3 ops
MOST_RANK = 8  # dimensions of an input; published rules have 4


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """A value of a graph: an input by name (`op` is -1), or output `output` of op `op`."""

    op: int
    output: int = 0
    name: str = ""

    def __str__(self) -> str:
        if self.op < 0:
            return self.name
        return f"%{self.op}.{self.output}" if self.output else f"%{self.op}"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a rule; parameters are sorted by name."""

    kind: str
    inputs: tuple[Ref, ...]
    params: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, name: str) -> int:
        for key, value in self.params:
            if key == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: int) -> int:
        return dict(self.params).get(name, default)

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value}" for key, value in self.params)
        return f"{self.kind}[{shown}]({', '.join(map(str, self.inputs))})"


Side = tuple[Op, ...]


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
        """Inputs that the target reads and the source does not: nothing says what they are."""
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
        if op.kind not in SIGNATURES:
            known = ", ".join(SIGNATURES)
            raise RuleError(f"unknown op '{op.kind}'; known: {known}", where=name)
        least, most, _, needed = SIGNATURES[op.kind]
        if not least <= len(op.inputs) <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            text = f"op {i} ({op.kind}) has {len(op.inputs)} inputs, expected {expected}"
            raise RuleError(text, where=name)
        params = dict(op.params)
        if missing := [key for key in needed if key not in params]:
            raise RuleError(f"op {i} ({op.kind}) lacks {', '.join(missing)}", where=name)
        for key, value in op.params:
            _check_parameter(name, i, op.kind, key, value)
        for ref in op.inputs:
            _check_ref(name, ref, side, i)


def _check_parameter(name: str, i: int, kind: str, key: str, value: int) -> None:
    allowed = {"padding": (SAME, VALID), "activation": (PLAIN, RELU)}.get(key)
    low = 0 if key in ("axis", "dim") else 2 if key == "degree" else 1
    good = value in allowed if allowed else low <= value <= LARGEST_PARAMETER
    if not good:
        expected = " or ".join(map(str, allowed)) if allowed else f"{low} to {LARGEST_PARAMETER}"
        text = f"op {i} ({kind}): {key} is {value}, expected {expected}"
        raise RuleError(text, where=name)


def _check_ref(name: str, ref: Ref, side: Side, before: int) -> None:
    if ref.op < 0:
        return
    if ref.op >= before:
        raise RuleError(f"op {ref.op} is read before it is made: the graph is cyclic", where=name)
    made = SIGNATURES[side[ref.op].kind][2]
    if not 0 <= ref.output < made:
        kind = side[ref.op].kind
        raise RuleError(f"output {ref.output} of a {kind}, which has {made}", where=name)

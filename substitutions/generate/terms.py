"""All terms of up to so many ops, with their values on concrete inputs.

Values are in a prime field, on tensors whose sizes are all 6, so that most ops apply; what holds
there only because of the sizes is found out afterwards, by proof.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..rule import SIGNATURES, Op, Ref
from ..text import Term, show_term
from ..verify.arrays import Field, NotTypedError, Run, Tensor, tensor
from ..verify.concrete import apply

SIZE = 6
SALT = 1_000_003


@dataclass(frozen=True, slots=True)
class OpSet:
    """Ops to build terms of, each with its parameters, and inputs: rank, replicas."""

    ops: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    inputs: tuple[tuple[str, int, int], ...]
    parallel: bool = False


def _plain(*names: str) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    return tuple((name, ()) for name in names)


OP_SETS: Mapping[str, OpSet] = {
    "plain": OpSet(
        (
            *_plain("add", "mul", "relu", "exp", "scale", "transpose"),
            ("matmul", (("activation", 0),)),
            ("concat", (("axis", 0),)),
            ("concat", (("axis", 1),)),
            ("split", (("axis", 0),)),
            ("split", (("axis", 1),)),
            ("sum", (("axis", 0),)),
            ("sum", (("axis", 1),)),
            ("max", (("axis", 0),)),
        ),
        (("x", 2, 1), ("y", 2, 1), ("z", 2, 1), ("s", 0, 1)),
    ),
    "parallel": OpSet(
        (
            *_plain("add", "mul", "relu"),
            ("linear", (("activation", 0),)),
            ("concat", (("axis", 1),)),
            *(
                (kind, (("degree", 2), ("dim", dim)))
                for kind in ("partition", "combine")
                for dim in (1, 2)
            ),
            ("replicate", (("degree", 2), ("dim", 0))),
            ("reduce", (("degree", 2), ("dim", 0))),
        ),
        (("x", 2, 1), ("y", 2, 1), ("p", 2, 2)),
        parallel=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Made:
    """A term, the ops that it needs, and its value."""

    term: Term
    ops: frozenset[str]
    value: Tensor

    @property
    def print(self) -> str:
        """A fingerprint of the value, its shape and its degrees."""
        data = np.ascontiguousarray(self.value.data)
        text = f"{data.shape} {self.value.degrees}".encode()
        return hashlib.blake2b(text + data.tobytes(), digest_size=12).hexdigest()


def inputs_of(chosen: OpSet) -> list[Made]:
    """The inputs with random values."""
    found: list[Made] = []
    for i, (name, rank, replicas) in enumerate(chosen.inputs):
        rng = np.random.default_rng([SALT, i])
        shape = (replicas,) + (SIZE,) * rank
        data = Field(SALT).array(rng.integers(0, 2**31 - 1, size=shape))
        degrees = (replicas,) + (1,) * rank
        found.append(Made(Term("", name), frozenset(), tensor(data, degrees)))
    return found


def extensions(chosen: OpSet, known: Sequence[Sequence[Made]], ops: int) -> Iterator[Made]:
    """Terms of exactly `ops` ops over known ones, in a fixed order; `known[i]` have i ops each."""
    run = Run(Field(SALT), chosen.parallel)
    for kind, params in chosen.ops:
        arity = SIGNATURES[kind][0]
        op = Op(kind, tuple(Ref(-1, 0, str(i)) for i in range(arity)), params)
        for sizes in itertools.product(range(ops), repeat=arity):
            if max(sizes, default=0) + 1 > ops or sum(sizes) + 1 < ops:
                continue
            for args in itertools.product(*(known[size] for size in sizes)):
                yield from _applied(op, args, ops, run)


def _applied(op: Op, args: Sequence[Made], ops: int, run: Run) -> Iterator[Made]:
    scalars = [arg.value.data.ndim == 1 for arg in args]
    if scalars != ([False, True] if op.kind == "scale" else [False] * len(args)):
        return  # laws of numbers are not searched for
    try:
        values = apply(op, [arg.value for arg in args], run)
    except (NotTypedError, ValueError, IndexError):
        return
    params = tuple((key, str(value)) for key, value in op.params)
    for part, value in enumerate(values):
        term = Term(op.kind, "", params, tuple(arg.term for arg in args), part)
        whole = show_term(Term(op.kind, "", params, term.args, 0))
        needed = frozenset[str]().union(*(arg.ops for arg in args)) | {whole}
        if len(needed) == ops:
            yield Made(term, needed, value)

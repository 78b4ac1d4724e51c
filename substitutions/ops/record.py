"""The record of an op of rules: all that the package knows of it.

A new op is one `RuleOp` in the file of its family in this folder, and a second meaning of it in
JAX in `tests/substitutions/jax_meaning.py`, which the tests hold against the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..graph import Op, Ref
from ..numeric.arrays import Array, Numbers
from ..numeric.devices import Run, Tensor
from ..program.matcher import Read
from ..program.writer import Write
from ..symbolic.joints import JointsOf, pointwise_joints
from ..symbolic.meaning import ValueOf
from ..symbolic.types import TypeOf

SAME, VALID = 0, 1  # values of `padding`
PLAIN, RELU = 0, 2  # values of `activation`
LARGEST_PARAMETER = 64


@dataclass(frozen=True, slots=True)
class Parameter:
    """Values of a parameter of ops, and the one it has where the text of a rule leaves it out."""

    allowed: Sequence[int]
    default: int | None = None


_SIZE = range(1, LARGEST_PARAMETER + 1)
PARAMETERS: Mapping[str, Parameter] = {
    "activation": Parameter((PLAIN, RELU), PLAIN),
    "axis": Parameter(range(LARGEST_PARAMETER + 1)),
    "degree": Parameter(range(2, LARGEST_PARAMETER + 1)),
    "dim": Parameter(range(LARGEST_PARAMETER + 1), 0),
    "kernel_h": Parameter(_SIZE),
    "kernel_w": Parameter(_SIZE),
    "padding": Parameter((SAME, VALID), SAME),
    "stride_h": Parameter(_SIZE, 1),
    "stride_w": Parameter(_SIZE, 1),
}
OTHER = Parameter(_SIZE)  # further parameters in files of others

Compute = Callable[[Op, Sequence[Tensor], Run], tuple[Tensor, ...]]
Fill = Callable[[Op, tuple[int, ...], Numbers], Array]


@dataclass(frozen=True, slots=True)
class Form:
    """How an op stands in traced programs.

    primitives: of JAX that make its value; places of a rule are searched for at these.
    read: matches a term of the op with a value of a program.
    write: the nodes of a term of the op.
    only: whether no other primitive makes its value.
    joins: whether rules with the op may join parts along a new dimension: True for ops that take
        any number of dimensions, False for those that do not, None for those that leave it open.
    """

    primitives: tuple[str, ...]
    read: Read
    write: Write
    only: bool = True
    joins: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOp:
    """An op of rules.

    name: in texts and files.
    operands: the fewest and the most.
    results: number of outputs.
    params: parameters, in the order in which texts give them.
    unwritten: parameters that texts cannot give; they have their defaults.
    dims: data dimensions of operands and results, where the op takes no others.
    like, fewer: otherwise, a result has `fewer` data dimensions than the operand of number `like`.
    scalars: number of operands, the last ones, that are scalars.
    shape_only: whether only the shape of the last operand matters.
    moves: whether every element of a result is one of an operand.
    row_numbers: the operand that holds numbers of rows, if one does.
    sums: whether it adds up elements in an order of its own.
    fractions: whether its results are no whole numbers where its operands are.
    replicas_apart: whether, without degrees, results of one replica depend on that replica of the
        operands only, so that many inputs are computed at once as replicas.
    restrictions: under which rules with the op are tried if they have no proof without.
    by_size: whether rules are proved for each height and width of its operand.
    type: types of the results, and what they demand of the operands.
    joints: where dimensions of the results are joined from parts.
    value: the element of a result at a symbolic position, for the prover.
    compute: the results on logical devices, in numbers; shares nothing with `value`.
    fill: in the place of `compute` for constants, their elements.
    form: how it stands in programs; None if no program is rewritten with it.
    """

    name: str
    operands: tuple[int, int]
    type: TypeOf
    value: ValueOf
    compute: Compute | None = None
    fill: Fill | None = None
    joints: JointsOf = pointwise_joints
    form: Form | None = None
    results: int = 1
    params: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    dims: int | None = None
    like: int = 0
    fewer: int = 0
    scalars: int = 0
    shape_only: bool = False
    moves: bool = False
    row_numbers: int | None = None
    sums: bool = False
    fractions: bool = False
    replicas_apart: bool = False
    restrictions: tuple[str, ...] = ()
    by_size: bool = False

    def read(self, inputs: Sequence[Ref]) -> Sequence[Ref]:
        """Operands whose elements matter."""
        return inputs[:-1] if self.shape_only else inputs

    @property
    def needed(self) -> tuple[str, ...]:
        """Parameters that an op must have."""
        return (*self.params, *self.unwritten)

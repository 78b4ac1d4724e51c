"""Types of a rule's tensors with symbolic sizes and degrees, op by op.

A tensor is an array [replica, dims...]; each data dimension has a size and a degree that divides
it, and the replica dimension's size is its degree. Plain rules have all degrees 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..graph import Op, Ref
from .expr import ONE, Expr, symbol
from .solve import Solver


class IllFormedError(Exception):
    """The rule breaks the typing of ops, whatever the sizes and degrees."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a dimension was concatenated: position of the last join, and what each part knows."""

    at: Expr
    left: Cut | None
    right: Cut | None


@dataclass(frozen=True, slots=True)
class Dim:
    """A data dimension; `origin` is (input, position) where it is an input's own."""

    size: Expr
    degree: Expr = ONE
    cut: Cut | None = None
    origin: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Type:
    """Degree of the replica dimension, and the data dimensions."""

    replica: Expr
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Conv:
    """Groups, outputs per group and inputs per group of one convolution."""

    groups: Expr
    outputs: Expr
    inputs: Expr


# Restrictions under which a rule may hold that does not hold for every convolution, or for factors
# of tensors that are divided along several dimensions: those are numbered by all of them.
SAME_WIDTH = "all convolutions have equally many outputs per group"
UNGROUPED = "no convolution is grouped"
UNDIVIDED = "no dimension of an input is divided"


@dataclass
class Typing:
    """Types of both sides while they are found.

    ranks: data dimensions of the inputs, in the order of their first use.
    parallel: whether tensors carry a replica dimension and degrees.
    degrees: the symbol that stands for each degree written in the rule, or a number.
    assume: restrictions of the rule, such as `UNGROUPED`.
    """

    ranks: Mapping[str, int]
    parallel: bool
    solver: Solver
    degrees: Mapping[int, Expr]
    assume: tuple[str, ...] = ()
    inputs: dict[str, Type] = field(default_factory=dict[str, Type])
    convs: dict[str, Conv] = field(default_factory=dict[str, Conv])
    cuts: dict[tuple[str, int], Cut] = field(default_factory=dict[tuple[str, int], Cut])
    sides: dict[str, list[tuple[Type, ...]]] = field(
        default_factory=dict[str, list[tuple[Type, ...]]]
    )

    def __post_init__(self) -> None:
        for name, rank in self.ranks.items():
            self.inputs[name] = self._input(name, rank)

    def _input(self, name: str, rank: int) -> Type:
        divided = self.parallel and UNDIVIDED not in self.assume
        replica = symbol(f"degree({name}, 0)") if self.parallel else ONE
        dims: list[Dim] = []
        for i in range(rank):
            axis = i + 1 if self.parallel else i
            size = symbol(f"size({name}, {axis})")
            degree = symbol(f"degree({name}, {axis})") if divided else ONE
            if divided:
                self.solver.divisible.append((degree, size))
            dims.append(Dim(size, degree, None, (name, i)))
        return Type(replica, tuple(dims))

    def of(self, side: str, ref: Ref) -> Type:
        return self.inputs[ref.name] if ref.op < 0 else self.sides[side][ref.op][ref.output]

    def degree(self, op: Op) -> Expr:
        """What is known of the degree of an op that changes one."""
        return self.solver.resolve(self.degrees[op["degree"]])

    def axis(self, op: Op, type_: Type) -> int:
        """The data dimension that `axis` names."""
        axis = op["axis"] - 1 if self.parallel else op["axis"]
        if axis < 0:
            raise IllFormedError(f"{op.kind} on the replica dimension")
        if axis >= len(type_.dims):
            raise IllFormedError(f"{op.kind} on axis {op['axis']}, which does not exist")
        return axis

    def cut_of(self, dim: Dim) -> Cut:
        """Where to split a dimension; that of an input is split somewhere, both sides alike."""
        if dim.cut is not None:
            return dim.cut
        if dim.origin is None:
            raise IllFormedError("split of a dimension that is no concatenation")
        if dim.origin not in self.cuts:
            left = symbol(f"cut{dim.origin}")
            self.solver.equal(dim.size, left + symbol(f"rest{dim.origin}"))
            self.cuts[dim.origin] = Cut(left, None, None)
        return self.cuts[dim.origin]


def resolved(solver: Solver, type_: Type) -> Type:
    """The type with all that is known now written in."""
    dims = tuple(
        Dim(solver.resolve(d.size), solver.resolve(d.degree), None, None) for d in type_.dims
    )
    return Type(solver.resolve(type_.replica), dims)


TypeOf = Callable[[Typing, Op, Sequence[Type], str], tuple[Type, ...]]


def computed(replica: Expr, dims: Sequence[Dim]) -> Type:
    """The type of a result: no dimension of it is an input's own."""
    return Type(replica, tuple(replace(d, origin=None) for d in dims))


def same_cut(typing: Typing, a: Cut | None, b: Cut | None) -> bool:
    """Whether two dimensions were joined alike."""
    if a is None or b is None:
        return a is b
    at = typing.solver.resolve(a.at) == typing.solver.resolve(b.at)
    return at and same_cut(typing, a.left, b.left) and same_cut(typing, a.right, b.right)


def fit_rank(op: Op, type_: Type, rank: int) -> None:
    """Raises IllFormedError where an operand has another number of dimensions."""
    if len(type_.dims) != rank:
        raise IllFormedError(f"{op.kind} of {len(type_.dims)} dimensions, takes {rank}")


def fit_shapes(typing: Typing, left: Sequence[Dim], right: Sequence[Dim]) -> None:
    """Demands equal sizes and degrees."""
    for a, b in zip(left, right, strict=True):
        typing.solver.equal(a.size, b.size)
        typing.solver.equal(a.degree, b.degree)


def fit_devices(typing: Typing, devices: str, args: Sequence[Type]) -> dict[str, Expr]:
    """Demands that operands are on the same devices.

    Args:
        typing: the equations.
        devices: as `on_each` of `numeric.devices` has it: a letter for the replica and for each
            dimension of every operand; a point is a dimension that is not divided.
        args: the operands.

    Returns:
        The degree of each letter.
    """
    degrees: dict[str, Expr] = {".": ONE}
    taken = devices.partition("->")[0].replace(" ", "").split(",")
    for letters, x in zip(taken, args, strict=True):
        for letter, degree in zip(letters, (x.replica, *(d.degree for d in x.dims)), strict=True):
            typing.solver.equal(degrees.setdefault(letter, degree), degree)
    return degrees

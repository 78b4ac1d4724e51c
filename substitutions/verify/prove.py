"""Proof of a rule for all sizes and degrees, by equal normal forms of both sides."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..effort import LIMITS, Effort
from ..graph import Ref, Side
from ..ops import OPS
from ..rule import Rule
from ..symbolic.expr import Expr, as_expr, symbol
from ..symbolic.joints import Parts, ordered, segments
from ..symbolic.meaning import Meaning
from ..symbolic.normal import normal_form
from ..symbolic.smt import implied
from ..symbolic.solve import IllTypedError, Solver, UndecidedError
from ..symbolic.types import (
    UNDIVIDED,
    IllFormedError,
    Type,
    Typing,
    resolved,
)
from ..symbolic.values import Index, Labels

Kernels = tuple[tuple[str, int, int], ...]  # input, height, width

_JOINTS = {name: op.joints for name, op in OPS.items()}
_VALUES = {name: op.value for name, op in OPS.items()}


@dataclass(frozen=True, slots=True)
class Case:
    """What is proved: degrees as symbols or numbers, sizes of enlarged kernels, restrictions.

    fixed: whether degrees are the numbers that the rule has.
    """

    degrees: tuple[tuple[int, Expr], ...]
    assume: tuple[str, ...] = ()
    kernels: Kernels = ()
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a case is proved; `conditions` is what the target needs and the source lacks."""

    case: Case
    proved: bool
    conditions: tuple[str, ...] = ()
    reason: str = ""


def degree_cases(rule: Rule) -> Iterator[tuple[tuple[int, Expr], ...]]:
    """Symbols for the degrees that the rule writes as numbers, the most general first.

    A degree may be the product of smaller ones that the rule writes, as 8 is of 2 and 4.
    """
    degrees = _degrees(rule)
    choices = [((), *_products(degrees[:i], degree)) for i, degree in enumerate(degrees)]
    every = sorted(
        itertools.islice(itertools.product(*choices), LIMITS.cases),
        key=lambda choice: sum(bool(factors) for factors in choice),
    )
    for choice in every:
        alone = [d for d, factors in zip(degrees, choice, strict=True) if not factors]
        names = ("k",) if len(alone) == 1 else tuple(f"k{i + 1}" for i in range(len(alone)))
        values = {d: symbol(name) for d, name in zip(alone, names, strict=True)}
        for degree, factors in zip(degrees, choice, strict=True):
            if factors:
                values[degree] = math.prod((values[d] for d in factors), start=as_expr(1))
        yield tuple((d, values[d]) for d in degrees)


def _degrees(rule: Rule) -> list[int]:
    ops = (*rule.source, *rule.target)
    return sorted({op["degree"] for op in ops if any(key == "degree" for key, _ in op.params)})


def _products(of: Sequence[int], degree: int) -> Iterator[tuple[int, ...]]:
    """The ways to write a degree as a product of others, the largest first."""
    for i in reversed(range(len(of))):
        if degree == of[i]:
            yield (degree,)
        elif degree % of[i] == 0:
            yield from ((of[i], *more) for more in _products(of[: i + 1], degree // of[i]))


def written_degrees(rule: Rule) -> tuple[tuple[int, Expr], ...]:
    """The degrees as the rule has them."""
    return tuple((d, as_expr(d)) for d in _degrees(rule))


def enlarged(ops: Side) -> tuple[tuple[str, int, int], ...]:
    """Inputs that are enlarged, with the least kernel they are enlarged to."""
    found: dict[str, tuple[int, int]] = {}
    for op in ops:
        if OPS[op.kind].by_size and op.inputs[0].op < 0:
            name, size = op.inputs[0].name, (op["kernel_h"], op["kernel_w"])
            h, w = found.get(name, size)
            found[name] = (min(h, size[0]), min(w, size[1]))
    return tuple((name, h, w) for name, (h, w) in sorted(found.items()))


def kernel_choices(rule: Rule) -> Iterator[Kernels]:
    """Choices of sizes of the enlarged kernels, up to a limit; () if no kernel is enlarged."""
    names = enlarged((*rule.source, *rule.target))
    ranges = [itertools.product(range(1, h + 1), range(1, w + 1)) for _, h, w in names]
    for choice in itertools.islice(itertools.product(*ranges), LIMITS.kernels):
        yield tuple((name, h, w) for (name, _, _), (h, w) in zip(names, choice, strict=True))


def kernels_that_fit(rule: Rule) -> Iterator[str]:
    """Conditions on kernels that the target enlarges and the source does not."""
    own = {name: sizes for name, *sizes in enlarged(rule.source)}
    for name, *sizes in enlarged(rule.target):
        for i, size in enumerate(sizes):
            if size < own.get(name, (math.inf, math.inf))[i]:
                yield f"{size} is at least size({name}, {2 + i + rule.parallel})"


def too_many_kernels(rule: Rule) -> str:
    """Why not every choice of kernels is tried; empty if each is."""
    count = math.prod(h * w for _, h, w in enlarged((*rule.source, *rule.target)))
    return f"{count} sizes of enlarged kernels" if count > LIMITS.kernels else ""


def typed(rule: Rule, case: Case, effort: Effort | None = None, *, partly: bool = False) -> Typing:
    """Types of both sides of a rule; `partly` keeps what was found if the target is undecided.

    Raises:
        IllFormedError: if ops are applied to what they do not take.
        IllTypedError: if no sizes and degrees fit.
        UndecidedError: if the equations of sizes are beyond the solver.
    """
    solver = Solver(implied=implied, effort=effort or Effort())
    solver.at_least_2 = {a for _, e in case.degrees if e.constant is None for a in e.atoms()}
    ranks = {ref.name: dict(rule.ranks)[ref.name] for ref in rule.inputs()}
    typing = Typing(ranks, rule.parallel, solver, dict(case.degrees), case.assume)
    for name, height, width in case.kernels:
        if len(typing.inputs[name].dims) != 4:
            raise IllFormedError(f"enlarge of {len(typing.inputs[name].dims)} dimensions, takes 4")
        for axis, size in ((2, height), (3, width)):
            solver.equal(typing.inputs[name].dims[axis].size, as_expr(size))
    _type_side(typing, "source", rule.source)
    solver.recording = True
    with contextlib.suppress(*([UndecidedError] if partly else [])):
        _type_side(typing, "target", rule.target)
        for a, b in (*rule.outputs, *rule.outputs):  # twice, as one size may determine another
            for x, y in _output_sizes(typing, a, b):
                solver.adapt(x, y)
    return typing


def _type_side(typing: Typing, name: str, ops: Side) -> None:
    made: list[tuple[Type, ...]] = []
    typing.sides[name] = made
    for i, op in enumerate(ops):
        args = [typing.of(name, ref) for ref in op.inputs]
        made.append(OPS[op.kind].type(typing, op, args, f"{name}.{i}"))


def prove(rule: Rule, case: Case, effort: Effort | None = None) -> Proof:
    """Tries to prove one case.

    Raises:
        IllFormedError: if the rule breaks the typing of ops.
        SpentError: if the work on the rule is too much.
    """
    try:
        typing = typed(rule, case, effort)
        for a, b in rule.outputs:
            reason = _mismatch(typing, a, b)
            if reason:
                return Proof(case, False, (), reason)
        conditions = tuple(typing.solver.conditions)
        for i, (a, b) in enumerate(rule.outputs):
            reason = _equal(rule, typing, a, b)
            if reason:
                return Proof(case, False, conditions, f"output {i}: {reason}")
    except IllTypedError as error:
        return Proof(case, False, (), f"never well-typed: {error}")
    except UndecidedError as error:
        return Proof(case, False, (), f"not decided: {error}")
    return Proof(case, True, (*conditions, *case.assume))


def _output_sizes(typing: Typing, a: Ref, b: Ref) -> list[tuple[Expr, Expr]]:
    """Sizes and degrees of two outputs, side by side."""
    left, right = typing.of("source", a), typing.of("target", b)
    if len(left.dims) != len(right.dims):
        raise IllFormedError(f"{a} has {len(left.dims)} dimensions, {b} has {len(right.dims)}")
    pairs = [(left.replica, right.replica)]
    for x, y in zip(left.dims, right.dims, strict=True):
        pairs += [(x.size, y.size), (x.degree, y.degree)]
    return pairs


def _mismatch(typing: Typing, a: Ref, b: Ref) -> str:
    """Why two outputs differ in type; empty if they do not."""
    solver = typing.solver
    for x, y in _output_sizes(typing, a, b):
        if solver.resolve(x) != solver.resolve(y):
            return f"sizes or degrees of an output differ unless {x} = {y}"
    return ""


def _equal(rule: Rule, typing: Typing, a: Ref, b: Ref) -> str:
    """Why the normal forms differ; empty if they are equal everywhere."""
    labels = Labels(typing.solver.effort)
    left, right = (
        Meaning(Parts(typing, name, side, _JOINTS), labels, _VALUES)
        for name, side in (("source", rule.source), ("target", rule.target))
    )
    type_ = resolved(typing.solver, typing.of("source", a))
    parts = [
        segments(ordered((*x, *y)), dim.size)
        for x, y, dim in zip(left.parts.joints(a), right.parts.joints(b), type_.dims, strict=True)
    ]
    pieces = list(itertools.product(*parts))
    if len(pieces) > LIMITS.pieces:
        raise UndecidedError(f"{len(pieces)} parts of an output")
    for piece in pieces:
        if not _piece_equal(left, right, (a, b), type_, piece, labels):
            return "the sides have different normal forms"
    return ""


def _piece_equal(
    left: Meaning, right: Meaning, pair: tuple[Ref, Ref], type_: Type,
    piece: tuple[tuple[Expr, Expr], ...], labels: Labels,
) -> bool:  # fmt: skip
    names: dict[str, Expr] = {}
    replica_name, replica = labels.make(type_.replica)
    names[replica_name] = symbol("r")
    index: list[Index] = []
    for i, (start, length) in enumerate(piece):
        name, label = labels.make(length)
        names[name] = symbol(f"i{i}")
        index.append(Index(start + label, start, length))
    called = {atom: e for name, e in names.items() if name for atom in symbol(name).atoms()}
    forms = [
        normal_form(side.at(ref, replica, tuple(index)), labels, called)
        for side, ref in zip((left, right), pair, strict=True)
    ]
    return forms[0] == forms[1]


def assumptions(rule: Rule) -> Iterator[tuple[str, ...]]:
    """Restrictions to try a rule under, the mildest first."""
    ops = (*rule.source, *rule.target)
    known = dict.fromkeys(text for op in ops for text in OPS[op.kind].restrictions)
    single = [(), *((text,) for text in known if text != UNDIVIDED)]
    yield from single
    if rule.parallel and UNDIVIDED in known:
        yield from ((*found, UNDIVIDED) for found in single)

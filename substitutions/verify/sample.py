"""Concrete shapes, degrees and parameters for which both sides of a rule are well-typed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ..effort import COSTS, Effort
from ..graph import Op, Side
from ..numeric.arrays import Array, Numbers
from ..numeric.devices import Run, Tensor, tensor
from ..ops import CONSTANTS, LARGEST_PARAMETER
from ..rule import Rule
from ..symbolic.expr import Atom, Expr, symbol
from ..symbolic.types import Typing, resolved
from .concrete import evaluate
from .prove import Case

SIZES = (1, 1, 2, 2, 2, 3, 3, 4, 4, 6)  # drawn from, small ones more often
DEGREES = (2, 2, 3, 3, 4, 6)
MOST_ELEMENTS = 20_000  # of one input
TRIES = 40  # assignments tried for each instance


@dataclass(frozen=True, slots=True)
class Instance:
    """One way to make the rule concrete. Shapes do not hold the replica dimension of plain rules.

    shapes, degrees: of the inputs by name, replica dimension first.
    constants: shapes of constants of the source and of the target, by op.
    cuts: where an input's dimension is split.
    """

    rule: Rule
    values: tuple[tuple[str, int], ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    degrees: tuple[tuple[str, tuple[int, ...]], ...]
    constants: tuple[Mapping[int, tuple[int, ...]], Mapping[int, tuple[int, ...]]]
    cuts: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the sides differ: in type, or at an element of an output."""

    output: int
    text: str
    at: tuple[int, ...] = ()
    source: float = 0.0
    target: float = 0.0


class Domain:
    """All instances of a rule in one case, from the solved equations of its types."""

    def __init__(self, rule: Rule, typing: Typing, case: Case) -> None:
        self.rule, self.typing, self.case = rule, typing, case
        self.effort = typing.solver.effort
        self.degrees = tuple((d, typing.solver.resolve(e)) for d, e in case.degrees)
        self.inputs = {name: resolved(typing.solver, t) for name, t in typing.inputs.items()}
        sides: tuple[tuple[str, Side], ...] = (
            ("source", self.rule.source), ("target", self.rule.target)
        )  # fmt: skip
        self.constants = tuple(
            {
                i: tuple(typing.solver.resolve(d.size) for d in typing.sides[name][i][0].dims)
                for i, op in enumerate(side)
                if op.kind in CONSTANTS and i < len(typing.sides.get(name, ()))
            }
            for name, side in sides
        )
        self.cuts = {key: typing.solver.resolve(cut.at) for key, cut in typing.cuts.items()}
        self.atoms = self._atoms()

    def _atoms(self) -> tuple[Atom, ...]:
        exprs: list[Expr] = [e for _, e in self.degrees]
        for type_ in self.inputs.values():
            exprs += [type_.replica, *(e for d in type_.dims for e in (d.size, d.degree))]
        for shapes in self.constants:
            exprs += [e for shape in shapes.values() for e in shape]
        exprs += self.cuts.values()
        found = {a for e in exprs for a in e.atoms() if not a.args}
        return tuple(sorted(found, key=str))

    def draws(self, rng: random.Random, count: int) -> Iterator[dict[Atom, int]]:
        """Up to `count` assignments that satisfy all demands on sizes."""
        solver = self.typing.solver
        facts = [(solver.resolve(d), solver.resolve(n)) for d, n in solver.divisible]
        least = [solver.resolve(e) for e in solver.nonnegative]
        least += [e - 1 for e in solver.values.values() if e.sign() != 1]  # as names are positive
        least += [solver.resolve(symbol(a.name)) - 2 for a in solver.at_least_2]
        zero = [solver.resolve(e) for e in solver.pending]
        found = 0
        for _ in range(TRIES * count):
            self.effort.spend(COSTS.draw)
            values = self._draw(rng, facts)
            if not _hold(facts, least, zero, values):
                continue
            if self.instance(values) is not None:
                found += 1
                yield values
                if found == count:
                    return

    def _draw(self, rng: random.Random, facts: list[tuple[Expr, Expr]]) -> dict[Atom, int]:
        degrees = {a for _, e in self.degrees for a in e.atoms()}
        small = rng.random() < 0.5
        values: dict[Atom, int] = {}
        for atom in self.atoms:
            if atom in degrees:
                values[atom] = rng.choice(DEGREES)
            elif atom.name.startswith("degree"):
                values[atom] = rng.choice((1, 1, 2) if small else (1, 2, 3))
            else:
                values[atom] = rng.choice(SIZES[:7] if small else SIZES)
        for divisor, number in facts:
            lone = next(iter(number.terms), ())
            if len(number.terms) == 1 and len(lone) == 1 and lone[0] in values:
                d = number_of(divisor, values)
                if d and values[lone[0]] % d:
                    values[lone[0]] = math.lcm(values[lone[0]], d)
        return values

    def instance(self, values: Mapping[Atom, int]) -> Instance | None:
        """The rule with these values, if all sizes are positive and not too large."""
        degrees = {d: number_of(e, values) for d, e in self.degrees}
        shapes: list[tuple[str, tuple[int, ...]]] = []
        held: list[tuple[str, tuple[int, ...]]] = []
        for name, type_ in sorted(self.inputs.items()):
            sizes = [number_of(e, values) for e in (type_.replica, *(d.size for d in type_.dims))]
            parts = [number_of(e, values) for e in (type_.replica, *(d.degree for d in type_.dims))]
            good = [n for n in sizes if n is not None and n >= 1]
            ways = [n for n in parts if n is not None and n >= 1]
            if len(good) < len(sizes) or len(ways) < len(parts):
                return None
            if math.prod(good) > MOST_ELEMENTS:
                return None
            shapes.append((name, tuple(good)))
            held.append((name, tuple(ways)))
        constants: list[dict[int, tuple[int, ...]]] = []
        for side in self.constants:
            found: dict[int, tuple[int, ...]] = {}
            for i, shape in side.items():
                sizes = [number_of(e, values) for e in shape]
                good = [n for n in sizes if n is not None and n >= 1]
                if len(good) < len(sizes) or math.prod(good) > MOST_ELEMENTS:
                    return None
                found[i] = tuple(good)
            constants.append(found)
        cuts: dict[str, dict[int, int]] = {}
        for (name, i), at in self.cuts.items():
            place = number_of(at, values)
            if place is None:
                return None
            cuts.setdefault(name, {})[i + 1] = place
        written = {d: n for d, n in degrees.items() if n is not None}
        if any(n > LARGEST_PARAMETER for n in written.values()):
            return None
        return Instance(
            with_degrees(self.rule, written),
            tuple((a.name, v) for a, v in sorted(values.items(), key=lambda item: str(item[0]))),
            tuple(shapes), tuple(held), (constants[0], constants[1]),
            tuple((name, tuple(sorted(c.items()))) for name, c in sorted(cuts.items())),
        )  # fmt: skip


def _hold(
    facts: Sequence[tuple[Expr, Expr]],
    least: Sequence[Expr],
    zero: Sequence[Expr],
    values: Mapping[Atom, int],
) -> bool:
    """Whether sizes divide, suffice and are equal as demanded; a size without a value passes."""
    for divisor, number in facts:
        d, n = number_of(divisor, values), number_of(number, values)
        if d is not None and n is not None and (d < 1 or n % d):
            return False
    enough = all((number_of(e, values) or 0) >= 0 for e in least)
    return enough and not any(number_of(e, values) for e in zero)


def number_of(expr: Expr, values: Mapping[Atom, int]) -> int | None:
    """The value of a size, None if it is not a whole number."""
    total: Fraction | int = 0
    for monomial, c in expr.terms.items():
        part: Fraction | int = c
        for atom in monomial:
            value = values.get(atom) if not atom.args else _call(atom, values)
            if value is None:
                return None
            part *= value
        total += part
    return int(total) if total == int(total) else None


def _call(atom: Atom, values: Mapping[Atom, int]) -> int | None:
    found = [number_of(arg, values) for arg in atom.args]
    args = [n for n in found if n is not None]
    if len(args) < len(found) or (len(args) > 1 and args[1] < 1):
        return None
    if atom.name == "div":
        return args[0] // args[1]
    if atom.name == "ceil":
        return -(-args[0] // args[1])
    if atom.name == "half":
        return args[0] // 2
    return None


def with_degrees(rule: Rule, degrees: Mapping[int, int]) -> Rule:
    """The rule with other degrees written in it."""
    if not degrees:
        return rule

    def side(ops: Side) -> Side:
        return tuple(_with_degree(op, degrees) for op in ops)

    return replace(rule, source=side(rule.source), target=side(rule.target))


def _with_degree(op: Op, degrees: Mapping[int, int]) -> Op:
    params = tuple((k, degrees.get(v, v) if k == "degree" else v) for k, v in op.params)
    return replace(op, params=params)


def draw_inputs(instance: Instance, seed: int, largest: int) -> dict[str, Array]:
    """Whole numbers for every input, the replica dimension of plain rules included."""
    found: dict[str, Array] = {}
    for i, (name, shape) in enumerate(instance.shapes):
        rng = np.random.default_rng([seed, i])
        found[name] = rng.integers(-largest, largest + 1, size=shape)
    return found


def compare(
    instance: Instance, inputs: Mapping[str, Array], numbers: Numbers, effort: Effort
) -> Difference | None:
    """The first difference between the sides.

    Raises:
        NotTypedError: if a side does not take these shapes.
        SpentError: if the work on the rule is too much.
    """
    rule = instance.rule
    run = Run(numbers, rule.parallel, effort)
    effort.spend(COSTS.instance)
    degrees, cuts = dict(instance.degrees), {n: dict(c) for n, c in instance.cuts}
    given = {
        name: tensor(numbers.array(values), degrees[name], cuts.get(name))
        for name, values in inputs.items()
    }
    with np.errstate(all="ignore"):
        made = [
            evaluate(side, given, run, shapes)
            for side, shapes in zip((rule.source, rule.target), instance.constants, strict=True)
        ]
    for i, pair in enumerate(rule.outputs):
        a, b = (
            given[ref.name] if ref.op < 0 else values[ref.op][ref.output]
            for ref, values in zip(pair, made, strict=True)
        )
        if found := _difference(i, a, b, rule.parallel):
            return found
    return None


def _difference(i: int, a: Tensor, b: Tensor, parallel: bool) -> Difference | None:
    first = 0 if parallel else 1
    left, right = a.whole, b.whole
    if left.shape != right.shape:
        shapes = f"{left.shape[first:]} and {right.shape[first:]}"
        return Difference(i, f"shapes {shapes}")
    if a.degrees != b.degrees:
        return Difference(i, f"degrees {a.degrees} and {b.degrees}")
    if left.dtype.kind == "f":
        both = np.isfinite(left) & np.isfinite(right)
        with np.errstate(invalid="ignore"):
            bad = both & ~np.isclose(left, right, rtol=1e-9, atol=1e-9)
    else:
        bad = left != right
    if not bad.any():
        return None
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    x, y = float(left[at]), float(right[at])
    return Difference(i, f"{x:g} and {y:g}", at[first:], x, y)

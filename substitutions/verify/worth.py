"""The worth of a proved rule on machines: derived from its terms, and tried on numbers.

Both sides are written out element by element on small instances. Equal expressions are exact;
those that are equal up to the order of additions and multiplications are reassociated; equal
polynomials of which no term cancels are bounded. Then both sides are evaluated in short floats and
whole numbers on values that tell them apart, and a label that is contradicted is not given.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from ..effort import Effort, SpentError
from ..graph import Op, Ref, Side
from ..numeric.arrays import Array, NotTypedError, Numbers
from ..numeric.devices import Run, Tensor, tensor
from ..numeric.machine import FLOATS, WHOLE, Machine, Sizes
from ..ops import OPS
from ..rule import Rule
from ..worth import (
    BOUNDED,
    EXACT,
    REASSOCIATED,
    UNBOUNDED,
    WORTHS,
    Bound,
    Worth,
    beyond,
    draw,
    limits,
    tried,
    unequal,
    weakest,
)
from .concrete import apply
from .falsify import domain
from .prove import Case
from .sample import Domain, Instance
from .terms import LongTermError, Terms

SEED = 20240301
# Instances that are drawn, of these evaluated to rank them, and of these used.
DRAWN, RANKED, INSTANCES = 40, 8, 2
MOST_STEPS = 10_000  # of work on the numbers of one side
MOST_ELEMENTS = 400  # of all inputs, where there are instances as small as that
Made = list[tuple[Tensor, ...]]
Stored = Callable[[Array, object], Array]


@lru_cache(maxsize=1024)
def worth_in(rule: Rule, case: Case) -> Worth:
    """The worth of a rule in a proved case; unbounded where none is found.

    Args:
        rule: a proved one.
        case: the proved one.
    """
    found: list[Worth] = []
    where = domain(rule, case)
    for instance in _instances(where) if where else ():
        try:
            sides = _Written(instance)
            worth = sides.worth()
            if any(_contradicted(sides, worth, dtype) for dtype in (*FLOATS, *WHOLE)):
                return Worth(UNBOUNDED, UNBOUNDED)
            found.append(worth)
        except (LongTermError, NotTypedError, SpentError):
            continue
    return weakest(tuple(found)) if found else Worth(UNBOUNDED, UNBOUNDED)


def holds(rule: Rule, case: Case, worth: Worth, seed: int) -> bool | None:
    """Whether numbers of every type agree with a claimed worth.

    Args:
        rule: a proved one.
        case: the proved one.
        worth: the claim.
        seed: of one instance and of its numbers.

    Returns:
        None if no instance was found.
    """
    where = domain(rule, case)
    try:
        values = next(where.draws(random.Random(seed), 1), None) if where else None
        instance = where.instance(values) if where and values else None
        if instance is None:
            return None
        sides = _Written(instance)
        return not any(_contradicted(sides, worth, dtype, seed) for dtype in (*FLOATS, *WHOLE))
    except (LongTermError, NotTypedError, SpentError):
        return None


def _instances(where: Domain) -> list[Instance]:
    """Small ones in which devices hold few dimensions of one element, which hide differences."""
    found: list[tuple[bool, int, int, Instance]] = []
    with contextlib.suppress(SpentError):
        for number, values in enumerate(where.draws(random.Random(SEED), DRAWN)):
            instance = where.instance(values)
            if instance is not None:
                size = sum(int(np.prod(shape)) for _, shape in instance.shapes)
                found.append((size > MOST_ELEMENTS, _ones(instance), number, instance))
    found.sort(key=lambda row: row[:3])
    near = [(large, _ones_within(instance), number, instance)
            for large, _, number, instance in found[:RANKED]]  # fmt: skip
    near.sort(key=lambda row: row[:3])
    return [instance for *_, instance in near[:INSTANCES]]


def _ones(instance: Instance) -> int:
    """Dimensions of which a device holds one element, of inputs."""
    degrees = dict(instance.degrees)
    return sum(
        n == d
        for name, shape in instance.shapes
        for n, d in zip(shape[1:], degrees[name][1:], strict=True)
    )


def _ones_within(instance: Instance) -> int:
    """The same, of all values that are computed."""
    rule, shapes = instance.rule, dict(instance.shapes)
    zeros = {name: np.zeros(shape) for name, shape in shapes.items()}
    try:
        with np.errstate(all="ignore"):
            made = _evaluated(instance, zeros, Sizes(), None)
    except NotTypedError:
        return len(rule.source) + len(rule.target) + sum(map(len, shapes.values()))
    return sum(n == 1 for side in made[1:] for outs in side for t in outs for n in t.local)


class _Written:
    """Both sides of an instance written out."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.terms = instance, Terms()
        self.rows = _rows(instance)
        given = {
            name: _row_numbers(shape) if name in self.rows else self.terms.input(name, shape)
            for name, shape in instance.shapes
        }
        self.source, self.target = _sides(instance, given, self.terms, self.terms.rounded)

    def worth(self) -> Worth:
        """The worth by the expressions.

        Raises:
            LongTermError: if they are too long.
        """
        terms = self.terms
        left, right = _elements(self.source), _elements(self.target)
        pairs = list(dict.fromkeys(zip(left, right, strict=True)))
        floats = max((self._one(a, b) for a, b in pairs), key=WORTHS.index)
        whole = floats == EXACT or (
            not terms.fractions(left + right)
            and all(terms.written_out(a) == terms.written_out(b) for a, b in pairs)
        )
        keeps = floats in (EXACT, REASSOCIATED) and terms.stored(right) <= terms.stored(left)
        depths = [max((terms.depth(x) for x in side), key=sum) for side in (left, right)]
        known = floats != EXACT and terms.functions(left) == terms.functions(right)
        sums, ops = (sum(d[k] for d in depths) * known for k in (0, 1))
        return Worth(floats, EXACT if whole else UNBOUNDED, keeps, sums, ops)

    def _one(self, a: int, b: int) -> str:
        terms = self.terms
        if a == b:
            return EXACT
        if terms.loose(a) == terms.loose(b):
            return REASSOCIATED
        same = all(terms.written_out(a, x) == terms.written_out(b, x) for x in (False, True))
        return BOUNDED if same else UNBOUNDED

    @property
    def steps(self) -> int:
        """Roundings on the longest paths of both sides."""
        every = (_elements(self.source), _elements(self.target))
        return sum(max(self.terms.depth(x).steps for x in side) for side in every)


def _elements(outputs: Sequence[Array]) -> list[int]:
    return [x for array in outputs for x in array.reshape(-1).tolist()]


def _row_numbers(shape: tuple[int, ...]) -> Array:
    """Rows that a lookup asks for, some twice and some not at all; from the end of the table."""
    return -1 - 2 * np.arange(int(np.prod(shape))).reshape(shape)


def _rows(instance: Instance) -> set[str]:
    """Inputs that are numbers of rows."""
    found: set[str] = set()
    for side in (instance.rule.source, instance.rule.target):
        numbers = [(op, OPS[op.kind].row_numbers) for op in side]
        stack = [op.inputs[k] for op, k in numbers if k is not None]
        while stack:
            ref = stack.pop()
            if ref.op < 0:
                found.add(ref.name)
            elif OPS[side[ref.op].kind].moves:
                stack.extend(OPS[side[ref.op].kind].read(side[ref.op].inputs))
    return found


def _sides(
    instance: Instance, given: Mapping[str, Array], numbers: Numbers, stored: Stored | None = None
) -> tuple[list[Array], list[Array]]:
    """Outputs of source and target.

    Raises:
        NotTypedError: if shapes or degrees do not fit.
    """
    inputs, source, target = _evaluated(instance, given, numbers, stored)
    pairs = instance.rule.outputs
    return (
        [_read(a, inputs, source).whole for a, _ in pairs],
        [_read(b, inputs, target).whole for _, b in pairs],
    )


def _evaluated(
    instance: Instance, given: Mapping[str, Array], numbers: Numbers, stored: Stored | None
) -> tuple[dict[str, Tensor], Made, Made]:
    """Inputs, and outputs of all ops of both sides."""
    degrees, cuts = dict(instance.degrees), {n: dict(c) for n, c in instance.cuts}
    run = Run(numbers, instance.rule.parallel, Effort(MOST_STEPS))
    inputs = {name: tensor(x, degrees[name], cuts.get(name)) for name, x in given.items()}
    source, target = (
        _made(side, inputs, run, shapes, stored)
        for side, shapes in zip(
            (instance.rule.source, instance.rule.target), instance.constants, strict=True
        )
    )
    return inputs, source, target


def _made(
    side: Side, inputs: Mapping[str, Tensor], run: Run, shapes: Mapping[int, tuple[int, ...]],
    stored: Stored | None,
) -> Made:  # fmt: skip
    """Outputs of every op of a side, each marked as stored."""
    made: Made = []
    for i, op in enumerate(side):
        args = [_read(ref, inputs, made) for ref in op.inputs]
        found = apply(op, args, run, shapes.get(i))
        if stored is not None:
            tag = _order(op, args)
            found = tuple(Tensor(stored(t.data, tag), t.degrees, t.cuts) for t in found)
        made.append(found)
    return made


def _order(op: Op, args: Sequence[Tensor]) -> object:
    """A key of the sums in an operation: operations of equal key add up in the same order."""
    if not OPS[op.kind].sums:
        return None
    return op.kind, op.params, *((x.data.shape, x.data.tobytes()) for x in args)


def _read(ref: Ref, inputs: Mapping[str, Tensor], made: Made) -> Tensor:
    return inputs[ref.name] if ref.op < 0 else made[ref.op][ref.output]


def _contradicted(sides: _Written, worth: Worth, dtype: str, first: int = SEED) -> bool:
    """Whether numbers of a type contradict a worth."""
    instance, machine = sides.instance, Machine(dtype)
    whole = dtype in WHOLE
    if whole and (worth.integers != EXACT or not _of_whole_numbers(instance)):
        return False
    label = Worth(EXACT, EXACT) if whole else worth
    for kind, seed in tried(label):
        given = {
            name: _row_numbers(shape)
            if name in sides.rows
            else draw(machine.type(shape), kind, np.random.default_rng([first, seed, k]))
            for k, (name, shape) in enumerate(instance.shapes)
        }
        with np.errstate(all="ignore"):
            left, right = _sides(instance, given, machine)
            exact = label.floats == EXACT
            bounds = [None] * len(left) if exact else _bounds(sides, given, dtype, kind)
        for a, b, bound in zip(left, right, bounds, strict=True):
            wrong = unequal(a, b) if bound is None else beyond(a, b, bound, worth)
            if wrong.any():
                return True
    return False


def _of_whole_numbers(instance: Instance) -> bool:
    """Whether all ops of a rule take whole numbers."""
    every: tuple[Op, ...] = (*instance.rule.source, *instance.rule.target)
    return not any(OPS[op.kind].fractions for op in every)


def _bounds(sides: _Written, given: Mapping[str, Array], dtype: str, kind: str) -> list[Bound]:
    """For each output, the largest difference of both sides."""
    absolute = {
        name: x if name in sides.rows else np.abs(x.astype(np.float64)) for name, x in given.items()
    }
    of, every = limits(dtype), [*_elements(sides.source), *_elements(sides.target)]
    whole = 1 / of.eps if kind == "whole" and not sides.terms.fractions(every) else 0.0
    return [
        Bound(terms, of.eps, of.least_normal, of.largest, sides.steps, whole)
        for terms in _sides(sides.instance, absolute, Sizes())[0]
    ]

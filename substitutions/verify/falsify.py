"""The search for a counterexample, and its reduction to a small one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from ..effort import Effort
from ..numeric.arrays import Array, Field, NotTypedError, Reals, TooLargeError
from ..rule import Rule
from ..symbolic.expr import Atom
from ..symbolic.solve import IllTypedError, UndecidedError
from ..symbolic.types import IllFormedError
from .prove import Case, typed
from .sample import Difference, Domain, Instance, compare, draw_inputs

LARGEST = 3  # of the whole numbers in inputs
INSTANCES = 120  # that are searched for a counterexample
SEED = 20240229
MOST_SHRUNK = 96  # elements of inputs that are reduced one by one


def domain(
    rule: Rule, case: Case, effort: Effort | None = None, *, partly: bool = False
) -> Domain | None:
    """Sizes for which both sides are well-typed; None if the solver cannot say.

    partly: whether it may hold sizes for which the target is not well-typed.
    """
    try:
        return Domain(rule, typed(rule, case, effort, partly=partly), case)
    except (IllFormedError, IllTypedError, UndecidedError):
        return None


def survives(where: Domain, count: int, seed: int = 0) -> tuple[int, Difference | None]:
    """Instances tried, in the field and in the reals, and a difference found if there is one.

    An op that does not take operands which its types allow is a difference too.
    """
    tried = 0
    for i, values in enumerate(where.draws(random.Random(SEED + 1 + seed), count)):
        instance = where.instance(values)
        if instance is None:
            continue
        try:
            for numbers in (Field(7919 + i), Reals()):
                inputs = draw_inputs(instance, SEED + i, 1000)
                found = compare(instance, inputs, numbers, where.effort)
                if found:
                    return tried, found
        except TooLargeError:
            continue
        except NotTypedError as error:
            return tried, Difference(0, str(error))
        tried += 1
    return tried, None


def refute(where: Domain, count: int = INSTANCES) -> dict[str, Any] | None:
    """A counterexample over the reals, made small; None if none is found."""
    for batch, size in enumerate((count // 4, count)):
        draws = list(where.draws(random.Random(SEED + batch), size))
        draws.sort(key=lambda values: sum(values.values()))
        for i, values in enumerate(draws):
            for seed in (SEED + i, SEED - i - 1):
                if _fails(where, values, seed):
                    return _small(where, values, seed)
    return None


def _fails(where: Domain, values: Mapping[Atom, int], seed: int) -> bool:
    instance = where.instance(values)
    if instance is None:
        return False
    return _differs(where, instance, draw_inputs(instance, seed, LARGEST)) is not None


def _differs(where: Domain, instance: Instance, inputs: Mapping[str, Array]) -> Difference | None:
    try:
        return compare(instance, inputs, Reals(), where.effort)
    except NotTypedError:
        return None


def _small(where: Domain, values: dict[Atom, int], seed: int) -> dict[str, Any]:
    smaller = True
    while smaller:
        smaller = False
        for atom in where.atoms:
            for value in range(1, values[atom]):
                low = 2 if _is_degree(where, atom) else 1
                if value >= low and _fails(where, {**values, atom: value}, seed):
                    values = {**values, atom: value}
                    smaller = True
                    break
    instance = where.instance(values)
    if instance is None:
        raise AssertionError("a failing instance has shapes")
    inputs = _plain(where, instance, draw_inputs(instance, seed, LARGEST))
    found = _differs(where, instance, inputs)
    if found is None:
        raise AssertionError("a reduced counterexample still fails")
    return _record(instance, inputs, found)


def _is_degree(where: Domain, atom: Atom) -> bool:
    return any(atom in e.atoms() for _, e in where.degrees)


def _plain(where: Domain, instance: Instance, inputs: dict[str, Array]) -> dict[str, Array]:
    """Inputs with as many zeros and ones as still fail."""
    if sum(array.size for array in inputs.values()) > MOST_SHRUNK:
        return inputs
    for name, at in _places(inputs):
        old = inputs[name][at]
        for value in (0, 1):
            if old == value:
                break
            inputs[name][at] = value
            if _differs(where, instance, inputs):
                break
            inputs[name][at] = old
    return inputs


def _places(inputs: Mapping[str, Array]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, array in inputs.items():
        for i in range(array.size):
            yield name, _unravel(i, array.shape)


def _unravel(i: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found: list[int] = []
    for size in reversed(shape):
        i, rest = divmod(i, size)
        found.append(rest)
    return tuple(reversed(found))


def _record(instance: Instance, inputs: Mapping[str, Array], found: Difference) -> dict[str, Any]:
    parallel = instance.rule.parallel
    arrays = {name: (a if parallel else a[0]) for name, a in inputs.items()}
    ops = (*instance.rule.source, *instance.rule.target)
    degrees = sorted({op["degree"] for op in ops if op.get("degree", 0)})
    record: dict[str, Any] = {
        "shapes": {name: list(a.shape) for name, a in arrays.items()},
        "inputs": {name: a.tolist() for name, a in arrays.items()},
        "output": found.output,
        "difference": found.text,
    }
    if parallel:
        record["degrees"] = {name: list(d) for name, d in instance.degrees}
        record["written_degrees"] = degrees
    if found.at or found.source != found.target:
        record |= {"at": list(found.at), "source": found.source, "target": found.target}
    shapes = [{str(i): list(shape) for i, shape in side.items()} for side in instance.constants]
    if any(shapes):
        record["constants"] = {"source": shapes[0], "target": shapes[1]}
    if instance.cuts:
        record["cuts"] = {name: [list(c) for c in cuts] for name, cuts in instance.cuts}
    record["rule"] = str(instance.rule)
    return record

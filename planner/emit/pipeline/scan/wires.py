"""What neighbouring stages send each other in every round: a fixed set of arrays, the wires.

A value goes from the stage that makes it to the last one that reads it through all between, which
send it on with their own. Each value has one sharding on its way. A boundary uses those wires whose
local shape and type its values have, so that equal boundaries use all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ir import Sharding

Form = tuple[tuple[int, ...], str]  # local shape and type


@dataclass(frozen=True)
class Wires:
    """Arrays that are sent from each stage to the next, or to the one before.

    forms: of the wires.
    at: for each boundary, value -> wire.
    states: value -> its sharding on the way.
    """

    forms: tuple[Form, ...]
    at: tuple[Mapping[Any, int], ...]
    states: Mapping[Any, Sharding]


def wires_of(
    boundaries: Sequence[Sequence[Hashable]],
    forms: Mapping[Any, Form],
    states: Mapping[Any, Sharding],
) -> Wires:
    """Wires for the values that cross each boundary.

    Args:
        boundaries: values that cross each.
        forms: local shape and type of each value.
        states: sharding of each value.
    """
    most = Counter[Form]()
    for values in boundaries:
        most |= Counter(forms[v] for v in values)
    numbers: dict[Form, list[int]] = {}
    made: list[Form] = []
    for form, count in most.items():
        numbers[form] = list(range(len(made), len(made) + count))
        made += [form] * count
    at: list[dict[Any, int]] = []
    for values in boundaries:
        free = {form: iter(found) for form, found in numbers.items()}
        at.append({v: next(free[forms[v]]) for v in values})
    return Wires(tuple(made), tuple(at), states)


@dataclass(frozen=True)
class Pool:
    """Arrays in which values of several micro-batches are kept, one for each local shape and type.

    forms: of the arrays, without their first dimension.
    sizes: first dimension of each.
    places: for each stage, the (array, number among those of its micro-batch) of its values.
    counts: for each stage, how many values of a micro-batch each array holds.
    """

    forms: tuple[Form, ...]
    sizes: tuple[int, ...]
    places: tuple[tuple[tuple[int, int], ...], ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def most(self) -> tuple[int, ...]:
        """Values of a micro-batch that each array holds on the stage with most of them."""
        return tuple(max(found) for found in zip(*self.counts, strict=True))


def pool_of(values: Sequence[Sequence[Form]], slots: Sequence[int]) -> Pool:
    """A pool that is as large as the fullest stage needs.

    Args:
        values: for each stage, forms of what it keeps of a micro-batch.
        slots: for each stage, of how many micro-batches at once.
    """
    forms = tuple(dict.fromkeys(form for kept in values for form in kept))
    number = {form: k for k, form in enumerate(forms)}
    places: list[tuple[tuple[int, int], ...]] = []
    counts: list[tuple[int, ...]] = []
    for kept in values:
        seen = Counter[int]()
        found: list[tuple[int, int]] = []
        for form in kept:
            k = number[form]
            found.append((k, seen[k]))
            seen[k] += 1
        places.append(tuple(found))
        counts.append(tuple(seen[k] for k in range(len(forms))))
    sizes = tuple(
        max(count[k] * n for count, n in zip(counts, slots, strict=True)) for k in range(len(forms))
    )
    return Pool(forms, sizes, tuple(places), tuple(counts))

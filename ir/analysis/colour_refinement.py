"""Colour refinement of a flat program: which of its parts have the same surroundings.

Source: Weisfeiler and Leman, 1968; for linear programs Grohe, Kersting, Mladenov and Selman,
Dimension Reduction via Colour Refinement, ESA 2014.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Ints = NDArray[np.intp]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True)
class Incidence:
    """Who touches whom: op `op[n]` touches value `value[n]` at place `slot[n]`.

    slot: a number for the position among operands or results.
    joined: pairs of values that belong together (links, ties), with a number for how.
    """

    op: Ints
    value: Ints
    slot: Ints
    joined: Ints  # rows (value, value, how)


def refine(
    ops: Sequence[Hashable], values: Sequence[Hashable], incidence: Incidence, depth: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """First member of the class of every op and of every value.

    Args:
        ops: what must be equal of two ops of one class.
        values: the same for values.
        incidence: which op touches which value.
        depth: how far surroundings are compared [ops].
    """
    own_op, own_value = _number(ops), _number(values)
    op, value = _mixed(own_op.astype(np.uint64)), _mixed(~own_value.astype(np.uint64))
    salt = _mixed(incidence.slot.astype(np.uint64) + np.uint64(1))
    first, second, how = incidence.joined.T
    ways = _mixed(how.astype(np.uint64) + np.uint64(1 << 32))
    for _ in range(depth):
        near_op = np.zeros_like(op)
        np.add.at(near_op, incidence.op, _mixed(value[incidence.value] ^ salt))
        near = np.zeros_like(value)
        np.add.at(near, incidence.value, _mixed(op[incidence.op] ^ salt))
        np.add.at(near, first, _mixed(value[second] ^ ways))
        np.add.at(near, second, _mixed(value[first] ^ ~ways))
        op, value = _mixed(op * _STEP + near_op), _mixed(value * _STEP + near)
    return _first(own_op, op), _first(own_value, value)


def _mixed(x: Hashes) -> Hashes:
    """A good hash of every number (splitmix64)."""
    x = x + _STEP
    x = (x ^ (x >> np.uint64(30))) * _MIX[0]
    x = (x ^ (x >> np.uint64(27))) * _MIX[1]
    return x ^ (x >> np.uint64(31))


def _number(keys: Sequence[Hashable]) -> Ints:
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.intp)


def _first(own: Ints, colour: Hashes) -> tuple[int, ...]:
    """First index with the same own number and colour; the own number keeps classes exact."""
    seen: dict[tuple[int, int], int] = {}
    pairs = zip(own.tolist(), colour.tolist(), strict=True)
    return tuple(seen.setdefault(pair, i) for i, pair in enumerate(pairs))

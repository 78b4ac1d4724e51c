# pyright: basic
"""Inputs of a rule that no solver chose: random sizes and degrees, until the source takes them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from substitutions import Op, Rule
from tests.substitutions.computes import JAX, Compute
from tests.substitutions.jax_meaning import outputs
from tests.substitutions.logical_devices import Placed, RefusedError, difference, placed

LARGEST = 3  # of the whole numbers in inputs: sums of products are exact
MOST_ELEMENTS = 4096  # of an input
MOST_DEGREE = 12
MATRIX, IMAGE = (6, 4, 2, 3, 12), (5, 6, 4)
Constants = Mapping[str, Mapping[str, Sequence[int]]]


@dataclass(frozen=True)
class Tried:
    """What is computed of both sides.

    difference: how they differ; empty if they do not.
    typed: whether the target takes the inputs too.
    """

    inputs: Mapping[str, Placed]
    constants: Constants
    difference: str
    typed: bool


def tried(
    rule: Rule, rng: random.Random, tries: int, wild: bool = False, compute: Compute = JAX
) -> Iterator[Tried]:
    """Both sides on inputs that the source takes, of as many as are tried.

    Args:
        rule: what is tried.
        rng: draws sizes, degrees and values.
        tries: how many inputs are drawn.
        wild: whether sizes differ, kernels are even, channels are grouped, and inputs are divided
            where nothing asks for it; else the plainest inputs that may fit are drawn.
        compute: what computes on each device.
    """
    # Numbers on the edge of a float16 fall on either side of it, in another order of sums.
    within = 1e-2 if any(op.kind == "cast" for op in (*rule.source, *rule.target)) else 1e-7
    alone = replace(rule, target=rule.source, outputs=tuple((a, a) for a, _ in rule.outputs))
    for _ in range(tries):
        inputs = drawn(rule, rng, wild)
        if inputs is None:
            continue
        constants = shapes_of_constants(rule, rng, inputs)
        try:
            outputs(alone, inputs, {**constants, "target": constants["source"]}, compute)
        except RefusedError:
            continue
        try:
            source, target = outputs(rule, inputs, constants, compute)
        except RefusedError as error:
            yield Tried(inputs, constants, f"refused: {error}", False)
            continue
        told = [difference(a, b, within) for a, b in zip(source, target, strict=True)]
        yield Tried(inputs, constants, next((text for text in told if text), ""), True)


def drawn(rule: Rule, rng: random.Random, wild: bool) -> dict[str, Placed] | None:
    """Inputs; None if they are too large or degrees do not divide sizes."""
    ops = (*rule.source, *rule.target)
    degrees = _degrees(ops)
    kernels = {ref.name for op in ops for ref in _kernels(op) if ref.op < 0}
    chosen = rng.sample(degrees, min(len(degrees), rng.choice((1, 2, 2, 3))))
    cut = [op for op in ops if op.kind in ("partition", "combine")]
    least = math.lcm(*chosen) * math.lcm(*_written(cut))
    size = least * rng.choice((1, 2)) if rule.parallel else 4
    inputs: dict[str, Placed] = {}
    for name, rank in rule.ranks:
        held = [rng.choice(chosen) if rule.parallel else 1 for _ in range(rank + 1)]
        sizes = [rng.choice(MATRIX) if wild and rng.random() < 0.3 else size] * rank
        sizes = [rng.choice((n, n, rng.choice(MATRIX))) if wild else n for n in sizes]
        if rank == 4:
            held[3:] = (1, 1)
            channels = math.lcm(2, least)
            sizes[:2] = [rng.choice((2, channels, channels)) if wild else channels for _ in "nc"]
            sizes[2:] = _window(name in kernels, rng, wild)
        if math.prod(sizes) * held[0] > MOST_ELEMENTS:
            return None
        values = np.random.default_rng(rng.randrange(2**32))
        whole = values.integers(-LARGEST, LARGEST + 1, (held[0], *sizes))
        cuts = {i: rng.randrange(1, n) for i, n in enumerate(sizes) if n > 1}
        try:
            inputs[name] = placed(whole, held, _asked(rule, name, cuts))
        except RefusedError:
            return None
    return inputs


def _degrees(ops: Sequence[Op]) -> list[int]:
    """1, and degrees that the ops have or make of each other."""
    written = _written(ops)
    found = {1, math.prod(written), *written, *(a * b for a in written for b in written)}
    return sorted(d for d in found if d <= MOST_DEGREE)


def _written(ops: Sequence[Op]) -> list[int]:
    return sorted({op["degree"] for op in ops if op.get("degree", 0)})


def _kernels(op: Op) -> Sequence:
    return op.inputs[1:] if op.kind == "conv" else op.inputs if op.kind == "enlarge" else ()


def _window(kernel: bool, rng: random.Random, wild: bool) -> tuple[int, int]:
    if kernel:
        return rng.choice(((3, 3), (1, 1), (2, 2), (1, 3), (2, 1))) if wild else (3, 3)
    return (rng.choice(IMAGE), rng.choice(IMAGE)) if wild else rng.choice(((5, 5), (5, 5), (3, 3)))


def _asked(rule: Rule, name: str, cuts: Mapping[int, int]) -> Mapping[int, int]:
    """Cuts of the dimensions of an input that are split as they are."""
    first = 1 if rule.parallel else 0
    asked = {
        op["axis"] - first
        for op in (*rule.source, *rule.target)
        if op.kind == "split" and op.inputs[0].name == name
    }
    return {i: at for i, at in cuts.items() if i in asked}


def shapes_of_constants(rule: Rule, rng: random.Random, inputs: Mapping[str, Placed]) -> Constants:
    """Shapes that fit beside inputs of one size: those of the largest matrix or image."""
    ranked = sorted((x.local for x in inputs.values()), key=lambda s: (len(s), s))
    largest = ranked[-1]
    images = [s for s in ranked if len(s) == 4]
    found: dict[str, dict[str, Sequence[int]]] = {"source": {}, "target": {}}
    for name, side in (("source", rule.source), ("target", rule.target)):
        for i, op in enumerate(side):
            if op.kind == "ones":
                found[name][str(i)] = largest
            elif op.kind == "identity-matrix":
                found[name][str(i)] = (largest[-1], largest[-1])
            elif op.kind in ("identity-kernel", "mean-kernel"):
                channels = images[-1][1] if images else 2
                ins = rng.choice((1, channels))
                found[name][str(i)] = (channels, ins, op["kernel_h"], op["kernel_w"])
    return found

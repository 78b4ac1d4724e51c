# pyright: basic
"""Random dimensions of a program, padded to random sizes, or with those that differ by borders."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from ir import check
from ir.trace import Program
from planner.sharding.padding.bordered import Borders
from planner.sharding.padding.candidates import classes_of
from planner.sharding.padding.classified import Classified
from planner.sharding.padding.edit import padded

MOST = 2  # classes, or groups of them, that are padded, one after the other


def random_paddings(program: Program, mesh: Sequence[int], rng: random.Random) -> Program:
    """The program with up to `MOST` classes of dimensions padded.

    Args:
        program: the program.
        mesh: sizes of the axes, of which a padded size is a multiple.
        rng: decides which, and by how much.
    """
    roles = [rng.choice(("parameter", "argument")) for _ in program.graph.inputs]
    named = zip(program.graph.inputs, roles, strict=True)
    inputs = tuple(replace(x, role=role) if x.role == "argument" else x for x, role in named)
    program = replace(program, graph=replace(program.graph, inputs=inputs))
    for _ in range(rng.randint(1, MOST)):
        program = _one_more(program, mesh, rng)
    return program


def _one_more(program: Program, mesh: Sequence[int], rng: random.Random) -> Program:
    """The program with one class padded, if there is one that changes it."""
    known = Classified(program.graph)
    classes = classes_of(known)
    rng.shuffle(classes)
    axes = [n for n in mesh if n > 1] or [2]
    groups = Borders(known).groups(math.prod(axes)) if rng.random() < 0.5 else []
    rng.shuffle(groups)
    for group in groups:
        found = padded(program, group.one.padding(group.size, group.parts), known)
        check(found.graph, after="padding")
        if found.graph.nodes != program.graph.nodes:
            return found
    for one in classes:
        ways = math.prod(rng.sample(axes, rng.randint(1, len(axes))))
        size = (one.size // ways + rng.randint(1, 2)) * ways
        found = padded(program, one.padding(size), known)
        check(found.graph, after="padding")
        if found.graph.nodes != program.graph.nodes:
            return found
    return program

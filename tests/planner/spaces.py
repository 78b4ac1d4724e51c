# pyright: basic
"""The search space of a program on one mesh, with everything that fills it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel import Cluster, CollectiveModel, ComputeModel, ReshardModel
from costmodel.compiler.fusion import Traffic, analyse
from ir import Mesh
from ir.analysis.flat_program import FlatProgram
from ir.analysis.flatten import flatten
from ir.trace import Traced, trace
from planner.sharding.cost.account import Account, account
from planner.sharding.lower import Decided
from planner.sharding.problem.build import Builder
from planner.sharding.problem.facts import Facts
from planner.sharding.problem.records import Built, MenuCache
from planner.sharding.search.mesh_shapes import mesh_of
from tests.planner.programs import slow_machine


@dataclass
class Space:
    """A traced function, flat, with its problem."""

    traced: Traced
    flat: FlatProgram
    traffic: Traffic
    mesh: Mesh
    builder: Builder
    built: Built

    @property
    def outputs(self) -> list[int]:
        """Results of the program that are no literals."""
        return [v for v in self.flat.outputs if isinstance(v, int)]

    def account(self, choice: Sequence[int]) -> Account:
        return account(self.decided(choice))

    def decided(self, choice: Sequence[int]) -> Decided:
        return Decided(self.builder, self.built, tuple(choice))

    def draw(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Any option for every node, but those between others do as these ask."""
        choice = [int(rng.integers(len(cost))) for cost in self.built.problem.node_cost]
        self.builder.settle(self.built, choice)
        return tuple(choice)


def space(
    fn: Callable[..., Any],
    *args: Any,
    mesh: tuple[int, ...] = (2, 4),
    cluster: Cluster | None = None,
    donate: tuple[int, ...] = (),
) -> Space:
    """The space of `fn(*args)` without a memory limit."""
    machine = cluster or slow_machine(math.prod(mesh), profile="")
    traced = trace(fn, *args, donate_argnums=donate)
    flat = flatten(traced.graph)
    traffic, named = analyse(flat), mesh_of(mesh)
    reshard = ReshardModel(machine, named, CollectiveModel(machine))
    heads = len(traced.program.consts)
    builder = Builder(
        Facts(
            flat, tuple((a + heads, b) for a, b in traced.tied),
            frozenset(a + heads for a in traced.donated),
        ),
        MenuCache(named, reshard, ComputeModel(machine)), 1e18,
    )  # fmt: skip
    return Space(traced, flat, traffic, named, builder, builder.build())

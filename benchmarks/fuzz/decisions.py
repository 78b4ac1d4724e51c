# pyright: basic
"""Random decisions: any choice of finite cost from the planner's own problem on a random mesh."""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodel import CollectiveModel, ComputeModel, ReshardModel, parse_cluster
from ir import Mesh, Sharding, check, parse_sharding
from ir.trace import Traced
from planner.common.options import Options
from planner.common.request import Request
from planner.common.stop import Stop
from planner.pipeline.planned import in_one_program
from planner.result.plan import Plan
from planner.sharding.lower import Decided
from planner.sharding.plan_traced import One, planned, program_for
from planner.sharding.problem.build import Builder
from planner.sharding.problem.program import Program
from planner.sharding.problem.records import Built, MenuCache
from planner.sharding.search.context import Candidate
from planner.sharding.search.mesh_shapes import mesh_of
from planner.sharding.search.over_meshes import Search, SearchOutcome
from planner.solver.problem import Floats, IntraSolution
from planner.training.step_call import StepCall

# What a node of the problem is about, and the option that was chosen for it, both as text.
Told = tuple[tuple[str, str], ...]

ANY_BYTES = 1e15
TRIES = 20
MOST_DEVICES = 8
FOLLOW = (0.0, 0.5, 0.8, 0.95)  # how often an option is taken that needs no reshard


def on_axes(told: Told, names: Mapping[str, str]) -> Told:
    """What is said of some mesh axes, under other names."""

    def kept(option: str) -> str:
        if option.startswith("["):
            state = parse_sharding(option)
            dims = tuple(tuple(names[a] for a in dim if a in names) for dim in state.dims)
            waits = tuple((names[a], kind) for a, kind in state.partial if a in names)
            return str(Sharding(dims, waits))
        words = [word.split(":") for word in option.split() if ":" in word]
        return " ".join(f"{names[a]}:{role}" for a, role in words if a in names) or "whole"

    return tuple((about, kept(option)) for about, option in told)


def random_mesh(rng: random.Random) -> tuple[int, ...]:
    """Sizes of a mesh of 2 to 8 devices with one to three axes."""
    devices = rng.choice((2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 8))
    sizes: list[int] = []
    while len(sizes) < 2 and devices > 1 and rng.random() < 0.7:
        sizes.append(rng.choice([n for n in range(2, devices + 1) if devices % n == 0]))
        devices //= sizes[-1]
    if devices > 1 or not sizes:
        sizes.append(devices)
    if len(sizes) < 3 and rng.random() < 0.05:
        sizes.insert(rng.randint(0, len(sizes)), 1)
    return tuple(sizes)


@dataclass(frozen=True)
class Chosen:
    """Random decisions with all that a plan is made of."""

    program: Program
    builder: Builder
    built: Built
    choice: tuple[int, ...]
    mesh: Mesh

    @cached_property
    def decided(self) -> Decided:
        return Decided(self.builder, self.built, self.choice)

    def plan(self, traced: Traced, emission: str) -> Plan:
        """The plan that a search would make of this choice."""
        cost = self.built.problem.cost(self.choice)
        solution = IntraSolution(self.choice, cost, 0.0, Stop.GAP)
        best = Candidate("search", self.decided, solution)
        found = SearchOutcome(best, [best], {}, 0.0, Stop.GAP, {"build": 0.0, "solve": 0.0})
        machine, options = self.builder.cache.reshard.cluster, Options(emission=emission)
        search = Search(self.program, Request(machine, options))
        one = One(StepCall(lambda: None, (), (), "auto"), 1, (), (), "fuzz")
        made = in_one_program(planned(one, traced, search, found, 0.0))
        return Plan(made.file, made.bound, made.seconds)


class Chooser:
    """Draws decisions of one traced program; costs on equal meshes are worked out once."""

    def __init__(self, traced: Traced, shape: Sequence[int]) -> None:
        check(traced.graph, after="trace")
        self.mesh = mesh_of(tuple(shape))
        machine = parse_cluster(f"{self.mesh.num_devices}xh100")
        reshard = ReshardModel(machine, self.mesh, CollectiveModel(machine))
        self.program = program_for(traced, Options(), machine)
        cache = MenuCache(self.mesh, reshard, ComputeModel(machine))
        facts = self.program.facts
        self.builder = Builder(facts, cache, ANY_BYTES, self.program.outline)
        self.built = self.builder.build()
        self.settled = {node for node, _ in self.built.outline.stacks}
        self.settled |= {node for node, _ in self.built.outline.waits}
        self.near: list[list[tuple[int, Floats]]] = [[] for _ in self.built.refs]
        for edge in self.built.problem.edges:
            self.near[edge.u].append((edge.v, edge.cost))
            self.near[edge.v].append((edge.u, edge.cost.T))

    def draw(self, rng: random.Random) -> Chosen | None:
        """A choice of finite cost; None if none was met with in some tries."""
        for _ in range(TRIES):
            found = self._settled(self._choice(rng))
            if found is not None:
                return found
        return None

    def _settled(self, choice: list[int] | None) -> Chosen | None:
        if choice is None:
            return None
        self.builder.settle(self.built, choice)
        if not np.isfinite(self.built.problem.cost(choice)):
            return None
        return Chosen(self.program, self.builder, self.built, tuple(choice), self.mesh)

    # --- decisions as text ------------------------------------------------------------------

    def told(self, chosen: Chosen) -> Told:
        """The options of a choice in words that outlive the problem."""
        open_ = [n for n in range(len(self.built.refs)) if n not in self.settled]
        return tuple((self._about(n), self._option(n, chosen.choice[n])) for n in open_)

    def follow(self, told: Told) -> Chosen | None:
        """The choice that says the same of nodes that are alike, and leaves all else whole."""
        open_ = [n for n in range(len(self.built.refs)) if n not in self.settled]
        mine, theirs = [self._about(n) for n in open_], [about for about, _ in told]
        matcher = difflib.SequenceMatcher(None, mine, theirs, autojunk=False)
        wishes = {
            open_[block.a + k]: told[block.b + k][1]
            for block in matcher.get_matching_blocks()
            for k in range(block.size)
        }
        choice = [-1] * len(self.built.refs)
        for n in sorted(open_, key=lambda n: n not in wishes):
            cost = self._cost(n, choice)
            finite = np.flatnonzero(np.isfinite(cost)).tolist()
            if not finite:
                return None
            choice[n] = min(finite, key=lambda k: (self._option(n, k) != wishes.get(n), k))
        for n in self.settled:
            choice[n] = 0
        return self._settled(choice)

    def _about(self, n: int) -> str:
        ref = self.built.refs[n]
        if ref.op >= 0:
            node = self.builder.flat.ops[ref.op].node
            return f"{node.op} {', '.join(map(str, node.outputs))}"
        if ref.value < 0:
            return "result"
        value = self.builder.flat.values[ref.value]
        return f"{value.kind} {value.type}"

    def _option(self, n: int, k: int) -> str:
        ref = self.built.refs[n]
        if ref.menu:
            axes = zip(self.mesh.names, ref.menu[k].roles, strict=True)
            return " ".join(f"{axis}:{role}" for axis, role in axes if role) or "whole"
        return str(ref.states[k])

    def _cost(self, n: int, choice: Sequence[int]) -> Floats:
        """Cost of each option of a node beside the options that others have."""
        cost = self.built.problem.node_cost[n]
        for other, table in self.near[n]:
            if choice[other] >= 0:
                cost = cost + table[:, choice[other]]
        return cost

    def _choice(self, rng: random.Random) -> list[int] | None:
        follow = rng.choice(FOLLOW)
        choice = [-1] * len(self.built.refs)
        order = [n for n in range(len(choice)) if n not in self.settled]
        if rng.random() < 0.3:
            rng.shuffle(order)
        for n in order:
            cost = self._cost(n, choice)
            cost = cost - self.built.problem.node_cost[n]
            open_ = np.flatnonzero(np.isfinite(cost))
            if not len(open_):
                return None
            if rng.random() < follow:
                open_ = open_[cost[open_] <= cost[open_].min() + 1e-12]
            choice[n] = int(rng.choice(open_.tolist()))
        for n in self.settled:
            choice[n] = 0
        return choice

# pyright: basic
"""Our planner under the conditions of Alpa's tests: unit-less links, free arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel import ReshardModel, parse_cluster
from ir import FactorSpec, LoweredPlan, Mesh, Sharding, lookup
from ir.analysis import Classes, Kinds
from ir.analysis.flatten import flatten
from ir.strategy import Strategy
from ir.trace import Traced, trace
from planner.sharding.cost.account import Account, account
from planner.sharding.lower import Decided
from planner.sharding.problem.build import Builder
from planner.sharding.problem.facts import Facts
from planner.sharding.problem.program import roles_of
from planner.sharding.problem.records import Built, Limits, MenuCache
from planner.sharding.problem.restricted import Cuts, within
from planner.sharding.search.baselines import Recipes
from planner.sharding.search.mesh_shapes import mesh_of
from planner.solver.problem import IntraSolution
from planner.solver.solve import solve

HEAVY = ("contraction", "convolution")
# No plan comes near; `inf` times no price would be no number.
UNLIMITED_BYTES = 1e18


@dataclass(frozen=True)
class Links:
    """Alpa's prices on a mesh of two dimensions: alpha + beta * bytes, without units.

    Stands in for a `CollectiveModel`. The second dimension lies inside hosts and the first
    across them, so that the group of a collective says which dimensions it runs over. What Alpa
    does not have (permutes) or a test of it forbids (all-gathers, some of them) is infinite.
    """

    alpha: tuple[float, float] = (1.0, 1.0)
    beta: tuple[float, float] = (1.0, 1.0)
    gathers: bool = True

    def all_reduce(self, full_bytes: float, n: int, dim: int) -> float:
        return self._price("all-reduce", n, dim, full_bytes)

    def all_gather(self, full_bytes: float, n: int, dim: int) -> float:
        return self._price("all-gather", n, dim, full_bytes)

    def all_to_all(self, full_bytes: float, n: int, dim: int) -> float:
        """Of a tensor of `full_bytes` on all devices together."""
        return self._price("all-to-all", n, dim, full_bytes / n)

    def within_host(self, group: Any) -> bool:
        """Whether products in parts may run there, which Alpa does not have."""
        return False

    def copy_s(self, group: Any, size: Any) -> Any:
        """Of a product in parts, which Alpa does not have."""
        return np.full(np.shape(size), np.inf)

    permute_s = copy_s  # nor has it permutes

    def _price(self, kind: str, n: int, dim: int, size: Any) -> Any:
        alpha, beta, share = self.alpha[dim], self.beta[dim], (n - 1) / n
        if kind == "all-gather" and self.gathers:
            return alpha + beta * share * size + 0.1
        if kind == "all-reduce":
            return alpha + 2 * beta * share * size + 0.01
        if kind == "reduce-scatter":
            return alpha + beta * share * size + 0.001
        if kind == "all-to-all":  # n / 2 is Alpa's penalty; `size` is what one device holds
            return alpha + beta * share * size * n / 2 + 0.001
        return size + np.inf

    def seconds(self, kind: str, group: Any, full_bytes: Any) -> Any:
        """As `CollectiveModel.seconds`; over both dimensions one after the other."""
        sides = ((0, group.hosts), (1, group.per_host))
        return sum(self._price(kind, n, dim, full_bytes) for dim, n in sides if n > 1)


class NoCompute:
    """Stands in for a `ComputeModel`: all strategies split the work evenly, so it cancels."""

    launch_s = 0.0
    transcendental_flops = 1.0
    cluster = parse_cluster("1xh100")
    device = cluster.device  # takes no new memory

    def gemm_s(self, batch: Any, m: Any, n: Any, k: Any, dtype: str) -> Any:
        return np.zeros(np.broadcast_shapes(*(np.shape(x) for x in (batch, m, n, k))))

    def flops_s(self, flops: Any, dtype: str) -> Any:
        return np.zeros(np.shape(flops))

    def convolution_s(self, groups: Any, m: Any, n: Any, k: Any, dtype: str, **_: Any) -> Any:
        return np.zeros(np.broadcast_shapes(*(np.shape(x) for x in (groups, m, n, k))))

    def moving_s(self, op: str, moved_bytes: Any) -> None:
        return None

    def memory_s(self, moved_bytes: Any) -> Any:
        return np.zeros(np.shape(moved_bytes))


@dataclass(frozen=True)
class Step:
    """A function with its arguments (shapes suffice) and what is donated."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()

    def trace(self) -> Traced:
        return trace(self.fn, *self.args, donate_argnums=self.donate, roles=self.roles)


@dataclass(frozen=True)
class Solved:
    """A solved step on one mesh."""

    traced: Traced
    mesh: Mesh
    reshard: ReshardModel
    builder: Builder
    built: Built
    solution: IntraSolution
    plan: LoweredPlan
    account: Account

    def counts(self) -> dict[str, float]:
        """Runs of each kind of collective."""
        found: dict[str, float] = {}
        for row in self.account.collectives:
            found[row.kind] = found.get(row.kind, 0) + row.count
        return dict(sorted(found.items()))

    @property
    def all_reduces(self) -> float:
        """All-reduces, where a reduce-scatter and an all-gather together are one."""
        found = self.counts()
        halves = found.get("reduce-scatter", 0) + found.get("all-gather", 0)
        return found.get("all-reduce", 0) + halves / 2

    def sharding(self, name: str) -> str:
        """State of the argument of that name."""
        names = [item.name for item in self.traced.graph.inputs]
        return str(self.plan.arguments[names.index(name)])


class Setting:
    """A step on a mesh of two dimensions with Alpa's prices."""

    def __init__(self, step: Step, shape: tuple[int, int], links: Links) -> None:
        self.traced = step.trace()
        self.mesh = mesh_of(tuple(size for size in shape if size > 1))
        machine = replace(
            parse_cluster("8xh100"), num_devices=shape[0] * shape[1], devices_per_host=shape[1],
            domain=shape[1],
        )  # fmt: skip
        prices: Any = links
        self.reshard = ReshardModel(machine, self.mesh, prices)
        graph = self.traced.graph
        self.flat = flatten(graph)
        free: Any = NoCompute()
        heads = len(self.traced.program.consts)
        self.builder = Builder(
            Facts(
                self.flat, tuple((a + heads, b) for a, b in self.traced.tied),
                frozenset(a + heads for a in self.traced.donated),
            ),
            MenuCache(self.mesh, self.reshard, free), UNLIMITED_BYTES,
        )  # fmt: skip
        self.roles = roles_of([item.role for item in graph.inputs], self.flat)

    def busy(self, i: int, menu: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        """Products split over as many devices as their sizes allow, as Alpa demands."""
        if lookup(self.flat.ops[i].node.op).family not in HEAVY:
            return menu
        most = max((self._used(s) for s in menu), default=0)
        return tuple(s for s in menu if self._used(s) == most)

    def _used(self, strategy: Strategy) -> int:
        ways = zip(self.mesh.sizes, strategy.roles, strict=True)
        return int(np.prod([n for n, role in ways if role and not role.startswith("@")]))

    def recipe(self, name: str) -> Limits:
        """The limits of a hand-written plan; of several, that with the last axis for tensors."""
        specs = [self.builder.spec(op) for op in self.flat.ops]
        roles = self.roles
        kinds = Kinds(Classes(self.flat, specs), specs, roles.batch, roles.parameters, roles.states)
        maker = Recipes(self.builder, kinds, roles)
        found = maker.recipes(every=True)
        return [maker.limits(recipe) for recipe in found if recipe.name == name][-1]

    def solve(
        self,
        *,
        recipe: str = "",
        pins: Sequence[tuple[str, str]] = (),
    ) -> Solved:
        """The cheapest plan.

        Args:
            recipe: only plans within this hand-written one.
            pins: (name of an argument or "result k", sharding it must have).
        """
        base = self.recipe(recipe) if recipe else Limits()
        names = {f"result {k}": -1 - k for k in range(len(self.flat.outputs))}
        names |= {
            i.name: v for i, v in zip(self.traced.graph.inputs, self.flat.inputs, strict=True)
        }
        fixed = {names[name]: text for name, text in pins}

        def op(i: int, spec: FactorSpec, menu: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
            return self.busy(i, menu if base.op is None else base.op(i, spec, menu))

        def state(v: int, sharding: Sharding) -> bool:
            if base.state is not None and not base.state(v, sharding):
                return False
            return v not in fixed or str(sharding) == fixed[v]

        built = self.builder.build()
        left = within(built, self.builder.facts, Limits(op, state), Cuts())
        solution = left.lifted(solve(left.problem(UNLIMITED_BYTES)))
        decided = Decided(self.builder, built, solution.choice)
        return Solved(
            self.traced,
            self.mesh,
            self.reshard,
            self.builder,
            built,
            solution,
            decided.plan,
            account(decided),
        )

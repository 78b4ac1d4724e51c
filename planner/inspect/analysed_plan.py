"""Explains a plan: the alternatives of a tensor or op, and the cost of each."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from costmodel import Cluster, CollectiveModel, ComputeModel, ReshardModel
from ir import Graph, IRError, parse
from ir.analysis import Decisions, FlatProgram, Kinds, Specs, flatten

from ..common.errors import PlanError
from ..common.pins import is_called
from ..common.resolved_pins import Wishes
from ..files.check import wishes_of
from ..files.program_plan import ProgramPlan, decisions_of
from ..sharding.cost.account import Account, account
from ..sharding.lower import Decided
from ..sharding.problem.build import Builder
from ..sharding.problem.facts import Facts
from ..sharding.problem.program import Program, kinds_of, roles_of
from ..sharding.problem.records import Built, MenuCache
from ..sharding.problem.restricted import Cuts, within
from ..sharding.search.pinned import wished
from ..solver.problem import Edge, Floats
from .again import products_again
from .cost_changes import changes
from .expert_products import EXPERTS, by_most, of_one_factor, split_of, split_text, words_of
from .explanation import MOST_SHOWN, Alternative, Explanation, Matches, Overview
from .other_options import Instead, Solved

MOST_REASONS = 2


class AnalysedPlan:
    """A plan with its problem, choice and account, rebuilt from the plan file."""

    def __init__(
        self, program: ProgramPlan, decisions: Decisions, cluster: Cluster, where: str
    ) -> None:
        self.program, self.decisions, self.cluster, self.where = program, decisions, cluster, where

    @cached_property
    def graph(self) -> Graph:
        """The graph of the plan file.

        Raises:
            PlanError: if its text is malformed.
        """
        try:
            return parse(self.program.graph)
        except IRError as error:
            raise PlanError(
                f"its graph is malformed: {error}", kind="plan-file", where=self.where,
                remedy="make the plan again",
            ) from error  # fmt: skip

    @cached_property
    def flat(self) -> FlatProgram:
        return flatten(self.graph)

    @cached_property
    def reshard(self) -> ReshardModel:
        """Paths between states, as the plan was priced with them."""
        collectives, room = CollectiveModel(self.cluster), self.program.room_bytes
        return ReshardModel(self.cluster, self.decisions.mesh, collectives, room)

    @cached_property
    def builder(self) -> Builder:
        cache = MenuCache(self.decisions.mesh, self.reshard, ComputeModel(self.cluster))
        heads = sum(role == "constant" for role in self.program.roles)
        donated = frozenset(heads + a for a in self.program.donated)
        alone = self.cluster.num_devices == 1
        facts = Facts(self.flat, self.program.ties, donated, alone=alone)
        program = self.program
        return Builder(
            facts, cache, program.limit_bytes, overlap=program.overlap,
            in_parts=program.collective_matmul,
        )  # fmt: skip

    def searched(self, wishes: Wishes) -> Program:
        """The program, to be searched with wishes."""
        return Program(self.builder.facts, roles_of(self.program.roles, self.flat), wishes)

    @cached_property
    def kinds(self) -> Kinds:
        """Kinds of dimensions: batch, sequence, experts."""
        roles = roles_of(self.program.roles, self.flat)
        return kinds_of(self.flat, self.specs, roles)

    @cached_property
    def specs(self) -> Specs:
        """Factors of the ops."""
        return Specs(self.flat)

    @cached_property
    def built(self) -> Built:
        return self.builder.build()

    @cached_property
    def choice(self) -> tuple[int, ...]:
        """The plan as a choice of the rebuilt problem.

        Raises:
            PlanError: if this version's problem does not have a decision of the plan.
        """
        flat, built = self.flat, self.built
        places = {flat.ops[i].place: node for i, node in built.op_node.items()}
        choice = [0] * built.problem.size
        for place, roles in self.decisions.ops.items():
            node = places.get(place)
            menu = () if node is None else built.refs[node].menu
            found = [k for k, s in enumerate(menu) if s.roles == roles]
            if node is None or not found:
                raise self._foreign(f"the op at {place} with roles {roles}")
            choice[node] = found[0]
        for key, state in self.decisions.values.items():
            v = flat.names.get(key)
            if v in flat.stacked:  # its slices decide
                v, state = flat.stacked[v], state.sliced()
            if v is not None and v in built.value_node:
                node = built.value_node[v]
                if state not in built.refs[node].states:
                    raise self._foreign(f"value {key} as {state}")
                choice[node] = built.refs[node].states.index(state)
        for position, node in built.out_node.items():
            state = self.decisions.outputs[position]
            if state not in built.refs[node].states:
                raise self._foreign(f"result {position} as {state}")
            choice[node] = built.refs[node].states.index(state)
        self.builder.settle(built, choice)
        return tuple(choice)

    @cached_property
    def decided(self) -> Decided:
        """The problem with the plan's choice."""
        return Decided(self.builder, self.built, self.choice)

    @cached_property
    def account(self) -> Account:
        """Every collective, second and byte of the plan."""
        return account(self.decided)

    def _foreign(self, what: str) -> PlanError:
        return PlanError(
            f"{what} is not in this planner's space", kind="plan-file", where=self.where,
            remedy="make the plan again",
        )  # fmt: skip

    # --- finding --------------------------------------------------------------------------

    def nodes_called(self, what: str) -> list[tuple[str, int]]:
        """(name, node) of matching arguments (by name) and ops (by name, place or source line).

        Raises:
            PlanError: if nothing matches.
        """
        flat, built = self.flat, self.built
        found: list[tuple[str, int]] = []
        for v in flat.inputs:
            name = flat.values[v].name
            if is_called(name, what) or name.endswith(f"/{what}"):
                found.append((name, built.value_node[v]))
        for i, node in built.op_node.items():
            op = flat.ops[i]
            place = "/".join(map(str, op.place))
            if what in (op.node.op, f"{op.node.op}@{place}", op.node.source):
                source = f" ({op.node.source})" if op.node.source else ""
                found.append((f"{op.node.op}@{place}{source}", node))
        if not found:
            raise self._unknown(what)
        return found

    def _unknown(self, what: str) -> PlanError:
        names = [self.flat.values[v].name for v in self.flat.inputs]
        near = difflib.get_close_matches(what, names, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        return PlanError(
            f"nothing is called '{what}'", kind="unknown-name", where=self.where,
            remedy=f"{hint}use an argument's name such as {', '.join(names[:8])}, an op such as "
            "dot_general, or a source line such as model.py:12",
        )  # fmt: skip

    # --- explaining -----------------------------------------------------------------------

    def explain(self, what: str, alternatives: int) -> str:
        return str(self.reason(what, alternatives))

    def reason(self, what: str, alternatives: int = 6) -> Matches | Overview:
        """Explains the tensors and ops of a name; the whole plan if `what` is empty.

        `experts` is the name of all products of experts together.

        Raises:
            PlanError: if nothing in the program has this name.
        """
        if not what:
            chosen = self.program.recomputed is not None
            again = tuple(products_again(self.decided, chosen=chosen))
            return Overview(self.account, self.program, again)
        if what == EXPERTS and (experts := self._experts()) is not None:
            return Matches((experts,), ())
        found = self.nodes_called(what)
        return Matches(
            tuple(self._node(name, node, alternatives) for name, node in found[:MOST_SHOWN]),
            tuple(name for name, _ in found[MOST_SHOWN:]),
        )

    def option(self, node: int, k: int) -> str:
        """Text of one option of a node."""
        ref = self.built.refs[node]
        if ref.menu:
            strategy = ref.menu[k]
            roles = [
                f"{axis} splits {role}" if not role.startswith("@") else f"{axis} stays partial"
                for axis, role in zip(self.decisions.mesh.names, strategy.roles, strict=True)
                if role
            ]
            split = split_of(self.words(ref.op), strategy.roles, self.decisions.mesh)
            more = f" ({split_text(split)})" if split else ""
            return (", ".join(roles) or "whole on every device") + more
        return str(ref.states[k])

    def _node(self, name: str, node: int, alternatives: int) -> Explanation:
        """Explains a node.

        Alternatives are ranked by their cost with all other choices fixed; the cheapest are then
        solved, and so is the plan's own option. Of products of experts those are solved too in
        which all devices split one factor, such as features.
        """
        problem, chosen = self.built.problem, self.choice[node]
        ref = self.built.refs[node]
        factors = str(self.builder.spec(self.flat.ops[ref.op])) if ref.op >= 0 else ""
        direct = self.direct_costs(node)
        others = sorted(
            (k for k in range(len(direct)) if k != chosen), key=lambda k: (direct[k], k)
        )
        modes: set[int] = set()
        if alternatives and ref.op >= 0:
            modes.update(of_one_factor(ref.menu, self.words(ref.op), self.decisions.mesh))
        ranked = [k for n, k in enumerate(others) if n < alternatives or k in modes]
        base = self._instead.base(node) if ranked else self._as_planned
        sums = self.account if base.choice == self.choice else self._account_of(base)
        solved = [self._with(node, k, base, sums) for k in ranked]
        solved.sort(key=lambda a: float("inf") if a.added_s is None else a.added_s)
        return Explanation(
            name, self.option(node, chosen), self._forced(node), factors,
            float(problem.usage[node][chosen]), tuple(solved), len(direct) - 1 - len(ranked),
            self._as_planned.cost - base.cost, self._gap,
        )  # fmt: skip

    def words(self, i: int) -> Mapping[str, str]:
        """What the factors of an op are if it is a product of experts, else nothing."""
        return words_of(self.flat, i, self.specs.of(self.flat.ops[i]), self.kinds)

    def _experts(self) -> Explanation | None:
        """All products of experts at once: split as the plan has it, or all by one of their kinds.

        Each kind is split by as many devices as it can be, and what else is split is solved anew.
        """
        menus = {
            node: (words, self.built.refs[node].menu)
            for i, node in self.built.op_node.items() if (words := self.words(i))
        }  # fmt: skip
        if not menus:
            return None
        mesh, found = self.decisions.mesh, list[Alternative]()
        for what in sorted({word for words, _ in menus.values() for word in words.values()}):
            kept = {n: by_most(menu, words, what, mesh) for n, (words, menu) in menus.items()}
            other = self._instead.among(kept)
            text = f"all by {what}, over as many devices as possible"
            found.append(
                Alternative(text) if other is None
                else self._compared(text, other, self._as_planned, self.account)
            )  # fmt: skip
        found.sort(key=lambda a: float("inf") if a.added_s is None else a.added_s)
        ways = {
            split_text(split_of(words, menu[self.choice[node]].roles, mesh))
            for node, (words, menu) in menus.items()
        }
        memory = sum(float(self.built.problem.usage[n][self.choice[n]]) for n in menus)
        return Explanation(
            f"experts, {len(menus)} products", "; ".join(sorted(ways)), "", "", memory,
            tuple(found), 0, 0.0, self._gap,
        )  # fmt: skip

    def _forced(self, node: int) -> str:
        """Text of the pins and forbidden dimensions of an argument."""
        names = [
            self.flat.values[v].name for v in self.flat.inputs if self.built.value_node[v] == node
        ]
        pins = [f"pinned as {spec} by '{p}'" for p, spec in self.program.pins if _any(names, p)]
        whole = [
            f"dimension {dim} is kept whole by '{p}'"
            for p, dim in self.program.forbidden
            if _any(names, p)
        ]
        return ", ".join((*pins, *whole, *self._asked(node)))

    def _asked(self, node: int) -> Iterator[str]:
        """Texts of the program's own shardings of a node's values."""
        for v, asked in (*self._wishes.inside.items(), *self._wishes.results.items()):
            end = None if v < 0 else self.built.outline.ends[v]
            made = self.built.out_node[-1 - v] if v < 0 else end.node if end else -1
            if made == node:
                yield f"pinned as {asked.pin.pattern} by {asked.where}"

    @cached_property
    def _wished(self) -> dict[int, Floats]:
        """Node -> costs of its options [s], infinite for those that pins exclude."""
        built, limits = self.built, wished(self._wishes, self.flat, self.decisions.mesh)
        found: dict[int, Floats] = {}
        for node, kept in enumerate(within(built, self.builder.facts, limits, Cuts()).kept):
            if kept is not None:
                found[node] = np.full(len(built.problem.node_cost[node]), np.inf)
                found[node][kept] = built.problem.node_cost[node][kept]
        return found

    @cached_property
    def _wishes(self) -> Wishes:
        return wishes_of(self.program, self.flat)

    def direct_costs(self, node: int) -> Floats:
        """Cost of each option of a node with all other choices fixed [s]."""
        problem, choice = self.built.problem, self.choice
        cost = problem.node_cost[node].copy()
        over: dict[int, Floats] = {
            w: np.full(len(cost), seconds) for w, seconds in problem.excess(choice).items()
        }
        for edge in problem.edges:
            if node not in (edge.u, edge.v):
                continue
            cost += _of_node(edge.cost, edge, node, choice)
            if edge.hidden is not None:
                hidden = _of_node(edge.hidden.seconds, edge, node, choice)
                over[edge.hidden.window] += hidden - hidden[choice[node]]
        for work in problem.work:
            if work.node == node and work.window in over:
                over[work.window] -= work.seconds - work.seconds[choice[node]]
        was = sum(max(0.0, seconds) for seconds in problem.excess(choice).values())
        return cost + sum((np.maximum(each, 0.0) for each in over.values()), np.zeros(1)) - was

    @cached_property
    def _instead(self) -> Instead:
        return Instead(self.built.problem, self.choice, self._wished)

    @cached_property
    def _as_planned(self) -> Solved:
        cost = self.built.problem.cost(self.choice)
        return Solved(self.choice, cost, cost)

    @property
    def _gap(self) -> float:
        step_s = self.program.step_s
        return max(0.0, 1.0 - self.program.lower_bound_s / step_s) if step_s > 0 else 0.0

    def _account_of(self, solved: Solved) -> Account:
        return account(Decided(self.builder, self.built, solved.choice))

    def _with(self, node: int, k: int, base: Solved, sums: Account) -> Alternative:
        """Another option of a node compared with a base, whose account is `sums`."""
        text, other = self.option(node, k), self._instead.other(node, k, base)
        return Alternative(text) if other is None else self._compared(text, other, base, sums)

    def _compared(self, text: str, other: Solved, base: Solved, sums: Account) -> Alternative:
        """A solution compared with a base, whose account is `sums`."""
        found, least_s = self._account_of(other), self._instead.resolution_s(other, base)
        because = tuple(
            change
            for change in changes(sums.collectives, found.collectives, MOST_REASONS)
            if abs(change.added_s) > least_s
        )
        added_s, extra = other.cost - base.cost, found.peak_bytes - sums.peak_bytes
        added_s = added_s if abs(added_s) > least_s else 0.0
        return Alternative(text, added_s, extra, other.gap, because)


def _of_node(table: Floats, edge: Edge, node: int, choice: Sequence[int]) -> Floats:
    """Entries of an edge's table for each option of one of its nodes, the other end as chosen."""
    if edge.u == edge.v:
        return np.diagonal(table)
    return table[:, choice[edge.v]] if edge.u == node else table[choice[edge.u]]


def _any(names: Sequence[str], pattern: str) -> bool:
    return any(is_called(name, pattern) for name in names)


def analyse_plan(program: ProgramPlan, where: str) -> AnalysedPlan:
    """The analysed plan of a program, on the cluster that the plan names.

    Raises:
        PlanError: if a sharding or a mesh in it is malformed.
        ProfileError: if its cluster is malformed.
    """
    cluster = Cluster.from_dict(program.cluster, where=where)
    return AnalysedPlan(program, decisions_of(program, where), cluster, where)

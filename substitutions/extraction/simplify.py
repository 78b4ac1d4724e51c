"""Makes an e-graph smaller without changing what its best extraction costs.

* What cannot be built, needs itself, or is not reached from a root is dropped.
* A node is dropped if another of its class costs no more and needs no more. `implied(c)` is what
  every way to build c needs: with a node for f(c), needing c is needing all of it.
* A class that every extraction needs becomes a root, and the edges to it are dropped where they
  are on no cycle; if it has one node, its cost is counted now.
* A free class with one node is skipped; a class that only one class uses is built into its user.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .egraph import EGraph, ENode, components

# Passes over the graph; each does all steps once, and few graphs need more than ten.
MOST_PASSES = 100
MOST_COMPARED = 200  # nodes of one class that are compared with each other


@dataclass(frozen=True, slots=True)
class Simplified:
    """A smaller e-graph; `parts` are the nodes of the old one that each node stands for.

    base: cost and nodes that every extraction has.
    """

    graph: EGraph
    parts: tuple[frozenset[int], ...]
    base_cost: float
    base: frozenset[int]
    possible: bool = True

    def lift(self, chosen: Iterable[int]) -> frozenset[int]:
        """The nodes of the old e-graph behind chosen nodes of the new one."""
        return self.base.union(*(self.parts[i] for i in chosen))


@dataclass(slots=True)
class _Node:
    owner: int
    cost: float
    below: set[int]
    parts: frozenset[int]


@dataclass(slots=True)
class _State:
    members: list[list[_Node]]
    roots: set[int]
    base_cost: float = 0.0
    base: set[int] = field(default_factory=set[int])

    def nodes(self) -> list[_Node]:
        return [node for group in self.members for node in group]


def simplify(graph: EGraph, passes: int = MOST_PASSES) -> Simplified:
    """The e-graph after all steps, repeated until none helps or `passes` is reached."""
    members: list[list[_Node]] = [[] for _ in range(graph.classes)]
    for i, node in enumerate(graph.nodes):
        fresh = _Node(node.owner, node.cost, set(node.children), frozenset((i,)))
        members[node.owner].append(fresh)
    state = _State(members, set(graph.roots))
    before = None
    for _ in range(passes):
        if not _drop_impossible(state):
            return Simplified(graph, (), 0.0, frozenset(), possible=False)
        _drop_unreached(state)
        after = _size(state)
        if after == before:
            break
        before = after
        implied = _implied(state)
        _drop_dominated(state, implied)
        _pay_forced(state, implied)
        _skip_free(state)
        _build_in(state)
    return _result(state)


def _size(state: _State) -> tuple[int, int, int]:
    nodes = state.nodes()
    return len(nodes), sum(len(node.below) for node in nodes), len(state.roots)


def _drop_impossible(state: _State) -> bool:
    """Drops nodes that no acyclic extraction has; whether the roots can be built."""
    uses: dict[int, list[_Node]] = {}
    waits: dict[int, int] = {}
    ready: list[_Node] = []
    for node in state.nodes():
        waits[id(node)] = len(node.below)
        if not node.below:
            ready.append(node)
        for c in node.below:
            uses.setdefault(c, []).append(node)
    built: set[int] = set()
    while ready:
        owner = ready.pop().owner
        if owner in built:
            continue
        built.add(owner)
        for node in uses.get(owner, ()):
            waits[id(node)] -= 1
            if not waits[id(node)]:
                ready.append(node)
    for c, group in enumerate(state.members):
        state.members[c] = [n for n in group if n.below <= built and c not in n.below]
    return state.roots <= built


def _drop_unreached(state: _State) -> None:
    seen, work = set(state.roots), list(state.roots)
    while work:
        for node in state.members[work.pop()]:
            for child in node.below - seen:
                seen.add(child)
                work.append(child)
    for c in range(len(state.members)):
        if c not in seen:
            state.members[c] = []


def _implied(state: _State) -> list[set[int]]:
    """Per class, classes that every way to build it needs, itself among them.

    Grows from below for a few rounds; every round is right, the last need not be all.
    """
    found = [{c} for c in range(len(state.members))]
    for _ in range(3):
        changed = False
        for c, group in enumerate(state.members):
            ways = [set[int]().union(*(found[d] for d in node.below)) for node in group]
            both = ways[0].intersection(*ways[1:]) if ways else set[int]()
            if not both <= found[c]:
                found[c] = found[c] | both
                changed = True
        if not changed:
            break
    return found


def _drop_dominated(state: _State, implied: list[set[int]]) -> None:
    for c, group in enumerate(state.members):
        if not 1 < len(group) <= MOST_COMPARED:
            continue
        group = sorted(group, key=lambda n: (n.cost, len(n.below)))
        whole = [set[int]().union(*(implied[d] for d in node.below)) for node in group]
        kept: list[int] = []
        for i in range(len(group)):
            if not any(group[j].below <= whole[i] for j in kept):
                kept.append(i)
        state.members[c] = [group[i] for i in kept]


def _pay_forced(state: _State, implied: list[set[int]]) -> None:
    state.roots = set[int]().union(*(implied[root] for root in state.roots))
    part = components(_graph(state, list(range(len(state.members)))))
    size: dict[int, int] = {}
    for number in part:
        size[number] = size.get(number, 0) + 1
    for node in state.nodes():
        node.below = {d for d in node.below if d not in state.roots or part[d] == part[node.owner]}
    for c in sorted(state.roots):
        group = state.members[c]
        if len(group) == 1 and size[part[c]] == 1:
            state.base_cost += group[0].cost
            state.base |= group[0].parts
            state.roots |= group[0].below
            state.roots.discard(c)
            state.members[c] = []


def _skip_free(state: _State) -> None:
    """Replaces classes with one node of no cost by what they need."""
    uses = _uses(state)
    for c, group in enumerate(state.members):
        if len(group) != 1 or group[0].cost or c in state.roots or c in group[0].below:
            continue
        for node in uses.pop(c, []):
            node.below = (node.below - {c}) | group[0].below
            node.parts = node.parts | group[0].parts
            for d in group[0].below:
                uses.setdefault(d, []).append(node)
        state.members[c] = []


def _build_in(state: _State) -> None:
    """Builds classes that one class uses into it: one node into all users, or all into one."""
    uses = _uses(state)
    touched: set[int] = set()
    for c, group in enumerate(state.members):
        users = uses.get(c, [])
        owners = {node.owner for node in users}
        if c in state.roots or len(owners) != 1 or c in owners or touched & {c, *owners}:
            continue
        if (len(group) > 1 and len(users) > 1) or not group:
            continue
        owner = owners.pop()
        touched |= {c, owner}
        kept = [node for node in state.members[owner] if c not in node.below]
        for user in users:
            kept += [
                _Node(
                    owner,
                    user.cost + node.cost,
                    (user.below - {c}) | node.below,
                    user.parts | node.parts,
                )
                for node in group
            ]
        state.members[owner] = kept
        state.members[c] = []


def _uses(state: _State) -> dict[int, list[_Node]]:
    found: dict[int, list[_Node]] = {}
    for node in state.nodes():
        for c in node.below:
            found.setdefault(c, []).append(node)
    return found


def _graph(state: _State, number: list[int]) -> EGraph:
    nodes = tuple(
        ENode(number[n.owner], n.cost, tuple(sorted(number[d] for d in n.below)))
        for n in state.nodes()
    )
    roots = tuple(sorted(number[root] for root in state.roots)) or (0,)
    return EGraph(max(1, len(set(number))), nodes, roots)


def _result(state: _State) -> Simplified:
    kept = [c for c, group in enumerate(state.members) if group]
    number = [-1] * len(state.members)
    for i, c in enumerate(kept):
        number[c] = i
    nodes = state.nodes()
    made = tuple(
        ENode(number[n.owner], n.cost, tuple(sorted(number[d] for d in n.below))) for n in nodes
    )
    roots = tuple(sorted(number[root] for root in state.roots))
    if not roots:  # all is paid: one free class stands for the answer
        made, roots = (ENode(0, 0.0),), (0,)
        return Simplified(
            EGraph(1, made, roots), (frozenset(),), state.base_cost, frozenset(state.base)
        )
    parts = tuple(n.parts for n in nodes)
    return Simplified(EGraph(len(kept), made, roots), parts, state.base_cost, frozenset(state.base))

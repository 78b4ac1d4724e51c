"""Seeded random instances of the intra-op problem, small enough to try every choice."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from planner.solver.problem import Edge, Floats, Hidden, IntraProblem, Work

SHAPES = ("chain", "tree", "cycle", "grid", "random", "apart")
LIMITS = ("loose", "middling", "tight", "least", "short")

Pair = tuple[int, int]


def pairs_of(shape: str, n: int, rng: np.random.Generator) -> list[Pair]:
    """Pairs of nodes that an instance joins."""
    if shape == "chain":
        return [(v, v + 1) for v in range(n - 1)]
    if shape == "tree":
        return [(int(rng.integers(v)), v) for v in range(1, n)]
    if shape == "cycle":
        return [(v, (v + 1) % n) for v in range(n)] if n > 2 else []
    if shape == "grid":
        wide = max(1, round(n**0.5))
        across = [(v, v + 1) for v in range(n - 1) if (v + 1) % wide]
        return across + [(v, v + wide) for v in range(n - wide)]
    if shape == "random":
        return [pair for pair in itertools.combinations(range(n), 2) if rng.random() < 0.5]
    return []


def _costs(rng: np.random.Generator, shape: tuple[int, ...], style: int, scale: float) -> Floats:
    """Costs: real numbers, whole numbers with many ties, all equal, or with forbidden ones."""
    if style == 1:
        found = rng.integers(0, 4, shape).astype(np.float64)
    elif style == 2:
        found = np.ones(shape)
    else:
        found = rng.random(shape) * 10 ** rng.uniform(-2, 1)
    if style == 3:
        found[rng.random(shape) < 0.25] = np.inf
    return found * scale


def instance(
    seed: int, *, nodes: tuple[int, int] = (3, 9), most: int = 4096, memory: bool = True
) -> IntraProblem:
    """A random instance.

    Args:
        seed: the same seed gives the same instance.
        nodes: least and largest number of nodes.
        most: no more choices than this.
        memory: whether there is a limit that may bind.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(nodes[0], nodes[1] + 1))
    sizes = rng.integers(2, 5, n)
    sizes[rng.random(n) < 0.1] = 1
    while np.prod(sizes) > most:
        sizes[int(np.argmax(sizes))] -= 1
    style, scale = int(rng.integers(4)), float(rng.choice([1.0, 1e-6]))
    costs = tuple(_costs(rng, (int(k),), style, scale) for k in sizes)
    pairs = pairs_of(str(rng.choice(SHAPES)), n, rng)
    pairs += [pairs[int(i)] for i in rng.integers(0, len(pairs), 1)] if len(pairs) > 2 else []
    pairs += [(int(v), int(v)) for v in rng.integers(0, n, 1)] if n and rng.random() < 0.3 else []
    edges: list[Edge] = []
    for u, v in pairs:
        a, b = (v, u) if rng.random() < 0.3 else (u, v)
        edges.append(Edge(a, b, _costs(rng, (int(sizes[a]), int(sizes[b])), style, scale)))
    usage = tuple(rng.integers(0, 20, int(k)).astype(np.float64) for k in sizes)
    starts = rng.integers(0, 6, n)
    ends = starts + rng.integers(0, 6, n)
    intervals = tuple((int(a), int(b)) for a, b in zip(starts, ends, strict=True))
    free = IntraProblem(costs, tuple(edges), usage, intervals, float("inf"))
    if not memory or not n:
        return free
    return replace(free, limit=_limit(free, str(rng.choice(LIMITS))))


def with_windows(problem: IntraProblem, seed: int) -> IntraProblem:
    """The instance with one to three windows, in which nodes work and edges have hidden seconds."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 4))
    finite = [float(c[np.isfinite(c)].max(initial=0.0)) for c in problem.node_cost]
    scale = max([*finite, 1e-9])

    def hidden(edge: Edge) -> Edge:
        if rng.random() < 0.3:
            return edge
        rate, most = float(rng.choice([0.5, 2.0, 8.0])), float(rng.choice([0.3, 3.0, np.inf]))
        finite = np.where(np.isfinite(edge.cost), edge.cost, 0.0)
        seconds = np.minimum(rate * finite, most * scale)
        return replace(edge, hidden=Hidden(int(rng.integers(count)), seconds))

    work = tuple(
        Work(v, int(rng.integers(count)), rng.random(len(cost)) * scale * rng.choice([0.3, 1.0]))
        for v, cost in enumerate(problem.node_cost)
        if rng.random() < 0.7
    )
    return replace(problem, edges=tuple(map(hidden, problem.edges)), work=work)


def _limit(problem: IntraProblem, kind: str) -> float:
    """From what the cheapest options need of memory down to less than what is possible."""
    cheap = problem.peak([int(np.argmin(c)) for c in problem.node_cost])
    least = problem.peak([int(np.argmin(u)) for u in problem.usage])
    return {
        "loose": cheap + 20,
        "middling": (cheap + least) / 2,
        "tight": least + (cheap - least) * 0.2,
        "least": least,
        "short": least - 1,
    }[kind]


def all_costs(problem: IntraProblem) -> Floats:
    """Cost of every choice, one dimension for each node; memory does not count."""
    n = problem.size
    total = np.zeros(tuple(len(c) for c in problem.node_cost))
    for v, cost in enumerate(problem.node_cost):
        total = total + cost.reshape([-1 if w == v else 1 for w in range(n)])
    for edge in problem.edges:
        table, (first, last) = edge.cost, sorted((edge.u, edge.v))
        if first == last:
            table = np.diag(table)
        elif edge.u > edge.v:
            table = table.T
        total = total + table.reshape(
            [total.shape[w] if w in (first, last) else 1 for w in range(n)]
        )
    return total


def large(seed: int, nodes: int = 300, options: int = 8, chords: int | None = None) -> IntraProblem:
    """A chain with random chords, as many as nodes if None, and a limit that binds."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, nodes, (nodes if chords is None else chords, 2))
    pairs = [*pairs_of("chain", nodes, rng), *((int(a), int(b)) for a, b in ends if a != b)]
    free = IntraProblem(
        tuple(rng.random(options) for _ in range(nodes)),
        tuple(Edge(u, v, rng.random((options, options))) for u, v in pairs),
        tuple(rng.random(options) * 100 for _ in range(nodes)),
        tuple((v, v + 1 + int(rng.integers(60))) for v in range(nodes)),
        float("inf"),
    )
    return replace(free, limit=_limit(free, "tight"))

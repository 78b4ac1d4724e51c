"""Random small e-graphs, cyclic ones among them."""

from __future__ import annotations

import random

from substitutions.extraction import EGraph, ENode

COSTS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)


def random_egraph(seed: int, most_classes: int = 7) -> EGraph:
    """Every third one has no cycle; some cannot be built."""
    rng = random.Random(seed)
    classes = rng.randint(1, most_classes)
    nodes: list[ENode] = []
    for c in range(classes):
        pool = range(c) if seed % 3 == 0 else range(classes)
        for _ in range(rng.randint(1, 3)):
            count = min(len(pool), rng.choice((0, 0, 1, 1, 2, 3)))
            nodes.append(ENode(c, rng.choice(COSTS), tuple(sorted(rng.sample(pool, count)))))
    roots = rng.sample(range(classes), min(classes, rng.choice((1, 1, 2))))
    return EGraph(classes, tuple(nodes), tuple(sorted(roots)))

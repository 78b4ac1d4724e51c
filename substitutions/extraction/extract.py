"""Extractors by name, behind one interface."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from ..errors import RuleError
from .brute import brute_force
from .decomposition import solve_by_decomposition
from .egraph import NOTHING, EGraph, Extraction, extraction
from .greedy import greedy_dag, greedy_tree
from .ilp import Effort, solve_ilp
from .simplify import simplify

# Every one takes an e-graph and a time limit in seconds; None: it does not fit.
Extractor = Callable[[EGraph, float], Extraction | None]

EXTRACTORS: Mapping[str, Extractor] = {
    "greedy-tree": lambda graph, _: greedy_tree(graph),
    "greedy-dag": lambda graph, _: greedy_dag(graph),
    "decomposition": lambda graph, _: solve_by_decomposition(graph),
    "ilp": solve_ilp,
    "brute-force": lambda graph, _: brute_force(graph),
}


def extract(
    graph: EGraph, method: str = "ilp", limit_s: float = 60.0, *, simplified: bool = True,
    effort: Effort | None = None,
) -> Extraction | None:  # fmt: skip
    """The extraction that a method finds; None if the e-graph is too wide for it.

    Args:
        graph: what to extract from.
        method: a name of `EXTRACTORS`.
        limit_s: time for the ILP.
        effort: of the ILP, counted, in place of time.
        simplified: whether the e-graph is made smaller first, which keeps the optimum.

    Raises:
        RuleError: for an unknown method.
    """
    if method not in EXTRACTORS:
        raise RuleError(
            f"no extractor '{method}'; there are {', '.join(EXTRACTORS)}", where="extract"
        )
    run = partial(solve_ilp, effort=effort) if method == "ilp" else EXTRACTORS[method]
    if not simplified:
        return run(graph, limit_s)
    small = simplify(graph) if effort is None else simplify(graph, effort.passes)
    if not small.possible:
        return NOTHING
    found = run(small.graph, limit_s)
    if found is None or found.stop == "none":
        return found
    choice = {graph.nodes[i].owner: i for i in small.lift(found.chosen)}
    bound = found.lower_bound + small.base_cost
    whole = extraction(graph, choice, bound, found.stop)
    # a sum in another order may end a little above the cost
    return (
        whole
        if not math.isclose(bound, whole.cost, rel_tol=1e-9)
        else Extraction(
            whole.chosen, whole.cost, whole.cost if found.optimal else whole.lower_bound, found.stop
        )
    )

"""Plans by hand: one stage of replicas, and stages with equally many layers.

Layers are counted among the largest set of one name, as PipeDream-2BW does for transformers; what
comes before joins the first stage and what comes after the last, or both stand apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..convention import Convention
from ..graph import LayerGraph
from ..planner import Planner, Request
from ..price import price
from ..problem import PipelinePlan, Problem, Stage
from ..recompute import choices
from ..search import microbatch_counts


@dataclass(frozen=True, slots=True)
class Shape:
    """One candidate: layers of each stage, degrees the same everywhere."""

    cut: tuple[tuple[int, ...], ...]
    replicas: int
    degree: int
    recompute: str
    microbatches: int


def data_parallel(request: Request) -> PipelinePlan | None:
    """All devices as replicas of one stage."""
    whole = tuple(range(len(request.problem.graph.layers)))
    devices = request.problem.machine.devices
    shapes = [
        Shape((whole,), devices, 1, recompute, count)
        for recompute in _kinds(request.problem.graph)
        for count in _counts(request)
    ]
    return _cheapest(request, shapes)


def equal_layers(request: Request) -> PipelinePlan | None:
    """The best number of equal stages and degrees."""
    return _cheapest(request, list(_shapes(request, tensor=True)))


def equal_layers_without_tensor(request: Request) -> PipelinePlan | None:
    """The same with data parallelism only."""
    return _cheapest(request, list(_shapes(request, tensor=False)))


def _shapes(request: Request, *, tensor: bool) -> Iterator[Shape]:
    graph, devices = request.problem.graph, request.problem.machine.devices
    cuts = [c for c in equal_cuts(graph) if len(c) <= (request.stages or devices)]
    for degree in request.problem.degrees if tensor else (1,):
        for cut in cuts:
            for replicas in range(1, devices // (degree * len(cut)) + 1):
                for recompute in _kinds(graph):
                    for count in _counts(request):
                        yield Shape(cut, replicas, degree, recompute, count)


def equal_cuts(graph: LayerGraph) -> list[tuple[tuple[int, ...], ...]]:
    """Every division into equally many layers, larger stages last."""
    groups: dict[str, list[int]] = {}
    for v, layer in enumerate(graph.layers):
        groups.setdefault(layer.name, []).append(v)
    largest = max(groups.values(), key=len)
    before, after = _around(graph, set(largest))
    plain = list(range(len(graph.layers)))
    if before is None or 2 * len(largest) < len(plain):
        return [_divided(plain, count) for count in range(1, len(plain) + 1)]
    found: list[tuple[tuple[int, ...], ...]] = []
    for count in range(1, len(largest) + 1):
        middle = _divided(largest, count)
        joined = [list(part) for part in middle]
        joined[0].extend(before)
        joined[-1].extend(after)
        found.append(tuple(tuple(sorted(part)) for part in joined))
        apart = [tuple(part) for part in (before, *middle, after) if part]
        if len(apart) > len(middle):
            found.append(tuple(apart))
    return found


def _around(graph: LayerGraph, inside: set[int]) -> tuple[list[int] | None, list[int]]:
    """Layers before and after a set; None for the first if some layer is between."""
    into = {e.source for e in graph.edges if e.target in inside}
    for edge in reversed(graph.edges):
        if edge.target in into:
            into.add(edge.source)
    before = sorted(into - inside)
    after = [v for v in range(len(graph.layers)) if v not in inside and v not in into]
    between = any(e.source in inside and e.target in before for e in graph.edges)
    return (None if between else before), after


def _divided(layers: list[int], count: int) -> tuple[tuple[int, ...], ...]:
    size, larger = divmod(len(layers), count)
    found: list[tuple[int, ...]] = []
    at = 0
    for part in range(count):
        end = at + size + (part >= count - larger)
        found.append(tuple(layers[at:end]))
        at = end
    return tuple(found)


def _kinds(graph: LayerGraph) -> tuple[str, ...]:
    able = all("full" in choices(v) for layer in graph.layers for _, v in layer.variants)
    return ("none", "full") if able else ("none",)


def _counts(request: Request) -> list[int]:
    if request.choose_microbatches:
        return microbatch_counts(request.problem)
    return [request.problem.microbatches]


def _cheapest(request: Request, shapes: list[Shape]) -> PipelinePlan | None:
    """The cheapest that fits; those that cannot be cheaper even if balanced are not priced."""
    problem, convention = request.problem, request.convention
    able = [shape for shape in shapes if _may(problem, convention, shape)]
    able.sort(key=lambda shape: _bound(problem, shape))
    best: PipelinePlan | None = None
    best_s = float("inf")
    for shape in able:
        if _bound(problem, shape) >= best_s:
            break
        plan = _plan(problem, shape)
        found = price(problem, plan, convention)
        if found.fits and found.step_s < best_s:
            best, best_s = plan, found.step_s
    return best


def _may(problem: Problem, convention: Convention, shape: Shape) -> bool:
    d = shape.replicas
    if convention.divides:
        return shape.microbatches % d == 0 and len(shape.cut) * d <= shape.microbatches
    return convention.by_replicas or d <= problem.batch // shape.microbatches


def _bound(problem: Problem, shape: Shape) -> float:
    """Work over replicas and stages, in seconds of a step."""
    kind = {"none": 0, "full": -1}[shape.recompute]
    fastest = min(
        sum(layer.at(shape.degree)[kind].seconds for layer in graph.layers)
        for graph in problem.graphs.values()
    )
    samples = problem.batch / problem.graph.batch
    return fastest * samples / (shape.replicas * len(shape.cut))


def _plan(problem: Problem, shape: Shape) -> PipelinePlan:
    stages: list[Stage] = []
    width = shape.replicas * shape.degree
    first = problem.machine.devices - width * len(shape.cut)
    for nodes in shape.cut:
        names = tuple(
            shape.recompute
            if shape.recompute in choices(problem.graph.layers[v].at(shape.degree))
            else "none"
            for v in nodes
        )
        stages.append(Stage(nodes, first, shape.replicas, shape.degree, names))
        first += width
    return PipelinePlan(tuple(stages), problem.machine, shape.microbatches, exact=False)


DATA_PARALLEL = Planner("data-parallel", "every framework", "flush", data_parallel)
EQUAL_LAYERS = Planner(
    "equal-layers", "Narayanan et al., ICML 2021 (PipeDream-2BW), section 4", "flush", equal_layers
)  # fmt: skip

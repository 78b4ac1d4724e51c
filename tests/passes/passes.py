# pyright: basic
"""Each pass as a function from text to text, for the cases in `cases/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from costmodel import CollectiveModel, ReshardModel, parse_cluster
from ir import (
    Literal,
    Mesh,
    interpret_lowered,
    lookup,
    numpy_dtype,
    parse,
    parse_plan,
    parse_sharding,
    parse_type,
    show,
    show_plan,
    strategies,
)
from ir.analysis import flatten
from ir.trace import trace
from planner.common.options import Options
from planner.common.request import Request
from planner.pipeline.schedule.registry import build
from planner.sharding.problem.program import program_of
from planner.sharding.search.context import Candidate
from planner.sharding.search.over_meshes import Search
from planner.solver.problem import Edge, IntraProblem
from planner.solver.solve import solve
from substitutions import apply, draft_of, find

Settings = Mapping[str, str]
NAMES = {"jax": jax, "jnp": jnp, "lax": lax}


def traced(text: str, settings: Settings) -> str:
    """A lambda, of arguments of the types in `types`, to the graph."""
    types = [parse_type(word) for word in settings["types"].split()]
    structs = [jax.ShapeDtypeStruct(type_.shape, numpy_dtype(type_.dtype)) for type_ in types]
    return _without_sources(show(trace(eval(text, dict(NAMES)), *structs).graph))


def flattened(text: str, settings: Settings) -> str:
    """A graph to its operations in order: moment, runs in a step, inputs and results."""
    del settings
    flat = flatten(parse(text))
    lines = [
        f"{op.time}: {op.weight:g} x {op.node.op} {_words(op.inputs)} -> {_words(op.outputs)}"
        for op in flat.ops
    ]
    links = [f"link %{k.source} -> %{k.target}, {k.weight:g} x" for k in flat.links]
    return "\n".join([*lines, *links, f"return {_words(flat.outputs)}"])


def enumerated(text: str, settings: Settings) -> str:
    """A graph of one operation to its factor spec and strategies on `mesh`."""
    graph = parse(text)
    (node,) = graph.nodes
    types = tuple(graph.type_of(operand) for operand in node.inputs)
    spec = lookup(node.op).factors(types, node.outputs, dict(node.attrs))
    assert spec is not None
    rows = [
        f"{','.join(role or '-' for role in s.roles)}: {_words(s.operands)} -> {_words(s.results)}"
        for s in strategies(spec, _mesh(settings))
    ]
    return "\n".join([str(spec), *rows])


def resharded(text: str, settings: Settings) -> str:
    """A type and two shardings to the collectives between them on `cluster`."""
    type_text, before, _, after = text.split()
    machine, mesh, type_ = (
        parse_cluster(settings["cluster"]),
        _mesh(settings),
        parse_type(type_text),
    )
    model = ReshardModel(machine, mesh, CollectiveModel(machine))
    steps = model.path(type_, parse_sharding(before), parse_sharding(after))
    return "\n".join(f"{step.kind} over {'*'.join(step.axes)} -> {step.after}" for step in steps)


def solved(text: str, settings: Settings) -> str:
    """Nodes (costs, bytes) and edges (tables by rows) to the choice, its cost and the bound."""
    nodes: dict[str, tuple[list[float], list[float]]] = {}
    edges: list[tuple[str, str, list[list[float]]]] = []
    for line in text.splitlines():
        head, _, values = line.partition(":")
        word, *names = head.split()
        rows = [[float(x) for x in part.split()] for part in values.split("|")]
        if word == "node":
            nodes[names[0]] = (rows[0], rows[1] if len(rows) > 1 else [0.0] * len(rows[0]))
        else:
            edges.append((names[0], names[1], rows))
    order = list(nodes)
    problem = IntraProblem(
        tuple(np.array(cost) for cost, _ in nodes.values()),
        tuple(Edge(order.index(u), order.index(v), np.array(table)) for u, v, table in edges),
        tuple(np.array(usage) for _, usage in nodes.values()),
        ((0, 1),) * len(order), float(settings.get("limit", "inf")),
    )  # fmt: skip
    found = solve(problem)
    if not found.choice:
        return found.stop.name
    chosen = " ".join(f"{name}={k}" for name, k in zip(order, found.choice, strict=True))
    return f"{chosen}\ncost {found.cost:g}, bound {found.bound:g}, {found.stop.name}"


def planned(text: str, settings: Settings) -> str:
    """A graph to what is chosen for each operation on `cluster` and `mesh`, and the collectives."""
    graph, best = parse(text), _best(text, settings)
    lines = [
        f"{graph.nodes[place[0]].op}: {','.join(role or '-' for role in roles)}"
        for place, roles in best.decisions.ops.items()
    ]
    lines += [
        f"{c.kind} over {'*'.join(c.axes)}: {c.bytes:g} bytes, {c.count:g} x, {c.cause}"
        for c in best.account.collectives
    ]
    return "\n".join(lines)


def lowered(text: str, settings: Settings) -> str:
    """A graph to its lowered plan on `cluster` and `mesh`."""
    return show_plan(_best(text, settings).decided.plan)


def interpreted(text: str, settings: Settings) -> str:
    """A lowered plan to the result of its logical devices, on arguments that count from 1."""
    del settings
    plan = parse_plan(text)
    shapes = [item.type.shape for item in plan.flat.graph.inputs]
    arguments = [1.0 + np.arange(np.prod(shape)).reshape(shape) for shape in shapes]
    return "\n".join(str(array) for array in interpret_lowered(plan, arguments))


def rewritten(text: str, settings: Settings) -> str:
    """A graph to the graph after `rule` was applied wherever it fits."""
    draft = draft_of(parse(text))
    draft, _ = apply(draft, find(draft, [settings["rule"]]))
    return _without_sources(show(draft.graph))


def scheduled(text: str, settings: Settings) -> str:
    """Name, stages and micro-batches to the order of forward and backward work on each device."""
    del settings
    name, stages, microbatches = text.split()
    schedule = build(name, int(stages), int(microbatches))
    letters = {"FORWARD": "F", "BACKWARD": "B", "INPUT_GRADIENT": "I", "WEIGHT_GRADIENT": "W"}
    return "\n".join(
        f"device {d}: "
        + " ".join(
            f"{letters.get(task.kind.name, task.kind.word)}{task.microbatch}"
            for task in schedule.tasks(d)
        )
        for d in range(len(schedule.tables))
    )


PASSES: Mapping[str, Callable[[str, Settings], str]] = {
    "enumerate": enumerated, "flatten": flattened, "interpret": interpreted, "lower": lowered,
    "plan": planned, "reshard": resharded, "rewrite": rewritten, "schedule": scheduled,
    "solve": solved, "trace": traced,
}  # fmt: skip


def _best(text: str, settings: Settings) -> Candidate:
    machine = parse_cluster(settings["cluster"])
    mesh = tuple(size for _, size in _mesh(settings).axes)
    options = Options(mesh=mesh, baselines=False, cache=False)
    program = program_of(parse(text), (), frozenset(), options)
    return Search(program, Request(machine, options)).run().best


def _mesh(settings: Settings) -> Mesh:
    axes = (axis.split("=") for axis in settings["mesh"].split())
    return Mesh(tuple((name, int(size)) for name, size in axes))


def _words(items: Any) -> str:
    def one(item: Any) -> str:
        if isinstance(item, Literal):
            return f"{item.value}:{item.type}"
        return f"%{item}" if isinstance(item, int) else str(item)

    return " ".join(map(one, items))


def _without_sources(text: str) -> str:
    return "\n".join(line.partition("  #")[0] for line in text.splitlines())

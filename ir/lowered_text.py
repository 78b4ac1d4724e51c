"""The text form of a lowered plan: the text of its graph, with notes on states and reshards.

    @ mesh x=2
    %0: f32[8,16] = input "x" batch
    %1: f32[16,32] = input "w" parameter
      @ %0 [x,-]
      @ %1 [x,-]
      @ operand 1: [x,-] all-gather(x) from 0 [-,-] for "w"
    %2: f32[8,32] = dot_general %0 %1 {dimension_numbers=(((1,), (0,)), ((), ()))}  # mlp.py:12
      @ runs x=l0: [x,-] [-,-] -> [x,-]
      @ return 0: [x,-]
    return %2

A value is kept in the state that `@ %n` gives it, a result of an op in the last one that it has.
`operand` and `return` change a state on the way to the next line, `result` after the last one; with
`in parts`, beside the product that is there.
`parse_plan(show_plan(plan)) == plan`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .analysis.flat_program import FlatProgram, Place, Site
from .analysis.flatten import flatten
from .errors import IRError
from .graph import Graph, Literal, Node
from .lowered import Change, LoweredPlan, Reshard, ReshardStep, kept_states
from .mesh import Mesh
from .regions import REGIONS
from .sharding import Sharding, parse_sharding
from .strategy import Strategy
from .text import annotated, parse_annotated
from .tokens import STRING, clip, quote, unquote

# --- from plan to text -------------------------------------------------------------------------


def show_plan(plan: LoweredPlan) -> str:
    """The text form of a lowered plan."""
    return f"@ mesh {plan.mesh}\n{annotated(plan.flat.graph, _Notes(plan))}"


@dataclass(frozen=True)
class _Notes:
    """Notes of a plan by place; a value's state is noted before its first use."""

    plan: LoweredPlan
    named: set[int] = field(default_factory=set[int])

    def __call__(self, place: Place, event: str) -> Iterator[str]:
        return self._of_body(place, event) if len(place) % 2 == 0 else self._of_node(place, event)

    def _of_body(self, body: Place, event: str) -> Iterator[str]:
        plan, graph = self.plan, _body(self.plan.flat.graph, body)
        if event == "inputs":
            yield from self._values(body, range(len(graph.inputs)))
            return
        yield from self._reshards(body, "return", len(graph.outputs))
        if not body:
            pairs = zip(graph.outputs, plan.results, strict=True)
            for k, (output, state) in enumerate(pairs):
                if not isinstance(output, Literal):
                    yield f"return {k}: {state}"

    def _of_node(self, place: Place, event: str) -> Iterator[str]:
        graph = _body(self.plan.flat.graph, place[:-1])
        node = graph.nodes[place[-1]]
        if event == "before":
            yield from self._reshards(place, "operand", len(node.inputs))
        elif event == "after":
            yield from self._runs(place)
        else:
            yield from self._reshards(place, "result", len(node.outputs))
            if node.op in REGIONS:
                yield from self._values(place[:-1], graph.values_of(place[-1]))

    def _values(self, body: Place, numbers: range) -> Iterator[str]:
        for number in numbers:
            v = self.plan.flat.names.get((body, number))
            if v is None or v in self.named:
                continue
            self.named.add(v)
            state = self.plan.states[v]
            if state is not None and self.plan.flat.values[v].kind != "op":
                yield f"%{number} {state}"

    def _reshards(self, place: Place, at: str, count: int) -> Iterator[str]:
        for k in range(count):
            reshard = self.plan.at.get(Site(place, at, k))
            if reshard is not None:
                steps = "".join(f" {_show_step(s)} {s.after}" for s in reshard.change.steps)
                before = reshard.change.before
                beside = " in parts" if reshard.in_parts else ""
                if reshard.chunks > 1:
                    beside = f" in {reshard.chunks} chunks"
                yield f"{at} {k}: {before}{steps}{beside} for {quote(reshard.cause)}"

    def _runs(self, place: Place) -> Iterator[str]:
        i = self.plan.op_at.get(place)  # bodies of ops, such as those of scatters, do not run
        strategy = None if i is None else self.plan.strategies[i]
        if strategy is None:
            return
        pairs = zip(self.plan.mesh.names, strategy.roles, strict=True)
        roles = ",".join(f"{axis}={role}" for axis, role in pairs if role)
        words = [*map(str, strategy.operands), "->", *map(str, strategy.results)]
        yield f"runs {roles or 'whole'}: {' '.join(words)}"


def _body(graph: Graph, place: Place) -> Graph:
    for i, b in zip(place[::2], place[1::2], strict=True):
        graph = graph.nodes[i].bodies[b]
    return graph


def _show_step(step: ReshardStep) -> str:
    words = [f"{step.kind}({'*'.join(step.axes)})"]
    words += [f"from {step.dim}"] if step.dim >= 0 else []
    words += [f"to {step.to_dim}"] if step.to_dim >= 0 else []
    return " ".join([*words, *([step.reduction] if step.reduction else [])])


# --- from text to plan -------------------------------------------------------------------------

_STATE = r"\[[^\]]*\](?:\+\w+\(\w+\))*"
_STEP = re.compile(
    r" ([a-z-]+)\((\w+(?:\*\w+)*)\)(?: from ([0-9]{1,4}))?(?: to ([0-9]{1,4}))?"
    rf"(?: (sum|max|min))? ({_STATE})"
)
_MESH = re.compile(r"mesh ((?:\w+=[0-9]{1,9}(?:,\w+=[0-9]{1,9})*)?)")
_VALUE = re.compile(rf"%([0-9]{{1,9}}) ({_STATE})")
_RUNS = re.compile(rf"runs (whole|[^:]+):((?: {_STATE})*) ->((?: {_STATE})*)")
_AT = re.compile(
    rf"(operand|result|return) ([0-9]{{1,9}}): ({_STATE})((?:{_STEP.pattern})*)"
    rf"( in parts| in [0-9]{{1,3}} chunks)?(?: for ({STRING}))?"
)
_KINDS = (
    "all-gather", "all-reduce", "all-to-all", "collective-permute", "mask", "reduce-scatter",
    "slice",
)  # fmt: skip


@dataclass
class _Read:
    """The notes of a text, read."""

    mesh: Mesh | None = None
    named: dict[tuple[Place, int], Sharding] = field(
        default_factory=dict[tuple[Place, int], Sharding]
    )
    runs: dict[Place, tuple[int, dict[str, str], Strategy]] = field(
        default_factory=dict[Place, tuple[int, dict[str, str], Strategy]]
    )
    reshards: dict[Site, tuple[int, tuple[ReshardStep, ...], str, str]] = field(
        default_factory=dict[Site, tuple[int, tuple[ReshardStep, ...], str, str]]
    )
    results: dict[int, Sharding] = field(default_factory=dict[int, Sharding])

    def note(self, line: int, text: str, body: Place, nodes: int) -> None:
        """Reads one note."""
        try:
            if not self._taken(line, text, body, nodes):
                raise IRError(
                    f"found {clip(text)!r}, expected 'mesh', '%0', 'operand 0:', 'runs ...:', "
                    "'result 0:' or 'return 0:'"
                )
        except IRError as error:
            raise IRError(f"line {line}: {error}") from error

    def _taken(self, line: int, text: str, body: Place, nodes: int) -> bool:
        if found := _MESH.fullmatch(text):
            pairs = [item.split("=") for item in found[1].split(",") if item]
            self.mesh = Mesh(tuple((name, int(size)) for name, size in pairs))
        elif found := _VALUE.fullmatch(text):
            self.named[body, int(found[1])] = parse_sharding(found[2])
        elif found := _RUNS.fullmatch(text):
            items = [] if found[1] == "whole" else found[1].split(",")
            roles = {axis: role for axis, _, role in (item.partition("=") for item in items)}
            strategy = Strategy((), _states(found[2]), _states(found[3]))
            self.runs[(*body, nodes - 1)] = line, roles, strategy
        elif found := _AT.fullmatch(text):
            self._at(line, found, body, nodes)
        else:
            return False
        return True

    def _at(self, line: int, found: re.Match[str], body: Place, nodes: int) -> None:
        at, position, state = found[1], int(found[2]), parse_sharding(found[3])
        cause = unquote(found[found.re.groups]) if found[found.re.groups] else None
        if cause is None:
            if at != "return" or body or found[4] or found[found.re.groups - 1]:
                raise IRError("a change of state ends with what it is for, such as 'for \"w\"'")
            self.results[position] = state
            return
        place = {"operand": (*body, nodes), "result": (*body, nodes - 1), "return": body}[at]
        parts = found[found.re.groups - 1] or ""
        self.reshards[Site(place, at, position)] = line, _steps(state, found[4]), cause, parts


def _states(text: str) -> tuple[Sharding, ...]:
    return tuple(parse_sharding(item) for item in re.findall(_STATE, text))


def _steps(state: Sharding, text: str) -> tuple[ReshardStep, ...]:
    steps: list[ReshardStep] = []
    for match in _STEP.finditer(text):
        kind, axes, dim, to_dim, reduction, after = match.groups()
        if kind not in _KINDS:
            raise IRError(f"'{kind}' is not one of {', '.join(_KINDS)}")
        step = ReshardStep(
            kind, tuple(axes.split("*")), int(dim or -1), int(to_dim or -1), reduction or "",
            state, parse_sharding(after),
        )  # fmt: skip
        steps.append(step)
        state = step.after
    if not steps:
        raise IRError("a change of state has at least one step, such as 'all-gather(x) from 0'")
    return tuple(steps)


def parse_plan(text: str) -> LoweredPlan:
    """Reads the text of `show_plan`; evaluates nothing.

    Raises:
        IRError: with the number of the line, the text found there and the text expected.
    """
    read = _Read()
    graph = parse_annotated(text, read.note)
    if read.mesh is None:
        raise IRError("line 1: a plan begins with its mesh, such as '@ mesh x=2,y=4'")
    flat = flatten(graph)
    at = {op.place: i for i, op in enumerate(flat.ops)}
    strategies: list[Strategy | None] = [None] * len(flat.ops)
    for place, (line, roles, strategy) in read.runs.items():
        i = at.get(place)
        if i is None or set(roles) - set(read.mesh.names):
            raise IRError(f"line {line}: no op runs there, or the mesh {read.mesh} has other axes")
        strategies[i] = _strategy(line, flat.ops[i].node, roles, strategy, read.mesh)
    reshards = _reshards(read, flat)
    states = list(kept_states(flat, read.named))
    for op, strategy in zip(flat.ops, strategies, strict=True):
        if strategy is not None:
            for v, state in zip(op.outputs, strategy.results, strict=True):
                states[v] = state
    for reshard in reshards:
        if reshard.passage.op >= 0 and reshard.passage.site.at == "result":
            states[reshard.passage.value] = reshard.change.after
    results = tuple(read.results.get(k, Sharding(())) for k in range(len(graph.outputs)))
    return LoweredPlan(flat, read.mesh, tuple(strategies), tuple(states), results, reshards)


def _reshards(read: _Read, flat: FlatProgram) -> tuple[Reshard, ...]:
    sites = {passage.site: (n, passage) for n, passage in enumerate(flat.passages)}
    found: dict[int, Reshard] = {}
    for site, (line, steps, cause, how) in read.reshards.items():
        if site not in sites:
            raise IRError(f"line {line}: the program has no such {site.at} there")
        n, passage = sites[site]
        type_ = flat.values[passage.value].type
        change = Change(type_, steps[0].before, steps[-1].after, steps)
        chunks = int(how.split()[1]) if how.endswith("chunks") else 1
        found[n] = Reshard(passage, change, cause, how == " in parts", chunks)
    return tuple(found[n] for n in sorted(found))


def _strategy(
    line: int, node: Node, roles: dict[str, str], found: Strategy, mesh: Mesh
) -> Strategy:
    for what, states, count in (
        ("operands", found.operands, len(node.inputs)),
        ("results", found.results, len(node.outputs)),
    ):
        if len(states) != count:
            raise IRError(f"line {line}: {node.op} has {count} {what}, found {len(states)} states")
    return Strategy(
        tuple(roles.get(axis, "") for axis in mesh.names), found.operands, found.results
    )

"""What the backward pass has of the forward pass, in terms of the parts of a transformer's layer.

A product is computed again where the backward pass has a product of the same form and weights, or
of the same form and line that is made of nothing that the backward pass alone has. It waits on the
host where a copy to the host is made of it alone, element by element.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ir import TO_HOST, Graph
from ir.analysis import FlatOp, FlatProgram, operand_types

from ..analysed_plan import AnalysedPlan
from ..phases import BACKWARD, FORWARD, phases
from ..products import NAMES
from .layer_parts import Dataflow, layer_parts, made_of

KEPT, AGAIN, HOST, MIXED = "kept", "computed again", "on the host", "not alike in all layers"
NONE, SELECTIVE, FULL, PARTIAL = "none", "selective", "full", "partial"
INPUT = "layer-input"
LIGHT = "some light operations, such as norms and activations, are computed again"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept, computed again, or waits on the host.

    kind: none (no product is computed again), selective (attention is, products with weights are
        not), full (all products of layers but the last are) or partial (some are).
    parts: part of a layer (`layer_parts`) -> its state; `layer-input` only where on the host.
    attention_again: whether attention is, or some of it, such as the scores of one whose result is
        kept.
    light: whether light operations are computed again.
    others: texts of what is computed again or on the host and is no part of a layer.
    """

    kind: str = NONE
    parts: Mapping[str, str] = field(default_factory=dict[str, str])
    attention_again: bool = False
    light: bool = False
    others: tuple[str, ...] = ()

    def those(self, state: str) -> frozenset[str]:
        """The parts in a state."""
        return frozenset(part for part, its in self.parts.items() if its == state)

    @property
    def spared(self) -> frozenset[str]:
        """Parts that are kept where all products with weights but the last are computed again."""
        return self.those(KEPT) - {"mlp-out", "expert-out"} if self.kind == FULL else frozenset()

    def texts(self) -> Iterator[str]:
        """All of it, in words."""
        for state in (KEPT, AGAIN, HOST, MIXED):
            if found := [part for part, its in self.parts.items() if its == state]:
                yield f"{state}: {', '.join(found)}"
        yield from self.others
        if self.light:
            yield LIGHT


# of a program without a loss, such as a stage, of which forward and backward are not told apart
UNREAD = Kept(FULL, light=True, others=("what is computed again is not read off this program: all "
                                        "of each layer is named here",))  # fmt: skip


def kept(analysed: AnalysedPlan) -> Kept:
    """Reads off a plan what it keeps of the forward pass; `UNREAD` where that cannot be told."""
    flat, phase = analysed.flat, phases(analysed)
    if computes_again(analysed) and BACKWARD not in phase.values():
        return UNREAD
    flow = Dataflow(flat, analysed.program.roles)
    numbers = [i for i, op in enumerate(flat.ops) if op.node.op in NAMES]
    forward = [i for i in numbers if phase[i] == FORWARD]
    again = _again(flow, forward, [i for i in numbers if phase[i] != FORWARD])
    away, elsewhere = _on_host(flow, forward)
    part_of = layer_parts(flow, forward, lambda i: bool(analysed.words(i)))
    states = {i: HOST if i in away else AGAIN if i in again else KEPT for i in forward}
    found: dict[str, set[str]] = {}
    for i, part in sorted(part_of.items()):
        if part != "scores":
            found.setdefault(part, set()).add(states[i])
    parts = {part: min(its) if len(its) == 1 else MIXED for part, its in found.items()}
    if elsewhere.pop(INPUT, 0):
        parts[INPUT] = HOST
    others = [f"{flat.ops[i].node.op}{_at(flat.ops[i].node.source)} is {states[i]}"
              for i in forward if i not in part_of and states[i] != KEPT]  # fmt: skip
    others += [f"a value{_at(line)} is {HOST}" for line in elsewhere]
    core = any(part_of.get(i) in ("attention", "scores") for i in again)
    light = computes_again(analysed)
    kind = _kind(flow, forward, part_of, again)
    return Kept(kind, parts, core, light, tuple(dict.fromkeys(others)))


def on_host(analysed: AnalysedPlan, role: str) -> float:
    """Share of the bytes of the arguments of a role that is on the host from step to step."""
    sizes = {
        n: item.type.nbytes
        for n, item in enumerate(analysed.graph.inputs) if item.role == role
    }  # fmt: skip
    away = sum(sizes.get(n, 0) for n in analysed.program.host_states)
    return away / sum(sizes.values()) if away else 0.0


def _at(line: str) -> str:
    return f" at {line}" if line else ""


def computes_again(analysed: AnalysedPlan) -> bool:
    """Whether a program computes anything again."""

    def regions(graph: Graph) -> bool:
        return any(n.op == "remat" or any(map(regions, n.bodies)) for n in graph.nodes)

    return bool(analysed.program.recomputed) or regions(analysed.flat.graph)


def _kind(
    flow: Dataflow, forward: Iterable[int], part_of: Mapping[int, str], again: frozenset[int]
) -> str:
    """How much is computed again."""
    ops = flow.flat.ops
    weighted = [i for i in forward if flow.weights(ops[i])]
    if again.isdisjoint(weighted):
        return SELECTIVE if again else NONE
    layers = [i for i in weighted if i in part_of] or weighted
    most = max(ops[i].weight for i in layers)
    layers = [i for i in layers if ops[i].weight == most]
    read = {j for i in forward for v in flow.inputs(ops[i]) for j in flow.made(v).products
            if ops[i].weight == ops[j].weight}  # fmt: skip
    left = [i for i in layers if i not in again]
    last = all(
        part_of[i] in ("mlp-out", "expert-out") if i in part_of else i not in read for i in left
    )
    return FULL if last else PARTIAL


# --- computed again ------------------------------------------------------------------------------


def _again(flow: Dataflow, forward: list[int], later: list[int]) -> frozenset[int]:
    """The products of the forward pass that the backward pass computes again."""
    ops = flow.flat.ops
    known: dict[Hashable, list[int]] = {}
    for i in forward:
        known.setdefault(_key(flow, ops[i]), []).append(i)
    alike = {i: key for i in later if (key := _key(flow, ops[i])) in known}
    copies: dict[Hashable, list[int]] = {}
    late = _of_gradients(flow, {i for i in later if i not in alike}, alike)
    for i, key in alike.items():
        if i not in late:
            copies.setdefault(key, []).append(i)
    return frozenset(i for key, their in copies.items() for i in known[key][: len(their)])


def _key(flow: Dataflow, op: FlatOp) -> Hashable:
    """Form of a product, and its weights or else its line."""
    form = (op.node.op, repr(op.node.attrs), *operand_types(flow.flat, op), op.weight)
    return form, flow.identity(op) if flow.weights(op) else op.node.source


def _of_gradients(flow: Dataflow, seeds: set[int], alike: Mapping[int, Hashable]) -> set[int]:
    """Those of `alike` that are made of gradients: of results of `seeds`."""
    ops = flow.flat.ops
    found = made_of(flow.flat, {v for i in seeds for v in ops[i].outputs})
    return {i for i in alike if not found.isdisjoint(ops[i].reads)}


# --- on the host ---------------------------------------------------------------------------------


def _on_host(flow: Dataflow, forward: list[int]) -> tuple[set[int], dict[str, int]]:
    """Products whose results wait on the host, and how many other values do, by line.

    Of a product, that is its largest result or what light operations make of each element of it,
    and no statistics of it. State that is there from step to step is not meant. The inputs of
    layers are `INPUT`.
    """
    flat = flow.flat
    products, others = set[int](), dict[str, int]()
    for op in flat.ops:
        if op.node.op != TO_HOST:
            continue
        value, is_input = _sent(flat, op.reads[0])
        made = [i for i in flow.made(value).products if i in forward]
        if is_input:
            others[INPUT] = others.get(INPUT, 0) + 1
        elif len(made) == 1 and flat.values[value].type.size == _largest(flat.ops[made[0]]):
            products.add(made[0])
        elif value in flow.data:
            others[op.node.source] = others.get(op.node.source, 0) + 1
    return products, others


def _largest(op: FlatOp) -> int:
    """Elements of the largest result of an operation."""
    return max(type_.size for type_ in op.node.outputs)


def _sent(flat: FlatProgram, v: int) -> tuple[int, bool]:
    """The value that is sent to the host, and whether it is what a layer of a loop begins with.

    A plan's own copies send what the iteration before has carried on for them alone.
    """
    renewed = {link.target: link.source for link in flat.links if link.site.at == "return"}
    if v in renewed and all(op.node.op == TO_HOST for op in flat.readers[v]):
        v = renewed[v]
    return v, v in renewed

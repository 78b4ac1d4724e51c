"""Which products of the forward pass are the query, the first product of an MLP, and so on.

Read off what reads what through light operations, in layers of a loop and written out alike:

    query, key, value, key-value, query-key-value    read by attention alone
    scores, attention          products of activations with a softmax between them, or a kernel
    attention-out              reads attention alone
    mlp-in | mlp-gate, mlp-up  read by one product alone, which reads nothing else: mlp-out
    expert-in, ...             the same of experts
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ir import ATTENTION, GROUPED, TO_HOST
from ir.analysis import FlatOp, FlatProgram

from ..products import NAMES

_OF_OPERANDS = {
    frozenset({0}): "query", frozenset({1}): "key", frozenset({2}): "value",
    frozenset({1, 2}): "key-value", frozenset({0, 1, 2}): "query-key-value",
}  # fmt: skip
_SAME = frozenset({"convert_element_type", "name", "reshape", "transpose"})
_SOFTMAX = frozenset({"exp", "exp2"})


@dataclass(frozen=True, slots=True)
class Made:
    """What a value is made of through light operations.

    products: flat numbers of the nearest products.
    ops: names of the operations in between.
    """

    products: frozenset[int] = frozenset()
    ops: frozenset[str] = frozenset()

    def __or__(self, other: Made) -> Made:
        return Made(self.products | other.products, self.ops | other.ops)


class Dataflow:
    """Products, what they are made of, and which of their operands are weights.

    Args:
        flat: the program.
        roles: of its arguments.
    """

    def __init__(self, flat: FlatProgram, roles: Iterable[str]) -> None:
        self.flat = flat
        held = ("parameter", "optimizer-state")
        self.data = made_of(
            flat, {v for v, role in zip(flat.inputs, roles, strict=True) if role not in held}
        )
        self._of: dict[int, Made] = {}

    @cached_property
    def entering(self) -> dict[int, list[int]]:
        """Port -> what enters it; carries of loops, which are renewed, are absent."""
        renewed = {link.target for link in self.flat.links if link.site.at == "return"}
        renewed -= set(self.flat.stacked.values())
        found: dict[int, list[int]] = {}
        for link in self.flat.links:
            if link.target not in renewed:
                found.setdefault(link.target, []).append(link.source)
        for stack, port in self.flat.stacked.items():
            found.setdefault(stack, []).append(port)
        return found

    def weights(self, op: FlatOp) -> list[int]:
        """Operands that no data of the batch enters; kernels of attention have none."""
        return [] if op.node.op in ATTENTION else [v for v in op.reads if v not in self.data]

    def inputs(self, op: FlatOp) -> list[int]:
        """Operands that are no weights nor sizes of groups, at each position of them."""
        read = op.inputs[:1] if op.node.op == GROUPED else op.inputs
        return [v for v in read if isinstance(v, int) and v in self.data]

    def made(self, v: int) -> Made:
        """What a value is made of; carries of loops end the way back."""
        todo = [v]
        while todo:
            top = todo[-1]
            maker = self.flat.maker.get(top)
            if maker is not None and self.flat.ops[maker[0]].node.op in NAMES:
                self._of[top] = Made(frozenset({maker[0]}))
            if top in self._of:
                todo.pop()
                continue
            op = None if maker is None else self.flat.ops[maker[0]]
            before = op.reads if op is not None else self.entering.get(top, ())
            missing = [x for x in before if x not in self._of]
            if missing:
                todo += missing
                continue
            found = Made(ops=frozenset() if op is None else frozenset({op.node.op}))
            for x in before:
                found |= self._of[x]
            self._of[top] = found
        return self._of[v]

    def identity(self, op: FlatOp) -> frozenset[object]:
        """The arguments that the weights of a product come from, and which slices of them."""
        found, todo, seen = set[object](), self.weights(op), set[int]()
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            maker = self.flat.made_by(v)
            if maker is not None and maker.node.op in ("slice", "dynamic_slice", "gather"):
                found.add(repr(maker.node.attrs))
            before = maker.reads if maker is not None else self.entering.get(v, ())
            if not before:
                found.add(v)
            todo += before
        return frozenset(found)


def layer_parts(
    flow: Dataflow, forward: Iterable[int], is_experts: Callable[[int], bool]
) -> dict[int, str]:
    """Product -> the part of a layer that it is; absent if it is none.

    Args:
        flow: of the program.
        forward: products of the forward pass, flat numbers in order.
        is_experts: whether a product is one of experts.
    """
    found = dict[int, str]()
    products = _Products(flow, forward)
    found.update(products.of_attention())
    cores = {i for i, part in found.items() if part == "attention"}
    inner = {i for i, part in found.items() if part in ("attention", "scores")}
    for i in products.weighted:
        readers = products.readers[i]
        if readers and readers <= inner:
            part = _OF_OPERANDS.get(products.positions(i, readers))
            found.update({i: part} if part else {})
        elif products.sources[i] and products.sources[i] <= cores:
            found[i] = "attention-out"
    for i, part in products.of_mlps(found):
        found[i] = part.replace("mlp", "expert") if is_experts(i) else part
    return found


class _Products:
    """Products of the forward pass, and which reads which; loops of other lengths are apart."""

    def __init__(self, flow: Dataflow, forward: Iterable[int]) -> None:
        self.flow, self.ops = flow, flow.flat.ops
        self.forward = tuple(forward)
        self.weighted = [i for i in self.forward if flow.weights(self.ops[i])]
        self.sources = {i: self._sources(i) for i in self.forward}
        self.readers: dict[int, set[int]] = {i: set() for i in self.forward}
        for i, sources in self.sources.items():
            for source in sources & self.readers.keys():
                self.readers[source].add(i)

    def _sources(self, i: int) -> frozenset[int]:
        made = [self.flow.made(v) for v in self.flow.inputs(self.ops[i])]
        weight = self.ops[i].weight
        return frozenset(j for one in made for j in one.products if self.ops[j].weight == weight)

    def positions(self, i: int, readers: Iterable[int]) -> frozenset[int]:
        """Which of query (0), key (1) and value (2) attention reads of a product."""
        found: set[int] = set()
        for reader in readers:
            op = self.ops[reader]
            reads = [isinstance(v, int) and i in self.flow.made(v).products for v in op.inputs]
            if op.node.op in ATTENTION or self._is_scores(reader):
                found.update(k for k, yes in enumerate(reads) if yes)
            else:
                found.add(2)
        return frozenset(found)

    def _is_scores(self, i: int) -> bool:
        return any(not self.flow.weights(self.ops[j]) for j in self.readers[i])

    def of_attention(self) -> Iterator[tuple[int, str]]:
        """Kernels of attention, and products of activations around a softmax."""
        for i in self.forward:
            op = self.ops[i]
            if op.node.op in ATTENTION:
                yield i, "attention"
            if op.node.op != "dot_general" or self.flow.weights(op):
                continue
            for v in self.flow.inputs(op):
                made = self.flow.made(v)
                scores = [
                    j for j in made.products
                    if j in self.readers and self.ops[j].node.op == "dot_general"
                    and not self.flow.weights(self.ops[j])
                ]  # fmt: skip
                if len(scores) == 1 and made.ops & _SOFTMAX:
                    yield scores[0], "scores"
                    yield i, "attention"

    def of_mlps(self, known: dict[int, str]) -> Iterator[tuple[int, str]]:
        """Products read by one other alone, and that one."""
        pairs = {
            i: sorted(self.sources[i])
            for i in self.weighted
            if i not in known and self._reads_alone(i, known)
        }
        inner = {j for sources in pairs.values() for j in sources}
        for i, sources in pairs.items():
            if i in inner or not inner.isdisjoint(pairs.keys() & set(sources)):
                continue  # a chain of products has no two that belong together
            yield i, "mlp-out"
            if len(sources) == 1:
                yield sources[0], "mlp-in"
            else:
                gate = next((j for j in sources if self._is_activated(j)), sources[0])
                yield from ((j, "mlp-gate" if j == gate else "mlp-up") for j in sources)

    def _reads_alone(self, i: int, known: dict[int, str]) -> bool:
        sources = self.sources[i]
        return 0 < len(sources) <= 2 and all(
            j not in known and self.readers[j] == {i} and self.flow.weights(self.ops[j])
            for j in sources
        )

    def _is_activated(self, i: int) -> bool:
        """Whether more than a product of elements reads the result of a product."""
        values, seen = list(self.ops[i].outputs), set[int]()
        while values:
            v = values.pop()
            if v in seen:
                continue
            seen.add(v)
            for op in self.flow.flat.readers.get(v, []):
                if op.node.op in _SAME:
                    values += op.outputs
                elif op.node.op not in ("mul", TO_HOST, *NAMES):
                    return True
        return False


def made_of(flat: FlatProgram, values: set[int]) -> set[int]:
    """All that is made of some values."""
    found, count = set(values), -1
    while len(found) > count:  # what a loop carries reaches its beginning in a later round
        count = len(found)
        for op in flat.ops:
            if not found.isdisjoint(op.reads):
                found.update(op.outputs)
        found.update(link.target for link in flat.links if link.source in found)
        found.update(stack for stack, port in flat.stacked.items() if port in found)
    return found

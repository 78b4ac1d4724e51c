"""A program in which chosen values of the forward pass are computed again in the backward pass.

A node of the backward pass that reads a chosen value reads a copy. The copy is made when it is
first needed, out of values that are kept: the nodes that make it, and those of the chosen values
among their operands, run once more, in a region of `jax.checkpoint`. The region also passes on an
operand of the node that belongs to the backward pass, and what the backward pass has made and not
read since the last copies: its barrier then holds the copies back until all that is made.

    forward:  h = x @ w;  y = tanh(h)                    chosen: h, y
    backward: (g', y') = region(x, w, g): h' = x @ w; y' = tanh(h');   dh = g' * (1 - y'^2)

What is kept and read by copies is rounded to its own type, as JAX does in `jax.checkpoint`: else
XLA may go on in the forward pass with more bits than it keeps, and sums of the forward pass, such
as those of a softmax, are not those of the copies.

In a pair of loops the forward loop no longer stacks up what is chosen; the backward loop takes
slices of what it is computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from ir import Input, Node, TensorType
from ir.analysis import Place
from ir.jax_internals import recomputed_region, rounding
from ir.trace import Binding, Program

from .across import Across, InBody, InLoops
from .draft import Draft, Item, Value, draft_of, program_of
from .passes import bodies_with_passes, pairs_of

Chosen = Collection[tuple[Place, int]]
SHORT = ("bfloat16", "float16")  # types of which kernels compute more bits than they store
# Operations that kernels do as they read: only a barrier has their results in memory.
WIDENING = ("broadcast_in_dim", "convert_element_type")


def with_recompute(program: Program, chosen: Chosen, late: Iterable[int] = ()) -> Program:
    """The program with the chosen values computed again where the backward pass reads them.

    Args:
        program: a program that keeps everything (`keeping_all`).
        chosen: results of nodes of the forward pass: the place of their body, and their number.
        late: inputs that are there only when the backward pass begins.
    """
    if not chosen:
        return program
    draft = draft_of(program, late=late)
    _recompute(draft, (), frozenset(chosen))
    return program_of(draft)


def _recompute(draft: Draft, place: Place, chosen: frozenset[tuple[Place, int]]) -> None:
    numbers = {id(item): i for i, item in enumerate(draft.items)}
    for i, b, body in bodies_with_passes(draft):
        _recompute(body, (*place, i, b), chosen)
    for pair in pairs_of(draft):
        inside = (*place, numbers[id(pair.forward)], 0)
        across = InLoops(draft, pair)
        _Copies(across, _values(across.source, inside, chosen), ordered=False).write()
    across = InBody(draft)
    _Copies(across, _values(draft, place, chosen), ordered=True).write()


def _values(draft: Draft, place: Place, chosen: frozenset[tuple[Place, int]]) -> set[int]:
    """The chosen values of a body that nodes without effects make."""
    made = [v for item in draft.items if not item.node.has_attr("effect") for v in item.outs]
    return {v for v in made if (place, v - draft.first) in chosen}


def made_of(draft: Draft, values: Collection[int]) -> set[int]:
    """Some values, and all that is made of them."""
    found = set(values)
    for item in draft.items:
        if not found.isdisjoint(item.reads):
            found.update(item.outs)
    return found


class _Copies:
    """Writes the copies of chosen values into a backward pass.

    ordered: whether copies wait for the backward pass, and the compiler must not merge them with
        the originals, as in one body.
    """

    def __init__(self, across: Across, chosen: set[int], *, ordered: bool) -> None:
        self.across, self.chosen, self.ordered = across, chosen, ordered
        self.target, self.numbers = across.target, across.target.numbers
        self.order = list(across.source.items)
        self.maker = {v: i for i, item in enumerate(self.order) for v in item.outs}
        self.copy: dict[int, int] = {}  # chosen value -> its copy
        self.passed: dict[int, int] = {}  # value of the backward pass -> as a region passed it on
        self.items: list[Item] = []
        self.makers: dict[int, Item] = {}  # value of the backward pass -> its node
        self.kept: dict[int, None] = {}  # values of the forward pass that copies read
        self.waiting = made_of(self.target, self.target.late)
        self.last = min(self.target.late, default=None)  # latest result of the backward pass
        self.pending: list[int] = []  # results of it since the last copies, not read yet
        self.wanted = {v for item in self.target.items for v in item.reads}
        self.wanted |= {v for v in self.target.outputs if isinstance(v, int)}

    def write(self) -> None:
        """Rewrites the target."""
        if not self.chosen:
            return
        in_loop = isinstance(self.across, InLoops)
        for item in list(self.target.items):
            if in_loop or item.backward:
                self._need(item.ins)
                item.ins = self._read(item.ins)
                late = [v for v in item.outs if self._is_late(v)]
                self.last = late[-1] if late else self.last
                self.makers |= dict.fromkeys(item.outs, item)
                self._note(item)
            else:
                item.ins = [self.passed.get(v, v) if isinstance(v, int) else v for v in item.ins]
            self.items.append(item)
        outputs = self.target.outputs
        if in_loop:
            self._need(outputs)
            self.target.outputs = self._read(outputs)
        else:
            self.target.outputs = [
                self.passed.get(v, v) if isinstance(v, int) else v for v in outputs
            ]
        self.target.items = self.items
        self._round()

    def _round(self) -> None:
        """Rounds what is kept and read by copies where it is made."""
        types = self.numbers.types
        short = {v for v in self.kept if v in self.maker and types[v].dtype in SHORT}
        found: list[Item] = []
        for item in self.across.source.items:
            found.append(item)
            for k, v in enumerate(item.outs):
                if v in short:
                    item.outs[k] = self.numbers.new(types[v])
                    found.append(_rounded(item, item.outs[k], v, types[v]))
        self.across.source.items = found

    def _note(self, item: Item) -> None:
        """Keeps the results of the backward pass that nothing of it has read so far.

        They are gradients of weights: in the barrier of the next copies they are made before it
        goes on, while what they are made of would else be kept until the end.
        """
        reads = set(item.reads)
        self.pending = [v for v in self.pending if v not in reads]
        self.pending += [v for v in item.outs if v in self.wanted]

    def _chosen(self, value: Value) -> int | None:
        """The chosen value of the forward pass that a value is."""
        forward = self.across.forward(value)
        return forward if isinstance(forward, int) and forward in self.chosen else None

    def _read(self, values: list[Value]) -> list[Value]:
        found: list[Value] = []
        for v in values:
            forward = self._chosen(v)
            v = v if forward is None else self.copy[forward]
            found.append(self.passed.get(v, v) if isinstance(v, int) else v)
        return found

    def _need(self, values: list[Value]) -> None:
        """Makes the copies that a node of the backward pass reads."""
        wanted = [f for v in values if (f := self._chosen(v)) is not None and f not in self.copy]
        if not wanted:
            return
        nodes: set[int] = set()
        todo = list(wanted)
        while todo:
            i = self.maker[todo.pop()]
            if i not in nodes:
                nodes.add(i)
                reads = self.order[i].reads
                todo += [v for v in reads if v in self.chosen and v not in self.copy]
        again = [self.order[i] for i in sorted(nodes)]
        if self.ordered:
            self._region(again, values)
        else:
            self.items += self._copies(again, self.copy, self._outside)

    def _outside(self, v: int) -> int:
        """A value of the forward pass, or its copy, in the backward pass."""
        if v in self.copy:
            return self.copy[v]
        self.kept[v] = None
        return self.across.port(v)

    def _copies(
        self, nodes: list[Item], copy: dict[int, int], outside: Callable[[int], int]
    ) -> list[Item]:
        """Copies of nodes; `copy` gets the copies of their results."""
        found: list[Item] = []
        for node in nodes:
            ins = [
                (copy[v] if v in copy else outside(v)) if isinstance(v, int) else v
                for v in node.ins
            ]
            outs = [self.numbers.new(self.numbers.types[v]) for v in node.outs]
            found.append(Item(node.node, node.binding, ins, outs, True))
            copy.update(zip(node.outs, outs, strict=True))
        return found

    def _region(self, nodes: list[Item], values: list[Value]) -> None:
        """A region that computes some nodes of the forward pass again."""
        entering: dict[int, int] = {}  # value outside -> input of the region

        def enter(outside: int) -> int:
            if outside not in entering:
                entering[outside] = self.numbers.new(self.numbers.types[outside])
            return entering[outside]

        inner: dict[int, int] = {}  # value of the forward pass -> inside the region
        items = self._copies(nodes, inner, lambda v: enter(self._outside(v)))
        made = [v for node in nodes for v in node.outs]
        outputs: list[Value] = [inner[v] for v in made]
        outs = [self.numbers.new(self.numbers.types[v]) for v in made]
        self.copy.update(zip(made, outs, strict=True))
        waits = self._of_backward(values)
        held = [*([] if waits is None else [waits]), *self.pending]
        passed: dict[int, int] = {}
        for v in map(self._narrow, held):
            if v not in passed:
                outputs.append(enter(v))
                outs.append(self.numbers.new(self.numbers.types[v]))
                passed[v] = outs[-1]
        self.pending = []
        inputs = [(v, Input("in", self.numbers.types[v], "body")) for v in entering.values()]
        body = Draft(self.numbers, inputs, items, outputs)
        self.items.append(region_of(body, list(entering), outs))
        for v in held:
            self._widen(v, passed)
        self.passed = {key: passed.get(v, v) for key, v in self.passed.items()} | passed

    def _of_backward(self, values: list[Value]) -> int | None:
        """An operand that the backward pass has made, or else its latest result."""
        made = (v for v in values if isinstance(v, int) and self._is_late(v))
        found = next(made, self.last)
        return None if found is None else self.passed.get(found, found)

    def _narrow(self, value: int) -> int:
        """What a value of the backward pass was widened from: it is smaller, and there as late."""
        size = self.numbers.types
        while (item := self.makers.get(value)) and item.op in WIDENING:
            (read,) = item.reads or (value,)
            if not self._is_late(read) or size[read].nbytes >= size[value].nbytes:
                break
            value = read
        return value

    def _widen(self, value: int, passed: dict[int, int]) -> int:
        """Widens anew what a region passed on in place of a value."""
        if value not in passed:
            item = self.makers[value]
            (read,) = item.reads
            narrow, out = self._widen(read, passed), self.numbers.new(self.numbers.types[value])
            ins = [narrow if v == read else v for v in item.ins]
            self.makers[out] = Item(item.node, item.binding, ins, [out], True)
            self.items.append(self.makers[out])
            passed[value] = out
        return passed[value]

    def _is_late(self, v: int) -> bool:
        """Whether a value is there only when the backward pass has begun.

        Where that is given by its inputs, what it makes of none of them, such as zeros, is not.
        """
        return v in self.waiting if self.waiting else self.across.forward(v) is None


def _rounded(like: Item, value: int, out: int, type_: TensorType) -> Item:
    """A node that rounds a value to its own type."""
    primitive, params = rounding(type_.dtype)
    node = Node(
        "reduce_precision", (), (type_,), tuple(sorted(params.items())), (), like.node.source
    )
    return Item(node, Binding(primitive, params), [value], [out], False)


def region_of(body: Draft, ins: list[Value], outs: list[int]) -> Item:
    """A region of `jax.checkpoint`, whose barrier keeps it apart from the forward pass."""
    primitive, params = recomputed_region()
    attrs = tuple(sorted({**params, "jaxpr": "body 0"}.items()))
    types = tuple(body.numbers.types[v] for v in outs)
    node = Node("remat", (), types, attrs, (), body.items[0].node.source)
    binding = Binding(primitive, params, (program_of(body),), backward=True)
    return Item(node, binding, ins, outs, True, {0: body})

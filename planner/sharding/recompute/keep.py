"""The program that keeps everything: what the user's `jax.checkpoint` computes twice, it keeps.

JAX writes a checkpointed part twice, in the forward pass and in a region of the backward pass. The
region is opened, and each node in it that is equal to one of the forward pass is replaced by that
one's results. So is what JAX has moved out of the loop of the forward pass alone, as no iteration
changes it: tables of rotary embeddings, for one. A light node that only the region has, such as a
factor of a derivative, is moved to the forward pass. A product or a loop that only the region has
stays where it is. Parts that are checkpointed inside of another are opened in both passes, but not
those in bodies of loops and branches inside a checkpointed part.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from ir import HOST_COPIES, Node
from ir.trace import Binding, CapturedArray, Program

from .across import Across, InBody, InLoops
from .draft import Draft, Item, Value, draft_of, program_of
from .passes import HEAVY, bodies_with_passes, pairs_of


def keeping_all(program: Program, late: Iterable[int] = ()) -> Program:
    """The program without the recomputation that the user's `jax.checkpoint` asked for.

    Args:
        program: forward and backward pass.
        late: inputs that are there only when the backward pass begins.
    """
    if not recomputes(program):
        return program
    draft = draft_of(program, late=late)
    _keep(draft)
    return program_of(draft)


def recomputes(program: Program, *, backward: bool = False) -> bool:
    """Whether a backward pass of the program has a region of `jax.checkpoint`.

    Args:
        program: the program, or the body of a loop.
        backward: whether it is the body of a loop of the backward pass.
    """
    for node, binding in zip(program.graph.nodes, program.bindings, strict=True):
        here = backward or binding.backward
        if (node.op == "remat" and here) or any(
            recomputes(b, backward=here) for b in binding.bodies
        ):
            return True
    return False


def _keep(draft: Draft) -> None:
    for _, _, body in bodies_with_passes(draft):
        _keep(body)
    opened = _opened(draft, backward=False)
    _merge(InBody(draft), opened)
    for pair in pairs_of(draft):
        _opened(draft.body(pair.forward), backward=False)
        across = InLoops(draft, pair)
        _merge(across, _opened(across.target, backward=True))


def _opened(draft: Draft, *, backward: bool) -> set[int]:
    """Puts the nodes of regions in place of these; returns the ids of those of the backward pass.

    A region of the forward pass is one that is checkpointed inside of another: JAX leaves it there
    as it was written, while the one of the backward pass has its nodes.

    Nodes of a region in the backward pass are marked as of that pass (`again`), those of one in the
    forward pass are not.

    Args:
        draft: a body.
        backward: whether the whole body is of the backward pass.
    """
    renamed: dict[int, Value] = {}
    items: list[Item] = []
    opened: set[int] = set()

    def read(values: list[Value]) -> list[Value]:
        return [renamed.get(v, v) if isinstance(v, int) else v for v in values]

    def put(item: Item, *, again: bool) -> None:
        item.ins = read(item.ins)
        if item.op != "remat":
            items.append(item)
            if again:
                item.backward = True
                opened.add(id(item))
            return
        again = again or backward or item.backward
        body = draft_of(item.binding.bodies[0], draft.numbers)
        heads = body.inputs[: len(body.consts)]
        for (v, head), const in zip(heads, body.consts, strict=True):
            node = Node("constant", (), (head.type,), (("content", head.digest),))
            put(Item(node, Binding(CapturedArray(const), {}), [], [v], again), again=again)
        renamed.update(zip(body.entered, item.ins, strict=True))
        for inner in body.items:
            put(inner, again=again)
        renamed.update(zip(item.outs, read(body.outputs), strict=True))

    for item in draft.items:
        put(item, again=False)
    draft.items, draft.outputs = items, read(draft.outputs)
    return opened


def _merge(across: Across, opened: set[int]) -> None:
    """Replaces opened nodes by equal ones of the forward pass, and moves light ones to it."""
    if opened:
        _Merge(across, opened).run()


class _Merge:
    """Opened nodes of a backward pass, while they are merged with the forward pass.

    same: value of the backward pass -> the equal value of the forward pass.
    known: what a node computes -> its results.
    equal: result of a node -> that of an earlier node that computes the same.
    fixed: what is computed of what enters a loop as a whole.
    """

    def __init__(self, across: Across, opened: set[int]) -> None:
        self.across, self.target, self.opened = across, across.target, opened
        self.plain = _without_copies(across.source)
        self.same: dict[int, int] = {}
        self.equal: dict[int, int] = {}
        self.known: dict[Hashable, list[int]] = {}
        self.moved: list[Item] = []
        self.fixed = _Fixed(across) if isinstance(across, InLoops) else None
        if isinstance(across, InLoops) and self.fixed is not None:
            self.equal.update(self.fixed.alike)
            for item in across.source.items:
                self._learn(item)

    def run(self) -> None:
        """Rewrites both passes."""
        stays = [item for item in self.target.items if not self._merged(item)]
        for item in stays:
            item.ins = [self._read(v) for v in item.ins]
        self.target.outputs = [self._read(v) for v in self.target.outputs]
        self.target.items = stays
        self.across.add(self.moved)

    def _merged(self, item: Item) -> bool:
        """Whether a node is one of the forward pass, or becomes one."""
        if id(item) not in self.opened:
            if isinstance(self.across, InBody) and all(
                self.across.forward(v) == v for v in item.outs
            ):
                self._learn(item)
            return False
        outside = self.fixed.equal_to(item) if self.fixed is not None else None
        if outside is not None:
            self.same.update(zip(item.outs, outside, strict=True))
            return True
        ins = [self._forward(v) for v in item.ins]
        if item.op in HOST_COPIES and isinstance(ins[0], int):
            self.same[item.outs[0]] = ins[0]
            return True
        given = [v for v in ins if v is not None]
        if len(given) < len(ins) or item.node.has_attr("effect"):
            return False
        key = _key(item, given)
        if key not in self.known:
            if item.op in HEAVY or item.bodies:
                return False
            outs = [self.target.numbers.new(t) for t in item.node.outputs]
            self.moved.append(Item(item.node, item.binding, given, outs, False))
            self.known[key] = outs
        self.same.update(zip(item.outs, self.known[key], strict=True))
        return True

    def _learn(self, item: Item) -> None:
        """Notes what a node of the forward pass computes."""
        ins = [self.equal.get(v, v) if isinstance(v, int) else v for v in item.ins]
        outs = self.known.setdefault(_key(item, ins), item.outs)
        self.equal.update(zip(item.outs, outs, strict=True))

    def _forward(self, v: Value) -> Value | None:
        """The value of the forward pass that a value is; None if it is not."""
        found = self.same.get(v) if isinstance(v, int) else v
        found = self.across.forward(v) if found is None else found
        found = self.plain.get(found, found) if isinstance(found, int) else found
        return self.equal.get(found, found) if isinstance(found, int) else found

    def _read(self, v: Value) -> Value:
        """A value as the backward pass reads it after merging."""
        if isinstance(v, int) and (v in self.same or self.across.forward(v) in self.plain):
            found = self._forward(v)
            return self.across.port(found) if isinstance(found, int) else v
        return v


class _Fixed:
    """Expressions of values that enter both loops of a pair as a whole, by number.

    Two values have one number if the same operations make them of the same values. What an
    expression begins with is a value around the loops.

    Attributes:
        alike: value that enters the forward loop -> the first one that is equal to it.
    """

    def __init__(self, across: InLoops) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._of: dict[int, int] = {}  # value around the loops, or of the backward body
        forward, backward = across.pair.forward, across.pair.backward
        for item in across.draft.items:
            if item is forward:
                break
            self._note(item, anything=True)
        entered = list(zip(forward.ins, across.source.entered, strict=True))
        constants, _, _ = forward.wiring().operands(entered)
        self._inside: dict[int, int] = {}  # number -> value of the forward body
        self.alike: dict[int, int] = {}
        for outer, port in constants:
            if isinstance(outer, int):
                self.alike[port] = self._inside.setdefault(self._around(outer), port)
        entered = list(zip(backward.ins, across.target.entered, strict=True))
        constants, _, _ = backward.wiring().operands(entered)
        for outer, port in constants:
            if isinstance(outer, int):
                self._of[port] = self._around(outer)

    def equal_to(self, item: Item) -> list[int] | None:
        """The values that enter the forward loop which are equal to what a node makes, if any.

        Nodes of the backward body are asked for in order.
        """
        self._note(item, anything=False)
        found = [self._inside.get(self._of.get(v, -1)) for v in item.outs]
        known = [v for v in found if v is not None]
        return known if known and len(known) == len(found) else None

    def _note(self, item: Item, *, anything: bool) -> None:
        """Numbers what a node makes; `anything`: its operands may be what nothing is known of."""
        closed = all(anything or not isinstance(v, int) or v in self._of for v in item.ins)
        if closed and not item.bodies and not item.node.bodies and not item.node.has_attr("effect"):
            ins = [("of", self._around(v)) if isinstance(v, int) else v for v in item.ins]
            key = item.op, tuple(ins), item.node.outputs, repr(item.node.attrs)
            for k, v in enumerate(item.outs):
                self._of[v] = self._number((key, k))

    def _around(self, v: int) -> int:
        return self._of.setdefault(v, self._number(v))

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _without_copies(draft: Draft) -> dict[int, int]:
    """Leaves out what changes no value; returns result -> value.

    JAX rounds what a policy saves to its own precision, so that compilers do not keep it more
    precisely. A copy to the host, or back, is left out as well: everything is kept on the device.
    """
    plain: dict[int, int] = {}
    for item in draft.items:
        item.ins = [plain.get(v, v) if isinstance(v, int) else v for v in item.ins]
        if item.op == "reduce_precision" and isinstance(item.ins[0], int):
            bits = item.node.attr("exponent_bits"), item.node.attr("mantissa_bits")
            if bits == _BITS.get(item.node.outputs[0].dtype):
                plain[item.outs[0]] = item.ins[0]
        if item.op in HOST_COPIES and isinstance(item.ins[0], int):
            plain[item.outs[0]] = item.ins[0]
    draft.outputs = [plain.get(v, v) if isinstance(v, int) else v for v in draft.outputs]
    return plain


_BITS = {"bfloat16": (8, 7), "float16": (5, 10), "float32": (8, 23), "float64": (11, 52)}


def _key(item: Item, ins: list[Value]) -> Hashable:
    """Equal for nodes with equal results."""
    node = item.node
    bodies = tuple(graph.digest for graph in node.bodies)
    return node.op, tuple(ins), node.outputs, repr(node.attrs), bodies

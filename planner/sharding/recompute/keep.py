"""The program that keeps everything: what the user's `jax.checkpoint` computes twice, it keeps.

JAX writes a checkpointed part twice, in the forward pass and in a region of the backward pass. The
region is opened, and each node in it that is equal to one of the forward pass is replaced by that
one's results. A light node that only the region has, such as a factor of a derivative, is moved to
the forward pass. A product or a loop that only the region has stays where it is.
"""

from __future__ import annotations

from collections.abc import Hashable

from ir import Node
from ir.trace import Binding, CapturedArray, Program

from .across import Across, InBody, InLoops
from .draft import Draft, Item, Value, draft_of, program_of
from .passes import HEAVY, bodies_with_passes, pairs_of


def keeping_all(program: Program) -> Program:
    """The program without the recomputation that the user's `jax.checkpoint` asked for."""
    if not recomputes(program):
        return program
    draft = draft_of(program)
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
    opened = _opened(draft, anywhere=False)
    _merge(InBody(draft), opened)
    for pair in pairs_of(draft):
        across = InLoops(draft, pair)
        _merge(across, _opened(across.target, anywhere=True))


def _opened(draft: Draft, *, anywhere: bool) -> set[int]:
    """Puts the nodes of regions of the backward pass in place of these; returns the ids of nodes.

    Args:
        draft: a body.
        anywhere: whether the whole body is of the backward pass.
    """
    renamed: dict[int, Value] = {}
    items: list[Item] = []
    opened: set[int] = set()

    def read(values: list[Value]) -> list[Value]:
        return [renamed.get(v, v) if isinstance(v, int) else v for v in values]

    def put(item: Item, *, inside: bool) -> None:
        item.ins = read(item.ins)
        if item.op != "remat" or not (inside or anywhere or item.backward):
            items.append(item)
            if inside:
                item.backward = True
                opened.add(id(item))
            return
        body = draft_of(item.binding.bodies[0], draft.numbers)
        heads = body.inputs[: len(body.consts)]
        for (v, head), const in zip(heads, body.consts, strict=True):
            node = Node("constant", (), (head.type,), (("content", head.digest),))
            items.append(Item(node, Binding(CapturedArray(const), {}), [], [v], True))
            opened.add(id(items[-1]))
        renamed.update(zip(body.entered, item.ins, strict=True))
        for inner in body.items:
            put(inner, inside=True)
        renamed.update(zip(item.outs, read(body.outputs), strict=True))

    for item in draft.items:
        put(item, inside=False)
    draft.items, draft.outputs = items, read(draft.outputs)
    return opened


def _merge(across: Across, opened: set[int]) -> None:
    """Replaces opened nodes by equal ones of the forward pass, and moves light ones to it."""
    if not opened:
        return
    target, numbers = across.target, across.target.numbers
    plain = _without_rounding(across.source)
    known: dict[Hashable, list[int]] = {}
    if isinstance(across, InLoops):
        for item in across.source.items:
            known.setdefault(_key(item, item.ins), item.outs)
    same: dict[int, int] = {}  # value of the target -> of the forward pass
    stays: list[Item] = []
    moved: list[Item] = []

    def forward(v: Value) -> Value | None:
        found = same[v] if isinstance(v, int) and v in same else across.forward(v)
        return plain.get(found, found) if isinstance(found, int) else found

    def read(v: Value) -> Value:
        if isinstance(v, int) and (v in same or across.forward(v) in plain):
            found = forward(v)
            return across.port(found) if isinstance(found, int) else v
        return v

    for item in target.items:
        if id(item) not in opened:
            if isinstance(across, InBody) and all(across.forward(v) == v for v in item.outs):
                known.setdefault(_key(item, item.ins), item.outs)
            stays.append(item)
            continue
        ins = [forward(v) for v in item.ins]
        given = [v for v in ins if v is not None]
        if len(given) < len(ins) or item.node.has_attr("effect"):
            stays.append(item)
            continue
        key = _key(item, given)
        if key not in known:
            if item.op in HEAVY or item.bodies:
                stays.append(item)
                continue
            outs = [numbers.new(t) for t in item.node.outputs]
            moved.append(Item(item.node, item.binding, given, outs, False))
            known[key] = outs
        same.update(zip(item.outs, known[key], strict=True))
    for item in stays:
        item.ins = [read(v) for v in item.ins]
    target.outputs = [read(v) for v in target.outputs]
    target.items = stays
    for item in moved:
        across.add(item)


def _without_rounding(draft: Draft) -> dict[int, int]:
    """Leaves out nodes that round a value to its own precision; returns result -> value.

    JAX rounds what a policy saves, so that compilers do not keep it more precisely.
    """
    plain: dict[int, int] = {}
    for item in draft.items:
        item.ins = [plain.get(v, v) if isinstance(v, int) else v for v in item.ins]
        if item.op == "reduce_precision" and isinstance(item.ins[0], int):
            bits = item.node.attr("exponent_bits"), item.node.attr("mantissa_bits")
            if bits == _BITS.get(item.node.outputs[0].dtype):
                plain[item.outs[0]] = item.ins[0]
    draft.outputs = [plain.get(v, v) if isinstance(v, int) else v for v in draft.outputs]
    return plain


_BITS = {"bfloat16": (8, 7), "float16": (5, 10), "float32": (8, 23), "float64": (11, 52)}


def _key(item: Item, ins: list[Value]) -> Hashable:
    """Equal for nodes with equal results."""
    node = item.node
    bodies = tuple(graph.digest for graph in node.bodies)
    return node.op, tuple(ins), node.outputs, repr(node.attrs), bodies

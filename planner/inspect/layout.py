"""What the axes of a plan's mesh split, in the words of well-known plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ir import SLIDING, slides
from ir.analysis import operand_types

from .analysed_plan import AnalysedPlan
from .products import products
from .rates import tokens_of

# Share of the bytes of a role that an axis splits, from which on the axis counts as splitting it:
# norms and biases often stay whole.
MOST = 0.5
BATCH, SEQUENCE, SPACE = "batch", "sequence", "space"
DATA = "data parallel"
OTHERS = {
    "experts": "expert parallel", SPACE: "spatial partitioning", "other": "tensor parallel",
    "": "mostly the same work",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Split:
    """Axes of a plan's mesh by what they split.

    work: kind of the dimension that most of the flops of products are split along -> axes: batch,
        sequence, experts, space, other, or nothing if most are not split.
    parameters, states: axes that split most of the bytes of these arguments.
    ids: whether the batch holds token ids.
    """

    work: dict[str, tuple[str, ...]]
    parameters: tuple[str, ...]
    states: tuple[str, ...]
    ids: bool


def layout_text(analysed: AnalysedPlan) -> str:
    """The plan's layout as one phrase, such as `tensor parallel over 8 devices (z)`.

    Over axes that split the batch, parameters are split (fully sharded), split over some and copied
    over others (hybrid sharded), or whole with the optimizer's state split (ZeRO) or whole too.
    """
    mesh, split = analysed.decisions.mesh, _split(analysed)

    def over(axes: Sequence[str]) -> str:
        return f"over {mesh.product(tuple(axes))} devices ({'*'.join(axes)})"

    named = [f"{_name(split, kind)} {over(axes)}" for kind, axes in split.work.items()]
    summing = {axis for kind in (BATCH, SEQUENCE, SPACE) for axis in split.work.get(kind, ())}
    stored = [axis for axis in split.parameters if axis in summing]
    if stored and {*stored} != {*split.work.get(BATCH, ())}:
        named.append(f"parameters split {over(stored)}")
    return ", ".join(named)


def layout_of_axes(analysed: AnalysedPlan, axes: Collection[str]) -> str:
    """The names of what some of the mesh's axes do, without their sizes."""
    split = _split(analysed)
    return ", ".join(
        _name(split, kind) for kind, members in split.work.items() if set(members) & set(axes)
    )


def _name(split: Split, kind: str) -> str:
    """The well-known plan that splits a kind of dimension over its axes."""
    if kind == SEQUENCE:
        return "context parallel" if split.ids else "split along the dimension after the batch"
    if kind != BATCH:
        return OTHERS[kind]
    axes = {*split.work[BATCH]}
    if axes <= {*split.parameters}:
        return f"fully sharded {DATA}"
    if axes & {*split.parameters}:
        return f"hybrid sharded {DATA}"
    return f"ZeRO {DATA}" if axes & {*split.states} else DATA


def _split(analysed: AnalysedPlan) -> Split:
    work: dict[str, list[str]] = defaultdict(list)
    sized = [(a, axis) for a, (axis, size) in enumerate(analysed.decisions.mesh.axes) if size > 1]
    for position, axis in sized:
        work[_most_split(analysed, position)].append(axis)
    axes = [axis for _, axis in sized]
    return Split(
        {kind: tuple(found) for kind, found in work.items()},
        tuple(axis for axis in axes if stores(analysed, axis, "parameter")),
        tuple(axis for axis in axes if stores(analysed, axis, "optimizer-state")),
        tokens_of(analysed) > 0,
    )


def _most_split(analysed: AnalysedPlan, position: int) -> str:
    """The kind of dimension that one mesh axis splits in most of the flops of products.

    Returns:
        batch, sequence, experts, space, `other`, or nothing if most are not split.
    """
    flat, kinds = analysed.flat, analysed.kinds
    spent: dict[str, float] = defaultdict(float)
    for i, flops in products(analysed.flat):
        op = flat.ops[i]
        factor = analysed.decisions.ops[op.place][position]
        sliding = slides(op.node, operand_types(flat, op)) if op.node.op in SLIDING else ()
        if any(factor == each.factor for each in sliding):
            spent[SPACE] += flops
        else:
            spent[(kinds.of_factor(i, factor) or "other") if factor else ""] += flops
    return max(spent, key=lambda kind: (spent[kind], kind), default="")


def stores(analysed: AnalysedPlan, axis: str, role: str) -> bool:
    """Whether an axis splits most of the bytes of the arguments of a role."""
    pairs = zip(analysed.graph.inputs, analysed.decisions.inputs, strict=True)
    rows = [(s, float(item.type.nbytes)) for item, s in pairs if item.role == role]
    total = sum(nbytes for _, nbytes in rows)
    return total > 0.0 and sum(b for s, b in rows if axis in s.axes) >= MOST * total

"""A plan in the terms of other frameworks: degrees of parallelism, and what they leave out.

Other frameworks give every mesh axis one meaning for the whole model. Each axis is named here for
what it splits most of the products' time; how much of it is otherwise is said in the notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ...common.units_text import bytes_text
from ...sharding.cost.account import Collective
from ..analysed_plan import AnalysedPlan
from .edits import edits
from .kept import Kept, kept, on_host
from .origin import origin

DATA, SEQUENCE, EXPERT, TENSOR, IDLE = "data", "sequence", "expert", "tensor", "idle"
_KIND = {"batch": DATA, "sequence": SEQUENCE, "experts": EXPERT, "": TENSOR}
CLEAR = 0.99  # an axis that splits less than this share of its products in one way is mixed


@dataclass(frozen=True, slots=True)
class Degrees:
    """Degrees of parallelism.

    meaning: mesh axis -> data, sequence, expert, tensor or idle.
    zero: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too, over the data axes.
    sequence_parallel: activations between the products are split along the sequence over tensor
        axes, as Megatron's sequence parallelism does.
    batch: examples of a step; 0 if the program has no batch.
    dtype: element type of most products.
    kept: what the backward pass has of the forward pass.
    state_on_host: share of the optimizer's state [bytes] that is on the host between steps.
    parameters_on_host: the same of parameters.
    pipeline: number of stages.
    notes: decisions that the degrees do not express.
    """

    meaning: Mapping[str, str]
    sizes: Mapping[str, int]
    zero: int
    sequence_parallel: bool
    batch: int
    microbatches: int
    dtype: str
    kept: Kept
    state_on_host: float
    parameters_on_host: float
    pipeline: int
    notes: tuple[str, ...]

    def degree(self, kind: str) -> int:
        """Product of the axes of one meaning."""
        found = 1
        for axis, meaning in self.meaning.items():
            if meaning == kind:
                found *= self.sizes[axis]
        return found

    @property
    def replicas(self) -> int:
        """Groups of devices that see different examples."""
        return self.degree(DATA)

    @property
    def micro_batch(self) -> int:
        """Examples that one replica takes at a time; at least 1."""
        return max(1, self.batch // (self.replicas * self.microbatches))


def degrees(analysed: AnalysedPlan) -> Degrees:
    """Reads the degrees off a plan."""
    seconds = _seconds(analysed)
    meaning: dict[str, str] = {}
    notes: list[str] = []
    for axis, size in analysed.program.mesh:
        row = seconds[axis]
        total = sum(row.values())
        if total <= 0.0 or size == 1:
            meaning[axis] = IDLE
            if size > 1:
                notes.append(f"mesh axis {axis} of {size} splits no product")
            continue
        best = max(sorted(row), key=lambda kind: row[kind])
        meaning[axis] = best
        if row[best] < CLEAR * total:
            rest = ", ".join(
                f"{kind} {share / total:.0%}" for kind, share in sorted(row.items()) if kind != best
            )
            notes.append(
                f"mesh axis {axis} of {size} is called {best}, but of the products' time it "
                f"splits {rest} in another way; layers are not all split alike"
            )
    data = {axis for axis, kind in meaning.items() if kind == DATA}
    zero, more = _zero(analysed, data)
    tensor = {axis for axis, kind in meaning.items() if kind == TENSOR}
    return Degrees(
        meaning, dict(analysed.program.mesh), zero, _sequence_parallel(analysed, tensor),
        _batch(analysed), analysed.program.microbatches, _dtype(analysed),
        kept(analysed), on_host(analysed, "optimizer-state"), on_host(analysed, "parameter"), 1,
        (*notes, *more, *_edited(analysed)),
    )  # fmt: skip


def _products(analysed: AnalysedPlan) -> Iterator[tuple[int, float]]:
    """Products and convolutions with their seconds."""
    for i, node in analysed.built.op_node.items():
        if analysed.flat.ops[i].node.op in (
            "dot_general",
            "ragged_dot_general",
            "conv_general_dilated",
        ):
            yield i, float(analysed.built.work[node][analysed.choice[node]])


def _seconds(analysed: AnalysedPlan) -> dict[str, dict[str, float]]:
    """Mesh axis -> use -> seconds of the products that it splits in this way."""
    found: dict[str, dict[str, float]] = {axis: {} for axis, _ in analysed.program.mesh}
    features = _features(analysed)
    for i, spent in _products(analysed):
        node = analysed.built.op_node[i]
        roles = analysed.built.refs[node].menu[analysed.choice[node]].roles
        for axis, role in zip(analysed.decisions.mesh.names, roles, strict=True):
            if role and not role.startswith("@"):
                kind = _KIND[analysed.kinds.of_factor(i, role)]
                if kind == SEQUENCE and analysed.kinds.classes.of_factor(i, role) in features:
                    kind = TENSOR
                found[axis][kind] = found[axis].get(kind, 0.0) + spent
    return found


def _features(analysed: AnalysedPlan) -> set[object]:
    """Dimensions of weights: a batch's second dimension is its features where a weight has it."""
    held = {v for v, role in zip(analysed.flat.inputs, analysed.program.roles, strict=True)
            if role == "parameter"}  # fmt: skip
    return {
        analysed.kinds.classes.of_dim(v, d)
        for i, _ in _products(analysed)
        for v in analysed.flat.ops[i].inputs
        if isinstance(v, int) and origin(analysed, v) in held
        for d in range(analysed.flat.values[v].type.rank)
    }


def _edited(analysed: AnalysedPlan) -> Iterator[str]:
    """Texts of what the plan changes in the program, beside what `kept` says."""
    program = replace(analysed.program, recomputed=None, hosted=(), host_bytes=0.0)
    yield from (edit.text for edit in edits(program))


# --- ZeRO ----------------------------------------------------------------------------------------


def _zero(analysed: AnalysedPlan, data: set[str]) -> tuple[int, list[str]]:
    """Stage of ZeRO over the data axes, and notes on what differs from it."""
    notes: list[str] = []
    share = {role: _split_share(analysed, role, data) for role in ("parameter", "optimizer-state")}
    for role, (split, total) in share.items():
        if 0.0 < split < total * CLEAR:
            notes.append(
                f"{bytes_text(total - split)} of {bytes_text(total)} of {role} bytes are not "
                "split over the data axes"
            )
    parameters, states = share["parameter"], share["optimizer-state"]
    if parameters[0] > 0.5 * parameters[1]:
        return 3, notes
    if states[0] > 0.5 * states[1]:
        return (2 if _scatters(analysed.account.collectives, data) else 1), notes
    return 0, notes


def _split_share(analysed: AnalysedPlan, role: str, data: set[str]) -> tuple[float, float]:
    """Bytes of arguments of a role that some data axis splits, and all of them."""
    split = total = 0.0
    for item, state in zip(analysed.graph.inputs, analysed.decisions.inputs, strict=True):
        if item.role == role:
            total += item.type.nbytes
            split += item.type.nbytes if data & set(state.axes) else 0.0
    return split, total


def _scatters(collectives: tuple[Collective, ...], data: set[str]) -> bool:
    """Whether sums over the data axes end as a reduce-scatter rather than an all-reduce."""
    sent = {"reduce-scatter": 0.0, "all-reduce": 0.0}
    for c in collectives:
        if c.kind in sent and set(c.axes) <= data:
            sent[c.kind] += c.bytes
    return sent["reduce-scatter"] > sent["all-reduce"]


# --- the rest ------------------------------------------------------------------------------------


def _sequence_parallel(analysed: AnalysedPlan, tensor: set[str]) -> bool:
    """Whether kept values that have a sequence are split along it over tensor axes."""
    if not tensor:
        return False
    split = total = 0.0
    for (place, number), state in analysed.decisions.values.items():
        v = analysed.flat.names.get((place, number))
        if v is None or analysed.flat.values[v].kind == "argument":
            continue
        for d, axes in enumerate(state.dims):
            if analysed.kinds.of_dim(v, d) == "sequence":
                total += analysed.flat.values[v].type.nbytes
                split += analysed.flat.values[v].type.nbytes if tensor & set(axes) else 0.0
                break
    return split > 0.5 * total > 0.0


def _batch(analysed: AnalysedPlan) -> int:
    sizes = [item.type.shape[0] for item in analysed.graph.inputs
             if item.role == "batch" and item.type.shape]  # fmt: skip
    return max(sizes, default=0)


def _dtype(analysed: AnalysedPlan) -> str:
    spent: dict[str, float] = {}
    for i, seconds in _products(analysed):
        name = analysed.flat.ops[i].node.outputs[0].dtype
        operands = [v for v in analysed.flat.ops[i].inputs if isinstance(v, int)]
        if operands:
            name = analysed.flat.values[operands[0]].type.dtype
        spent[name] = spent.get(name, 0.0) + seconds
    return max(sorted(spent), key=lambda name: spent[name], default="float32")

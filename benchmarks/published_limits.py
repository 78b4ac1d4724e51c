# pyright: basic
"""The degrees of a published step as limits of the search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ir import BLOCKS, EXCHANGE, GROUPED, NEAR, ROWS, FactorSpec, Sharding, Strategy
from ir.analysis import FlatProgram, accumulators, is_float
from planner.inspect.expert_products import EXPERTS, TOKENS, words_of
from planner.sharding.problem.program import Program
from planner.sharding.problem.records import AllowOp, Limits
from planner.sharding.search.baselines import BATCH, Recipe, Recipes, Rule
from planner.sharding.search.on_mesh import MeshSearch

MOST_LAYERS = 256
DATA = ("data", "odd", "expert")  # axes of data parallelism, of which one splits experts too
Shard = Literal["none", "zero1", "zero2", "zero3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How a step is spread over devices: stages outermost, then data, context, tensor innermost.

    micro_batch: sequences of a micro-batch on each data-parallel rank.
    chunks: stages on each group of devices (interleaving).
    shard: what data parallelism splits: nothing, or as ZeRO 1, 2 or 3 names it.
    sequence: norms and sums are split over the tensor-parallel devices too.
    overlap: collectives run beside compute, in a pipeline also those of a step.
    in_parts: products run in parts beside the collectives of tensor parallelism.
    in_kernels: gradients are summed in products, and weights cast to float8 once
        (`published_kernels.py`).
    copied_bytes: copied of each parameter beside collectives, in every micro-batch (likewise).
    sums: type in which stages of a pipeline add up the gradients of micro-batches.
    expert: devices of a stage that experts are split over, those of tensor parallelism first.
    """

    data: int = 1
    context: int = 1
    tensor: int = 1
    pipeline: int = 1
    chunks: int = 1
    micro_batch: int = 1
    shard: Shard = "none"
    sequence: bool = False
    overlap: bool = True
    in_parts: bool = False
    in_kernels: bool = False
    copied_bytes: float = 0.0
    sums: str = "float32"
    expert: int = 1

    @property
    def devices(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Mesh axes of a stage; data parallelism has a power of two, what is odd, and experts."""
        inside = max(self.expert // self.tensor, 1)
        if self.data % inside or self.expert % min(self.tensor, self.expert):
            raise ValueError(f"{self}: experts are not over whole degrees")
        outer = self.data // inside
        odd = outer // (outer & -outer)
        sizes = {"data": outer // odd, "odd": odd, "expert": inside}
        sizes |= {name: getattr(self, name) for name in ("context", "tensor")}
        return tuple((name, n) for name, n in sizes.items() if n > 1) or (("data", 1),)

    @property
    def blocks(self) -> int:
        """Groups of devices of a stage that each have all experts; 1 where none are split."""
        return self.data // max(self.expert // self.tensor, 1) if self.expert > 1 else 1

    def microbatches(self, batch: int) -> int:
        """Number of micro-batches of a step, by its number of sequences.

        Raises:
            ValueError: if they do not divide it.
        """
        count, rest = divmod(batch, self.data * self.micro_batch)
        if rest or not count:
            raise ValueError(f"{self} does not divide a batch of {batch}")
        return count


def limits_of(mesh_search: MeshSearch, program: Program, degrees: Degrees, width: int) -> Limits:
    """The degrees as limits of the search.

    Experts are split over the axis of data parallelism that has their name, and over that of tensor
    parallelism; rows of grouped products are where their matrices are (`near`), and so are slots,
    whose sequences are split over the other axes of data parallelism.

    Weights enter loops over layers as they are kept, and are gathered there if at all. Every
    product is split over the tensor-parallel devices, though not over tokens; with sequence
    parallelism everything else is too, and what layers keep for their backward pass; without,
    nothing as wide as the model (`width`) is. Context parallelism splits the tokens of every
    product. What stages of a pipeline send is split as their activations are. ZeRO 1 adds up whole
    gradients and reduces them once a step, ZeRO 2 and 3 reduce those of each layer.
    """
    builder, names = mesh_search.builder, mesh_search.mesh.names
    split = degrees.shard != "none"

    def data(kind: str, update: bool) -> bool:
        return kind == BATCH or (split and update)

    def context(kind: str, update: bool) -> bool:
        return kind == "sequence" or (split and update)

    def tensor(kind: str, _update: bool) -> bool:
        return kind != BATCH and (degrees.sequence or kind != "sequence")

    def expert(kind: str, update: bool) -> bool:
        return kind == "experts" or data(kind, update)

    rules: dict[str, Rule] = dict.fromkeys(DATA, data) | {"context": context, "tensor": tensor}
    state = _state(mesh_search, program, degrees)
    free = DATA
    if not _is_sorted(builder.flat):  # slots of experts on this axis are between their products
        rules["expert"], free = expert, DATA[:-1]
    over = tuple(a for a, name in enumerate(names) if name in free)
    recipe = Recipe("given", tuple(rules[name] for name in names), state, over)
    kinds: Any = _RowsAsBatch(program)
    limits = Recipes(builder, kinds, program.roles).limits(recipe)
    assert limits.op is not None
    if "tensor" in names:
        limits = replace(limits, op=_on_tensor(mesh_search, program, degrees, width, limits.op))
    if "context" in names:
        assert limits.op is not None
        limits = replace(limits, op=_on_context(mesh_search, program, limits.op))
    if degrees.expert > 1:
        assert limits.op is not None
        assert limits.state is not None
        over = tuple(a for a in names if a == "expert" or (a == "tensor" and degrees.tensor > 1))
        limits = Limits(
            _on_experts(mesh_search, program, over, limits.op),
            _experts_kept(mesh_search, program, over, limits.state),
        )
    return limits


class _RowsAsBatch:
    """Kinds of factors, with rows in a block, and what they are looked up in, as of the batch."""

    def __init__(self, program: Program) -> None:
        self.kinds, self.classes = program.kinds, program.kinds.classes
        self.rows = set[int]()
        for i, op in enumerate(program.flat.ops):
            spec = program.facts.spec(op)
            names = {ROWS} if BLOCKS in spec.names and op.node.op == GROUPED else set[str]()
            names |= {m for name, members in spec.joint if name == EXCHANGE for m in members}
            self.rows |= {self.classes.of_factor(i, name) for name in names}

    def of_op(self, op: int) -> tuple[str, ...]:
        """The kinds of an op's factors."""
        members = self.classes.members()[slice(*self.classes.factors(op))]
        pairs = zip(self.kinds.of_op(op), members, strict=True)
        return tuple(BATCH if not kind and m in self.rows else kind for kind, m in pairs)


def _state(
    mesh_search: MeshSearch, program: Program, degrees: Degrees
) -> Callable[[int, Sharding], bool]:
    """Which shardings arguments, ports and results may have: see `_limits`."""
    builder, roles, names = mesh_search.builder, program.roles, mesh_search.mesh.names
    weights = _entering(builder.flat, roles.parameters)
    parts = set(roles.states if degrees.shard != "none" else ())
    parts |= set(weights if degrees.shard == "zero3" else ())
    origins = weights | {v: v for v in roles.states}
    matrices = {v for v, o in origins.items() if _is_matrix(builder.flat.values[o].type.shape)}
    tokens = _of_tokens(program, builder.flat.inputs) - set(origins)
    kept = _kept(program) if degrees.sequence else set[int]()
    sums, ranks = set(accumulators(builder.flat)), {*DATA, "context"}
    slices = set(builder.flat.stacked.values())
    whole_sums, early = degrees.shard == "zero1", degrees.shard in ("zero2", "zero3")

    def state(v: int, sharding: Sharding) -> bool:
        if whole_sums and v in sums and ranks & set(sharding.axes):
            return False
        if early and v in slices and ranks & {axis for axis, _ in sharding.partial}:
            return False
        if v not in origins and v not in kept and v not in tokens:
            return True
        whole = v in matrices or v in kept or (v in tokens and degrees.sequence)
        axes = {"tensor"} if whole else set[str]()
        axes |= set(DATA) if v in parts else ranks if v in tokens else set()
        options = builder.states(v, partial=False)
        wanted = {a for a in axes & set(names) if any(a in option.axes for option in options)}
        free = v not in origins or v in parts
        return wanted <= set(sharding.axes) and (free or set(sharding.axes) <= {"tensor"})

    return state


def _on_context(mesh_search: MeshSearch, program: Program, inner: AllowOp) -> AllowOp:
    """Menus of ops by what devices of context parallelism split: see `_limits`."""
    flat, at = mesh_search.builder.flat, mesh_search.mesh.names.index("context")

    def op(i: int, spec: FactorSpec, menu: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        kept = inner(i, spec, menu)
        if flat.ops[i].node.op != "dot_general":
            return kept
        kinds = dict(zip(spec.names, program.kinds.of_op(i), strict=True))
        return tuple(s for s in kept if kinds.get(s.roles[at]) == "sequence") or kept

    return op


def _on_tensor(
    mesh_search: MeshSearch, program: Program, degrees: Degrees, width: int, inner: AllowOp
) -> AllowOp:
    """Menus of ops by what tensor-parallel devices split: see `_limits`."""
    flat, at = mesh_search.builder.flat, mesh_search.mesh.names.index("tensor")

    def op(i: int, spec: FactorSpec, menu: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        kept, product = inner(i, spec, menu), flat.ops[i].node.op == "dot_general"
        kinds = dict(zip(spec.names, program.kinds.of_op(i), strict=True))
        if not {BATCH, "sequence"} & set(kinds.values()):
            return kept  # in the update
        sizes = dict(spec.sizes)

        def legal(role: str) -> bool:
            if product:
                return role != "" and kinds.get(role) != "sequence"
            return role != "" if degrees.sequence else sizes.get(role) != width

        return tuple(s for s in kept if legal(s.roles[at])) or kept

    return op


def _entering(flat: FlatProgram, values: Sequence[int]) -> dict[int, int]:
    """Some arguments and the ports at which they enter bodies of loops -> the argument."""
    found = {v: v for v in values}
    for link in sorted(flat.links, key=lambda link: link.time):
        if link.source in found and link.site.at == "operand":
            found[link.target] = found[link.source]
    return found


def _kept(program: Program) -> set[int]:
    """Slices of activations that loops over layers stack up, and those that enter other loops."""
    flat = program.flat
    return _of_tokens(program, (*flat.stacked.values(), *_entering(flat, tuple(flat.stacked))))


def _of_tokens(program: Program, values: Iterable[int]) -> set[int]:
    """Those of some values that are activations."""
    flat, kinds = program.flat, program.kinds
    return {
        v for v in values
        if is_float(flat.values[v].type) and {BATCH, "sequence"} & {*kinds.of_value(v)}
    }  # fmt: skip


def _is_matrix(shape: Sequence[int]) -> bool:
    """Whether a parameter, or a stack of one for each layer, is no vector."""
    return len(shape) > 2 or (len(shape) == 2 and shape[0] > MOST_LAYERS)


def _is_sorted(flat: FlatProgram) -> bool:
    """Whether experts have grouped products."""
    return any(op.node.op == GROUPED for op in flat.ops)


def _on_experts(
    mesh_search: MeshSearch, program: Program, over: tuple[str, ...], inner: AllowOp
) -> AllowOp:
    """Menus of products of experts: experts over some axes, tokens over the others.

    Rows of grouped products are where their experts are over the first.
    """
    flat, names = mesh_search.builder.flat, mesh_search.mesh.names

    def op(i: int, spec: FactorSpec, menu: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        if flat.ops[i].node.op == GROUPED:
            apart = BLOCKS if BLOCKS in spec.names else ROWS
            wanted = tuple(NEAR if name in over else apart for name in names)
            return tuple(s for s in menu if s.roles == wanted)
        words = words_of(flat, i, spec, program.kinds)
        if not words:
            return inner(i, spec, menu)
        use = tuple(EXPERTS if name in over else TOKENS for name in names)
        return tuple(
            s for s in menu if all(words.get(r) == u for r, u in zip(s.roles, use, strict=True))
        )

    return op


def _experts_kept(
    mesh_search: MeshSearch, program: Program, over: tuple[str, ...],
    inner: Callable[[int, Sharding], bool],
) -> Callable[[int, Sharding], bool]:  # fmt: skip
    """Matrices of experts, and what belongs to them, are split over some axes by their experts."""
    flat, kept = mesh_search.builder.flat, (*program.roles.parameters, *program.roles.states)
    origins = _entering(flat, kept)
    sums = set(accumulators(flat))

    def state(v: int, sharding: Sharding) -> bool:
        if v not in origins and v not in sums:
            return inner(v, sharding)
        dims = [d for d, kind in enumerate(program.kinds.of_value(v)) if kind == "experts"]
        if not dims or len(flat.values[v].type.shape) < 3:
            return inner(v, sharding)
        free = v in sums or origins[v] not in program.roles.parameters
        return set(over) <= set(sharding.dims[dims[0]]) and (free or set(sharding.axes) == {*over})

    return state

# pyright: basic
"""The planner's price of a training step whose degrees are given.

The degrees limit the search as those of a hand-written plan do (`Recipe`); what they leave open,
such as which dimension of a weight is split, the solver decides. Stages of a pipeline have equal
numbers of layers and are planned each under the same limits; a schedule is then simulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import jax

from benchmarks.published_model import Transformer, adam
from costmodel import INTERFERENCE, Cluster
from ir import FactorSpec, Mesh, Sharding, Strategy
from ir.analysis import FlatProgram, accumulators, is_float
from ir.trace import trace
from planner.common.options import Options
from planner.common.request import Request, heard
from planner.pipeline.cut.opened_loss import Opened, cut_of, opened
from planner.pipeline.cut.stage import Staged
from planner.pipeline.cut.stage_gradient import joint_of
from planner.pipeline.cut.stage_training_step import (
    StageTrainingStep,
    stage_training_step,
    training_step_of,
)
from planner.pipeline.divide.simulated import PipelineShape, flights_of, ranked, table_of
from planner.pipeline.divide.stage_price import StagePrice, price_of
from planner.pipeline.schedule import IN_FLIGHT, INTERLEAVED
from planner.pipeline.stage_planner import phases_of
from planner.sharding.fewest_microbatches import TRAINING_ROLES
from planner.sharding.plan_program import program_for
from planner.sharding.problem.program import InFlight, Program
from planner.sharding.problem.records import AllowOp, Limits
from planner.sharding.search.baselines import BATCH, Recipe, Recipes, Rule
from planner.sharding.search.context import Candidate
from planner.sharding.search.on_mesh import MeshSearch
from planner.sharding.search.over_meshes import Search
from planner.training.training import Training

MOST_LAYERS = 256
DATA = ("data", "odd")  # axes of data parallelism
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
    sums: type in which stages of a pipeline add up the gradients of micro-batches.
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
    sums: str = "float32"

    @property
    def devices(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    def microbatches(self, batch: int) -> int:
        """Number of micro-batches of a step, by its number of sequences.

        Raises:
            ValueError: if they do not divide it.
        """
        count, rest = divmod(batch, self.data * self.micro_batch)
        if rest or not count:
            raise ValueError(f"{self} does not divide a batch of {batch}")
        return count


@dataclass(frozen=True, slots=True)
class Price:
    """A step: its seconds, and bytes of a device.

    compute_s: seconds of compute; in a pipeline those that the busiest stage is not idle.
    exposed_s: the rest of the step: collectives that wait; in a pipeline the bubble.
    """

    step_s: float
    compute_s: float
    exposed_s: float
    peak_bytes: float
    fits: bool


def price(
    model: Transformer, degrees: Degrees, batch: int, cluster: Cluster, limit_bytes: int
) -> Price:
    """Plans a training step under given degrees.

    Args:
        model: what is trained.
        degrees: their product is the number of devices.
        batch: sequences of a step, over all devices.
        cluster: the machine.
        limit_bytes: memory of a device.

    Raises:
        ValueError: if the degrees do not fit the machine, the batch or the layers.
    """
    count = degrees.microbatches(batch)
    if degrees.devices != cluster.num_devices:
        raise ValueError(f"{degrees} is not on {cluster.num_devices} devices")
    if degrees.pipeline * degrees.chunks > model.layers + 2:
        raise ValueError(f"{degrees} has more stages than {model.layers} layers")
    options = Options(
        memory_bytes=limit_bytes,
        overlap=degrees.overlap,
        collective_matmul=degrees.in_parts,
        baselines=False,
        substitutions=False,
    )
    copies = not model.wide_weights
    args = (model.parameters(), model.batch(batch))
    training = Training(model.loss, args, adam(copies=copies), False, 0, "step")
    if degrees.pipeline > 1:
        return _in_stages(training, degrees, model.hidden, count, cluster, options)
    call = training.step(count, "mean")
    traced = trace(call.fn, *call.args, donate_argnums=(0, 1), roles=TRAINING_ROLES)
    found, fits = _planned(program_for(traced, options), degrees, model.hidden, cluster, options)
    sums = found.account
    return Price(sums.step_s, sums.compute_s, sums.exposed_s, sums.peak_bytes, fits)


def activation_bytes(model: Transformer, degrees: Degrees, cluster: Cluster) -> float:
    """Bytes that a device keeps of one micro-batch, between its forward and backward pass."""
    args = model.parameters(), model.batch(degrees.data * degrees.micro_batch)
    loss = opened(model.loss, *args, adam(copies=True), microbatches=1, loss_reduction="mean")
    cuts = (0, len(loss.chain.slots))
    stage = stage_training_step(loss, cut_of(loss, cuts), 0, adam(copies=True))
    options = Options(baselines=False, substitutions=False)
    best, _ = _planned(program_for(stage.traced, options), degrees, model.hidden, cluster, options)
    return price_of(best, phases_of(stage), stage.body.graph, 1).activation_bytes


def _planned(
    program: Program, degrees: Degrees, width: int, cluster: Cluster, options: Options
) -> tuple[Candidate, bool]:
    """The best plan of a program under the degrees, and whether it fits."""
    request = Request(cluster, options, heard(None), time.monotonic())
    odd = degrees.data // (degrees.data & -degrees.data)
    sizes = {"data": degrees.data // odd, "odd": odd} | {
        name: getattr(degrees, name) for name in ("context", "tensor")
    }
    axes = tuple((name, n) for name, n in sizes.items() if n > 1) or (("data", 1),)
    mesh_search = MeshSearch(Search(program, request).scope, Mesh(axes))
    limits = _limits(mesh_search, program, degrees, width)
    found = mesh_search.by_hand("given", limits)
    if found is None:
        raise ValueError(f"{degrees}: no strategy of some operation is within these degrees")
    return found


def _limits(mesh_search: MeshSearch, program: Program, degrees: Degrees, width: int) -> Limits:
    """The degrees as limits of the search.

    Data parallelism has two axes, a power of two and what is odd, as few dimensions divide by both.
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

    rules: dict[str, Rule] = {"data": data, "odd": data, "context": context, "tensor": tensor}
    state = _state(mesh_search, program, degrees)
    over = tuple(a for a, name in enumerate(names) if name in DATA)
    recipe = Recipe("given", tuple(rules[name] for name in names), state, over)
    limits = Recipes(builder, program.kinds, program.roles).limits(recipe)
    assert limits.op is not None
    if "tensor" in names:
        limits = replace(limits, op=_on_tensor(mesh_search, program, degrees, width, limits.op))
    if "context" in names:
        assert limits.op is not None
        limits = replace(limits, op=_on_context(mesh_search, program, limits.op))
    return limits


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


# --- pipelines ---------------------------------------------------------------------------------


def _in_stages(
    training: Training, degrees: Degrees, width: int, count: int, cluster: Cluster, options: Options
) -> Price:
    """Plans every stage, and simulates the schedule."""
    params, batch = training.args
    loss = opened(training.loss_fn, params, batch, training.optimizer, microbatches=count,
                  loss_reduction="mean")  # fmt: skip
    number = degrees.pipeline * degrees.chunks
    size = cluster.num_devices // degrees.pipeline
    cuts, none = cuts_of(loss, number), ("none",) * number
    shape = PipelineShape(cuts, (size,) * number, count, none, degrees.chunks)
    flight = tuple(IN_FLIGHT["1f1b"](number - s, count) for s in range(number))
    if degrees.chunks > 1:
        flight = flights_of(table_of(INTERLEAVED, count, none, degrees.chunks))
    cut = cut_of(loss, cuts, none)
    prices: dict[object, tuple[StagePrice, float]] = {}
    found: list[StagePrice] = []
    last = len(loss.chain.slots)
    for s in sorted(range(number), key=lambda s: -flight[s]):
        low, high = cuts[s], cuts[s + 1]
        alike = (high - low, low == 0, high == last)
        if alike not in prices:
            stage = _stage(loss, cut, s, training.optimizer, degrees.sums)
            takes = [v for v in stage.program.args["takes"] if v >= 0]
            held = InFlight(stage.loop, (*stage.program.parts.saved, *takes), flight[s] - 1)
            program = program_for(stage.traced, options).holding(held)
            best, _ = _planned(program, degrees, width, cluster.subset(size), options)
            one = price_of(best, phases_of(stage), stage.body.graph, count)
            prices[alike] = one, _once_exposed_s(best, count) if degrees.overlap else 0.0
        found.append(_beside_chunks(*prices[alike], s < degrees.pipeline))
    across = tuple(loss.chain.across[c] for c in cuts[1:-1])
    limit = options.memory_bytes or cluster.memory_bytes
    names = ("interleaved",) if degrees.chunks > 1 else ("1f1b",)
    best = ranked(shape, _by_stage(found, flight), across, cluster, limit, names)[0]
    groups = degrees.pipeline
    busy = max(sum(best.stage_s[g::groups]) for g in range(groups))
    return Price(best.step_s, busy, best.step_s - busy, best.worst_bytes, best.worst_bytes <= limit)


def _stage(loss: Opened, cut: Staged, number: int, optimizer: Any, sums: str) -> StageTrainingStep:
    """A stage that adds up its gradients in a type."""
    joint = joint_of(loss.program, cut, number)
    wide = [jax.ShapeDtypeStruct(s.shape, sums) for s in joint.structs["sums"]]
    joint = replace(joint, structs={**joint.structs, "sums": wide})
    return training_step_of(joint, loss.microbatches, optimizer)


def _once_exposed_s(best: Candidate, count: int) -> float:
    """Exposed seconds of the collectives outside a stage's micro-batches."""
    pairs = zip(best.decided.plan.reshards, best.account.exposed, strict=True)
    return sum(s for moved, s in pairs if moved.weight < count)


def _beside_chunks(price: StagePrice, exposed_s: float, first: bool) -> StagePrice:
    """A stage whose collectives of a step run beside the compute of its devices' other stages.

    The first of them ends its backward passes last and begins its forward passes first, so that
    only its own micro-batch runs beside its collectives.
    """
    hidden = min(exposed_s, price.microbatch_s) if first else exposed_s
    return replace(price, once_s=price.once_s - hidden / INTERFERENCE)


def _by_stage(found: Sequence[StagePrice], flight: Sequence[int]) -> list[StagePrice]:
    """Prices in the order of the stages, from the order of falling micro-batches in flight."""
    order = sorted(range(len(flight)), key=lambda s: -flight[s])
    return [p for _, p in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


def cuts_of(loss: Opened, stages: int) -> tuple[int, ...]:
    """Slots at which stages of equal numbers of layers begin, and the number of slots.

    Where the stages do not divide the layers, embedding and head count as one layer each.
    """
    numbers = [slot.number for slot in loss.chain.slots]
    first, length, at = 0, 0, 0
    for _, run in groupby(numbers):
        n = len(list(run))
        if n > length:
            first, length = at, n
        at += n
    ends = 1 if length % stages else 0
    inner = [first + round((length + 2 * ends) * k / stages) - ends for k in range(1, stages)]
    return (0, *inner, len(numbers))

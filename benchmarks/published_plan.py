# pyright: basic
"""The planner's price of a training step whose degrees are given.

The degrees limit the search as those of a hand-written plan do (`Recipe`); what they leave open,
such as which dimension of a weight is split, the solver decides. Stages of a pipeline have equal
numbers of layers and are planned each under the same limits; a schedule is then simulated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

import jax

from benchmarks.published_kernels import in_kernels, with_copies
from benchmarks.published_limits import Degrees, limits_of
from benchmarks.published_model import Transformer, adam
from costmodel import INTERFERENCE, Cluster
from ir import Mesh
from ir.analysis import flatten
from ir.trace import Traced, trace
from planner.common.options import Options
from planner.common.request import Request, heard
from planner.pipeline.cut.opened_loss import Opened, cut_of, opened
from planner.pipeline.cut.replaced import traced_joint, with_program
from planner.pipeline.cut.stage import Staged
from planner.pipeline.cut.stage_gradient import joint_of
from planner.pipeline.cut.stage_training_step import (
    StageTrainingStep,
    stage_training_step,
    training_step_of,
)
from planner.pipeline.divide.candidates import flights_in_turn
from planner.pipeline.divide.simulated import PipelineShape, ranked
from planner.pipeline.divide.stage_price import StagePrice, price_of
from planner.pipeline.schedule import IN_FLIGHT, Turns
from planner.pipeline.stage_planner import phases_of
from planner.sharding.fewest_microbatches import TRAINING_ROLES
from planner.sharding.ordering.plan import row_of
from planner.sharding.ordering.rows import as_ordered
from planner.sharding.plan_traced import program_for
from planner.sharding.problem.program import InFlight, Program
from planner.sharding.search.context import Candidate
from planner.sharding.search.hand_written import best_within
from planner.sharding.search.on_mesh import MeshSearch
from planner.sharding.search.over_meshes import Search
from planner.sharding.sorted_rows.rows import blocked
from planner.training.training import Training


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


class Model(Protocol):
    """What is trained: sizes that degrees divide, and the loss."""

    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def wide_weights(self) -> bool: ...
    def parameters(self) -> Any: ...
    def batch(self, sequences: int) -> Any: ...
    def loss(self, params: Any, batch: Any) -> Any: ...


def price(model: Model, degrees: Degrees, batch: int, cluster: Cluster, limit_bytes: int) -> Price:
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
    traced = _in_blocks(traced, degrees)
    if degrees.context > 1:  # as frameworks have it: batches are put into zigzag
        places = {op.place: degrees.context for op in flatten(traced.graph).ops}
        row = row_of(traced, places)
        traced = as_ordered(traced, (row,) if row else (), "published")
    found, fits = _planned(
        program_for(traced, options, cluster), degrees, model.hidden, cluster, options
    )
    sums = found.account
    return Price(sums.step_s, sums.compute_s, sums.exposed_s, sums.peak_bytes, fits)


def least_recomputed(
    none: Price, full: Price, layers: int, limit_bytes: float
) -> tuple[Price, int]:
    """A step in which as few layers as fit recompute what they need, and how many these are.

    Equal layers take equal shares of what recomputing all of them adds to the step, and saves of
    the peak: f of n layers T + f (T' - T) / n.

    Args:
        none: none of them does.
        full: all of them do.
        layers: of a device.
        limit_bytes: memory of a device.
    """
    if none.fits or not full.fits:
        return (none, 0) if none.fits else (full, layers)
    over = (none.peak_bytes - limit_bytes) / (none.peak_bytes - full.peak_bytes)
    count = min(math.ceil(over * layers), layers)

    def between(name: str) -> float:
        a, b = getattr(none, name), getattr(full, name)
        return a + (b - a) * count / layers

    each = {name: between(name) for name in ("step_s", "compute_s", "exposed_s", "peak_bytes")}
    return Price(**each, fits=True), count


def activation_bytes(model: Transformer, degrees: Degrees, cluster: Cluster) -> float:
    """Bytes that a device keeps of one micro-batch, between its forward and backward pass."""
    args = model.parameters(), model.batch(degrees.data * degrees.micro_batch)
    loss = opened(model.loss, *args, adam(copies=True), microbatches=1, loss_reduction="mean")
    cuts = (0, len(loss.chain.slots))
    stage = stage_training_step(loss, cut_of(loss, cuts), 0, adam(copies=True))
    options = Options(baselines=False, substitutions=False)
    program = program_for(stage.traced, options, cluster)
    best, _ = _planned(program, degrees, model.hidden, cluster, options)
    return price_of(best, phases_of(stage), stage.body.graph, 1).activation_bytes


def _planned(
    program: Program, degrees: Degrees, width: int, cluster: Cluster, options: Options
) -> tuple[Candidate, bool]:
    """The best plan of a program under the degrees, and whether it fits."""
    request = Request(cluster, options, heard(None), time.monotonic())
    if degrees.in_kernels:
        facts, parameters = program.facts, frozenset(program.roles.parameters)
        facts.traffic = in_kernels(facts.flat, facts.traffic, parameters)
    if degrees.copied_bytes:
        facts = program.facts
        facts.traffic = with_copies(facts.flat, facts.traffic, degrees.copied_bytes)
    mesh_search = MeshSearch(Search(program, request).scope, Mesh(degrees.axes))
    limits = limits_of(mesh_search, program, degrees, width)
    found = best_within(mesh_search, "given", limits)
    if found is None:
        raise ValueError(f"{degrees}: no strategy of some operation is within these degrees")
    return found


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
    shape = PipelineShape(cuts, (size,) * number, count, none, Turns(degrees.chunks))
    flight = tuple(IN_FLIGHT["1f1b"](number - s, count) for s in range(number))
    if degrees.chunks > 1:
        flight = flights_in_turn(count, degrees.pipeline, shape.turns)
    cut = cut_of(loss, cuts, none)
    prices: dict[object, tuple[StagePrice, float]] = {}
    found: list[StagePrice] = []
    last = len(loss.chain.slots)
    for s in sorted(range(number), key=lambda s: -flight[s]):
        low, high = cuts[s], cuts[s + 1]
        alike = (high - low, low == 0, high == last)
        if alike not in prices:
            stage = _stage(loss, cut, s, training.optimizer, degrees)
            takes = [v for v in stage.program.args["takes"] if v >= 0]
            held = InFlight(stage.loop, (*stage.program.parts.saved, *takes), flight[s] - 1)
            program = program_for(stage.traced, options, cluster.subset(size)).holding(held)
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


def _in_blocks(traced: Traced, degrees: Degrees) -> Traced:
    """The program with its rows sorted on each group of devices that experts are split over."""
    if degrees.blocks < 2:
        return traced
    return blocked(traced, degrees.blocks) or traced


def _stage(
    loss: Opened, cut: Staged, number: int, optimizer: Any, degrees: Degrees
) -> StageTrainingStep:
    """A stage that adds up its gradients in a type."""
    sums = degrees.sums
    joint = joint_of(loss.program, cut, number)
    wide = [jax.ShapeDtypeStruct(s.shape, sums) for s in joint.structs["sums"]]
    joint = replace(joint, structs={**joint.structs, "sums": wide})
    if degrees.blocks > 1:
        joint = with_program(joint, _in_blocks(traced_joint(joint), degrees))
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

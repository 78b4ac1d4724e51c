# pyright: basic
"""Stages of a pipeline planned as programs, each distinct one once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from costmodel import Cluster
from ir import digest, show

from .binding import Bound
from .emit.pipeline.build import Opened, cut_of, opened
from .emit.pipeline.rehearsal import ROLES, Rehearsal, rehearse
from .emit.pipeline.stage import Staged, parts_of
from .errors import PlanError
from .inter.price import Phases, StagePrice, price_of
from .inter.rank import Shape
from .intra.solve import SolveOptions
from .kept import keep_stage, kept_stage
from .mesh_search import Effort
from .options import Options
from .plan import Plan
from .remembered import Memory, memory_of
from .show import bytes_text
from .single import One, plan_traced, stage_key
from .stepcall import StepCall

Say = Callable[[str], None]
# Stages are ranked, not proved: what a 0/1 programme would still find is less than the shortlist's
# own error.
FAIR = Effort(SolveOptions(tolerance=3e-3, sweeps=48, price_steps=4, ilp=False, rounds=3))
# The whole program is priced to tell divisions apart.
ROUGH = Effort(SolveOptions(tolerance=1e-2, sweeps=40, price_steps=4, ilp=False, rounds=2), axes=2)
# A stage whose plan leaves too little for further micro-batches in flight is planned again with
# what they leave, in so many steps of the limit, so that stages still share plans.
TIGHTENINGS, STEPS, STEEPEST = 2, 64, 0.95


@dataclass(frozen=True)
class Training:
    """What is trained."""

    loss_fn: Any
    args: tuple[Any, ...]
    optimizer: Any
    has_aux: bool
    batch_axis: int
    name: str


@dataclass(frozen=True)
class BoundStages:
    """A pipeline's loss, cut; its stages are traced when they are asked for."""

    loss: Opened
    cut: Staged
    optimizer: Any

    @cached_property
    def stages(self) -> tuple[Rehearsal, ...]:
        """Every stage's step."""
        count = len(self.cut.stages)
        return tuple(rehearse(self.loss, self.cut, s, self.optimizer) for s in range(count))


@dataclass
class StagePlanner:
    """Plans stages; losses by number of micro-batches and plans of equal stages are shared.

    within: the hand-written plan that stages stay within, if any.
    solved: how many were.
    """

    training: Training
    machine: Cluster
    options: Options
    say: Say
    limit_bytes: float
    losses: dict[int, Opened] = field(default_factory=dict)
    plans: dict[Any, tuple[Plan, StagePrice] | PlanError] = field(default_factory=dict)
    known: dict[Any, tuple[Rehearsal, str]] = field(default_factory=dict)
    within: str | None = None
    solved: int = 0

    @cached_property
    def memory(self) -> Memory:
        """The plan store, if it was asked for."""
        return memory_of(self.options)

    def loss(self, count: int) -> Opened:
        """The loss at the size of one of `count` micro-batches."""
        if count not in self.losses:
            t = self.training
            params, batch = t.args
            self.losses[count] = opened(
                t.loss_fn, params, batch, t.optimizer, microbatches=count, has_aux=t.has_aux,
                loss_reduction=self.options.loss_reduction, batch_axis=t.batch_axis,
            )  # fmt: skip
        return self.losses[count]

    def whole(self, count: int, size: int) -> StagePrice | PlanError:
        """Price of the whole program on a sub-mesh that would be given its part of it.

        It may use the memory of as many such sub-meshes as there are.
        """
        loss = self.loss(count)
        cuts = (0, len(loss.chain.slots))
        cut = cut_of(loss, cuts)
        room = self.limit_bytes * self.machine.num_devices / size
        found = self._planned(loss, cut, 0, size, room, cuts, "none", ROUGH)
        return found if isinstance(found, PlanError) else found[1]

    def stage(
        self, cut: Staged, shape: Shape, s: int, flight: int
    ) -> tuple[Plan, StagePrice] | PlanError:
        """Plan and price of a stage such that so many micro-batches in flight fit.

        The error's kind is `in-flight` if one alone would.
        """
        loss, kind = self.loss(shape.microbatches), shape.recompute[s]
        room, room_steps, refused = self.limit_bytes, STEPS, None
        for _ in range(1 + TIGHTENINGS):
            cuts = shape.cuts[s : s + 2]
            found = self._planned(loss, cut, s, shape.sizes[s], room, cuts, kind, FAIR)
            if isinstance(found, PlanError):
                return refused or found
            more = found[1].boundary_bytes if kind == "stage" else found[1].activation_bytes
            needs = found[1].held_bytes + (flight - 1) * more
            if needs <= self.limit_bytes:
                return found
            refused = PlanError(
                f"stage {s} needs {bytes_text(needs)}", kind="in-flight", needs_bytes=needs
            )
            # a leaner plan often keeps less of each micro-batch too
            left = max(self.limit_bytes - (flight - 1) * more, room * STEEPEST)
            steps = min(math.ceil(left / self.limit_bytes * STEPS), room_steps - 1)
            room, room_steps = self.limit_bytes * steps / STEPS, steps
            if room <= 0:
                break
        assert refused is not None
        return refused

    def _planned(
        self,
        loss: Opened,
        cut: Staged,
        s: int,
        size: int,
        room: float,
        cuts: Sequence[int],
        kind: str,
        effort: Effort,
    ) -> tuple[Plan, StagePrice] | PlanError:
        stage, name = self._rehearsed(loss, cut, s, cuts, kind)
        key = (name, size, round(room), effort.axes)
        if key not in self.plans:
            try:
                self.plans[key] = self._solve(loss, stage, s, size, room, effort)
            except PlanError as error:
                if error.kind != "does-not-fit":
                    raise
                self.plans[key] = error
        return self.plans[key]

    def _rehearsed(
        self, loss: Opened, cut: Staged, s: int, cuts: Sequence[int], kind: str
    ) -> tuple[Rehearsal, str]:
        """The stage, traced, and the digest of its program; runs of a loop are alike."""
        parts = parts_of(loss.layers, cuts[0], cuts[1])
        lengths = [loss.layers.ops[i].eqn.params.get("length", 0) for _, i, _, _ in parts]
        alike = tuple(
            (i, b - a, a == 0, b == n) for (_, i, a, b), n in zip(parts, lengths, strict=True)
        )
        inside = kind if kind in ("selective", "full") else "none"
        key = (loss.microbatches, inside, alike if parts[0][2] >= 0 else tuple(cuts))
        if key not in self.known:
            stage = rehearse(loss, cut, s, self.training.optimizer)
            self.known[key] = stage, digest(stage.traced.graph)
        return self.known[key]

    def _solve(
        self, loss: Opened, stage: Rehearsal, s: int, size: int, room: float, effort: Effort
    ) -> tuple[Plan, StagePrice]:
        self.solved += 1
        options = replace(
            self.options, baselines=self.within is not None, memory_bytes=max(int(room), 1),
            pins=(), forbidden=(), mesh=None, baseline=self.within, pipeline="off",
        )  # fmt: skip
        one = One(
            StepCall(stage.joint.run, (), (), "auto"), loss.microbatches, (0, 1), ROLES,
            f"{self.training.name}, stage {s}",
        )  # fmt: skip
        cluster = self.machine.subset(size)
        parts = stage.program.parts
        phases = Phases(
            stage.loop, frozenset(parts.forward.nodes), frozenset(parts.input_gradient.nodes),
            frozenset(parts.weight_gradient.nodes), parts.saved,
            [v for v in stage.program.args["takes"] if v >= 0],
            [v for v in stage.program.args["sums"] if v >= 0], (*stage.params, *stage.states),
        )  # fmt: skip
        key = ""
        if self.memory.store:
            key = stage_key(one, stage.traced, phases, cluster, options, effort)
        held = kept_stage(self.memory, key, show(stage.traced.graph))
        if held is not None:
            return Plan(held[0], Bound(stage.traced), cached=True), held[1]
        now = time.monotonic()
        plan, found = plan_traced(
            one, stage.traced, cluster, options, self.say, now, now, self.memory, effort
        )
        price = price_of(found.best, phases, stage.body.graph, loss.microbatches)
        keep_stage(self.memory, key, plan.file, price, found.lower_bound_s)
        return plan, price

"""Exposed seconds that a plan predicts, beside those of the schedule that a compiler made.

A compiled collective names the reshards that it was made for, so that it stands beside what the
plan predicts of them. Reshards whose names were lost, as compilers combine collectives, are divided
among those of their kind and group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel import CollectiveModel, ComputeModel, group_for
from ir import Mesh, Reshard
from ir.analysis import Place

from ...common.compiler_options import LOCAL_COPIES
from ...common.surface import public_methods
from ...common.units_text import seconds_text
from ...emit.hlo import HloInstruction, like
from ...emit.scheduled.groups import axes_of
from ...emit.scheduled.instructions import HloProgram
from ...emit.scheduled.kernels import KernelPrices
from ...emit.scheduled.overlap import Played, Schedule, play
from ...sharding.cost.account import Account
from ..plan import Plan

# What is exposed beyond the prediction is named where it is more than this share of the
# collective's seconds, and of the predicted step.
SHARE_OF_COLLECTIVE, SHARE_OF_STEP = 0.1, 1e-3
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ScheduledCollective:
    """A collective of the schedule, all its runs together.

    causes: what it was made for.
    window: of the plan's windows, -1 if unknown.
    beside_s: compute between its start and its end.
    note: where the prediction differs.
    """

    name: str
    kind: str
    group_size: int
    bytes: float
    count: float
    causes: tuple[str, ...]
    window: int
    seconds: float
    beside_s: float
    predicted_exposed_s: float
    scheduled_exposed_s: float
    note: str


@dataclass(frozen=True, slots=True)
class ScheduledWindow:
    """A window of the plan.

    body: place of its loop or branch; () for the program.
    compute_s: predicted.
    hideable_s: predicted, of its collectives, the part beside which there is an op to run.
    scheduled_hidden_s: of its collectives, the part that the schedule does not expose.
    """

    body: Place
    predicted_exposed_s: float
    scheduled_exposed_s: float
    compute_s: float
    hideable_s: float
    scheduled_hidden_s: float


@public_methods
@dataclass(frozen=True, slots=True)
class Overlap:
    """What a plan predicts to be exposed, and what the compiler's schedule exposes.

    Seconds of both come from the same measured tables: kernels of the compiled program are priced
    as the plan's ops are.
    """

    predicted_compute_s: float
    scheduled_compute_s: float
    predicted_communication_s: float
    scheduled_communication_s: float
    predicted_exposed_s: float
    scheduled_exposed_s: float
    windows: tuple[ScheduledWindow, ...]
    collectives: tuple[ScheduledCollective, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Collectives that were predicted hidden and are not, and the reverse."""
        return tuple(c.note for c in self.collectives if c.note)

    def summary(self) -> dict[str, Any]:
        """The part `overlap` of `meshwright verify --json`."""
        return {
            "predicted_compute_s": self.predicted_compute_s,
            "scheduled_compute_s": self.scheduled_compute_s,
            "predicted_communication_s": self.predicted_communication_s,
            "scheduled_communication_s": self.scheduled_communication_s,
            "predicted_exposed_s": self.predicted_exposed_s,
            "scheduled_exposed_s": self.scheduled_exposed_s,
            "windows": [
                {"body": list(w.body), "predicted_exposed_s": w.predicted_exposed_s,
                 "scheduled_exposed_s": w.scheduled_exposed_s, "compute_s": w.compute_s,
                 "hideable_s": w.hideable_s, "scheduled_hidden_s": w.scheduled_hidden_s}
                for w in self.windows
            ],
            "collectives": [
                {"name": c.name, "kind": c.kind, "group_size": c.group_size, "bytes": c.bytes,
                 "count": c.count, "causes": list(c.causes), "window": c.window,
                 "seconds": c.seconds, "beside_s": c.beside_s,
                 "predicted_exposed_s": c.predicted_exposed_s,
                 "scheduled_exposed_s": c.scheduled_exposed_s, "note": c.note}
                for c in self.collectives
            ],
        }  # fmt: skip

    def lines(self) -> list[str]:
        """As text."""
        found = [
            f"  exposed: predicted {seconds_text(self.predicted_exposed_s)} of "
            f"{seconds_text(self.predicted_communication_s)}; scheduled "
            f"{seconds_text(self.scheduled_exposed_s)} of "
            f"{seconds_text(self.scheduled_communication_s)}"
        ]
        return found + [f"  note: {note}" for note in self.notes]


def scheduled_overlap(plan: Plan, text: str, unknown_trips: int) -> Overlap | None:
    """Compares a plan with its compiled text; None if that has no schedule of collectives.

    Args:
        plan: of one program, with its function.
        text: of the compiled program.
        unknown_trips: iterations of a loop whose length the compiler does not know.

    Raises:
        PlanError: if a decision of the plan is not in the space of this version.
    """
    program = HloProgram(text, unknown_trips)
    if not program.is_scheduled or not plan.program.overlap or plan.cluster.has_cpus:
        return None
    mesh, model = plan.mesh, CollectiveModel(plan.cluster)
    copies = LOCAL_COPIES in plan.compiler_options

    def price(line: str, sent: HloInstruction) -> float:
        c = sent.collective
        group = group_for(plan.cluster, mesh.sizes, axes_of(line, mesh.sizes))
        if c.kind == "collective-permute" and copies and group.hosts == 1:
            return float(model.copy_s(group, np.array([float(c.bytes)]))[0])
        return model.seconds(like(c.kind), group, float(c.bytes))

    kernels = KernelPrices(program, ComputeModel(plan.cluster))
    schedule = play(program, kernels, price, devices=mesh.num_devices)
    analysed = plan.analysed
    return compare_overlap(
        analysed.account, analysed.decided.plan.reshards, mesh, schedule, plan.step_s
    )


def compare_overlap(
    account: Account, reshards: Sequence[Reshard], mesh: Mesh, schedule: Schedule, step_s: float
) -> Overlap:
    """A plan's account beside the schedule of its compiled program.

    Args:
        account: of the plan.
        reshards: of the lowered plan, as the account lists them.
        mesh: of the plan.
        schedule: of the compiled program.
        step_s: of the plan.
    """
    shares = _shares(reshards, mesh, schedule.collectives)
    rows = tuple(
        _row(played, mine, account, reshards, step_s)
        for played, mine in zip(schedule.collectives, shares, strict=True)
    )
    scheduled, hidden = ([0.0] * len(account.windows) for _ in range(2))
    for row in rows:
        if row.window >= 0:
            scheduled[row.window] += row.scheduled_exposed_s
            hidden[row.window] += row.seconds - row.scheduled_exposed_s
    windows = tuple(
        ScheduledWindow(w.body, w.exposed_s, exposed_s, w.compute_s, w.hideable_s, hidden_s)
        for w, exposed_s, hidden_s in zip(account.windows, scheduled, hidden, strict=True)
        if w.communication_s > 0.0 or exposed_s > 0.0
    )
    return Overlap(
        account.compute_s, schedule.compute_s, account.communication_s, schedule.communication_s,
        account.exposed_s, schedule.exposed_s, windows, rows,
    )  # fmt: skip


def _shares(
    reshards: Sequence[Reshard], mesh: Mesh, collectives: Sequence[Played]
) -> list[dict[int, float]]:
    """For each collective the reshards that it was made for, and its share of each of them."""
    found = [dict.fromkeys(played.reshards, 0.0) for played in collectives]
    named = {n for each in found for n in each}
    for n, reshard in enumerate(reshards):
        keys = set(_keys(reshard, mesh))
        if n in named or not keys:
            continue
        alike = [k for k, c in enumerate(collectives) if (c.kind, c.group_size) in keys]
        nameless = [k for k in alike if not collectives[k].reshards]
        for k in nameless or alike:
            found[k][n] = 0.0
    spent = [played.seconds * played.runs for played in collectives]
    total: dict[int, float] = {}
    for each, seconds in zip(found, spent, strict=True):
        for n in each:
            total[n] = total.get(n, 0.0) + seconds
    return [
        {n: seconds / total[n] if total[n] > 0.0 else 0.0 for n in each}
        for each, seconds in zip(found, spent, strict=True)
    ]


def _keys(reshard: Reshard, mesh: Mesh) -> Iterable[Key]:
    """Kinds of a reshard's collectives and devices of their groups."""
    for step in reshard.change.steps:
        if step.collective is not None and mesh.product(step.axes) > 1:
            yield step.collective, mesh.product(step.axes)


def _row(
    played: Played, shares: Mapping[int, float], account: Account, reshards: Sequence[Reshard],
    step_s: float,
) -> ScheduledCollective:  # fmt: skip
    predicted = sum(account.exposed[n] * share for n, share in shares.items())
    seconds = played.seconds * played.runs
    expected = sum(account.seconds[n] * share for n, share in shares.items())
    causes = tuple(dict.fromkeys(reshards[n].cause for n in shares))
    weights: dict[int, float] = {}
    for n, share in shares.items():
        if account.window_of:
            w = account.window_of[n]
            weights[w] = weights.get(w, 0.0) + account.seconds[n] * share
    window = max(weights, key=lambda w: (weights[w], -w), default=-1)
    note = _note(played, causes, predicted, expected, step_s)
    inside = [own.cause for own in account.inside if own.kind == like(played.kind)]
    if (
        not shares and inside
    ):  # of an op that hides some of its own; the account has them as a whole
        note, causes = "", tuple(dict.fromkeys(inside))
    return ScheduledCollective(
        played.name, played.kind, played.group_size, float(played.bytes), played.runs, causes,
        window, seconds, played.beside_s * played.runs, predicted, played.exposed_s, note,
    )  # fmt: skip


def _note(
    played: Played, causes: Sequence[str], predicted_s: float, expected_s: float, step_s: float
) -> str:
    """What is exposed beyond the prediction, or less than it; empty if they are near."""
    seconds, exposed_s = played.seconds * played.runs, played.exposed_s
    near = max(SHARE_OF_COLLECTIVE * max(seconds, expected_s), SHARE_OF_STEP * step_s)
    if abs(exposed_s - predicted_s) <= near:
        return ""
    more = f" and {len(causes) - 1} more" if len(causes) > 1 else ""
    cause = f" for {causes[0]}{more}" if causes else ""
    what = f"{played.kind} over {played.group_size}{cause} ({played.name})"
    if exposed_s > predicted_s:
        return (
            f"{what}: predicted to expose {seconds_text(predicted_s)}, the schedule exposes "
            f"{seconds_text(exposed_s)} of {seconds_text(seconds)}"
        )
    return (
        f"{what}: the schedule hides more than predicted: {seconds_text(exposed_s)} exposed of "
        f"{seconds_text(seconds)}, not {seconds_text(predicted_s)}"
    )

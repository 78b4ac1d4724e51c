"""Aceso's cost of a plan, straight from its database.

    T = (N - 1) max t + sum t,   t = forward + backward + recomputed forward + in + out
    memory = 8 W + (I + A - saved) (stages behind + 1) + peak + max(reserved, W)

A run of ops that recompute saves the activations of all but its last, of none across the border of
two layers, and needs the largest run again as its peak. The attention's dropout keeps half as much
again, its softmax shares the memory of it.

Source: Liu et al., "Aceso", EuroSys 2024, section 3.3, and its released cost model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.pipeline.published.readers.aceso import MB, STATE_OVER_WEIGHTS, Database

Floats = npt.NDArray[np.float64]
FORWARD, BACKWARD, INPUT, OUTPUT, WEIGHTS, KEPT, RESERVED_F, RESERVED_B = range(8)
SHARED = {"enc-attention-dropout": 1.5, "enc-attention-softmax": 0.0}
STARTS = "enc-1st-layernorm"
NEVER = ("encoder-embedding", "gpt-post-process")


@dataclass(frozen=True, slots=True)
class OpStage:
    """Ops [first, last) on `data_parallel` times `tensor_parallel` devices.

    again: of each op whether it recomputes.
    """

    first: int
    last: int
    data_parallel: int
    tensor_parallel: int
    again: tuple[bool, ...]

    @property
    def devices(self) -> int:
        """How many it takes."""
        return self.data_parallel * self.tensor_parallel


@dataclass(frozen=True, slots=True)
class OpPlan:
    """Stages, and the samples of a micro-batch over all replicas."""

    stages: tuple[OpStage, ...]
    microbatch: int


@dataclass(frozen=True, slots=True)
class OpPriced:
    """A plan's cost: seconds of a step, and of each stage seconds and bytes."""

    step_s: float
    stage_s: tuple[float, ...]
    peak_bytes: tuple[float, ...]


def kept_bytes(database: Database, table: Floats) -> Floats:
    """Activations of each op as the memory formula counts them."""
    factors = np.array([SHARED.get(name, 1.0) for name in database.ops])
    return table[KEPT] * factors


def transfer_s(size_bytes: Floats, rates: Sequence[float]) -> Floats:
    """Seconds of messages, at the rate measured for the next power of two of MB below."""
    size = np.asarray(size_bytes) / MB
    with np.errstate(divide="ignore"):
        power = np.trunc(np.log2(np.where(size > 0, size, 1.0))).astype(int)
    at = np.where(power >= 1, power - 1, power)
    # Negative powers count from the end of the measured sizes, as in the released code.
    rate = np.array(rates)[np.clip(at, -len(rates), len(rates) - 1)]
    # The database has rates in GB/s of 10^9 and sizes in MB of 10^6 there.
    return np.where(size > 0, size * 1e6 / rate, 0.0)


def price_ops(database: Database, plan: OpPlan, *, batch: int, devices_per_host: int) -> OpPriced:
    """What a plan costs, by Aceso's model."""
    seconds: list[float] = []
    peaks: list[float] = []
    before = 0
    for index, stage in enumerate(plan.stages):
        table = database.table[plan.microbatch // stage.data_parallel, stage.tensor_parallel]
        part = table[:, stage.first : stage.last]
        crosses_in = before % devices_per_host == 0 and before > 0
        before += stage.devices
        crosses_out = before % devices_per_host == 0
        rates = (database.intra_bytes_per_s, database.inter_bytes_per_s)
        moved = transfer_s(part[INPUT, :1], rates[crosses_in])[0]
        moved += transfer_s(part[OUTPUT, -1:], rates[crosses_out])[0]
        again = np.array(stage.again)
        once = part[FORWARD].sum() + part[BACKWARD].sum() + part[FORWARD][again].sum()
        seconds.append(float(once + moved))
        behind = len(plan.stages) - 1 - index
        peaks.append(stage_bytes(database, table, stage, behind))
    rounds = batch // plan.microbatch
    step = (rounds - 1) * max(seconds) + math.fsum(seconds)
    return OpPriced(step, tuple(seconds), tuple(peaks))


def stage_bytes(database: Database, table: Floats, stage: OpStage, behind: int) -> float:
    """Peak memory of a device of a stage."""
    part = table[:, stage.first : stage.last]
    ops = database.ops[stage.first : stage.last]
    kept = kept_bytes(database, table)[stage.first : stage.last]
    saved, peak = _saved(ops, kept, stage.again)
    weights = float(part[WEIGHTS].sum())
    inner = part[:, :-1]
    reserved = float(inner[RESERVED_F].max(initial=0.0) + inner[RESERVED_B].max(initial=0.0))
    held = float(part[INPUT, 0] + kept.sum()) - saved
    state = STATE_OVER_WEIGHTS * weights
    return state + held * (behind + 1) + peak + max(reserved, weights)


def _saved(ops: Sequence[str], kept: Floats, again: Sequence[bool]) -> tuple[float, float]:
    saved = run = 0.0
    runs = [0.0]
    for i in range(len(ops) - 1):
        if not (again[i] and again[i + 1]):
            runs.append(run)
            run = 0.0
            continue
        run += kept[i]
        starts = ops[i + 1] == STARTS
        saved += 0.0 if starts else kept[i]
        if ops[i] not in SHARED and (starts or i + 2 == len(ops)):
            runs.append(run)
            run = 0.0
    return float(saved), float(max(runs))

# pyright: basic
"""Steps of the pipelines that the search finds, beside those of its sub-spaces.

    python -m benchmarks pipeline-search [--quick] [--only NAME]

Five models on 16 V100s with 16 GB, in hosts of 8 or 4 with 25 Gb/s between them. The first row of a
model is the whole space of pipelines, with its bound; the next are pipelines that were chosen by
hand, priced with the same stage prices; the others fix a number of stages or micro-batches.
`cpu_s` are processor seconds of this process until the pipeline is chosen, `bound_cpu_s` those of
its bound, both with garbage collected as seldom as in `plan`; `--quick` leaves out the sub-spaces.

`work_s` is the bound by the work of all ops, shared evenly by all devices, which no other pipeline
is below either: not one whose embedding and head are split over all stages, for instance.
`chimera_s` is the step of the best pipeline's stages with two copies of the model in opposite
directions, which `plan` does not choose from, and `chimera_sums_s` the same with the gradients
summed over both copies; none where Chimera does not take as many stages and micro-batches.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import optax
from msgspec import structs

from benchmarks.pipeline_models import Case, gpt, moe, wide_resnet
from costmodel import parse_cluster
from planner import Options, PlanError
from planner.common.errors import IndivisibleError
from planner.common.garbage_collection import seldom_collected
from planner.common.request import Request
from planner.pipeline.cut.stage import use_struct
from planner.pipeline.divide.dynamic_programme import Division
from planner.pipeline.divide.simulated import costs_of
from planner.pipeline.divide.space import sizes
from planner.pipeline.divide.transfers import links_of
from planner.pipeline.schedule import ONE_EACH, build, simulate
from planner.pipeline.schedule.transform import with_optimizer, with_sync
from planner.pipeline.search import PipelineSearch
from planner.pipeline.trials import PlannedPipeline
from planner.training.training import Training

TWO, FOUR = "16xv100-16gb:8", "16xv100-16gb:4"
CASES: dict[str, tuple[Callable[[], Case], str]] = {
    "GPT, 24 layers of 2048": (lambda: gpt(24, 2048, 32000, 1024, 256), TWO),
    "MoE, 16 layers of 1024": (moe, TWO),
    "GPT, 8 layers of 1024": (lambda: gpt(8, 1024, 32000, 512, 128), FOUR),
    "Wide-ResNet": (wide_resnet, TWO),
    "GPT, vocabulary of 256,000": (lambda: gpt(8, 1024, 256000, 512, 256), TWO),
}
SPACES: tuple[dict[str, Any], ...] = (
    {}, {"pipeline": 2}, {"pipeline": 4}, {"pipeline": 2, "microbatches": 8},
    {"pipeline": 2, "microbatches": 16}, {"pipeline": 4, "microbatches": 8},
)  # fmt: skip
# Hand-written pipelines: micro-batches, first slots of the stages after the first, recomputation.
BY_HAND: dict[str, tuple[int, tuple[int, ...], str]] = {
    "GPT, 24 layers of 2048": (8, (14,), "selective"),
    "GPT, 8 layers of 1024": (8, (2, 5, 8), "none"),
}


def by_hand(search: PipelineSearch, count: int, cuts: tuple[int, ...], kind: str) -> float | None:
    """Step of a pipeline with given stages on equal groups of devices, in its best schedule [s]."""
    places, groups = search.shares.places, len(cuts) + 1
    at = (0, *(places.index(cut) for cut in cuts), len(places) - 1)
    sizes = (search.machine.num_devices // groups,) * groups
    rows = [
        search.trials.trial(count, Division(at, sizes, (kind,) * groups, 0.0, 0.0), family)
        for family in ("1f1b", "1f1b-eager")
    ]
    return min((row.ranked.step_s for row in rows if row is not None), default=None)


def work_s(search: PipelineSearch) -> float:
    """Seconds of all ops, each split as is best for it, shared evenly by all devices."""
    chosen, found = sizes(search.machine), list[float]()
    for count in search.counts:
        with suppress(IndivisibleError):
            found += [
                search.planner.least_work_s(count, chosen, kind) for kind in search.floors.kinds
            ]
    return min(found) / search.machine.num_devices


def both_ways(best: PlannedPipeline, cluster: str) -> dict[str, float]:
    """Steps of Chimera with the stages of a pipeline, without and with sums over both copies."""
    shape, machine = best.ranked.shape, parse_cluster(cluster)
    if shape.turns != ONE_EACH or len({*shape.sizes}) > 1 or "stage" in shape.recompute:
        return {}
    try:
        table = build("chimera", len(shape.sizes), shape.microbatches)
    except PlanError:
        return {}
    costs = costs_of(shape.recompute, best.prices, best.across, shape.sizes, shape.group)
    links = links_of(shape.sizes, machine)
    program, stages = best.bound.loss.program, best.bound.cut.stages
    sync_s: list[float] = []
    for s, stage in enumerate(stages):
        count = sum(math.prod(use_struct(program, use).shape) for use in stage.params)
        own, other = np.array([s]), np.array([len(stages) - 1 - s])
        size = np.array([4.0 * count / shape.sizes[s]])  # of sums in float32
        sync_s.append(float(links.transfer_s(own, other, size)[0]))
    tables = with_optimizer(table), with_optimizer(with_sync(table))
    summed = structs.replace(costs, sync_s=tuple(sync_s))
    free, paid = (
        simulate(made, given, links).step_s
        for made, given in zip(tables, (costs, summed), strict=True)
    )
    return {"chimera_s": free, "chimera_sums_s": paid}


def searched(name: str, case: Case, cluster: str, space: dict[str, Any]) -> dict[str, object]:
    """The best pipeline of a space."""
    loss, params, batch = case
    begun = time.process_time()
    training = Training(loss, (params, batch), optax.adamw(1e-4), False, 0, "step")
    options = Options(microbatches=space.get("microbatches"))
    search = PipelineSearch(training, Request(parse_cluster(cluster), options))
    try:
        found = search.run(space.get("pipeline"))
    except PlanError as error:
        return {"error": str(error)}
    row: dict[str, object] = {
        "cpu_s": time.process_time() - begun, "plans": search.planner.solved,
        "divisions": search.tried,
    }  # fmt: skip
    if found is None:
        return {"step_s": None, **row}
    best = found.ranked
    if not space:
        row["lower_bound_s"] = search.lower_bound_s(best.step_s)
        row["bound_cpu_s"] = time.process_time() - begun - float(str(row["cpu_s"]))
        row["work_s"] = work_s(search)
        row |= both_ways(found, cluster)
        if name in BY_HAND:
            row["by_hand_s"] = by_hand(search, *BY_HAND[name])
    return {
        "step_s": best.step_s, "schedule": best.schedule, "microbatches": best.shape.microbatches,
        "cuts": best.shape.cuts, "devices": best.shape.sizes, "recompute": best.shape.recompute,
        "peak_bytes": best.worst_bytes, **row,
    }  # fmt: skip


def main(quick: bool = False) -> list[dict[str, object]]:
    """Prints and returns a row for each model and space."""
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    rows: list[dict[str, object]] = []
    for name, (case, cluster) in CASES.items():
        if only not in name:
            continue
        for space in SPACES[:1] if quick else SPACES:
            with seldom_collected():
                row = searched(name, case(), cluster, space)
            rows.append({"model": name, "space": space, **row})
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows

# pyright: basic
"""Our pipelines beside published ones, all priced by our cost model.

    python -m benchmarks pipeline-plans [--quick]

GPT-39B on 64 V100s in hosts of eight: Alpa's plan is 16 stages of 4 devices, three layers each,
tensor parallel inside, 1,024 micro-batches (alpa-projects/alpa, benchmark/alpa/suite_auto_gpt.py);
Megatron-LM's is its own rule, tensor parallel over a host and as many stages as there are hosts
(Narayanan et al., SC 2021, section 3), with micro-batches that fit. Both are priced unchanged, on
16 GB of memory. Wide-ResNet on 32: stages of equal layers, and of equal numbers of operations,
beside ours. `planned_s` are seconds of this process.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import optax

from benchmarks.models import SIZES
from costmodel import parse_cluster
from examples.wide_resnet import WideResNet
from planner import Options, PlanError, plan
from planner.common.request import Request
from planner.pipeline.divide.dynamic_programme import Division
from planner.pipeline.search import PipelineSearch
from planner.pipeline.trials import PlannedPipeline
from planner.training.training import Training

GPT_CLUSTER, RESNET_CLUSTER = "64xv100-16gb:8", "32xv100-16gb:8"
# Alpa, OSDI 2022, table 8: 6.8B is 50 layers, 320 base channels, width 16; batch 1,536 in float32.
RESNET = WideResNet(224, (3, 4, 6, 3), 320, 16, 1024, 1536, "float32")
MEMORY_BYTES = 16_000_000_000
OPTIMIZER = optax.adamw(1e-4)


def fixed(
    model: Any, cluster: str, count: int, places: Any, sizes: tuple[int, ...], within: str | None
) -> dict[str, object]:
    """A given division under 1F1B; `places` are from the first to the last place of a search."""
    params, batch = jax.eval_shape(model.init, jax.random.key(0))
    training = Training(model.loss, (params, batch), OPTIMIZER, False, 0, "step")
    options = Options(memory_bytes=MEMORY_BYTES, schedules=("1f1b",), loss_reduction="mean")
    search = PipelineSearch(training, Request(parse_cluster(cluster), options))
    search.planner.within = within
    chosen = places(search.shares)
    found = search.trials.trial(
        count, Division(chosen, sizes, ("none",) * len(sizes), float("inf"), float("inf"))
    )
    return _row(found)


def _row(found: PlannedPipeline | None) -> dict[str, object]:
    if found is None:
        return {"step_s": None, "peak_bytes": None, "fits": False}
    return {"step_s": found.ranked.step_s, "fits": True, "peak_bytes": found.ranked.worst_bytes,
            "stage_s": list(found.ranked.stage_s)}  # fmt: skip


def ours(model: Any, cluster: str, memory_bytes: int | None, **more: Any) -> dict[str, object]:
    """What the planner finds."""
    params, batch = jax.eval_shape(model.init, jax.random.key(0))
    begun, spent = time.monotonic(), time.process_time()
    found: Any = plan(
        model.loss, params, batch, cluster=cluster, optimizer=OPTIMIZER, loss_reduction="mean",
        memory_bytes=memory_bytes, **more,
    )  # fmt: skip
    return {
        "step_s": found.step_s, "lower_bound_s": found.lower_bound_s,
        "peak_bytes": found.peak_bytes, "fits": True, "schedule": found.schedule,
        "microbatches": found.microbatches,
        "stages": [[*s.layers, s.devices[1] - s.devices[0], s.recompute] for s in found.stages],
        "meshes": [s.mesh for s in found.stages],
        "beside": {name: b.step_s for name, b in found.baselines.items()},
        "beside_too_large": sorted(name for name, b in found.baselines.items() if not b.fits),
        "planned_s": time.process_time() - spent, "wall_s": time.monotonic() - begun,
    }  # fmt: skip


def equal_layers(count: int) -> Any:
    """Every stage the same number of places."""
    return lambda shares: tuple(round(k * (shares.count - 1) / count) for k in range(count + 1))


def decoder_layers(count: int, layers: int = 48, first: int = 2) -> Any:
    """Every stage the same number of a decoder's layers, which are slots after `first` others."""

    def places(shares: Any) -> tuple[int, ...]:
        cuts = [first + layers * k // count for k in range(1, count)]
        return (0, *(shares.places.index(cut) for cut in cuts), shares.count - 1)

    return places


def equal_operations(count: int) -> Any:
    """Every stage the same number of operations."""

    def places(shares: Any) -> tuple[int, ...]:
        slots = shares.places[-1]
        near = [
            min(range(shares.count), key=lambda j: abs(shares.places[j] - k * slots / count))
            for k in range(count + 1)
        ]
        return tuple(near)

    return places


def main(quick: bool = False) -> list[dict[str, object]]:
    """Prints and returns a row for every plan."""
    gpt = SIZES["gpt-39b"]
    cases: list[tuple[str, Any]] = [
        ("GPT-39B ours, asked for stages", lambda: ours(gpt, GPT_CLUSTER, None, pipeline=8)),
        ("GPT-39B ours, 16 GB", lambda: ours(gpt, GPT_CLUSTER, MEMORY_BYTES)),
        ("GPT-39B Alpa", lambda: fixed(
            gpt, GPT_CLUSTER, 1024, decoder_layers(16), (4,) * 16, None)),
        *((f"GPT-39B Megatron, {m} micro-batches", lambda m=m: fixed(
            gpt, GPT_CLUSTER, m, decoder_layers(8), (8,) * 8, "megatron"))
          for m in (256, 512, 1024)),
    ]  # fmt: skip
    if not quick:
        cases += [
            ("Wide-ResNet ours", lambda: ours(RESNET, RESNET_CLUSTER, None)),
            *((f"Wide-ResNet equal {name}, {p} stages, {m} micro-batches",
               lambda f=f, p=p, m=m: fixed(
                   RESNET, RESNET_CLUSTER, m, f(p), (32 // p,) * p, None))
              for p, m in ((4, 64), (2, 64), (4, 128), (8, 64))
              for name, f in (("layers", equal_layers), ("operations", equal_operations))),
        ]  # fmt: skip
    rows: list[dict[str, object]] = []
    for name, run in cases:
        try:
            row = {"plan": name, **run()}
        except PlanError as error:
            row = {"plan": name, "step_s": None, "error": str(error)}
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows

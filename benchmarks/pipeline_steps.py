# pyright: basic
"""Pipelines of real programs on host devices: measured steps beside simulated ones.

    python -m benchmarks pipeline-steps [--quick]

Every example is planned in two and in four stages and run under three schedules. A device computes
on one thread, as devices of one process share its cores. Each task is first timed alone; the
simulator then runs the schedule with these times, and the step itself runs tasks of different
stages side by side. `serial_s` is the sum of all tasks: the step
cannot be shorter than that over the number of cores, so that `expected_s` is the larger of the two.
`overlap` is read off the profiler's trace of a step: the share of the time in which any stage
computes that two or more do.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from typing import Any

os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=4 --xla_cpu_multi_thread_eigen=false "
    "intra_op_parallelism_threads=1",
)

import jax
import numpy as np
import optax

from benchmarks.pipeline_trace import at_once, traced
from examples import gpt, llama
from planner import plan
from planner.emit.pipeline.runtime import Pipeline, Run
from planner.pipeline.schedule import Kind, StageCosts, simulate

EXAMPLES: dict[str, Any] = {
    "gpt": gpt.GPT(1024, 64, 256, 8, 4, 16, "float32", False),
    "llama": llama.Llama(1024, 64, 256, 8, 4, 768, 8, 16, "float32"),
}
SCHEDULES = ("gpipe", "1f1b", "zb-h1")
MICROBATCHES = 8
ROUNDS = 10
COLUMNS = {
    Kind.FORWARD: "forward_s", Kind.BACKWARD: "input_gradient_s",
    Kind.INPUT_GRADIENT: "input_gradient_s", Kind.WEIGHT_GRADIENT: "weight_gradient_s",
    Kind.RECOMPUTE: "recompute_s",
}  # fmt: skip


def task_times(pipeline: Pipeline, params: Any, state: Any, batch: Any) -> dict[Any, list[float]]:
    """Seconds of each kind of task on each stage, run one at a time."""
    del state
    held = pipeline.flat(params, 0, pipeline.where)
    run = Run(pipeline, held, pipeline.cut(batch))
    found: dict[Any, list[float]] = defaultdict(list)
    for task in pipeline.order:
        jax.block_until_ready(jax.live_arrays())
        begun = time.perf_counter()
        run.start(task)
        jax.block_until_ready(jax.live_arrays())
        found[task.kind, task.chunk].append(time.perf_counter() - begun)
    return found


def costs_of(times: dict[Any, list[float]], stages: int) -> StageCosts:
    """Medians as costs of the stages."""
    columns = {name: [0.0] * stages for name in COLUMNS.values()}
    for (kind, chunk), seconds in times.items():
        columns[COLUMNS[kind]][chunk] = float(np.median(seconds))
    return StageCosts(**{name: tuple(values) for name, values in columns.items()})


def one(name: str, stages: int, schedule: str) -> dict[str, object]:
    """Plans, times and simulates one pipeline."""
    model = EXAMPLES[name]
    params, batch = jax.jit(model.init)(jax.random.key(0))
    made = plan(
        model.loss, params, batch, cluster=f"{stages}xhost", optimizer=optax.adamw(1e-3),
        pipeline=stages, microbatches=MICROBATCHES, schedules=(schedule,), time_limit_s=10.0,
    )  # fmt: skip
    pipeline: Any = made.compile()
    state = optax.adamw(1e-3).init(params)
    params, state = pipeline.place(params, 0), pipeline.place(state, 1)
    params, state, _ = pipeline(params, state, batch)
    task_times(pipeline, params, state, batch)
    times = task_times(pipeline, params, state, batch)
    simulated = simulate(pipeline.schedule, costs_of(times, stages)).step_s
    steps = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        params, state, loss = pipeline(params, state, batch)
        jax.block_until_ready((params, state, loss))
        steps.append(time.perf_counter() - begun)
    seen = at_once(traced(lambda: pipeline(params, state, batch)))
    step, serial = min(steps), sum(map(sum, times.values()))
    expected = max(simulated, serial / len(os.sched_getaffinity(0)))
    return {
        "example": name, "stages": stages, "schedule": schedule, "step_s": step,
        "simulated_s": simulated, "expected_s": expected, "ratio": step / expected,
        "serial_s": serial, "at_once": serial / step, "overlap": seen["both_s"] / seen["any_s"],
        "planned_s": made.step_s,
    }  # fmt: skip


def main(quick: bool = False) -> list[dict[str, object]]:
    """Prints and returns a row for every pipeline."""
    rows = []
    names = list(EXAMPLES)[:1] if quick else list(EXAMPLES)
    for name in names:
        for stages in (2,) if quick else (2, 4):
            for schedule in SCHEDULES:
                row = one(name, stages, schedule)
                rows.append(row)
                numbers = [
                    f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in row.items()
                ]
                print("  ".join(numbers), flush=True)
    return rows


if __name__ == "__main__":
    main("--quick" in sys.argv)

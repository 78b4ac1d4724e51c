# pyright: basic
"""Pipelines as one program beside the same stages started task by task.

    python -m benchmarks pipeline-scan [--quick] [--hosts] [--dispatch] [--gpus] [--trace]

Rows say which of these they are of (`way`); without any, those of hosts are measured.

Stages of equal layers of a GPT without dropout, in the same plan, on host devices; the two
ways take steps in turn, and a row has the least of each. `dispatch_us` is the processor time that
the starting thread has spent when a step of the first way is on its way, over the number of tasks:
on host devices with what they compute in that thread. `--dispatch` takes a loss of 4x4 products, so
that little else is in it, all numbers are medians of steps, and there are two more: `start_us` is
that of starting the tasks alone, without what is done once a step (micro-batches are cut, sums
added, parameters updated), and `own_us` what is left of it where JAX's calls, of programs and of
copies, return at once; `tasks_per_s` is the inverse of `start_us`. `expected` is the step in rounds
over that of the schedule, both simulated with the seconds that tasks have when they run alone.
`tasks_cpu_s` and `one_program_cpu_s` are processor seconds of a step; waiting counts little there.

With `--trace` a profile of XLA gives the seconds of a step in instructions by kind, longest first,
for both ways. Kinds that both have to do (products) show whether the machine was equally busy.

With `--gpus` the one program is compiled by XLA for H100s, without one, and each permute is listed
with what its schedule has between start and end: `beside` says which branches. That is done for
stages of one GPU (`alone`), of two (`split`), and of two with an option of the compiler.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false "
    "intra_op_parallelism_threads=1",
)

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from benchmarks.pipeline_steps import costs_of, task_times
from examples import gpt
from ir.jax_compilers import platform_named
from planner.emit.compilers import devices_for
from planner.emit.pipeline.prepared import Start, start_each
from planner.emit.pipeline.runtime import Run
from planner.emit.scheduled.instructions import HloProgram
from planner.pipeline.cut.opened_loss import opened
from planner.pipeline.schedule import simulate
from planner.pipeline.schedule.lockstep import lockstep
from tests.planner.emit.pipelines import pipeline_of

LAYERS, MICROBATCHES, ROUNDS, TRACED = 8, 8, 10, 3
CASES = [
    (s, name)
    for s in (2, 4)
    for name in ("gpipe", "1f1b", "1f1b-eager", "1f1b-deep", "zb-h1", "zb-h2")
]
# Devices of a stage and options of XLA's compiler: a stage has collectives of its own, or none.
ON_GPUS: dict[str, tuple[int, dict[str, Any] | None]] = {
    "alone": (1, None), "split": (2, None),
    "split_with_option": (2, {"xla_gpu_experimental_parallel_collective_overlap_limit": 4}),
}  # fmt: skip
IN_TURN = [(s, name) for s in (2, 4) for name in ("interleaved", "zb-v", "chimera")]
QUICK = [(2, "1f1b-eager")]


class Model(gpt.GPT):
    """Without dropout, whose layers differ in their constants."""

    def dropout(self, x: Any, key: Any, rate: float = 0.0) -> Any:
        return x


MODEL = Model(1024, 64, 128, 4, LAYERS, 16, "float32", True)


def both(stages: int, schedule: str, devices: int) -> tuple[Any, Any, Any, Any, Any]:
    """Parameters, batch, state, the pipeline of tasks, and the one program."""
    params, batch = jax.jit(MODEL.init)(jax.random.key(0))
    optimizer = optax.adamw(1e-3)
    loss = opened(MODEL.loss, params, batch, optimizer, microbatches=MICROBATCHES)
    slots = loss.layers.slots
    first = next(k for k, (_, layer) in enumerate(slots) if layer == 0)
    each = LAYERS // stages
    cuts = (0, *(first + each * s for s in range(1, stages)), len(slots))
    made = [
        pipeline_of(
            MODEL.loss, params, batch, schedule=schedule, sizes=(devices,) * stages,
            mesh=(devices,), microbatches=MICROBATCHES, optimizer=optimizer, cuts=cuts,
            scanned=scanned,
        )[1]
        for scanned in (False, True)
    ]  # fmt: skip
    return params, batch, loss.built.init(params), *made


def on_hosts(stages: int, schedule: str) -> dict[str, object]:
    """A pipeline of stages on one host device each, in both ways."""
    params, batch, state, tasks, one = both(stages, schedule, 1)
    seconds: dict[str, list[float]] = {"tasks": [], "one": [], "dispatch": []}
    processor: dict[str, list[float]] = {"tasks": [], "one": []}
    held = {k: (p.place(params, 0), p.place(state, 1)) for k, p in (("tasks", tasks), ("one", one))}
    losses: dict[str, Any] = {}
    for turn in range(ROUNDS + 2):
        for name, pipeline in (("tasks", tasks), ("one", one)):
            begun, own, all_ = time.perf_counter(), time.thread_time(), time.process_time()
            *new, losses[name] = pipeline(*held[name], batch)
            started = time.thread_time() - own
            held[name] = jax.block_until_ready(tuple(new))
            if turn >= 2:
                seconds[name].append(time.perf_counter() - begun)
                processor[name].append(time.process_time() - all_)
                if name == "tasks":
                    seconds["dispatch"].append(started)
        np.testing.assert_allclose(losses["tasks"], losses["one"], rtol=1e-4)
    costs = costs_of(task_times(tasks, *held["tasks"], batch), stages)
    count = len(tasks.order)
    dispatch_us = min(seconds["dispatch"]) / count * 1e6
    return {
        "stages": stages, "schedule": schedule, "tasks": count,
        "tasks_step_s": min(seconds["tasks"]), "one_program_step_s": min(seconds["one"]),
        "tasks_cpu_s": min(processor["tasks"]), "one_program_cpu_s": min(processor["one"]),
        "ratio": float(np.median(np.divide(seconds["one"], seconds["tasks"]))),
        "expected": lockstep(tasks.schedule).step_s(costs) / simulate(tasks.schedule, costs).step_s,
        "dispatch_us": dispatch_us, "tasks_per_s": 1e6 / dispatch_us,
    }  # fmt: skip


def traced(stages: int, schedule: str) -> dict[str, object]:
    """Seconds of a step in XLA's instructions by kind, on one host device for each stage."""
    params, batch, state, *made = both(stages, schedule, 1)
    row: dict[str, object] = {"stages": stages, "schedule": schedule}
    for name, pipeline in zip(("tasks", "one"), made, strict=True):
        held = pipeline.place(params, 0), pipeline.place(state, 1)
        *held, _ = jax.block_until_ready(pipeline(*held, batch))
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                for _ in range(TRACED):
                    *held, _ = jax.block_until_ready(pipeline(*held, batch))
            [path] = Path(folder).rglob("*.trace.json.gz")
            events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        found = Counter[str]()
        for event in events:
            if "hlo_op" in event.get("args", {}):
                found[re.sub(r"[.\d]+(\.clone)*$", "", event["name"])] += (
                    event["dur"] / 1e6 / TRACED
                )
        for scope in ("while", "call", "conditional"):  # whose instructions are listed too
            found.pop(scope, None)
        row[name] = dict(found.most_common(12))
    return row


def dispatch(stages: int, schedule: str) -> dict[str, object]:
    """Microseconds of starting tasks that compute next to nothing."""

    def loss_of(params: Any, batch: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch["x"], params["w"])
        return jnp.mean(x**2)

    params = {"w": jnp.ones((LAYERS, 4, 4)) / 4}
    batch = {"x": jnp.ones((4 * MICROBATCHES, 4))}
    loss, pipeline = pipeline_of(
        loss_of, params, batch, schedule=schedule, sizes=(1,) * stages, mesh=(1,),
        microbatches=MICROBATCHES, optimizer=optax.sgd(1e-3),
    )  # fmt: skip
    held = pipeline.place(params, 0), pipeline.place(loss.built.init(params), 1)
    seconds: list[float] = []
    for _ in range(3 * ROUNDS):
        begun = time.thread_time()
        *new, _ = pipeline(*held, batch)
        seconds.append(time.thread_time() - begun)
        held = jax.block_until_ready(tuple(new))
    starts: list[float] = []
    for _ in range(3 * ROUNDS):
        run = Run(pipeline, pipeline.flat(held[0], 0, pipeline.where), pipeline.cut(batch))
        jax.block_until_ready(run.env)
        begun = time.thread_time()
        run.start_all()
        starts.append(time.thread_time() - begun)
        jax.block_until_ready(run.env)
    own: list[float] = []
    alone = [at_once(start) for start in pipeline.prepared.starts]
    for _ in range(3 * ROUNDS):
        env: list[Any] = [None] * pipeline.prepared.count
        begun = time.thread_time()
        start_each(alone, env)
        own.append(time.thread_time() - begun)
    whole_us, start_us, own_us = (
        float(np.median(found)) / len(pipeline.order) * 1e6 for found in (seconds, starts, own)
    )
    return {
        "stages": stages, "schedule": schedule, "tasks": len(pipeline.order),
        "dispatch_us": whole_us, "start_us": start_us, "own_us": own_us,
        "tasks_per_s": 1e6 / start_us,
    }  # fmt: skip


def at_once(start: Start) -> Start:
    """A start whose program and copies return what is there."""
    nothing = (None,) * (start.outs.stop - start.outs.start)
    sends = tuple((source, copy, lambda x: x) for source, copy, _ in start.sends)
    return replace(start, call=lambda *args: nothing, sends=sends)


def for_gpus(stages: int, schedule: str) -> dict[str, object]:
    """The permutes of the one program in the schedule of XLA for GPUs."""
    row: dict[str, object] = {"stages": stages, "schedule": schedule}
    for name, (devices, options) in ON_GPUS.items():
        row[name], row[f"{name}_temporary_bytes"] = scheduled(stages, schedule, devices, options)
    return row


def scheduled(stages: int, schedule: str, devices: int, options: Any) -> tuple[Any, int]:
    """What runs beside each permute, and bytes of temporaries, with some GPUs for each stage."""
    params, batch, state, _, one = both(stages, schedule, devices)
    grid = devices_for("aot", one.mesh.size, 8, "h100")
    mesh = Mesh(np.array(grid, dtype=object).reshape(one.mesh.devices.shape), one.mesh.axis_names)
    object.__setattr__(one, "mesh", mesh)
    with platform_named("cuda"):
        compiled = one.lower(*jax.eval_shape(lambda *trees: trees, params, state, batch))
        compiled = compiled.compile(compiler_options=options)
    return beside(compiled.as_text()), compiled.memory_analysis().temp_size_in_bytes


def beside(text: str) -> list[dict[str, object]]:
    """For each permute between stages inside of the loop over rounds, what runs beside it."""
    rows: list[dict[str, object]] = []
    for computation in HloProgram(text).computations.values():
        order = list(computation.instructions.values())
        for at, start in enumerate(order):
            if start.opcode != "collective-permute-start" or "while/body" not in start.op_name:
                continue
            end = next(k for k, other in enumerate(order) if start.name in other.operands)
            between = order[at + 1 : end]
            rows.append(
                {
                    "permute": start.name,
                    "beside": [i.name for i in between if i.opcode == "conditional"],
                }
            )
    return rows


def main(quick: bool = False) -> list[dict[str, object]]:
    """Prints and returns a row for every pipeline."""
    rows: list[dict[str, object]] = []
    ways = {"hosts": on_hosts, "dispatch": dispatch, "gpus": for_gpus, "trace": traced}
    for way in [name for name in ways if f"--{name}" in sys.argv] or ["hosts"]:
        cases = CASES + (IN_TURN if way == "dispatch" else [])
        for stages, schedule in QUICK if quick else cases:
            rows.append({"way": way, **ways[way](stages, schedule)})
            print(
                "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
                          for k, v in rows[-1].items()),
                flush=True,
            )  # fmt: skip
    return rows


if __name__ == "__main__":
    main("--quick" in sys.argv)

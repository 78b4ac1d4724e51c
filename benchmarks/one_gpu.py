# pyright: basic
"""Predicted beside measured steps and memory of programs on one GPU.

    python -m benchmarks one-gpu [--only NAME]

Each program is planned for one GPU as it is written. Its predicted step and peak memory are printed
beside those measured on an H200 (`benchmarks/data/one_gpu_h200.csv`) and on H100s
(`benchmarks/data/one_gpu_h100.csv`, `one_gpu_h100_full_clock.csv`). Training steps of the last file
ran on NaN, which takes so little power that the GPU keeps its full clock; plans for its rows
therefore leave the sustained rate of products out. No constant is fitted to these steps; what loops
copy was read off the profiles of two of them, `stencil` and `gpt dropout`. No GPU is needed. On a
machine with one,

    python -m benchmarks one-gpu --measure FILE

measures the same programs and writes such a file, each warm and at the clock that lasts.
`one-gpu-ops` does both for single operations.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
from jax.profiler import ProfileData

from benchmarks.one_gpu_programs import PROGRAMS
from costmodel import Cluster, parse_cluster
from planner import plan

DATA = Path(__file__).parent / "data"
# One H100 that no power limit slows, as in steps on NaN and in single operations.
_H100 = parse_cluster("1xh100")
FULL_CLOCK = replace(_H100, device=msgspec.structs.replace(_H100.device, sustained_flops=()))
# Files of measurements, and the cluster that each is predicted for.
MEASURED: dict[Path, Cluster] = {
    DATA / "one_gpu_h100_full_clock.csv": FULL_CLOCK,
    DATA / "one_gpu_h100.csv": _H100,
    DATA / "one_gpu_h200.csv": parse_cluster("1xh200"),
}
COLUMNS: tuple[str, ...] = (
    "program", "seconds", "kernel_s", "kernels", "peak_bytes", "argument_bytes", "temporary_bytes",
    "host_bytes",
)  # fmt: skip
# `jax.lax.ragged_dot` as it is: a plan runs grouped products of its own in its place.
NOT_AS_PLANNED = ("experts ragged",)
STEPS, RUNS, RUN_S = 30, 3, 0.7  # most steps of a run, runs, seconds of a run
# Seconds of steps before those that count: on an H200 the clock falls from 1,980 to 1,550 MHz in
# the first second of products, and stays there.
WARM_S = 2.0
DONATED = (0, 1)  # of a training step: parameters and state


def donated(name: str, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Arguments whose buffers a step takes."""
    return DONATED if len(args) == 3 and "decode" not in name else ()


def measured_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of measurements."""
    with path.open(newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        texts = ("program", "plan")
        return [{k: v if k in texts else float(v or 0) for k, v in row.items()} for row in rows]


def write_measured(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Writes a file of measurements, each row as soon as it is there."""
    with path.open("w", newline="") as file:
        file.write(
            f"# measured on one {jax.devices('gpu')[0].device_kind}, JAX {jax.__version__}\n"
        )
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(row)
            file.flush()


def predicted(name: str, cluster: Cluster = FULL_CLOCK) -> Any:
    """The plan of one program for one GPU, as it is written."""
    fn, args, _ = PROGRAMS[name]()
    return plan(
        fn, *args, cluster=cluster, donate_argnums=donated(name, args), baselines=False,
        substitutions=False, recompute="written", attention="written", padding=False,
    )  # fmt: skip


def compared(row: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """What one program was said to take, and took.

    Where the kernels of a step leave the device idle for a fifth of it, launches bound it, and the
    kernels alone are compared.
    """
    found = predicted(row["program"], cluster)
    busy = row["kernel_s"] > 0.8 * row["seconds"]
    took = row["seconds"] if busy else row["kernel_s"]
    return {
        "program": row["program"], "cluster": cluster.name, "predicted_s": found.step_s,
        "measured_s": took, "difference": found.step_s / took - 1,
        "predicted_peak_bytes": found.peak_bytes,
        "measured_peak_bytes": row["peak_bytes"] or None,
        "peak_difference": found.peak_bytes / row["peak_bytes"] - 1 if row["peak_bytes"] else None,
        "as_planned": row["program"] not in NOT_AS_PLANNED,
    }  # fmt: skip


def random_values(shapes: Any, limit: int) -> Any:
    """Random values: floats of at most 0.02, integers below a limit."""
    leaves, tree = jax.tree.flatten(shapes)

    def make() -> Any:
        key, found = jax.random.key(0, impl="rbg"), []
        for i, leaf in enumerate(leaves):
            one = jax.random.fold_in(key, i)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                found.append(jax.random.key(1))
            elif jnp.issubdtype(leaf.dtype, jnp.integer):
                found.append(jax.random.randint(one, leaf.shape, 0, limit).astype(leaf.dtype))
            else:
                wide = jax.random.uniform(one, leaf.shape, minval=-0.02, maxval=0.02)
                found.append(wide.astype(leaf.dtype))
        return jax.tree.unflatten(tree, found)

    return jax.jit(make)()


def kernel_seconds(step: Any, args: Any) -> tuple[float, float]:
    """Seconds of the kernels of one step on the device, and their number."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(step(args))
        seconds, count = 0.0, 0
        for path in Path(folder).rglob("*.xplane.pb"):
            for plane in ProfileData.from_file(str(path)).planes:
                lines = plane.lines if "GPU" in plane.name else ()
                for line in (x for x in lines if x.name.startswith("Stream")):
                    for event in line.events:
                        seconds, count = seconds + event.duration_ns / 1e9, count + 1
    return seconds, count


def step_seconds(step: Any) -> float:
    """Seconds of a step, of the middle run of some in a row, warm."""
    jax.block_until_ready(step())
    warm, steps = time.perf_counter(), 0
    while time.perf_counter() - warm < WARM_S:
        jax.block_until_ready(step())
        steps += 1
    count = int(max(RUNS, min(STEPS, RUN_S * steps / (time.perf_counter() - warm))))
    runs: list[float] = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        for _ in range(count):
            last = step()
        jax.block_until_ready(last)
        runs.append((time.perf_counter() - begun) / count)
    return statistics.median(runs)


def run(call: Any, args: Any, limit: int, reused: bool) -> tuple[float, float, float, float]:
    """Runs a compiled step on random values; the state of an optimizer begins as zeros.

    Args:
        call: the step.
        args: shapes of its arguments.
        limit: of integers.
        reused: whether it is a training step, which takes the buffers of parameters and state.

    Returns:
        Seconds of a step and of its kernels, their number, and the sum of the first result (the
        loss of a training step).

    Raises:
        FloatingPointError: if a training step makes a loss of NaN, on which products take less
            power and run faster than on numbers.
    """
    values = list(random_values(args, limit))
    if reused:
        values[1] = jax.tree.map(jnp.zeros_like, values[1])
    state = [tuple(values)]
    del values

    def step(_: Any = None) -> Any:
        given = state.pop()
        found = call(*given)
        state.append((*found[:2], *given[2:]) if reused else given)
        return found[2] if reused else found

    first = jax.tree.leaves(jax.block_until_ready(step()))[0]
    seconds, took = step_seconds(step), kernel_seconds(step, None)
    if reused and not jnp.isfinite(jax.tree.leaves(step())[0]).all():
        raise FloatingPointError("the loss is no number after these steps; use smaller ones")
    return seconds, *took, float(jnp.sum(first.astype(jnp.float32)))


def measure(name: str) -> dict[str, Any]:
    """Runs one program on the first GPU."""
    fn, args, limit = PROGRAMS[name]()
    reused = donated(name, args)
    compiled = jax.jit(fn, donate_argnums=reused).lower(*args).compile()
    memory: Any = compiled.memory_analysis()
    fastest, seconds, kernels, _ = run(compiled, args, limit, bool(reused))
    return dict(zip(COLUMNS, (
        name, fastest, seconds, kernels, memory.peak_memory_in_bytes,
        memory.argument_size_in_bytes, memory.temp_size_in_bytes, memory.host_temp_size_in_bytes,
    ), strict=True))  # fmt: skip


def main(quick: bool) -> list[dict[str, Any]]:
    """Prints the table, or measures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks one-gpu")
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--measure", type=Path, help="file to write")
    given = parser.parse_known_args()[0]
    if given.measure:
        names = [name for name in PROGRAMS if given.only in name]
        write_measured(given.measure, COLUMNS, map(measure, names))
        return measured_rows(given.measure)
    print("| program | on | predicted ms | measured ms | difference | predicted GB | XLA's GB "
          "| difference |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    rows: list[dict[str, Any]] = []
    for path, cluster in MEASURED.items():
        asked = [row for row in measured_rows(path) if given.only in row["program"]]
        for row in asked[: 3 if quick else None]:
            found = compared(row, cluster)
            rows.append(found)
            print(_line(found), flush=True)
    same = [r for r in rows if r["as_planned"]]
    for what, key in (("step", "difference"), ("peak", "peak_difference")):
        sizes = [abs(r[key]) for r in same if r[key] is not None]
        if not sizes:
            continue
        print(f"\n{what}: median difference {statistics.median(sizes):.1%} of {len(sizes)} "
              "programs that a plan runs as they are")  # fmt: skip
    return rows


def _line(found: dict[str, Any]) -> str:
    """A row of the table."""
    peak = "|  |  |"
    if found["measured_peak_bytes"]:
        peak = f"| {found['measured_peak_bytes'] / 1e9:.2f} | {found['peak_difference']:+.1%} |"
    return (
        f"| {found['program']} | {found['cluster']} | {found['predicted_s'] * 1e3:.2f} "
        f"| {found['measured_s'] * 1e3:.2f} | {found['difference']:+.1%} "
        f"| {found['predicted_peak_bytes'] / 1e9:.2f} {peak}"
    )

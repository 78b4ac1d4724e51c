"""Pipeline schedules: closed forms, published rows, speed of the simulator, the schedule search.

    python -m benchmarks schedules [--quick]

Times are processor times of this process. `off` is simulated over closed form, less one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.schedule_formulas import estimate_s, formulas, pipe
from benchmarks.schedule_search import find_schedule
from benchmarks.schedule_search.flows import placed
from planner.pipeline.schedule import (
    Links,
    Placement,
    Simulator,
    StageCosts,
    bidirectional,
    build,
    chain,
    schedules,
    simulate,
    uniform,
    v_shape,
)

Row = dict[str, object]
# Name -> step of p devices, M micro-batches, times f, b, w (input and weight gradient).
CLOSED: dict[str, Callable[[int, int, float, float, float], float]] = {
    "gpipe": lambda p, m, f, b, w: (m + p - 1) * (f + b + w),
    "1f1b": lambda p, m, f, b, w: (m + p - 1) * (f + b + w),
    "interleaved": lambda p, m, f, b, w: (2 * m + p - 1) * (f + b + w),
    "zb-h1": lambda p, m, f, b, w: m * (f + b + w) + (p - 1) * (f + b - w),
    "zb-h2": lambda p, m, f, b, w: m * (f + b + w) + (p - 1) * (f + b - 2 * w),
    "zb-v": lambda p, m, f, b, w: 2 * m * (f + b + w),
    "chimera": lambda p, m, f, b, w: m * (f + b + w) + (p - 2) * f,
}
# The zero-bubble paper counts from a device's first task to its last.
PER_DEVICE = ("zb-h2", "zb-v")
TWO_CHUNKS = ("interleaved", "zb-v")


def stages_of(name: str, p: int) -> int:
    """Parts of the model."""
    return p * 2 if name in TWO_CHUNKS else p


def closed_forms() -> list[Row]:
    """Largest relative error against each closed form over a grid."""
    print("| schedule | sizes | largest error |\n|---|---|---|")
    rows: list[Row] = []
    for name, form in CLOSED.items():
        equal = name in ("zb-v", "chimera")
        times = [(1.0, 1.0, 1.0)] if name == "zb-v" else [(2.0, 1.5, 0.5)]
        times += [] if equal else [(1.0, 2.0, 0.5), (1.0, 1.0, 1.0)]
        off, count = 0.0, 0
        for p in (2, 4, 8, 16):
            for m in (2 * p, 4 * p, 8 * p):
                for f, b, w in times:
                    costs = uniform(
                        stages_of(name, p), forward_s=f, input_gradient_s=b, weight_gradient_s=w
                    )
                    found = simulate(build(name, p, m), costs)
                    ours = found.period_s if name in PER_DEVICE else found.step_s
                    off, count = max(off, abs(ours / form(p, m, f, b, w) - 1)), count + 1
        rows.append({"schedule": name, "sizes": count, "largest_error": off})
        print(f"| {name} | {count} | {off:.1e} |", flush=True)
    return rows


def published() -> list[Row]:
    """GPipe table 2: Transformer-48, 32 micro-batches, speed over one accelerator."""
    print("\n| GPipe table 2, accelerators | published | simulated | off |\n|---|---|---|---|")
    rows: list[Row] = []
    for devices, measured in ((2, 1.8), (4, 3.4), (8, 6.3)):
        alone = simulate(build("gpipe", 1, 32), uniform(1)).step_s
        each = 1.0 / devices
        parts = uniform(devices, forward_s=each, input_gradient_s=each, weight_gradient_s=each)
        ours = alone / simulate(build("gpipe", devices, 32), parts).step_s
        rows.append({"accelerators": devices, "published": measured, "simulated": ours})
        print(f"| {devices} | {measured} | {ours:.2f} | {ours / measured - 1:+.1%} |", flush=True)
    return rows


def speed(quick: bool) -> list[Row]:
    """Seconds to build, check and simulate."""
    print("\n| schedule | stages x micro-batches | tasks and transfers | build s | check and first "
          "run s | again s | step alone s |\n|---|---|---|---|---|---|---|")  # fmt: skip
    rows: list[Row] = []
    links = Links(latency_s=0.01, bandwidth_bytes_per_s=10.0)
    for p, m in ((8, 64),) if quick else ((8, 64), (64, 512)):
        for name in schedules():
            costs = uniform(stages_of(name, p), activation_bytes=1.0, output_bytes=1.0)
            begun = time.process_time()
            schedule = build(name, p, m)
            built = time.process_time()
            simulator = Simulator(schedule)
            first = simulator.run(costs, links)
            ran = time.process_time()
            simulator.run(costs, links)
            again = time.process_time()
            simulator.step_s(costs, links)
            alone = time.process_time()
            seconds = (built - begun, ran - built, again - ran, alone - again)
            rows.append({"schedule": name, "stages": p, "microbatches": m, "nodes":
                         first.graph.size, "seconds": seconds})  # fmt: skip
            print(f"| {name} | {p} x {m} | {first.graph.size} | "
                  + " | ".join(f"{s:.3f}" for s in seconds) + " |", flush=True)  # fmt: skip
    return rows


def shortlist(quick: bool) -> list[Row]:
    """Error of the formulas on unequal stages with transfers."""
    print("\n| formula | root mean square error | least | largest |\n|---|---|---|---|")
    rows: list[Row] = []
    for name in formulas():
        rng = np.random.default_rng(0)
        off: list[float] = []
        for _ in range(20 if quick else 100):
            p = int(rng.choice([2, 4, 8]))
            m, n = p * int(rng.choice([2, 4, 8])), stages_of(name, p)
            f, b, w = (1 + 0.2 * rng.uniform(-1, 1, n) for _ in range(3))
            c = float(rng.uniform(0, 0.2))
            costs = StageCosts(
                forward_s=tuple(f), input_gradient_s=tuple(b), weight_gradient_s=tuple(w),
                output_bytes=(c,) * n,
            )  # fmt: skip
            real = simulate(build(name, p, m), costs, Links(bandwidth_bytes_per_s=1.0)).step_s
            x = pipe(f, b, w, microbatches=m, transfer_s=c, chunks=n // p)
            off.append(float(estimate_s(name, x)) / real - 1)
        root = float(np.sqrt(np.mean(np.square(off))))
        rows.append({"formula": name, "rms": root, "least": min(off), "largest": max(off)})
        print(f"| {name} | {root:.1%} | {min(off):+.1%} | {max(off):+.1%} |", flush=True)
    return rows


def problems() -> dict[str, tuple[Placement, StageCosts, int, list[float]]]:
    """Placements for the search: known ones, and ones for which nothing is published."""
    ends = [*range(4)] * 3
    edges = [(i, 4) for i in range(4)] + [(4, 5), (5, 6), (6, 7)] + [(7, 8 + i) for i in range(4)]
    half = (0.5,) * 4 + (1.0,) * 4 + (0.5,) * 4
    shared = StageCosts(
        forward_s=half, input_gradient_s=half, weight_gradient_s=half, activation_bytes=(1.0,) * 12
    )
    each = {"activation_bytes": 1.0, "weight_input_bytes": 1.0}
    return {
        "chain of 8": (chain(8), uniform(8, **each), 32, [8.0] * 8),
        "chain of 8, half the memory": (chain(8), uniform(8, **each), 32, [4.0] * 8),
        "V on 8": (v_shape(8), uniform(16, **each), 32, [16.0] * 8),
        "V on 8, half the memory": (v_shape(8), uniform(16, **each), 32, [8.0] * 8),
        "two directions on 4": (bidirectional(4), uniform(4, **each), 16, [4.0] * 4),
        "two branches that join on 3": (
            placed([0, 1, 2, 2], [(0, 2), (1, 2), (2, 3)]), uniform(4, **each), 16, [],
        ),
        "embedding on all of 4": (placed(ends, edges), shared, 16, []),
        "embedding on all of 4, little memory": (placed(ends, edges), shared, 16, [8.0] * 4),
    }  # fmt: skip


def search(quick: bool) -> list[Row]:
    """What the schedule search finds beside its bounds."""
    print("\n| placement | step | bound | gap | period | period bound | from | seconds |\n"
          "|---|---|---|---|---|---|---|---|")  # fmt: skip
    rows: list[Row] = []
    for name, (placement, costs, microbatches, memory) in problems().items():
        begun = time.process_time()
        found = find_schedule(
            placement, microbatches, costs, memory_bytes=memory, time_limit_s=2.0 if quick else 20.0
        )
        seconds = time.process_time() - begun
        gap = 1 - found.lower_bound_s / found.step_s
        rows.append({"placement": name, "step_s": found.step_s, "bound_s": found.lower_bound_s,
                     "origin": found.origin, "seconds": seconds})  # fmt: skip
        print(f"| {name} | {found.step_s:.5g} | {found.lower_bound_s:.5g} | {gap:.1%} | "
              f"{found.period_s:.4g} | {found.period_bound_s:.4g} | {found.origin} | "
              f"{seconds:.2f} |", flush=True)  # fmt: skip
    return rows


def main(quick: bool) -> list[Row]:
    """Prints the tables."""
    parts = (closed_forms(), published(), speed(quick), shortlist(quick), search(quick))
    return [row for rows in parts for row in rows]

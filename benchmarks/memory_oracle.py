# pyright: basic
"""All choices of what small random programs compute again, beside the planner's choice.

    python -m benchmarks memory-oracle [--quick] [--programs 12] [--nodes 8]

Random losses of 12 operations on two H100: products with weights, functions of one value, sums and
products of two. Every subset of the operations whose results the backward pass may compute again is
planned as a program of its own, all shardings searched, without any other limit of memory; of those
that fit a limit the fastest is the optimum. `recompute="search"` plans the same program at the same
limits, from the memory of the plan that keeps everything down to the least at which anything fits:
how often its step is the optimum, by how much it is longer at most, how often its bound is above
the optimum, and how often less memory is faster (`rises`).
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from typing import Any

import jax
import jax.numpy as jnp

from costmodel import parse_cluster
from ir import digest
from ir.trace import Traced, trace
from planner import PlanError, plan
from planner.common.options import Options
from planner.common.request import Request
from planner.sharding.plan_traced import One, plan_traced
from planner.sharding.recompute.saved import Key, layers_of
from planner.sharding.recompute.variants import kept_by, variant_of
from planner.training.step_call import StepCall

CLUSTER = "2xh100"
SETTINGS: dict[str, Any] = {
    "baselines": False, "substitutions": False, "padding": False, "offload": "never", "mesh": (2,),
}  # fmt: skip
LEAST, MOST = 4, 9  # operations that may be computed again: at most 512 programs
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6)
EQUAL = 1e-9  # relative: the same seconds summed in another order
UNARY = (jnp.sin, jnp.tanh, jnp.exp, lambda x: x * x, lambda x: 1 / (1 + x * x), jax.nn.relu)
BINARY = (jnp.multiply, jnp.add, lambda x, y: x * jnp.tanh(y))


@dataclass(frozen=True)
class Small:
    """A random step.

    traced: as it was written, which keeps everything.
    each: results of every operation that may be computed again.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    traced: Traced
    each: tuple[frozenset[Key], ...]


def small_step(seed: int, nodes: int) -> Small:
    """A random training step; its loss has `nodes` operations and a mean of squares."""
    draw = random.Random(seed)
    rows, width = draw.choice((4096, 8192, 16384)), draw.choice((64, 128, 256))
    made, weights = 1, 0
    steps: list[tuple[str, int, int, int]] = []
    for _ in range(nodes):
        kind = draw.choice(("product", "unary", "unary", "binary"))
        kind = "unary" if kind == "product" and weights == 3 else kind
        x = made - 1 if draw.random() < 0.7 else draw.randrange(made)
        steps.append((kind, x, draw.randrange(made), draw.randrange(6)))
        weights += kind == "product"
        made += 1

    def loss(params, x):
        values, left = [x], list(params)
        for kind, i, j, f in steps:
            if kind == "product":
                values.append(values[i] @ left.pop())
            elif kind == "unary":
                values.append(UNARY[f](values[i]))
            else:
                values.append(BINARY[f % len(BINARY)](values[i], values[j]))
        return jnp.mean(values[-1] ** 2)

    def step(params, x):
        found, grads = jax.value_and_grad(loss)(params, x)
        return [w - 0.1 * g for w, g in zip(params, grads, strict=True)], found

    struct = jax.ShapeDtypeStruct
    params = [struct((width, width), "float32") for _ in range(max(weights, 1))]
    args = params, struct((rows, width), "float32")
    kept = kept_by(trace(step, *args))
    layers = layers_of(kept.program)
    each = [y.keys([node]) for y in layers for node in y.needed() if node.again]
    return Small(step, args, kept, tuple(each))


class Programs:
    """The programs of all subsets of what a step may compute again.

    Limits are asked for in falling order: a plan that was found under a higher limit, and fits, is
    the best under a lower one.
    """

    def __init__(self, small: Small, programs: Iterable[Traced]) -> None:
        self.one = One(StepCall(small.fn, small.args, (), "auto"), 1, (), (), "step")
        self.programs = tuple(programs)
        self.known: dict[int, tuple[float, float]] = {}  # program -> step and peak

    def fastest(self, limit: int) -> float:
        """The step of the fastest that fits; infinite if none does."""
        request = Request(parse_cluster(CLUSTER), Options(memory_bytes=limit, **SETTINGS))
        best = float("inf")
        for number, program in enumerate(self.programs):
            step_s, peak = self.known.get(number, (0.0, float("inf")))
            if step_s == float("inf"):
                continue
            if peak > limit:
                try:
                    found, _ = plan_traced(self.one, program, request, time.monotonic())
                except PlanError:
                    self.known[number] = float("inf"), 0.0
                    continue
                step_s, peak = found.step_s, found.program.peak_bytes
                self.known[number] = step_s, peak
            best = min(best, step_s)
        return best


def programs_of(small: Small) -> Programs:
    """Every subset, each distinct program once."""
    every = chain.from_iterable(combinations(small.each, n) for n in range(len(small.each) + 1))
    made = (variant_of(small.traced, frozenset[Key]().union(*keys)).traced for keys in every)
    return Programs(small, {digest(one.graph): one for one in made}.values())


def compared(seed: int, nodes: int, shares: tuple[float, ...]) -> dict[str, Any] | None:
    """A random program at every limit; None if it has too few or too many choices."""
    small = small_step(seed, nodes)
    if not LEAST <= len(small.each) <= MOST:
        return None
    every = programs_of(small)
    ask = {"cluster": CLUSTER, **SETTINGS}
    full = plan(small.fn, *small.args, recompute="none", **ask)
    rows: list[dict[str, Any]] = []
    for share in shares:
        limit = int(full.peak_bytes * share) + 1
        best_s = every.fastest(limit)
        try:
            found = plan(small.fn, *small.args, recompute="search", memory_bytes=limit, **ask)
        except PlanError as error:
            if error.kind != "does-not-fit":
                raise
            rows.append({"share": share, "optimum_s": best_s, "step_s": float("inf"), "bound_s": 0})
            if best_s == float("inf"):
                break
            continue
        rows.append({
            "share": share, "optimum_s": best_s, "step_s": found.step_s, "gap": found.gap,
            "bound_s": found.lower_bound_s,
            "partial": any("recompute:" in line for line in found.warnings),
        })  # fmt: skip
    return {"seed": seed, "choices": len(small.each), "programs": len(every.programs), "rows": rows}


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    pairs = [(r["step_s"], r["optimum_s"]) for r in found["rows"] if r["optimum_s"] < float("inf")]
    equal = sum(step <= best * (1 + EQUAL) for step, best in pairs)
    longest = max((step / best - 1 for step, best in pairs), default=0.0)
    above = sum(r["bound_s"] > r["optimum_s"] * (1 + EQUAL) for r in found["rows"])
    steps = [r["step_s"] for r in found["rows"]]
    rises = sum(b < a * (1 - EQUAL) for a, b in pairwise(steps))
    return (
        f"| {found['seed']} | {found['choices']} | {found['programs']} | {len(pairs)} | {equal} "
        f"| {longest:.2%} | {above} | {rises} |"
    )


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """A row with None where nothing fits: JSON has no infinity."""
    return {key: None if value == float("inf") else value for key, value in row.items()}


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints the table and returns its rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory-oracle")
    parser.add_argument("--programs", type=int, default=12)
    parser.add_argument("--nodes", type=int, default=8)
    given = parser.parse_known_args()[0]
    print("| seed | choices | programs | limits | optimum | longest | bound above | rises |")
    print("|---|---|---|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    seed = 0
    while len(rows) < (2 if quick else given.programs):
        found = compared(seed, given.nodes, SHARES[::4] if quick else SHARES)
        seed += 1
        if found is not None:
            print(line(found), flush=True)
            rows.append({**found, "rows": [*map(_finite, found["rows"])]})
    return rows


if __name__ == "__main__":
    main()

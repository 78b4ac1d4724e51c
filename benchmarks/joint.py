"""Rewrites and shardings chosen together, compared with one after the other, on eight H100.

    python -m benchmarks joint

Forward programs in bf16, with tokens split over the devices before and after and weights on every
device; costs are those of the planner's tables, without fusion, in microseconds. `adapters`:
weights with low-rank adapters added where they are used, W + U V, as written in programs that merge
them; sizes of Gemma-7B's MLP (3072, 24576) and Llama-3-8B's (4096, 14336).

The second table is the effect of the exact choice in `plan()`: predicted milliseconds of a decoder
layer with adapters, float32, as written, with the search for rewrites alone, and with the exact
choice.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmarks.joint_choice import JointProblem, choose_together
from benchmarks.taso_models import adapters as layer
from benchmarks.taso_models import adapters_8b
from costmodel import parse_cluster
from ir import Mesh, Sharding, TensorType
from planner import plan
from planner.sharding.rewrite import joint_extraction as together

MESH = Mesh((("x", 8),))
ROWS, WHOLE = Sharding((("x",), ())), Sharding(((), ()))
MODELS = {"Gemma-7B": (3072, 24576), "Llama-3-8B": (4096, 14336)}
RANK = 64
TOKENS = (2048, 4096, 8192, 16384)
VOCABULARY = 65536


def _t(*shape: int) -> TensorType:
    return TensorType(shape, "bfloat16")


def adapters(tokens: int, d: int, f: int) -> tuple[dict[str, TensorType], tuple[str, ...]]:
    """A gated MLP whose three weights have adapters."""
    up = {"w": _t(d, f), "u": _t(d, RANK), "v": _t(RANK, f)}
    gate = {"g": _t(d, f), "p": _t(d, RANK), "q": _t(RANK, f)}
    down = {"z": _t(f, d), "a": _t(f, RANK), "b": _t(RANK, d)}
    text = (
        "matmul(mul(relu(matmul(x, add(w, matmul(u, v)))), matmul(x, add(g, matmul(p, q)))), "
        "add(z, matmul(a, b)))"
    )
    return {"x": _t(tokens, d), **up, **gate, **down}, (text,)


def chain(tokens: int, d: int, f: int) -> tuple[dict[str, TensorType], tuple[str, ...]]:
    """Two products of factored weights, written with the weights multiplied first."""
    inputs = {"x": _t(tokens, d), "u": _t(d, d), "v": _t(d, f), "a": _t(f, d), "b": _t(d, d)}
    return inputs, ("matmul(relu(matmul(x, matmul(u, v))), matmul(a, b))",)


def lookup(tokens: int, d: int, f: int) -> tuple[dict[str, TensorType], tuple[str, ...]]:
    """Rows of a table, projected."""
    inputs = {"e": _t(VOCABULARY, d), "i": TensorType((tokens, 1), "int32"), "w": _t(d, d)}
    return inputs, ("relu(matmul(gather(e, i), w))",)


FAMILIES = {"adapters": adapters, "chain": chain, "lookup": lookup}


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints the table and returns its rows.

    Args:
        quick: one size of each.
    """
    print("| family | model | tokens | as written | rewrite first | shard first | together |"
          " bound | saves | forms | s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    cluster = parse_cluster("8xh100")
    for family, make in FAMILIES.items():
        for model, (d, f) in list(MODELS.items())[: 1 if quick else None]:
            for tokens in TOKENS[1:2] if quick else TOKENS:
                inputs, outputs = make(tokens, d, f)
                split = ("x", "i")
                placed = {n: ROWS if n in split else WHOLE for n in inputs}
                start = time.process_time()
                problem = JointProblem(inputs, outputs, cluster, MESH, placed, (ROWS,))
                found = choose_together(problem)
                rows.append({
                    "family": family, "model": model, "tokens": tokens,
                    "as_written_s": found.as_written.seconds,
                    "rewrite_first_s": found.rewrite_first.seconds,
                    "shard_first_s": found.shard_first.seconds,
                    "together_s": found.joint.seconds, "bound_s": found.joint.lower_bound_s,
                    "stop": found.joint.stop, "gain": found.gain, "forms": found.forms,
                    "saturation": found.saturation, "nodes": found.nodes,
                    "cpu_s": time.process_time() - start, "ops": found.joint.ops(),
                })  # fmt: skip
                print(line(rows[-1]), flush=True)
    return rows + inside(quick)


LAYERS = {
    "width 512, 1,024 tokens": layer,
    "Llama-3-8B, 2,048 tokens": partial(adapters_8b, 1),
    "Llama-3-8B, 8,192 tokens": partial(adapters_8b, 4),
}


def inside(quick: bool) -> list[dict[str, Any]]:
    """Plans as written, by the search alone, and with the exact choice."""
    print("\n| layer | as written | search alone | exact choice | rules |\n|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    for name, make in list(LAYERS.items())[: 1 if quick else None]:
        loss, params, batch = make()
        ask = partial(plan, loss, params, batch, cluster="8xh100")
        with patch.object(together, "BUDGET", together.JointBudget(nodes=0)):
            searched = ask()
        plans = {"as_written": ask(substitutions=False), "search": searched, "together": ask()}
        rows.append({"layer": name, "rules": plans["together"].substitutions}
                    | {f"{key}_s": p.step_s for key, p in plans.items()})  # fmt: skip
        times = " | ".join(f"{p.step_s * 1e3:.3f}" for p in plans.values())
        rules = ", ".join(f"{rule} {count}" for rule, count in rows[-1]["rules"].items())
        print(f"| {name} | {times} | {rules} |", flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    keys = ("as_written_s", "rewrite_first_s", "shard_first_s", "together_s", "bound_s")
    times = " | ".join(f"{row[key] * 1e6:.1f}" for key in keys)
    return (
        f"| {row['family']} | {row['model']} | {row['tokens']} | {times} | {row['gain']:.1%} "
        f"| {row['forms']} ({row['saturation']}) | {row['cpu_s']:.1f} |"
    )


if __name__ == "__main__":
    main()

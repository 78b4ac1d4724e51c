# pyright: basic
"""Time to plan: whole process, split into trace, build and solve, one process per row.

    python -m benchmarks plan-time [--quick]

Every row is a fresh process, so that nothing is warm; imports are part of `process`.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from benchmarks.apart import row_apart
from planner import plan
from planner.cli.target import load_target

ROWS = (
    ("examples/gpt.py:gpt_1_3b", "8xh100"),
    ("examples/gpt.py:gpt_1_3b", "64xh100"),
    ("examples/gpt.py:gpt_1_3b_scanned", "8xh100"),
    ("examples/gpt.py:gpt_1_3b_scanned", "64xh100"),
    ("examples/llama.py:llama3_8b", "8xh100"),
    ("examples/llama.py:llama3_8b", "64xh100"),
    ("examples/llama.py:llama3_70b", "64xh100"),
    ("examples/moe.py:moe_10b", "64xh100"),
    ("examples/wide_resnet.py:wrn_50_2", "8xh100"),
    ("examples/recommender.py:dlrm", "8xh100"),
)
QUICK = ROWS[2:4]


def one(target: str, cluster: str) -> dict[str, object]:
    """Plans one target in this process."""
    loaded = load_target(target)
    p = plan(loaded.fn, *loaded.args, cluster=cluster, **loaded.settings)
    best_by_hand = min((b.step_s for b in p.baselines.values() if b.fits), default=None)
    return {
        "seconds": p.seconds, "step_s": p.step_s, "gap": p.gap, "stop": p.stop.name,
        "mesh": str(p.mesh), "nodes": p.graph.count_nodes(), "by_hand_s": best_by_hand,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }  # fmt: skip


def run(rows: tuple[tuple[str, str], ...]) -> list[dict[str, object]]:
    """One process per row."""
    found: list[dict[str, object]] = []
    for target, cluster in rows:
        start = time.monotonic()
        answer = row_apart("plan_time", target, cluster)
        row: dict[str, object] = {"target": target, "cluster": cluster}
        row |= {"error": answer} if isinstance(answer, str) else answer
        row["process_s"] = time.monotonic() - start
        found.append(row)
        print(line(row), flush=True)
    return found


HEAD = (
    "| target | cluster | nodes | trace s | build s | solve s | process s | peak GB | mesh "
    "| step ms | gap | best by hand |\n|" + "---|" * 12
)


def line(row: dict[str, object]) -> str:
    """A row of the table."""
    name = str(row["target"]).rpartition(":")[2]
    if "error" in row:
        return f"| {name} | {row['cluster']} | {row['error']} |"
    s = row["seconds"]
    assert isinstance(s, dict)
    step = float(row["step_s"])  # type: ignore[arg-type]
    hand = row["by_hand_s"]
    ratio = f"{float(hand) / step:.2f}x" if isinstance(hand, float) else "none fits"
    return (
        f"| {name} | {row['cluster']} | {row['nodes']} | {s['trace']:.1f} | {s['build']:.1f} "
        f"| {s['solve']:.1f} | {row['process_s']:.1f} | {row['peak_gb']:.1f} | {row['mesh']} "
        f"| {step * 1e3:.1f} | {float(row['gap']):.2%} | {ratio} |"  # type: ignore[arg-type]
    )


def main(quick: bool) -> list[dict[str, object]]:
    """Prints the table."""
    print(HEAD, flush=True)
    return run(QUICK if quick else ROWS)


if __name__ == "__main__":
    print(json.dumps(one(*sys.argv[1:3])))

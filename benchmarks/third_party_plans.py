# pyright: basic
"""Plans of models that others wrote: time by phase, peak memory, hand-written plans.

    python -m benchmarks third-party-plans [--quick] [--only resnet_18]

Models are those of `third_party.py`, as they are, on eight H100; each is planned in a process of
its own, beside which nothing else is counted. A phase is what the interpreter was in when the
kernel's clock of this process's time ticked (every 10 ms): the innermost function of the call
stack that belongs to one. `by hand` is the fastest of the plans that an expert would write
(`Plan.baselines`), `plan / by hand` the ratio of the steps, both in the planner's prices. `misses`
names the goals that a row misses: seconds and megabytes (`MOST_SECONDS`, `MOST_MB`), and a plan
that is no slower than that by hand.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.apart import row_apart
from planner import plan
from planner.cli.target import load_target

HERE = Path(__file__).resolve().parents[1]
MODELS = (
    "resnet_18", "resnet_50", "resnet_101", "resnet_200", "mobilenet_v1", "bert_base",
    "roberta_base", "gpt2", "distilbert_base", "vit_base", "gpt_neo_125m", "electra_small",
    "llama_160m", "bart_base", "whisper_tiny", "cfd_flow", "jraph_net", "diffrax_ode",
    "flowjax_coupling", "nnx_qwen3", "stable_diffusion", "eqx_unet", "eqx_fno", "gymnax_ppo",
    "nnx_ensemble",
)  # fmt: skip
CLUSTER = "8xh100"
PHASES: dict[str, tuple[str, ...]] = {
    "trace": ("ir/trace.py", "ir/jaxpr.py", "planner/training/"),
    "analyse": ("ir/analysis/", "planner/sharding/problem/repeated_layers.py"),
    "build": ("planner/sharding/problem/",),
    "reduce": ("planner/solver/reduce/",),
    "bound": ("planner/solver/bound/",),
    "search": ("planner/solver/",),
    "rewrite": ("planner/sharding/rewrite/", "substitutions/"),
    "recompute": ("planner/sharding/recompute/",),
    "account": ("planner/sharding/lower.py", "planner/sharding/cost/", "ir/lowered.py"),
    "write": ("planner/files/",),
}
TICK_S = 0.01
# (ops, seconds): programs of at most that many ops are to be planned in that time.
MOST_SECONDS = ((1_500, 2.0), (5_000, 8.0), (20_000, 20.0))
MOST_MB = 2_000.0


class Phases:
    """Processor seconds of this process by phase, sampled.

    A sample stands for all time since the last one, since signals wait for compiled code.
    """

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self.at = time.process_time()
        self.known: dict[str, str] = {}

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)

    def _tick(self, _number: int, frame: FrameType | None) -> None:
        now = time.process_time()
        self.seconds[self._phase(frame)] += now - self.at
        self.at = now

    def _phase(self, frame: FrameType | None) -> str:
        while frame is not None:
            name = frame.f_code.co_filename
            if name not in self.known:
                self.known[name] = _phase_of(name)
            if found := self.known[name]:
                return found
            frame = frame.f_back
        return "other"


def _phase_of(file: str) -> str:
    path = Path(file)
    part = path.relative_to(HERE).as_posix() if path.is_relative_to(HERE) else ""
    return next((name for name, starts in PHASES.items() if part.startswith(starts)), "")


def one(name: str) -> dict[str, Any]:
    """Plans one model in this process."""
    loaded = load_target(f"{HERE / 'benchmarks' / 'third_party.py'}:{name}")
    phases, begun = Phases(), time.process_time()
    phases.start()
    p = plan(loaded.fn, *loaded.args, cluster=CLUSTER, **loaded.settings)
    phases.stop()
    spent_s = time.process_time() - begun
    layout = p.summary()["at_a_glance"]["layout"]
    by_hand = {n: row.step_s for n, row in p.baselines.items() if row.fits}
    best = min(by_hand, key=by_hand.__getitem__, default="")
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "model": name, "ops": p.graph.count_nodes(), "plan_s": spent_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6,
        "phases": dict(phases.seconds), "mesh": str(p.mesh), "plan": layout,
        "step_s": p.step_s, "gap": p.gap, "by_hand": best,
        "by_hand_s": by_hand[best] if best else None,
        "ratio": p.step_s / by_hand[best] if best else None,
    }  # fmt: skip


def missed(row: dict[str, Any]) -> str:
    """The goal that a row misses, or nothing."""
    most_s = next((s for ops, s in MOST_SECONDS if row["ops"] <= ops), MOST_SECONDS[-1][1])
    late = f"{most_s:g} s" if row["plan_s"] > most_s else ""
    large = f"{MOST_MB:g} MB" if row["peak_mb"] > MOST_MB else ""
    slow = "by hand" if row["ratio"] is not None and row["ratio"] > 1.0 else ""
    return " and ".join(filter(None, (late, large, slow)))


HEAD = ("model", "ops", "plan s", *PHASES, "other", "peak MB", "mesh", "plan", "step ms", "gap",
        "by hand", "its ms", "plan / by hand", "misses")  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "error" in row:
        return f"| {row['model']} | {row['error']} |"
    phases = [f"{row['phases'].get(name, 0.0):.1f}" for name in (*PHASES, "other")]
    ratio = row["ratio"]
    best_ms = f"{row['by_hand_s'] * 1e3:.2f}" if ratio else "none fits"
    cells = (
        row["model"], f"{row['ops']:,}", f"{row['plan_s']:.1f}", *phases, f"{row['peak_mb']:,.0f}",
        row["mesh"], row["plan"], f"{row['step_s'] * 1e3:.2f}", f"{row['gap']:.2%}",
        row["by_hand"], best_ms, f"{ratio:.3f}" if ratio else "", row["misses"],
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main(quick: bool) -> list[dict[str, Any]]:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks third-party-plans")
    parser.add_argument("--only", default="", help="models whose name contains this")
    only = parser.parse_known_args()[0].only
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    rows: list[dict[str, Any]] = []
    for name in MODELS[:1] if quick else MODELS:
        if only not in name:
            continue
        found = row_apart("third_party_plans", name, cwd=HERE)
        if isinstance(found, str):
            row = {"model": name, "error": found}
        else:
            row = found | {"misses": missed(found)}
        rows.append(row)
        print(line(row), flush=True)
    return rows


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1])))

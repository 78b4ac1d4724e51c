# pyright: basic
"""Memory as a decision: the planner's choice beside policies that people write by hand.

    python -m benchmarks memory [--quick] [--only choice|compiled|states|stages|written]
        [--sequences 8] [--mesh 8]

`choice`: Llama-3 8B, 32 layers of 8,192 tokens, float32 weights and AdamW, on 8 H100 with 40 to 80
GB of memory. Every policy is a program of its own, planned as it is written, with shardings of its
own and as few micro-batches as fit; attention is a kernel in all of them:

    none         keeps everything, in one micro-batch
    micro-batches  the same in more micro-batches
    selective    keeps products with weights (`recompute="selective"`)
    alternate    keeps every second product, as torchtitan does
    full         keeps the inputs of layers
    joint        `recompute="search"`, `offload="auto"`

`gain` is how much longer the best of the other policies takes, and `most` what it could be at most:
the same against the step without a memory limit. All are planned on one mesh (`--mesh 2x4`), or on
the best of each (`--mesh free`, which takes hours).

`compiled`: memory of a device and of its host for the same model with 24 layers under each policy,
predicted and as XLA's GPU compiler reserves it; `offloaded` is `alternate` with its products on the
host. No GPU is needed (`pip install 'meshwright[gpu-aot]'`).

`states`: training steps that do not fit without the host's memory, float32 with AdamW: Llama-3 8B
on two H100 (activations there) and Llama-2 7B on one (state of the optimizer; with 45 GB of memory
parameters too), one sequence for each; predicted beside compiled likewise.

`stages`: the first 16 layers of Llama-3 8B in four stages on 8 A100 (PCIe 4) or GB200 (NVLink), 16
sequences in 8 micro-batches under 1F1B, which keep and compute again (`offload="never"`), or may
send values to the host too. `on the host` is what a device sends there at most.

`written`: the same for a GPT with dropout whose eight layers are written out (`examples/gpt.py`,
4,096 features), in two stages on two GB200, 32 sequences of 1,024 tokens in 8 micro-batches.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import cache
from typing import Any

import jax

from benchmarks.published_model import Transformer, adam
from examples.gpt import ADAMW, GPT
from planner import Plan, PlanError, plan, verify
from planner.emit.compilers import has_plugin
from planner.pipeline.divide.simulated import flights_of, table_of

CLUSTER = "8xh100"
LLAMA = Transformer(32, 4096, 32, 8, 14336, gated=True, vocab=128256, seq=8192, wide_weights=True)
LIMITS_GB = (40, 50, 60, 70, 80)
STAGES = (("8xa100-40gb", 19), ("8xa100-40gb", 24), ("8xgb200", 19), ("8xgb200", 24))
WRITTEN = (("2xgb200", 18.5), ("2xgb200", 19.5))
GPT_OUT = GPT(8192, 1024, 4096, 32, 8, 32, "bfloat16", False)
UNLIMITED_GB = 640
# name -> (what the model recomputes, the option, micro-batches if they are given)
POLICIES: dict[str, tuple[str, str, int | None]] = {
    "none": ("none", "written", 1),
    "micro-batches": ("none", "written", None),
    "selective": ("none", "selective", None),
    "alternate": ("alternate", "written", None),
    "full": ("full", "written", None),
    "joint": ("none", "search", None),
}
# With 32 layers XLA, which holds 80 GB to be the limit, would compute values of `none` again.
COMPILED_LAYERS, COMPILED_SEQUENCES, COMPILED_MESH = 24, 8, (8,)
# name -> (what the model recomputes, settings of the plan)
COMPILED: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", {"recompute": "written"}),
    "selective": ("none", {"recompute": "selective"}),
    "alternate": ("alternate", {"recompute": "written"}),
    "full": ("none", {"recompute": "full"}),
    "offloaded": ("offload", {"recompute": "written"}),
    "auto": ("none", {"recompute": "auto", "memory_bytes": 40 * 10**9}),
    "joint": ("none", {"recompute": "search", "memory_bytes": 32 * 10**9}),
}


HEAD = (
    "\n| policy | step s | predicted GB | compiled GB | difference | host: predicted MB "
    "| compiled MB |\n|---|---|---|---|---|---|---|"
)
LLAMA_2 = Transformer(32, 4096, 32, 32, 11008, gated=True, vocab=32000, seq=4096, wide_weights=True)
# name -> (model, cluster, sequences, limit of memory [GB])
STATES = {
    "llama-3 8b": (LLAMA, "2xh100", 2, 72),
    "llama-2 7b": (LLAMA_2, "1xh100", 1, 72),
    "llama-2 7b, 45 GB": (LLAMA_2, "1xh100", 1, 45),
}


class Choice:
    """Steps of one batch under each policy and limit.

    Args:
        sequences: of the batch.
        mesh: sizes of the mesh's axes; None for the best mesh of each.
    """

    def __init__(self, sequences: int, mesh: tuple[int, ...] | None) -> None:
        self.sequences, self.mesh = sequences, mesh
        self._planned = cache(self._plan)

    def step(self, policy: str, limit_gb: int) -> Plan | None:
        """The plan of a policy; that of a higher limit where it fits. None if nothing fits."""
        for more in (UNLIMITED_GB, *sorted(LIMITS_GB, reverse=True)):
            found = self._planned(policy, more)
            if found is None or more <= limit_gb:
                return found
            if found.peak_bytes <= limit_gb * 1e9:
                return found
        raise AssertionError(limit_gb)

    def _plan(self, policy: str, limit_gb: int) -> Plan | None:
        recompute, option, count = POLICIES[policy]
        model = replace(LLAMA, recompute=recompute)
        try:
            return plan(
                model.loss, model.parameters(), model.batch(self.sequences), cluster=CLUSTER,
                optimizer=adam(copies=False), pipeline="off", memory_bytes=limit_gb * 10**9,
                recompute=option, offload="auto" if policy == "joint" else "never",
                microbatches=count, mesh=self.mesh, baselines=False, substitutions=False,
                padding=False,
            )  # fmt: skip
        except PlanError as error:
            if error.kind != "does-not-fit":
                raise
            return None


def choices(sequences: int, mesh: tuple[int, ...] | None, limits: tuple[int, ...]) -> list[Any]:
    """Prints the table of choices; returns its rows."""
    names = list(POLICIES)
    print(f"\n{sequences} sequences, steps in s (memory of a device in GB)\n")
    print("| memory GB | " + " | ".join(names) + " | host GB | gain | most |")
    print("|---" * (len(names) + 4) + "|")
    table, rows = Choice(sequences, mesh), []
    free = table.step("joint", UNLIMITED_GB)
    assert free is not None
    for limit_gb in reversed(limits):
        found = {name: table.step(name, limit_gb) for name in names}
        steps = {name: p.step_s for name, p in found.items() if p is not None}
        by_hand = min((s for name, s in steps.items() if name != "joint"), default=None)
        row: dict[str, Any] = {
            "sequences": sequences, "mesh": mesh, "limit_gb": limit_gb, "steps_s": steps,
            "peaks_bytes": {name: p.peak_bytes for name, p in found.items() if p is not None},
            "by_hand_s": by_hand, "free_s": free.step_s,
        }  # fmt: skip
        joint = found["joint"]
        if joint is not None:
            row["host_bytes"], row["bound_s"] = joint.program.host_bytes, joint.lower_bound_s
        if joint is not None and by_hand is not None:
            row["gain"], row["most"] = by_hand / joint.step_s - 1, by_hand / free.step_s - 1
        rows.append(row)
        cells = [
            f"{p.step_s:.3f} ({p.peak_bytes / 1e9:.1f})" if p is not None else "-"
            for p in found.values()
        ]
        ends = f"{row['gain']:.1%} | {row['most']:.1%}" if "gain" in row else "- | -"
        host_gb = row.get("host_bytes", 0) / 1e9
        print(f"| {limit_gb} | {' | '.join(cells)} | {host_gb:.1f} | {ends} |", flush=True)
    return rows


def compiled(names: tuple[str, ...]) -> list[Any]:
    """Prints predicted beside compiled memory; returns the rows."""
    print(HEAD)
    rows: list[Any] = []
    for name in names:
        recompute, settings = COMPILED[name]
        model = replace(LLAMA, recompute=recompute, layers=COMPILED_LAYERS)
        settings = {"memory_bytes": UNLIMITED_GB * 10**9, **settings}
        found = plan(
            model.loss, model.parameters(), model.batch(COMPILED_SEQUENCES), cluster=CLUSTER,
            optimizer=adam(copies=False), pipeline="off", microbatches=1, mesh=COMPILED_MESH,
            baselines=False, substitutions=False, padding=False, **settings,
        )  # fmt: skip
        rows.append(beside_compiled(name, found))
    return rows


def beside_compiled(name: str, found: Plan) -> dict[str, Any]:
    """Prints a row of predicted and compiled memory; returns it."""
    memory = verify(found, compiler="gpu-aot").summary()["memory"]
    said, held = memory["predicted_peak_bytes"], memory["compiled_peak_bytes"]
    hosts = memory.get("predicted_host_bytes", 0), memory.get("compiled_host_bytes", 0)
    print(f"| {name} | {found.step_s:.4f} | {said / 1e9:.3f} | {held / 1e9:.3f} "
          f"| {said / held - 1:+.1%} | {hosts[0] / 1e6:.3f} | {hosts[1] / 1e6:.3f} |",
          flush=True)  # fmt: skip
    return {"policy": name, "step_s": found.step_s, **memory}


def states() -> list[Any]:
    """Prints predicted beside compiled memory of steps that need the host; returns the rows."""
    print(HEAD)
    rows: list[Any] = []
    for name, (model, cluster, sequences, limit_gb) in STATES.items():
        found = plan(
            model.loss, model.parameters(), model.batch(sequences), cluster=cluster,
            optimizer=adam(copies=False), pipeline="off", baselines=False, substitutions=False,
            padding=False, memory_bytes=limit_gb * 10**9,
        )  # fmt: skip
        assert found.program.host_bytes
        rows.append(beside_compiled(name, found))
    return rows


def stages(cases: tuple[tuple[str, float], ...]) -> list[Any]:
    """Pipelines of a Llama without and with values on the host."""
    model = replace(LLAMA, layers=16, wide_weights=False)
    args = model.parameters(), model.batch(16)
    return in_stages("stages", 4, cases, model.loss, args, adam(copies=False))


def written(cases: tuple[tuple[str, float], ...]) -> list[Any]:
    """The same of a GPT whose layers are written out."""
    args = jax.eval_shape(GPT_OUT.init, jax.random.key(0))
    return in_stages("written", 2, cases, GPT_OUT.loss, args, ADAMW)


def in_stages(
    table_name: str, count: int, cases: tuple[tuple[str, float], ...],
    loss: Any, args: tuple[Any, Any], optimizer: Any,
) -> list[Any]:  # fmt: skip
    """Prints pipelines without and with values on the host; returns the rows."""
    print("cluster      limit GB  on the devices s  with the host s  gain  on the host GB")
    rows = list[Any]()
    for cluster, limit_gb in cases:
        here, away = (
            plan(
                loss, *args, cluster=cluster, optimizer=optimizer, pipeline=count, microbatches=8,
                schedules=("1f1b",), baselines=False, substitutions=False, padding=False,
                offload=offload, memory_bytes=int(limit_gb * 1e9),
            )
            for offload in ("never", "auto")
        )  # fmt: skip
        table = table_of(away.file.joined.schedule, 8, away.file.recompute)
        sent = [n * p.host_bytes for n, p in zip(flights_of(table), away.file.members, strict=True)]
        row = {
            "table": table_name, "cluster": cluster, "limit_gb": limit_gb, "here_s": here.step_s,
            "here_bytes": here.peak_bytes, "away_s": away.step_s, "away_bytes": away.peak_bytes,
            "host_bytes": max(sent), "here_bound_s": here.lower_bound_s,
            "away_bound_s": away.lower_bound_s,
        }  # fmt: skip
        rows.append(row)
        print(
            f"{cluster:12} {limit_gb:8} {here.step_s:10.3f} ({here.peak_bytes / 1e9:.1f}) "
            f"{away.step_s:10.3f} ({away.peak_bytes / 1e9:.1f}) "
            f"{here.step_s / away.step_s - 1:8.1%} {max(sent) / 1e9:8.1f}", flush=True,
        )  # fmt: skip
    return rows


def main(quick: bool) -> list[dict[str, Any]]:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory")
    parser.add_argument("--only", default="", help="choice, compiled, states, stages or written")
    parser.add_argument("--sequences", type=int, default=8, help="of a step")
    parser.add_argument("--mesh", default="8", help="such as 8, 2x4, or free")
    given = parser.parse_known_args()[0]
    mesh = None if given.mesh == "free" else tuple(map(int, given.mesh.split("x")))
    rows: list[dict[str, Any]] = []
    if given.only in ("", "choice"):
        rows += choices(given.sequences, mesh, LIMITS_GB[:1] if quick else LIMITS_GB)
    if given.only in ("", "compiled") and has_plugin():
        rows += compiled(("none", "offloaded") if quick else tuple(COMPILED))
    if given.only in ("", "states") and has_plugin() and not quick:
        rows += states()
    if given.only in ("", "stages"):
        rows += stages(STAGES[:1] if quick else STAGES)
    if given.only in ("", "written"):
        rows += written(WRITTEN[:1] if quick else WRITTEN)
    return rows

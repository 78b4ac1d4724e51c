"""Predicted beside published: step times, out-of-memory failures and memory tables.

    python -m benchmarks published

Cases are in benchmarks/data, each file with its source. A step is the formula-level estimate of
benchmarks/transformer_step.py from hand-written degrees, pipelines on the schedule simulator,
without the planner. Where a source omits a setting, the best of those that fit is priced, as its
authors would have tuned it. No constant was fitted to any of these cases: products and
collectives come from the shipped tables, other constants carry their own sources.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.published_memory import memory_rows
from benchmarks.transformer_step import Degrees, Estimate, Model, estimate
from costmodel import Cluster, parse_cluster

DATA = Path(__file__).parent / "data"
FILES = (
    "alpa", "h100_reported", "llm_foundry", "megatron_h100", "megatron_sc21", "sequence_parallel",
)  # fmt: skip
LARGEST = "MosaicML llm-foundry"  # more cases than all others together
# Bytes that a framework can use where a source says so: Alpa's profile of its V100s. Elsewhere the
# decimal gigabytes of the name, which is 94 % of what such a device has.
USABLE = {"v100-16gb": 14_671_695_052}


@dataclass(frozen=True, slots=True)
class Case:
    """A published step: None seconds means that it ran out of memory."""

    source: str
    name: str
    cluster: str
    model: Model
    batch: int
    given: Mapping[str, Any]  # fields of Degrees; absent ones are chosen
    step_s: float | None


def cases() -> Iterator[Case]:
    """All cases of the data folder, in order."""
    for file in FILES:
        with (DATA / f"{file}.csv").open(encoding="utf-8") as stream:
            rows = csv.DictReader(line for line in stream if not line.startswith("#"))
            yield from map(_case, rows)


def _case(row: Mapping[str, str]) -> Case:
    sizes = {
        k: int(row[k]) for k in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq")
    }
    counts = ("micro_batch", "data", "tensor", "pipeline", "context", "chunks")
    given: dict[str, Any] = {k: int(row[k]) for k in counts if row[k] != "?"}
    given |= {k: row[k] for k in ("shard", "recompute", "dtype") if row[k] != "?"}
    given |= {k: row[k] == "1" for k in ("sequence", "overlap", "async_tensor")}
    given |= {k: int(row[k]) for k in ("flash", "reduced", "flat") if k in row}
    took = None if row["step_s"] == "OOM" else float(row["step_s"])
    return Case(
        row["source"], row["case"], f"{row['gpus']}x{row['device']}",
        Model(**sizes, gated=row["gated"] == "1"), int(row["batch"]), given, took,
    )  # fmt: skip


def predict(case: Case) -> tuple[Degrees, Estimate, bool]:
    """The case's degrees, what they take, and whether they fit."""
    cluster = parse_cluster(case.cluster)
    limit = USABLE.get(cluster.profile, cluster.memory_bytes)
    best: tuple[Degrees, Estimate] | None = None
    for degrees in candidates(case, cluster):
        try:
            found = estimate(case.model, degrees, case.batch, cluster)
        except ValueError:
            continue
        key = (found.peak_bytes > limit, found.step_s)
        if best is None or key < (best[1].peak_bytes > limit, best[1].step_s):
            best = degrees, found
    if best is None:
        raise ValueError(f"{case.source}, {case.name}: no degrees fit the sizes")
    found = estimate(case.model, best[0], case.batch, cluster, simulated=True)
    return best[0], found, found.peak_bytes <= limit


def candidates(case: Case, cluster: Cluster) -> Iterator[Degrees]:
    """The degrees given, and every choice of those that are not."""
    n = cluster.num_devices
    powers = [1 << i for i in range(13)]
    choices: dict[str, list[Any]] = {
        "data": [p for p in powers if p <= n],
        "tensor": [p for p in powers if p <= min(n, cluster.devices_per_host)],
        "pipeline": [p for p in powers if p <= n],
        "micro_batch": [1, 2, 4, 8, 16, 32],
        "chunks": [1, 2, 3, 4, 5, 6, 7, 8],
        "recompute": ["none", "selective"],
        "shard": ["zero2", "zero3"],
    }
    open_ones = {k: v for k, v in choices.items() if k not in case.given}
    for values in itertools.product(*open_ones.values()):
        chosen = dict(case.given) | dict(zip(open_ones, values, strict=True))
        if chosen.get("pipeline") == 1 and chosen.get("chunks", 1) > 1:
            continue
        degrees = Degrees(**chosen)
        if degrees.devices == n:
            yield degrees


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's: the correlation of the ranks."""
    ranks = [np.argsort(np.argsort(x)).astype(np.float64) for x in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _line(case: Case, degrees: Degrees, found: Estimate, fits: bool) -> str:
    d = degrees
    plan = (
        f"d{d.data} t{d.tensor} p{d.pipeline}x{d.chunks} b{d.micro_batch} {d.shard} {d.recompute}"
    )
    took = "OOM" if case.step_s is None else f"{case.step_s:.3f}"
    ratio = "" if case.step_s is None else f"{found.step_s / case.step_s:.2f}"
    said = f"{found.step_s:.3f}" if fits else f"OOM ({found.step_s:.3f})"
    return (
        f"| {case.source} | {case.name} | {case.cluster} | {plan} | {took} | {said} | {ratio} | "
        f"{found.peak_bytes / 1e9:.1f} |"
    )


def main(quick: bool = False) -> list[dict[str, object]]:
    """Prints every case, then a summary per source and over all."""
    print("| source | case | cluster | degrees | published s | predicted s | ratio | GB |\n"
          "|---|---|---|---|---|---|---|---|")  # fmt: skip
    rows: list[dict[str, object]] = []
    by_source: dict[str, list[tuple[float, float]]] = {}
    crosses = [0, 0]
    for case in cases():
        degrees, found, fits = predict(case)
        print(_line(case, degrees, found, fits), flush=True)
        crosses[0] += fits == (case.step_s is not None)
        crosses[1] += 1
        rows.append({
            "source": case.source, "case": case.name, "cluster": case.cluster,
            "published_s": case.step_s, "predicted_s": found.step_s, "fits": fits,
            "peak_bytes": found.peak_bytes,
        })  # fmt: skip
        if case.step_s is not None:
            by_source.setdefault(case.source, []).append((case.step_s, found.step_s))
    print("\n| source | cases | rank correlation | median error | median ratio |\n"
          "|---|---|---|---|---|")  # fmt: skip
    everything = [pair for pairs in by_source.values() for pair in pairs]
    others = [p for name, pairs in by_source.items() if name != LARGEST for p in pairs]
    pooled = [(f"all but {LARGEST}", others), ("all", everything)]
    for source, pairs in [*by_source.items(), *pooled]:
        took, said = np.array(pairs).T
        error, ratio = np.median(np.abs(said / took - 1.0)), np.median(said / took)
        rho = rank_correlation(took.tolist(), said.tolist()) if len(pairs) > 2 else float("nan")
        print(f"| {source} | {len(pairs)} | {rho:.2f} | {error:.1%} | {ratio:.2f} |")
    print(f"\nout of memory or not: {crosses[0]} of {crosses[1]} right\n")
    rows += memory_rows()
    return rows

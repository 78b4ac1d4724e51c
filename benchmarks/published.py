# pyright: basic
"""Training steps that others measured, beside the planner's own price of the same steps.

    python -m benchmarks published [--quick] [--only MaxText] [--workers 2]

Cases are in benchmarks/data, each file with its source. Each is a JAX model of the case's sizes
(published_model.py), traced, limited to the case's degrees as a hand-written plan is, and priced by
the account of the plan (published_plan.py). Where a source omits a setting, the fastest of those
that fit is taken, as its authors would have tuned it. No constant was fitted to these cases.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.flash_kernels import with_kernel
from benchmarks.published_kernels import COPIED_BYTES, SUMMED_IN_PRODUCTS
from benchmarks.published_memory import memory_rows
from benchmarks.published_model import Transformer
from benchmarks.published_plan import Degrees, Price, price
from benchmarks.published_reasons import memory_reason, peak_reason, reason
from costmodel import Cluster, parse_cluster

DATA = Path(__file__).parent / "data"
FILES = (
    "alpa", "h100_reported", "llm_foundry", "megatron_bridge", "megatron_h100", "megatron_sc21",
    "mlperf", "sequence_parallel", "torchtitan_memory",
)  # fmt: skip
KERNELS = {"1": "first", "fa2": "second"}  # column `flash`; 2: of the device's table, 0: none
FAR = 0.2  # errors above it are explained one by one
PEAK_FAR = 0.05
LARGEST = "MosaicML llm-foundry"  # more cases than all others together
# Bytes that a framework can use: of V100s as Alpa's profile has them; of others the total capacity
# that PyTorch reports when it is out of memory, 79.11 GiB of an H100 (vllm-project/vllm, issue
# 27508), 79.14 GiB of an A100 (lianqi1008/Control-GIC, issue 6), 178.35 GiB of a B200 (pytorch/ao,
# pull request 4002). Elsewhere the decimal gigabytes of the profile.
GIB = 1 << 30
USABLE = {
    "v100-16gb": 14_671_695_052, "h100": round(79.11 * GIB), "a100": round(79.14 * GIB),
    "b200": round(178.35 * GIB),
}  # fmt: skip
MODEL = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq")
DEGREES = ("micro_batch", "data", "tensor", "pipeline", "context", "chunks")


@dataclass(frozen=True, slots=True)
class Case:
    """A published step: None seconds means that it ran out of memory.

    model: with `recompute` as published, or "?".
    given: fields of `Degrees`; absent ones are chosen.
    peak_gb: memory of a device, where it was published.
    kernel: `first` or `second` flash attention; empty for the kernel of the device's table.
    """

    source: str
    name: str
    cluster: str
    model: Transformer
    batch: int
    given: Mapping[str, Any]
    step_s: float | None
    peak_gb: float | None
    kernel: str


@dataclass(frozen=True, slots=True)
class Predicted:
    """A case with the degrees and the recomputation that were priced."""

    case: Case
    degrees: Degrees
    recompute: str
    price: Price

    @property
    def ratio(self) -> float | None:
        """Predicted seconds over published ones."""
        return self.case.step_s and self.price.step_s / self.case.step_s


def cases(only: str = "") -> Iterator[Case]:
    """The cases of the data folder whose source or name contains a text, in order."""
    for file in FILES:
        with (DATA / f"{file}.csv").open(encoding="utf-8") as stream:
            for row in csv.DictReader(line for line in stream if not line.startswith("#")):
                if only in f"{row['source']}, {row['case']}":
                    yield _case(row)


def _case(row: Mapping[str, str]) -> Case:
    model = Transformer(
        **{name: int(row[name]) for name in MODEL}, gated=row["gated"] == "1", dtype=row["dtype"],
        flash=row["flash"] != "0", bias=row["bias"] == "1", recompute=row["recompute"],
        dropout=float(row.get("dropout") or 0.0), wide_weights=row["shard"] == "zero3",
        wide_gradients=row.get("reduced") == "4", one_hot=row.get("embedding") == "one_hot",
    )  # fmt: skip
    given: dict[str, Any] = {k: int(row[k]) for k in DEGREES if row[k] != "?"}
    given |= {"shard": row["shard"]} if row["shard"] != "?" else {}
    given |= {k: row[k] == "1" for k in ("sequence", "overlap")}
    given |= {"in_parts": row.get("in_parts") == "1"}
    given |= {"sums": "bfloat16"} if row.get("reduced") == "2" else {}
    sharded = row["shard"] == "zero3"
    given |= {"in_kernels": row["source"].startswith(SUMMED_IN_PRODUCTS) and not sharded}
    copied = (n for name, n in COPIED_BYTES.items() if row["source"].startswith(name) and sharded)
    given |= {"copied_bytes": next(copied, 0.0)}
    took = None if row["step_s"] == "OOM" else float(row["step_s"])
    peak = row.get("peak_gb")
    return Case(
        row["source"], row["case"], f"{row['gpus']}x{row['device']}", model, int(row["batch"]),
        given, took, float(peak) if peak else None, KERNELS.get(row["flash"], ""),
    )  # fmt: skip


def predict(case: Case) -> Predicted:
    """The planner's price of a case.

    Raises:
        ValueError: if no degrees fit its sizes.
    """
    # all frameworks write layers out; what a loop over them would copy is not priced
    copies = case.given["copied_bytes"] > 0.0
    cluster = replace(parse_cluster(case.cluster), loop_copies=copies)
    cluster = with_kernel(cluster, case.kernel) if case.kernel else cluster
    limit = usable_bytes(cluster)
    best: Predicted | None = None
    for degrees, recompute in candidates(case, cluster):
        model = replace(case.model, recompute=recompute)
        try:
            found = price(model, degrees, case.batch, cluster, limit)
        except ValueError:
            continue
        one = Predicted(case, degrees, recompute, found)
        if best is None or _rank(one) < _rank(best):
            best = one
    if best is None:
        raise ValueError(f"{case.source}, {case.name}: no degrees fit the sizes")
    return best


def _rank(found: Predicted) -> tuple[bool, float]:
    return not found.price.fits, found.price.step_s


def candidates(case: Case, cluster: Cluster) -> Iterator[tuple[Degrees, str]]:
    """The degrees and the recomputation given, and every choice of those that are not."""
    choices: dict[str, list[int]] = {"micro_batch": [1, 2, 4, 8, 16, 32], "chunks": [1, 2, 4]}
    open_ones = {k: v for k, v in choices.items() if k not in case.given}
    # with attention as a kernel there are no scores to recompute
    kinds = ("none",) if case.model.flash else ("none", "selective")
    for values in itertools.product(*open_ones.values()):
        chosen: dict[str, Any] = dict(case.given)
        chosen |= dict(zip(open_ones, values, strict=True))
        degrees = Degrees(**chosen)
        parts = case.model.layers / (degrees.pipeline * degrees.chunks)
        if degrees.devices != cluster.num_devices or (degrees.pipeline == 1 < degrees.chunks):
            continue
        if degrees.chunks > 1 and "chunks" not in case.given and parts % 1:
            continue
        for kind in kinds if case.model.recompute == "?" else (case.model.recompute,):
            yield degrees, kind


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's: the correlation of the ranks."""
    ranks = [np.argsort(np.argsort(x)).astype(np.float64) for x in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def line(found: Predicted) -> str:
    """A row of the table."""
    case, d, p = found.case, found.degrees, found.price
    over = "".join(f" {s}{n}" for s, n in (("c", d.context), ("t", d.tensor)) if n > 1)
    stages = f" p{d.pipeline}" + (f"x{d.chunks}" if d.chunks > 1 else "") if d.pipeline > 1 else ""
    plan = f"d{d.data}{over}{stages} b{d.micro_batch} {d.shard} {found.recompute}"
    took = "OOM" if case.step_s is None else f"{case.step_s:.3f}"
    ratio = "" if found.ratio is None else f"{found.ratio:.2f}"
    said = f"{p.step_s:.3f}" if p.fits else f"OOM ({p.step_s:.3f})"
    peak = f"{p.peak_bytes / 1e9:.1f}" + (f" ({case.peak_gb:.1f})" if case.peak_gb else "")
    return (
        f"| {case.source} | {case.name} | {case.cluster} | {plan} | {took} | {said} | {ratio} | "
        f"{p.exposed_s / p.step_s:.0%} | {peak} |"
    )


def main(quick: bool = False) -> list[dict[str, object]]:
    """Prints every case, then a summary per source and over all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks published")
    parser.add_argument("--only", default="", help="cases whose source or name contains this")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    given = parser.parse_known_args()[0]
    wanted = list(cases(given.only))[:: 8 if quick else 1]
    print("| source | case | cluster | degrees | published s | predicted s | ratio | exposed "
          "| GB (published) |\n|" + "---|" * 9)  # fmt: skip
    found: list[Predicted] = []
    with multiprocessing.get_context("spawn").Pool(given.workers, maxtasksperchild=20) as pool:
        for one in pool.imap(predict, wanted):
            found.append(one)
            print(line(one), flush=True)
    summary(found)
    return [_row(one) for one in found] + memory_rows()


def _row(found: Predicted) -> dict[str, object]:
    case, p = found.case, found.price
    return {
        "source": case.source, "case": case.name, "cluster": case.cluster,
        "sequence": case.model.seq, "published_s": case.step_s, "predicted_s": p.step_s,
        "compute_s": p.compute_s, "exposed_s": p.exposed_s, "fits": p.fits,
        "peak_bytes": p.peak_bytes,
        "published_gb": case.peak_gb, "likely_cause": _likely_cause(found),
        "memory_cause": _memory_cause(found),
    }  # fmt: skip


def _likely_cause(found: Predicted) -> str:
    """Why a step that is far off may be so; not measured, empty for others."""
    if found.ratio is None or abs(found.ratio - 1.0) <= FAR:
        return ""
    case = found.case
    share = found.price.peak_bytes / usable_bytes(parse_cluster(case.cluster))
    return reason(case.source, case.cluster, found.degrees, case.model, share)


def _memory_cause(found: Predicted) -> str:
    """Why a verdict on memory, or a peak, may be wrong; empty where it is right."""
    case = found.case
    if case.peak_gb and abs(found.price.peak_bytes / (case.peak_gb * 1e9) - 1.0) > PEAK_FAR:
        logits = case.model.seq * case.model.vocab * found.degrees.micro_batch
        wide_bytes = 4 * logits / (found.degrees.tensor * found.degrees.context)
        return peak_reason(case.source, case.model, wide_bytes)
    if found.price.fits == (case.step_s is not None):
        return ""
    limit = usable_bytes(parse_cluster(case.cluster))
    return memory_reason(case.source, case.cluster, found.degrees, found.price.peak_bytes, limit)


def usable_bytes(cluster: Cluster) -> int:
    """Memory of a device that a framework can use [byte]."""
    return USABLE.get(cluster.profile, cluster.memory_bytes)


def summary(found: list[Predicted]) -> None:
    """Prints a line per source, those over all, and how many fit as published."""
    by_source: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        if one.case.step_s is not None:
            pair = one.case.step_s, one.price.step_s
            by_source.setdefault(one.case.source, []).append(pair)
    print("\n| source | cases | rank correlation | median error | median ratio | above 20 % |\n|"
          + "---|" * 6)  # fmt: skip
    everything = [pair for pairs in by_source.values() for pair in pairs]
    others = [p for name, pairs in by_source.items() if name != LARGEST for p in pairs]
    pooled = [(f"all but {LARGEST}", others), ("all", everything)]
    for source, pairs in [*by_source.items(), *pooled]:
        if not pairs:
            continue
        took, said = np.array(pairs).T
        errors = np.abs(said / took - 1.0)
        rho = rank_correlation(took.tolist(), said.tolist()) if len(pairs) > 2 else float("nan")
        print(f"| {source} | {len(pairs)} | {rho:.2f} | {np.median(errors):.1%} | "
              f"{np.median(said / took):.2f} | {np.sum(errors > 0.2)} |")  # fmt: skip
    print("\nabove 20 %, with likely causes, none of them measured\n")
    for one in found:
        if why := _likely_cause(one):
            case = one.case
            print(f"- {case.source}, {case.name}, {case.cluster}, sequence {case.model.seq}: "
                  f"{one.ratio:.2f}. {why}")  # fmt: skip
    peaks = [
        (one.case.peak_gb * 1e9, float(one.price.peak_bytes)) for one in found if one.case.peak_gb
    ]
    if peaks:
        held, said = np.array(peaks).T
        rho = rank_correlation(held.tolist(), said.tolist())
        low, high = np.min(said / held), np.max(said / held)
        print(f"\npeak memory of {len(peaks)}: rank correlation {rho:.2f}, "
              f"predicted {low:.2f} to {high:.2f} of published")  # fmt: skip
    right = sum(one.price.fits == (one.case.step_s is not None) for one in found)
    print(f"\nout of memory or not: {right} of {len(found)} right\n")
    for one in found:
        if why := _memory_cause(one):
            print(f"- {one.case.source}, {one.case.name}, {one.case.cluster}: {why}")

# pyright: basic
"""Predicted beside measured step times of many plans on the CPU devices of this machine.

    python -m benchmarks host-steps [--quick] [--shared] [--only=NAME]
                                    [--keep=FOLDER] [--prepare] [--kept-only]

Six examples with small batches and many weights, so that plans differ, on 2 and 4 host devices,
each under at least eight different plans: the search's own, and others forced through pins and
mesh shapes.
Prices come from `meshwright profile` where it has measured this number of devices, else they are
measured first. All plans of an example are timed in turns and the fastest of their runs counts.
With `--shared` both times are processor seconds over the cores instead of wall time, for a machine
in use by others; time spent waiting is then not counted. Rows, plans and compiled programs are kept
in a folder, so that a run may be stopped and continued. Only prices and times need a quiet machine:
with one folder `--prepare`, which plans and compiles but times nothing, then in quiet `meshwright
profile --quick --devices 2 --devices 4`, then the benchmark without `--prepare`, which prices the
kept plans by the latest measurements.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import yaml
from jax.sharding import NamedSharding

from costmodel import Cluster, parse_cluster
from examples import gpt, llama, moe, recommender, vit, wide_resnet
from planner import Plan, PlanError, load, plan
from planner.result.reprice import reprice
from profiles import load_profile, save_profile
from profiles.measure import PROCESSOR_TIME, cores_s, measure, present, wall_s

EXAMPLES: dict[str, Any] = {
    "gpt": gpt.GPT(1024, 16, 256, 8, 2, 4, "float32", False).target,
    "llama": llama.Llama(1024, 16, 256, 8, 4, 768, 2, 4, "float32").target,
    "moe": moe.MoE(512, 32, 128, 8, 8, 512, 32, 2, 4, "float32").target,
    "vit": vit.ViT(32, 8, 256, 8, 2, 1000, 4, "float32").target,
    "dlrm": recommender.DLRM(8, 16384, 32, 16, (256, 32), (256, 128), 256, "float32").target,
    "wrn": wide_resnet.WideResNet(32, (1, 1), 32, 2, 1000, 4, "float32").target,
}
QUICK = ("gpt", "dlrm")
COUNTS = (2, 4)
ROUNDS = 40
SOLVE_S = 4.0


def cluster_of(count: int, *, shared: bool) -> Cluster:
    """`count` host devices with measured prices."""
    stored = parse_cluster(f"{count}xhost")
    counted = PROCESSOR_TIME in stored.device.source
    if stored.device.evidence == "measured" and counted == shared:
        return stored
    print(f"measuring {count} devices (`meshwright profile` keeps this)", file=sys.stderr)
    found = measure(
        "host", load_profile("host"), present("host")[:count], quick=True, shared=shared
    )
    with tempfile.TemporaryDirectory() as folder:
        save_profile(found.profile, Path(folder) / "host.json")
        described = {"device": "host.json", "devices": count, "name": f"{count}xhost"}
        path = Path(folder) / "cluster.yaml"
        path.write_text(yaml.safe_dump(described))
        return parse_cluster(path)


def wishes(base: Plan, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of plans and the settings that force them, from the arguments of one plan."""
    inputs = [(i.name, i.type.shape, i.role) for i in base.graph.inputs if i.type.rank]
    yield "search", {}
    styles = ("whole", "data", "fsdp", "rows", "columns", "data-columns")
    for style in styles:
        yield style, {"pins": tuple(_pins(inputs, style, count))}
    if count == 4:
        yield "search 2x2", {"mesh": (2, 2)}
        yield "data x columns 2x2", {"mesh": (2, 2), "pins": tuple(_pins(inputs, "mixed", 2))}
    for seed in range(8):
        rng = random.Random(seed)
        yield f"random {seed}", {"pins": tuple(_random(inputs, count, rng))}


def _pins(inputs: list[Any], style: str, n: int) -> Iterator[tuple[str, str]]:
    for name, shape, role in inputs:
        fitting = [d for d, size in enumerate(shape) if size >= n and size % n == 0]
        place = None
        if role == "batch":
            place = (
                0 if style in ("data", "fsdp", "data-columns", "mixed") and 0 in fitting else None
            )
        elif fitting and style == "fsdp":
            place = max(fitting, key=lambda d: shape[d])
        elif fitting and style == "rows":
            place = fitting[0]
        elif fitting and style in ("columns", "data-columns", "mixed"):
            place = fitting[-1]
        yield name, _spec(len(shape), place, n)


def _random(inputs: list[Any], n: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Half of the weights and batches at random; what belongs to a weight goes with it."""
    drawn: dict[tuple[str, tuple[int, ...]], int | None] = {}
    for name, shape, _ in inputs:
        key = (name.rpartition("/")[2], shape)
        fitting = [d for d, size in enumerate(shape) if size >= n and size % n == 0]
        if key not in drawn:
            drawn[key] = rng.choice([None, *fitting])
        if rng.random() < 0.8:
            yield name, _spec(len(shape), drawn[key], n)


def _spec(rank: int, place: int | None, n: int) -> str:
    return f"[{','.join(str(n) if d == place else '-' for d in range(rank))}]"


def plans_of(
    name: str, cluster: Cluster, kept: Path, least: int = 8
) -> tuple[list[tuple[str, Plan]], Any]:
    """Different plans of one example, made or those of a folder, and its arguments."""
    fn, args, _ = EXAMPLES[name]()
    stem = f"{name}-{cluster.num_devices}"
    index = kept / f"{stem}.plans.json"
    if index.exists():
        labels = json.loads(index.read_text())
        files = [kept / f"{stem}-{n}.plan.json" for n in range(len(labels))]
        priced = [_priced(load(f), cluster).bind(fn, *args) for f in files]
        return list(zip(labels, priced, strict=True)), args
    roles = ("parameter", "optimizer-state", "batch")
    settings: dict[str, Any] = {
        "cluster": cluster, "roles": roles, "baselines": False, "time_limit_s": SOLVE_S,
        "substitutions": False,
    }  # fmt: skip
    base = plan(fn, *args, **settings)
    found: list[tuple[str, Plan]] = []
    seen: set[str] = set()
    for label, extra in wishes(base, cluster.num_devices):
        if len(found) >= least and label.startswith("random"):
            break
        try:
            one = base if not extra else plan(fn, *args, **settings, **extra)
        except PlanError as error:
            if error.kind in ("bad-pin", "does-not-fit"):
                continue
            raise
        text = json.dumps([one.program.mesh, one.program.ops, one.program.values], default=str)
        if text not in seen:
            seen.add(text)
            found.append((label, one))
    for n, (_, one) in enumerate(found):
        one.save(kept / f"{stem}-{n}.plan.json")
    index.write_text(json.dumps([label for label, _ in found]))
    return found, args


def _priced(kept: Plan, cluster: Cluster) -> Plan:
    """The same decisions by the prices of now."""
    file = msgspec.structs.replace(kept.file, cluster=cluster.to_dict())
    return reprice(replace(kept, file=file))


def timed(
    plans: list[tuple[str, Plan]], args: Any, clock: Any, rounds: int = ROUNDS
) -> list[float]:
    """Seconds of a step of each plan, the fastest of its runs; all take turns.

    Without rounds the plans are compiled and run once.
    """
    runs = []
    for _, one in plans:
        mesh = one._mesh(None)
        placed = jax.tree.map(
            lambda x, s, mesh=mesh: jax.device_put(x, NamedSharding(mesh, s)),
            tuple(args), tuple(one.in_shardings),
        )  # fmt: skip
        step = one.compile()
        # a result is held until the next is there, as a training loop holds its weights
        runs.append([step, placed, jax.block_until_ready(step(*placed))])
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for i, run in enumerate(runs):
            step, placed, _ = run
            begun = clock()
            run[2] = jax.block_until_ready(step(*placed))
            best[i] = min(best[i], clock() - begun)
    return best


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's: the correlation of the ranks."""
    ranks = [np.argsort(np.argsort(x)).astype(float) for x in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def one(name: str, cluster: Cluster, kept: Path, *, shared: bool) -> dict[str, Any]:
    """All plans of one example: what they were said to take, and took."""
    plans, args = plans_of(name, cluster, kept)
    measured = timed(plans, args, cores_s if shared else wall_s)
    predicted = [found.step_s for _, found in plans]
    chosen, fastest = int(np.argmin(predicted)), int(np.argmin(measured))
    return {
        "example": name, "devices": cluster.num_devices,
        "clock": PROCESSOR_TIME if shared else "wall time",
        "rank_correlation": rank_correlation(predicted, measured),
        "chosen": plans[chosen][0], "fastest": plans[fastest][0],
        "chosen_over_fastest": measured[chosen] / measured[fastest],
        "median_ratio": float(np.median(np.array(measured) / np.array(predicted))),
        "plans": [
            {"plan": label, "mesh": str(found.mesh), "predicted_s": p, "measured_s": m}
            for (label, found), p, m in zip(plans, predicted, measured, strict=True)
        ],
    }  # fmt: skip


def _lines(row: dict[str, Any]) -> str:
    head = (
        f"\n{row['example']} on {row['devices']} devices: rank correlation "
        f"{row['rank_correlation']:.2f}; chosen `{row['chosen']}`, fastest `{row['fastest']}`\n\n"
        "| plan | mesh | predicted ms | measured ms |\n|---|---|---|---|"
    )
    lines = [head]
    for p in row["plans"]:
        said, took = p["predicted_s"] * 1e3, p["measured_s"] * 1e3
        lines.append(f"| {p['plan']} | {p['mesh']} | {said:.2f} | {took:.2f} |")
    return "\n".join(lines)


def main(quick: bool = False) -> list[dict[str, Any]] | None:
    """Prints a table per example and the summary; nothing is to be kept of a preparation."""
    shared = "--shared" in sys.argv
    given = {a.partition("=")[0]: a.partition("=")[2] for a in sys.argv}
    only, kept = given.get("--only", ""), Path(given.get("--keep") or tempfile.mkdtemp())
    kept.mkdir(parents=True, exist_ok=True)
    present("host", max(COUNTS))
    jax.config.update("jax_compilation_cache_dir", str(kept / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    prepare = "--prepare" in sys.argv
    rows: list[dict[str, Any]] = []
    for count in COUNTS:
        for name in QUICK if quick else EXAMPLES:
            file = kept / f"{name}-{count}.json"
            if only in name and not file.exists() and "--kept-only" not in sys.argv:
                cluster = cluster_of(count, shared=shared)
                if prepare:
                    timed(*plans_of(name, cluster, kept), wall_s, rounds=0)
                    print(f"{name} on {count} devices is prepared", flush=True)
                    continue
                file.write_text(json.dumps(one(name, cluster, kept, shared=shared)))
            if file.exists():
                rows.append(json.loads(file.read_text()))
                print(_lines(rows[-1]), flush=True)
    if prepare:
        return None
    _summary(rows)
    return rows


def _summary(rows: list[dict[str, Any]]) -> None:
    print("\n| example | devices | plans | rank correlation | chosen / fastest | measured / "
          "predicted |\n|---|---|---|---|---|---|")  # fmt: skip
    for r in rows:
        print(f"| {r['example']} | {r['devices']} | {len(r['plans'])} | "
              f"{r['rank_correlation']:.2f} | {r['chosen_over_fastest']:.2f} | "
              f"{r['median_ratio']:.2f} |")  # fmt: skip

# pyright: basic
"""AutoParallel beside this planner: time, memory, and its plan priced by our cost model.

    git clone https://github.com/meta-pytorch/autoparallel CHECKOUT
    python -m venv VENV && VENV/bin/pip install torch==2.13.0 pulp numpy filecheck
    python -m benchmarks.autoparallel --checkout CHECKOUT --python VENV/bin/python [--only llama-8b]

AutoParallel (BSD-3-Clause) is a planner for PyTorch; no part of it is copied here, and no test
needs it. Both planners plan one step of the same model, batch and sequence for the same number of
H100s, each in its own process, one after the other: ours with mesh and shardings free, ours on
AutoParallel's mesh, and ours on that mesh with AutoParallel's shardings of parameters and batch as
pins. In the last, optimizer state follows its parameter, and the ops between the arguments are
sharded by our search: by our model AutoParallel's own shardings there cost no less than (1 - gap)
of that step.

Differences: AutoParallel plans forward and backward with f32 parameters, flash attention and
recomputation by op; our step has the loss, clipping and AdamW as well, bf16 parameters, attention
as written in examples/llama.py and recomputation by layer. Planning times therefore compare
directly, step times only where one cost model prices them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine
from benchmarks.models import SIZES, target
from planner import PlanError, plan
from planner.common.mesh_setting import AXES

# model -> (AutoParallel's mesh, sequences in a step: two for each outer device, as its example has)
ROWS = {"llama-8b": ((8, 8), 16), "llama-70b": ((32, 8), 64)}
NEEDS_GB = {"llama-8b": 7, "llama-70b": 21}  # of AutoParallel; it is not started with less
QUICK = ("llama-8b",)
PEER = Path(__file__).with_name("autoparallel_peer.py")
ANY_BYTES = 10**18

# AutoParallel's parameter -> ours, and for each of its dimensions those of ours it is made of.
# torch.nn.Linear keeps (out, in); heads and their size are one dimension there.
LAYER: Mapping[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "attention.wq": ("q", ((1, 2), (0,))),
    "attention.wk": ("k", ((1, 2), (0,))),
    "attention.wv": ("v", ((1, 2), (0,))),
    "attention.wo": ("o", ((2,), (0, 1))),
    "attention_norm": ("attn_norm", ((0,),)),
    "feed_forward.w1": ("gate", ((1,), (0,))),
    "feed_forward.w3": ("up", ((1,), (0,))),
    "feed_forward.w2": ("down", ((1,), (0,))),
    "ffn_norm": ("mlp_norm", ((0,),)),
}
OUTSIDE: Mapping[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "tok_embeddings": ("tok", ((0,), (1,))),
    "norm": ("norm", ((0,),)),
    "output": ("head", ((1,), (0,))),
}
Placements = Sequence[int | None]  # for every mesh axis the dimension it splits
Shapes = Mapping[str, tuple[int, ...]]


def entries(
    placed: Placements, made_of: Sequence[Sequence[int]], shape: Sequence[int], mesh: Sequence[int]
) -> list[str]:
    """What a pin says of each of our dimensions.

    A dimension of theirs that is several of ours is split from the outermost on, an axis at a time,
    each where it still divides: the bytes and groups are theirs, the rows may be others.

    Args:
        placed: for every mesh axis the dimension of theirs that it splits.
        made_of: for each dimension of theirs, ours.
        shape: of our parameter.
        mesh: sizes of the axes.

    Raises:
        ValueError: if none of our dimensions divides.
    """
    left = list(shape)
    found: list[list[str]] = [[] for _ in shape]
    for axis, size, theirs in zip(AXES, mesh, placed, strict=False):
        if theirs is None:
            continue
        ours = next((d for d in made_of[theirs] if left[d] % size == 0), None)
        if ours is None:
            raise ValueError(
                f"no dimension of {tuple(shape)} in {made_of[theirs]} divides by {size}"
            )
        left[ours] //= size
        found[ours].append(axis)
    return ["*".join(axes) or "-" for axes in found]


def pins(
    placements: Mapping[str, Placements], inputs: Placements, shapes: Shapes, mesh: Sequence[int]
) -> tuple[tuple[tuple[str, str], ...], bool]:
    """AutoParallel's placements as our pins, and whether layers need parameters of their own.

    Args:
        placements: its parameters, such as "layers.0.attention.wq.weight".
        inputs: of the tokens; labels are split alike.
        shapes: of our parameters, those of a layer without the layers' own dimension.
        mesh: sizes of its mesh, outermost first.

    Raises:
        ValueError: if a parameter is not known, or does not divide.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for name, placed in placements.items():
        layer, short = _split(name)
        table = OUTSIDE if layer is None else LAYER
        if short not in table:
            raise ValueError(f"no parameter of ours is AutoParallel's '{name}'")
        ours, made_of = table[short]
        said = entries(placed, made_of, shapes[ours], mesh)
        found.setdefault(ours, {})["" if layer is None else layer] = said
    alike = all(len({tuple(said) for said in by.values()}) == 1 for by in found.values())
    rows = [
        # `*/` stands for the parameters and for each moment of the optimizer
        row
        for ours, by in found.items()
        for row in (_rows(ours, by) if alike else _unrolled(ours, by))
    ]
    batch = entries(inputs, ((0,), (1,)), shapes["tokens"], mesh)
    return (*rows, ("batch/*", f"[{','.join(batch)}]")), not alike


def _split(name: str) -> tuple[str | None, str]:
    """(layer, short name) of a parameter of AutoParallel's; wrappers of recomputation go."""
    parts = [p for p in name.split(".") if p != "_checkpoint_wrapped_module"]
    parts = parts[:-1] if parts[-1] == "weight" else parts
    return (parts[1], ".".join(parts[2:])) if parts[0] == "layers" else (None, ".".join(parts))


def _rows(ours: str, by: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """All layers in one array, or a parameter outside of them."""
    if "" in by:
        return [(f"*/{ours}", f"[{','.join(by[''])}]")]
    return [(f"*/layers/{ours}", f"[-,{','.join(next(iter(by.values())))}]")]


def _unrolled(ours: str, by: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    return [
        (f"*/{ours}" if layer == "" else f"*/layers/{layer}/{ours}", f"[{','.join(said)}]")
        for layer, said in by.items()
    ]


def shapes_of(name: str, batch: int) -> Shapes:
    """Shapes of our parameters, and of the tokens."""
    _, (params, _, data), _ = target(name, batch=batch)
    layers = {key: leaf.shape[1:] for key, leaf in params["layers"].items()}
    outside = {key: params[key].shape for key in ("tok", "norm", "head")}
    return {**layers, **outside, "tokens": data["tokens"].shape}


# --- running both ---------------------------------------------------------------------------------


def theirs(name: str, checkout: Path, python: Path) -> dict[str, Any]:
    """AutoParallel in a process of its own, where the machine has the memory for it."""
    mesh, batch = ROWS[name]
    there = available_gb()
    if there < NEEDS_GB[name]:
        return {"error": f"not run: needs {NEEDS_GB[name]} GB, {there:.0f} GB are available"}
    fields = ("vocab", "seq", "hidden", "heads", "kv_heads", "ffn", "layers")
    size = {key: getattr(SIZES[name], key) for key in fields} | {"mesh": mesh, "batch": batch}
    command = [str(python), "-P", str(PEER), json.dumps(size)]
    return _process(command, os.environ | {"PYTHONPATH": str(checkout)})


def available_gb() -> float:
    """Memory that a new process may have, by Linux's own estimate."""
    rows = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(r.split()[1]) * 1024 / 1e9 for r in rows if r.startswith("MemAvailable:"))


def ours(name: str, which: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Our planner in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.autoparallel", "--one", name, which]
    return _process([*command, json.dumps(given)], os.environ)


def _process(command: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """What a process prints in its last line, or how it ended."""
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    wall = {"process_s": time.monotonic() - start}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return {"error": f"exit status {done.returncode}: {last}"} | wall
    return json.loads(done.stdout.splitlines()[-1]) | wall


def one(name: str, which: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Plans in this process: `free`, on the peer's `mesh`, or with the peer's plan as pins."""
    mesh, batch = ROWS[name]
    fn, args, keys = target(name, batch=batch, unrolled=bool(given.get("unrolled")))
    settings = keys | {"cluster": f"{math.prod(mesh)}xh100", "recompute": "written"}
    if which != "free":
        settings |= {"mesh": mesh, "baselines": False}
    if which == "pinned":
        settings |= {"pins": tuple((a, b) for a, b in given["pins"])}
    fits = True
    try:
        found = plan(fn, *args, **settings)
    except PlanError as error:
        if error.kind != "does-not-fit" or which != "pinned":
            raise
        fits = False
        found = plan(fn, *args, **settings, memory_bytes=ANY_BYTES)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "step_s": found.step_s, "compute_s": found.program.compute_s,
        "communication_s": found.program.communication_s, "device_peak_bytes": found.peak_bytes,
        "fits": fits, "gap": found.gap, "stop": found.stop.name, "mesh": str(found.mesh),
        "seconds": found.seconds, "cpu_s": used.ru_utime + used.ru_stime,
        "peak_gb": used.ru_maxrss / 1e6,
        "baselines": {
            key: {"step_s": b.step_s, "fits": b.fits, "mesh": b.mesh}
            for key, b in found.baselines.items()
        },
    }  # fmt: skip


def run(name: str, checkout: Path, python: Path) -> dict[str, Any]:
    """One model, planned by both."""
    mesh, batch = ROWS[name]
    row: dict[str, Any] = {"model": name, "mesh": mesh, "batch": batch, "seq": SIZES[name].seq}
    row["autoparallel"] = theirs(name, checkout, python)
    print(line(name, "AutoParallel", row["autoparallel"]), flush=True)
    row["ours"] = ours(name, "free", {})
    print(line(name, "ours", row["ours"]), flush=True)
    row["ours on its mesh"] = ours(name, "mesh", {})
    print(line(name, "ours, its mesh", row["ours on its mesh"]), flush=True)
    if "error" not in row["autoparallel"]:
        peer = row["autoparallel"]
        said, unrolled = pins(peer["parameters"], peer["inputs"][0], shapes_of(name, batch), mesh)
        row["pins"] = {"unrolled": unrolled, "pins": said}
        row["priced"] = ours(name, "pinned", row["pins"])
        print(line(name, "AutoParallel's plan, our model", row["priced"]), flush=True)
    for key, b in row["ours"].get("baselines", {}).items():
        shown = f"{b['step_s'] * 1e3:.0f}" + ("" if b["fits"] else ", does not fit")
        print(f"| {name} | {key} | | | | | {b['mesh']} | {shown} | |", flush=True)
    return row


HEAD = (
    "| model | plan | trace + build s | solve s | cpu s | peak GB | mesh | step ms | gap |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def line(name: str, what: str, row: Mapping[str, Any]) -> str:
    """A row of the table; what AutoParallel calls its objective is no step of our model."""
    if "error" in row:
        return f"| {name} | {what} | {row['error']} |"
    if "objective_us" in row:
        build_s, solve_s, cpu_s = row["build_s"], row["solve_s"], row["cpu_s"] + row["solver_cpu_s"]
        rest = f"| objective {row['objective_us'] / 1e3:.0f} | {row['status']}"
    else:
        seconds = row["seconds"]
        build_s, solve_s = seconds["trace"] + seconds["build"], seconds["solve"]
        cpu_s = row["cpu_s"]
        unfit = "" if row["fits"] else ", does not fit"
        rest = f"{row['mesh']} | {row['step_s'] * 1e3:.0f}{unfit} | {row['gap']:.2%}"
    times = f"{build_s:.1f} | {solve_s:.1f} | {cpu_s:.0f} | {row['peak_gb']:.1f}"
    return f"| {name} | {what} | {times} | {rest} |"


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints the table and returns its rows.

    Args:
        quick: the smallest model only.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoparallel")
    parser.add_argument("--checkout", type=Path, required=True, help="of meta-pytorch/autoparallel")
    parser.add_argument("--python", type=Path, required=True, help="a Python that has torch 2.13")
    parser.add_argument("--only", default="", help="models, such as llama-8b,llama-70b")
    parser.add_argument("--output", type=Path, help="results; beside those of today if not given")
    given, _ = parser.parse_known_args()
    names = QUICK if quick else [n for n in given.only.split(",") if n] or [*ROWS]
    head = ["git", "-C", str(given.checkout), "log", "-1", "--format=%H %cs"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    print(f"AutoParallel at {commit}\n\n{HEAD}", flush=True)
    rows: list[dict[str, Any]] = []
    here = machine()
    folder = Path(__file__).parent / "results" / str(here["date"])
    path: Path = given.output or folder / "autoparallel.json"
    for name in names:
        rows.append(run(name, given.checkout.resolve(), given.python.absolute()))
        found = {"machine": here, "autoparallel": commit, "rows": rows}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))))
    else:
        main()

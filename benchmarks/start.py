# pyright: basic
"""The first minute: processor time and peak memory of quick commands and of plans.

Plans are of the examples, and of models of Haiku and Transformers where these are installed.

    python -m benchmarks start [--quick] [--before DIR] [--only gpt.py:small] [--repeat 3]

Every figure is of a process of its own, its children included, and the least of `--repeat` runs.
`--before DIR` measures another checkout in turn with this one. Compiled Python files and Numba's
cache are there, as from the second command on. `target_s` is what the target's own file and
function take, which for small examples is mostly XLA compiling their initial values; `plan_s` is
the rest but Python and JAX: to import Meshwright and plan.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
CLI = "from planner.cli.main import main; main()"
COMMANDS: dict[str, list[str]] = {
    "python -c pass": ["-c", "pass"],
    "import jax": ["-c", "import jax"],
    "import planner": ["-c", "import planner"],
    "import planner; planner.plan": ["-c", "import planner; planner.plan"],
    "meshwright --help": ["-c", CLI, "--help"],
    "meshwright version": ["-c", CLI, "version"],
    "meshwright clusters": ["-c", CLI, "clusters"],
    "meshwright plan (no target)": ["-c", CLI, "plan"],
}
FILES = (
    "gpt", "llama", "moe", "vit", "wide_resnet", "unet", "lstm", "recommender", "encoder_decoder",
)  # fmt: skip
SMALL = tuple((f"examples/{name}.py:small", "8xh100") for name in FILES)
PUBLISHED = (
    ("examples/gpt.py:gpt_1_3b", "8xh100"),
    ("examples/gpt.py:gpt_1_3b_scanned", "8xh100"),
    ("examples/llama.py:llama3_8b", "64xh100"),
    ("examples/moe.py:moe_10b", "64xh100"),
    ("examples/vit.py:vit_l_16", "8xh100"),
    ("examples/wide_resnet.py:wrn_50_2", "8xh100"),
    ("examples/unet.py:ddpm_cifar", "8xh100"),
    ("examples/lstm.py:gnmt_like", "8xh100"),
    ("examples/recommender.py:dlrm", "8xh100"),
    ("examples/encoder_decoder.py:t5_base", "8xh100"),
)
# Of libraries that may be missing, see `third_party.py`; here by name, as JAX is not imported.
THIRD_PARTY = {
    "haiku": ("resnet_18", "resnet_50", "resnet_101", "resnet_200", "mobilenet_v1"),
    "transformers": ("bert_base", "roberta_base", "gpt2", "distilbert_base", "vit_base",
                     "gpt_neo_125m", "electra_small", "llama_160m", "bart_base", "whisper_tiny"),
    "jax_cfd": ("cfd_flow",), "jraph": ("jraph_net",), "diffrax": ("diffrax_ode",),
    "flowjax": ("flowjax_coupling",), "tunix": ("nnx_qwen3",), "diffusers": ("stable_diffusion",),
    "pdequinox": ("eqx_unet", "eqx_fno"), "gymnax": ("gymnax_ppo",), "flax": ("nnx_ensemble",),
}  # fmt: skip
RSS_BYTES = 1 if sys.platform == "darwin" else 1024  # the unit of `ru_maxrss`


def one(target: str, cluster: str) -> dict[str, float]:
    """Plans one target in this process."""
    import_module("jax")
    at = [time.process_time()]
    plan = import_module("planner").plan
    load_target = import_module("planner.cli.target").load_target
    at.append(time.process_time())
    loaded = load_target(target)
    at.append(time.process_time())
    p = plan(loaded.fn, *loaded.args, cluster=cluster, **loaded.settings)
    at.append(time.process_time())
    ops = p.graph.count_nodes()
    return {"target_s": at[2] - at[1], "plan_s": at[1] - at[0] + at[3] - at[2], "ops": ops}


def measured(checkout: Path, arguments: list[str]) -> dict[str, Any]:
    """A Python process in a checkout: its processor seconds, peak megabytes, and what it found.

    Linux counts the memory of this process, from which it is started, as its own.
    """
    settings = {"PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"}
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | settings
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=checkout, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    found = {
        "process_s": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss * RSS_BYTES / 1e6,
    }
    if lines and lines[-1].startswith('{"target_s"'):
        found |= json.loads(lines[-1])
    return found


def least(checkouts: list[Path], arguments: list[str], repeat: int) -> list[dict[str, Any]]:
    """The least of some runs in each checkout, which take turns."""
    runs = [[measured(c, arguments) for c in checkouts] for _ in range(repeat)]
    return [min(mine, key=lambda found: found["process_s"]) for mine in zip(*runs, strict=True)]


def line(name: str, found: list[dict[str, Any]], columns: tuple[str, ...]) -> str:
    """A row of a table; before and now stand in one cell."""
    cells = [" → ".join(_shown(each.get(c)) for each in reversed(found)) for c in columns]
    return f"| {name} | {' | '.join(cells)} |"


def _shown(value: float | None) -> str:
    return "failed" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main(quick: bool) -> list[dict[str, Any]]:
    """Prints both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks start")
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--only", default="", help="plans whose target or cluster contains this")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each")
    given = parser.parse_known_args()[0]
    checkouts = [HERE, *([given.before.resolve()] if given.before else [])]
    rows: list[dict[str, Any]] = []

    def table(cases: dict[str, list[str]], head: str, columns: tuple[str, ...]) -> None:
        print(f"\n| {head} | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}", flush=True)
        for name, arguments in cases.items():
            found = least(checkouts, arguments, given.repeat)
            parts = dict(zip_longest(("now", "before"), found))
            rows.append({"case": name, **parts})
            print(line(name, found, columns), flush=True)

    script = str(Path(__file__).resolve())
    theirs = str(HERE / "benchmarks" / "third_party.py")  # another checkout may have none
    foreign = tuple(
        (f"{theirs}:{name}", "8xh100")
        for library, names in THIRD_PARTY.items() if find_spec(library) is not None
        for name in names
    )  # fmt: skip
    plans = {
        f"{target.rpartition('/')[2]} {cluster}": ["-P", script, target, cluster]
        for target, cluster in (SMALL[:3] if quick else (*SMALL, *PUBLISHED, *foreign))
    }
    for checkout in checkouts:  # compiles what is kept
        measured(checkout, next(iter(plans.values())))
    if not given.only:
        table(COMMANDS, "command", ("process_s", "peak_mb"))
    plans = {name: arguments for name, arguments in plans.items() if given.only in name}
    table(plans, "plan", ("ops", "target_s", "plan_s", "process_s", "peak_mb"))
    return rows


if __name__ == "__main__":
    print(json.dumps(one(*sys.argv[1:3])))

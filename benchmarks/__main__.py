"""`python -m benchmarks NAME [--quick]`: runs benchmarks and keeps their results.

What each takes is in the first lines of its file. Rows of a part of a benchmark are not kept: they
would take the place of all.
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

BENCHES = (
    "alpa",
    "autoparallel",
    "contest",
    "costs",
    "experts",
    "extraction",
    "false-rules",
    "fuzz",
    "fuzz-files",
    "halos",
    "host-steps",
    "joint",
    "kernel-attention",
    "long-context",
    "memory",
    "memory-oracle",
    "one-gpu",
    "one-gpu-ops",
    "one-gpu-plans",
    "oracles",
    "overlap",
    "pipeline-plans",
    "pipeline-scan",
    "pipeline-search",
    "pipeline-steps",
    "pipelines",
    "plan-time",
    "published",
    "published-experts",
    "published-long",
    "ring-blocks",
    "rule-places",
    "rules",
    "scale",
    "scheduled",
    "scheduled-busy",
    "schedules",
    "start",
    "substitutions",
    "third-party-plans",
    "third-party-runs",
    "uneven",
    "verify",
    "written-attention",
)
WITH_VALUE = (  # of single benches
    "--before", "--checkout", "--count", "--data", "--estimated", "--first", "--jobs", "--keep",
    "--limit", "--measure", "--mesh", "--minutes", "--nodes", "--only", "--padded", "--patience",
    "--pipelines", "--programs", "--python", "--repeat", "--rewrites", "--seed", "--sequences",
    "--training", "--workers",
)  # fmt: skip
PARTS = ("--only", "--unmeasured")
USUAL = ("oracles", "plan-time")  # verify needs a plugin, see its file


def machine() -> dict[str, object]:
    """What the numbers were taken on."""
    return {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("jax", "numpy", "highspy", "pulp")},
    }


def main(arguments: list[str]) -> int:
    """Runs the benches named, the usual ones if none is."""
    if {"-h", "--help"} & {*arguments}:
        print(f"{__doc__}\nThere are {', '.join(BENCHES)}; without a name {', '.join(USUAL)}.")
        return 0
    quick = "--quick" in arguments
    before = ["", *arguments]
    names = [
        a
        for a, option in zip(arguments, before, strict=False)
        if not a.startswith("-") and option not in WITH_VALUE
    ] or list(USUAL)
    if unknown := [n for n in names if n not in BENCHES]:
        print(f"no benchmark is called {unknown[0]}; there are {', '.join(BENCHES)}")
        return 2
    here = machine()
    folder = Path(__file__).parent / "results" / str(here["date"])
    for name in names:
        print(f"\n{name}\n")
        rows = import_module(f"benchmarks.{name.replace('-', '_')}").main(quick)
        if rows is None or not {*PARTS}.isdisjoint(arguments):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"machine": here, "rows": rows}, indent=1, default=str)
        (folder / f"{name}.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

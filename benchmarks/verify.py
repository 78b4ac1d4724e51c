# pyright: basic
"""Predicted beside compiled: collectives and memory of every example under every plan.

    python -m benchmarks verify [--quick] [--compiler=gpu-aot,host,gpu] [--devices=8xh100]
                                [--only=NAME] [--keep=FOLDER] [--kept-only]

Each example is planned for eight H100, once freely and once within each hand-written plan, and
compiled; nothing is run, and no GPU is needed (`pip install 'meshwright[gpu-aot]'`). Bytes on the
wire are those that each device sends in one call, memory is that of one device. Examples have
published sizes and small ones; `--quick` uses small ones only. Plans and compiled programs are kept
in a folder, so that a run may be stopped and continued: a kept program is not compiled anew, only
predicted anew, unless this version predicts other collectives for it. With `--kept-only` nothing is
compiled, and examples without a kept program are left out. Plans are kept apart from rows, so that
another compiler checks the same ones.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.apart import row_apart
from planner import Plan, PlanError, load, plan, verify
from planner.cli.target import load_target
from planner.result.reprice import predicted_peak_bytes, reprice
from planner.result.verify.collectives import predicted_sums

CLUSTER = "8xh100"
# (published, small)
EXAMPLES = (
    ("examples/gpt.py:gpt_1_3b_scanned", "examples/gpt.py:small_scanned"),
    ("examples/gpt.py:gpt_1_3b", "examples/gpt.py:small"),
    ("examples/llama.py:llama3_8b", "examples/llama.py:small"),
    ("examples/moe.py:moe_10b", "examples/moe.py:small"),
    ("examples/vit.py:vit_l_16", "examples/vit.py:small"),
    ("examples/wide_resnet.py:wrn_50_2", "examples/wide_resnet.py:small"),
    ("examples/unet.py:ddpm_cifar", "examples/unet.py:small"),
    ("examples/lstm.py:gnmt_like", "examples/lstm.py:small"),
    ("examples/encoder_decoder.py:t5_base", "examples/encoder_decoder.py:small"),
    ("examples/recommender.py:dlrm", "examples/recommender.py:small"),
)
BASELINES = (
    "data-parallel", "zero-1", "zero-2", "fsdp", "megatron", "megatron-sp", "expert-parallel",
    "largest-dimension",
)  # fmt: skip
MESHES = {"megatron": (2, 4), "megatron-sp": (2, 4)}  # the others need one axis
SAME = 0.01  # of the bytes of a kind


def one(
    target: str, cluster: str, compiler: str | None, baseline: str | None, file: Path
) -> dict[str, object]:
    """One row: a plan, kept in `file`, and what the compiler makes of it."""
    loaded = load_target(target)
    start = time.process_time()
    asked = {} if baseline is None else {"baseline": baseline, "mesh": MESHES.get(baseline, (8,))}
    found: Plan
    if file.exists():
        found = load(file).bind(loaded.fn, *loaded.args)
    else:
        found = plan(loaded.fn, *loaded.args, cluster=cluster, **asked, **loaded.settings)
        found.save(file)
    planned = time.process_time()
    checked = verify(found, compiler=compiler)
    return {
        "target": target, "cluster": cluster, "plan": baseline or "best", "mesh": str(found.mesh),
        "plan_cpu_s": planned - start, "verify_cpu_s": time.process_time() - planned,
        **checked.summary(),
    }  # fmt: skip


def again(row: dict[str, object], file: Path) -> dict[str, object]:
    """A kept row with what this version predicts of its plan; an error if other collectives."""
    if row.get("skipped"):
        return row
    now = reprice(load(file))
    collectives, memory = row["collectives"], row["memory"]
    assert isinstance(collectives, list)
    assert isinstance(memory, dict)
    then = {(c["kind"], c["group_size"]): c["predicted_bytes"] for c in collectives}
    said = {key: sent for key, (sent, _) in predicted_sums(now.collectives).items()}
    for key in sorted(said.keys() | then.keys()):
        sent, before = said.get(key, 0.0), then.get(key, 0.0)
        if abs(sent - before) > SAME * max(sent, before):
            text = f"{key[0]} over {key[1]}: {sent:.0f} bytes predicted, {before:.0f} when compiled"
            return {"target": row["target"], "plan": row["plan"], "error": text}
    on_host = row["compiler"] == "host"
    memory |= {
        "predicted_peak_bytes": predicted_peak_bytes(now, "host") if on_host else now.peak_bytes,
        "predicted_argument_bytes": now.program.argument_bytes,
    }
    return row | {"memory": memory}


def rows_of(target: str, cluster: str, compiler: str, kept: Path) -> list[dict[str, object]]:
    """All rows of one target that can be planned, each in a process of its own."""
    found: list[dict[str, object]] = []
    for baseline in (None, *BASELINES):
        file_name, _, function = target.rpartition(":")
        name = f"{Path(file_name).stem}-{function}-{baseline or 'best'}-{cluster}"
        file, answer = kept / f"{name}.plan.json", kept / f"{name}-{compiler}.row.json"
        row: dict[str, object] = {}
        if not file.exists() and any(kept.glob(f"{name}-*.row.json")):
            continue  # there is no such plan
        if answer.exists():
            row = again(json.loads(answer.read_text()), file)
        elif "--kept-only" in sys.argv:
            continue
        if (not row or "error" in row) and "--kept-only" not in sys.argv:
            made = row_apart("verify", target, cluster, compiler, baseline or "", str(file))
            if isinstance(made, str):
                row = {"target": target, "plan": baseline or "best", "error": made}
            else:
                row = made
                answer.write_text(json.dumps(row))
        if row.get("skipped"):
            continue
        found.append(row)
        print(lines_of(row), flush=True)
    return found


HEAD = (
    "| target | plan | mesh | kind | group | predicted MB | compiled MB | note |\n" + "|---" * 8
    + "|"
)  # fmt: skip


def lines_of(row: dict[str, object]) -> str:
    """Rows of the table for one plan."""
    name = f"| {str(row['target']).rpartition(':')[2]} | {row['plan']} "
    if "error" in row:
        return f"{name}| {row['error']} |"
    name += f"| {row['mesh']} "
    m = row["memory"]
    assert isinstance(m, dict)
    lines = [
        f"{name}| {c['kind']} | {c['group_size'] or ''} | {c['predicted_bytes'] / 1e6:.3f} "
        f"| {c['compiled_bytes'] / 1e6:.3f} | {c['note']} |"
        for c in row["collectives"]  # type: ignore[attr-defined]
    ]
    share = m["predicted_peak_bytes"] / max(m["compiled_peak_bytes"], 1)
    lines.append(
        f"{name}| memory | | {m['predicted_peak_bytes'] / 1e6:.1f} "
        f"| {m['compiled_peak_bytes'] / 1e6:.1f} | {share - 1:+.1%}"
        f"{'' if row['ok'] else '; NOT verified'} |"
    )
    return "\n".join(lines)


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """Shares of plans whose wire bytes agree, and the errors of memory."""
    good = [row for row in rows if "error" not in row]
    off = [
        row["memory"]["predicted_peak_bytes"] / max(row["memory"]["compiled_peak_bytes"], 1) - 1  # type: ignore[index]
        for row in good
    ]
    wire = [
        all(
            abs(c["predicted_bytes"] - c["compiled_bytes"])
            <= SAME * max(c["predicted_bytes"], c["compiled_bytes"])
            for c in row["collectives"]  # type: ignore[attr-defined]
        )
        for row in good
    ]
    return {
        "plans": len(good), "failed": len(rows) - len(good),
        "verified": sum(bool(row["ok"]) for row in good),
        "wire_within_1_percent": sum(wire) / max(len(wire), 1),
        "with_unexplained_bytes": sum(float(row["unexplained_bytes"]) > 0 for row in good),  # type: ignore[arg-type]
        "memory_median_error": statistics.median(map(abs, off)) if off else None,
        "memory_most_under": min(off, default=None), "memory_most_over": max(off, default=None),
    }  # fmt: skip


def option(name: str, usual: str) -> str:
    """The value of `--name=value` on the command line."""
    given = [a.partition("=")[2] for a in sys.argv if a.startswith(f"--{name}=")]
    return given[-1] if given else usual


def main(quick: bool) -> list[dict[str, object]]:
    """Prints the table and its summary, which is the last row."""
    cluster, only = option("devices", CLUSTER), option("only", "")
    kept = Path(option("keep", "") or tempfile.mkdtemp())
    kept.mkdir(parents=True, exist_ok=True)
    sizes = slice(1, 2) if quick else slice(0, 2)
    targets = [target for pair in EXAMPLES for target in pair[sizes]]
    found: list[dict[str, object]] = []
    for compiler in option("compiler", "gpu-aot").split(","):
        print(f"\n{compiler}\n\n{HEAD}")
        rows = [r for t in targets if only in t for r in rows_of(t, cluster, compiler, kept)]
        total = summary(rows)
        print(json.dumps(total, indent=1))
        found += [*rows, {"compiler": compiler, "summary": total}]
    return found


if __name__ == "__main__":
    wanted, machine, name, within, where = sys.argv[1:]
    try:
        print(json.dumps(one(wanted, machine, name, within or None, Path(where))))
    except PlanError as error:
        if error.kind not in ("does-not-fit", "bad-option"):
            raise
        print(json.dumps({"skipped": str(error)}))

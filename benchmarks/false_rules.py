# pyright: basic
"""False rules made without the prover, and the prover's verdicts on them.

    python -m benchmarks false-rules [--count 1000] [--seed 0] [--quick]

True rules (of the catalogue, axioms, published ones, and rules over replicas and partial sums) with
one error: an axis, a degree, a window, a collective, an operand. NumPy computes both sides on
logical devices; a rule counts if its source accepts the inputs and the target gives another result.
Rules whose target does not accept them are counted apart. A verdict is wrong if it accepts the rule
under a condition that these inputs meet.
"""

from __future__ import annotations

import collections
import sys
import time
from typing import Any

from substitutions import VERDICTS, Verdict, judge
from tests.substitutions.false_rules import CHANGES, FalseRule, false_rules

COUNT, QUICK = 1000, 100


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints the table and returns its rows.

    Args:
        quick: a tenth of the rules.
    """
    count, seed = _option("--count", QUICK if quick else COUNT), _option("--seed", 0)
    start, judging = time.process_time(), 0.0
    differ: dict[str, collections.Counter[str]] = {c: collections.Counter() for c in CHANGES}
    misfits: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    outside: list[str] = []
    for made in false_rules(seed):
        begun = time.process_time()
        found = judge(made.rule)
        judging += time.process_time() - begun
        (differ[made.change] if made.example.typed else misfits)[found.verdict] += 1
        if found.accepted:
            (wrong if made.accepted(found) else outside).append(_told(made, found))
        if sum(sum(counts.values()) for counts in differ.values()) >= count:
            break
    seconds = time.process_time() - start
    _print(differ, misfits, wrong, outside)
    print(f"{seconds:.0f} s of processor time, {judging:.0f} s of it for verdicts; seed {seed}")
    return [
        {"change": change, "counts": dict(counts)} for change, counts in differ.items()
    ] + [
        {
            "seed": seed, "false_rules": count, "misfits": dict(misfits), "accepted": wrong,
            "excluded_by_condition": outside, "cpu_s": seconds, "judging_cpu_s": judging,
        }
    ]  # fmt: skip


def _option(name: str, default: int) -> int:
    at = sys.argv.index(name) + 1 if name in sys.argv else len(sys.argv)
    return int(sys.argv[at]) if at < len(sys.argv) else default


def _told(made: FalseRule, found: Verdict) -> str:
    return f"{found.verdict} ({found.condition}): {made.rule}; {made.example.difference}"


def _print(
    differ: dict[str, collections.Counter[str]], misfits: collections.Counter[str],
    wrong: list[str], outside: list[str],
) -> None:  # fmt: skip
    every: collections.Counter[str] = collections.Counter()
    for change, counts in differ.items():
        every += counts
        print(f"{change:22} {sum(counts.values()):5}  {_shown(counts)}")
    print(f"{'false rules':22} {sum(every.values()):5}  {_shown(every)}")
    print(f"{'target never fits':22} {sum(misfits.values()):5}  {_shown(misfits)}")
    print(f"accepted: {len(wrong)}; proved under a condition that excludes them: {len(outside)}")
    for text in wrong:
        print(f"  wrong: {text}")


def _shown(counts: collections.Counter[str]) -> str:
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


if __name__ == "__main__":
    main()

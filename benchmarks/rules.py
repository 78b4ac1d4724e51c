"""Verdicts on the published rule sets, and on mutants of every accepted rule.

Counterexamples (of false rules, and those that show the need of a condition) run in JAX. A mutant
changes one axis, degree, operand or op of an accepted rule. No mutant with a numeric counterexample
may be accepted; accepted mutants are tested on many more instances. Then rules are generated, over
all terms of each op set up to a size.
"""

from __future__ import annotations

import collections
import time
from typing import Any

from substitutions import Rule, Verdict, generate, judge_all
from substitutions.generate import OP_SETS
from substitutions.verify.judge import ACCEPTED, judge, refuted_again, renamed
from tests.substitutions.jax_meaning import reproduces
from tests.substitutions.mutants import mutants
from tests.substitutions.published import EQUATIONS, FILES, FLEXFLOW, TASO, rules

INSTANCES = 40  # on which accepted mutants are tried again
QUICK = 300  # mutants of each file
OPS, QUICK_OPS = 3, 2  # on a side of generated rules


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Prints the tables and returns their rows.

    Args:
        quick: a part of the mutants, and rules of fewer ops.
    """
    rows = [audit(name) for name in FILES]
    accepted = {name: row.pop("accepted") for name, row in zip(FILES, rows, strict=True)}
    for name in (FLEXFLOW, TASO, EQUATIONS):
        rows.append(mutate(name, accepted[name], QUICK if quick else None))
    return rows + [found(name, QUICK_OPS if quick else OPS) for name in OP_SETS]


def audit(name: str) -> dict[str, Any]:
    start = time.process_time()
    found = list(judge_all(rules(name)))
    seconds = time.process_time() - start
    counts = collections.Counter(item.verdict for item in found)
    print(f"{name}: {len(found)} rules, {dict(counts)}, {seconds:.1f} s", flush=True)
    pairs = list(zip(rules(name), found, strict=True))
    good = [rule for rule, item in pairs if item.accepted]
    shown = [(rule, item.counterexample) for rule, item in pairs if item.counterexample]
    again = sum(reproduces(rule, example) for rule, example in shown)
    print(f"{name}: {again} of {len(shown)} counterexamples reproduced by JAX", flush=True)
    return {
        "file": name, "counts": dict(counts), "cpu_s": seconds, "accepted": good,
        "counterexamples": len(shown), "reproduced": again,
    }  # fmt: skip


def mutate(name: str, good: list[Rule], most: int | None) -> dict[str, Any]:
    """Judges the mutants of accepted rules, each once up to names of inputs."""
    start = time.process_time()
    distinct: dict[Rule, None] = {}
    for rule in good:
        for mutant in mutants(rule):
            names = {ref.name: f"-{i + 1}" for i, ref in enumerate(mutant.inputs())}
            distinct.setdefault(renamed(mutant, names))
    chosen = list(distinct)
    if most is not None:
        chosen = chosen[:: max(1, len(chosen) // most)]
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    for mutant in chosen:
        found: Verdict = judge(mutant)
        counts[found.verdict] += 1
        contradicted = found.verdict in ACCEPTED and refuted_again(mutant, INSTANCES)
        if contradicted or "yet the sides differ" in found.reason:
            wrong.append(str(mutant))
    seconds = time.process_time() - start
    print(
        f"{name}: {len(chosen)} of {len(distinct)} mutants, {dict(counts)}, "
        f"{len(wrong)} accepted and refuted, {seconds:.0f} s",
        flush=True,
    )
    return {
        "file": name, "mutants": len(chosen), "counts": dict(counts), "wrong": wrong,
        "cpu_s": seconds,
    }  # fmt: skip


def found(name: str, ops: int) -> dict[str, Any]:
    """Generates the rules of an op set; counts are explained at `Generated`."""
    start = time.process_time()
    rules_found = generate(name, ops)
    seconds = time.process_time() - start
    counts = dict(rules_found.counts)
    print(
        f"{name}, {ops} ops: {len(rules_found.rules)} rules, {counts}, {seconds:.0f} s", flush=True
    )
    return {
        "set": name, "ops": ops, "rules": len(rules_found.rules), "counts": counts,
        "cpu_s": seconds,
    }  # fmt: skip


if __name__ == "__main__":
    main()

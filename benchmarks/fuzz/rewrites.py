# pyright: basic
"""Every row of the catalogue at random places, on numbers that break what is not exact.

    python -m benchmarks.fuzz.rewrites [--seeds N] [--first SEED] [--jax-every N]

A program is the left side of a row in random shapes and types, alone or in the body of a loop,
branch or checkpoint. Each rule that has a place in it is applied there, without the trial that
`plan` makes; both programs are then run with NumPy, and some op by op with JAX, and may differ by
what the row is worth.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import jax
import numpy as np
from jax import lax

from ir import Graph, IRError, Literal, Node, TraceError, check
from ir.evaluate import plain_program
from ir.trace import Traced, trace
from planner.sharding.rewrite.retrace import retraced
from substitutions import (
    CATALOGUE,
    Draft,
    Row,
    Rule,
    Trial,
    Verdict,
    apply,
    draft_of,
    find,
    judge,
    patterns,
    worth_of_row,
)
from substitutions.trial.compare import difference
from substitutions.verify import holds

from .patterns import Writer

ROWS = tuple(row for rows in CATALOGUE.values() for row in rows if not row.parallel)
DEVICES = tuple(row for rows in CATALOGUE.values() for row in rows if row.parallel)
WRAPPED = ("plain", "plain", "plain", "scan", "checkpoint", "cond")


@dataclass
class Report:
    """Places at which rules were applied, by rule; what is wrong; what `plan` would not have done.

    wrong: rule, program and difference in words.
    refused: places that the trial of `plan` refuses, by rule.
    """

    programs: int = 0
    places: Counter[str] = field(default_factory=Counter)
    by_jax: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, other: Report) -> None:
        self.programs += other.programs
        self.places += other.places
        self.by_jax += other.by_jax
        self.wrong += other.wrong
        self.refused += other.refused


def check_rewrites(seed: int) -> list[str]:
    """What is wrong with rules in the programs of a seed, one program for each row."""
    return [*rewrites(seed).wrong, *parallel(seed).wrong]


def parallel(seed: int, rows: Sequence[Row] = DEVICES) -> Report:
    """Rows that split values over devices, one rule of each on an instance of random sizes.

    The planner does not apply them to programs: both sides are evaluated on logical devices, in
    short floats and in whole numbers.
    """
    report = Report()
    for k, row in enumerate(rows):
        rng = np.random.default_rng([seed, k])
        every = list(row.rules())
        rule = every[int(rng.integers(len(every)))]
        proof = judged(rule).proof
        found = holds(*proof, worth_of_row(row.name), int(rng.integers(1 << 30))) if proof else None
        report.places[row.name] += found is not None
        if found is False or proof is None:
            report.wrong.append(f"{rule.name} of seed {seed} is not {worth_of_row(row.name)}")
    return report


@cache
def judged(rule: Rule) -> Verdict:
    """The verdict on a rule, once."""
    return judge(rule)


def rewrites(seed: int, rows: Sequence[Row] = ROWS, jax_every: int = 16) -> Report:
    """A program for each row, with all rules that have a place in it.

    Args:
        seed: of the programs and of their arguments.
        rows: to write programs of.
        jax_every: also run one in so many programs with JAX.
    """
    report = Report()
    for k, row in enumerate(rows):
        rng = np.random.default_rng([seed, k])
        by_jax = jax_every > 0 and (seed + k) % jax_every == 0
        report.add(_one(row, rng, f"{row.name} of seed {seed}", by_jax))
    if report.by_jax:
        jax.clear_caches()  # every op of every shape was compiled
    return report


def _one(row: Row, rng: np.random.Generator, name: str, by_jax: bool) -> Report:
    report, writer = Report(programs=1), Writer(row, rng)
    fn = _wrapped(writer, WRAPPED[int(rng.integers(len(WRAPPED)))])
    try:
        traced = trace(fn, *writer.structs)
    except TraceError:
        # a product in a wider type does not fit what it is added to
        writer.drawn["preferred"] = None
        traced = trace(fn, *writer.structs)
    draft = draft_of(traced.graph)
    for rule in dict.fromkeys(place.rule for place in find(draft, patterns())):
        _rule(rule, draft, traced, rng, name, by_jax, report)
    return report


def _rule(
    rule: str, draft: Draft, traced: Traced, rng: np.random.Generator, name: str, by_jax: bool,
    report: Report,
) -> None:  # fmt: skip
    """One rule at all of its places of one depth."""
    places = find(draft, [rule])
    depth = len(places[0].prefix)
    places = [place for place in places if len(place.prefix) == depth]
    where = f"{rule} in {name} ({', '.join(map(str, [i.type for i in draft.graph.inputs]))})"
    trial = Trial()
    try:
        after, count = apply(draft, places)
        if not count:
            return
        check(after.graph, after="rewriting")
        both = _beside(draft.graph, after.graph)
        seed = int(rng.integers(1 << 30))
        wrong = difference(both, worth_of_row(rule), seed)
        if not wrong and by_jax:
            report.by_jax += count
            program = retraced(traced, after)
            run = _Run(traced, program)
            wrong = difference(both, worth_of_row(rule), seed, run)
    except IRError as error:
        wrong, count = f"{error}".splitlines()[0], 0
    report.places[rule] += count
    if wrong:
        report.wrong.append(f"{where}: {wrong}")
    kept = apply(draft, places, trial)[1]
    report.refused[rule] += count - kept if not wrong else 0


@dataclass
class _Run:
    """Runs a program as it was traced and as it was rewritten, op by op."""

    before: Traced
    after: Traced

    def __call__(self, graph: Graph, given: Sequence[Any]) -> tuple[Any, ...]:
        with jax.disable_jit():
            results = [
                x
                for t in (self.before, self.after)
                for x in plain_program(t.program)(*t.program.consts, *given)
            ]
        return tuple(np.asarray(x) for x in results)


def _wrapped(fn: Any, kind: str) -> Any:
    """The function itself, or as a body of another one."""
    if kind == "scan":

        def scanned(*args: Any) -> Any:
            return lax.scan(lambda c, _: (c, fn(*args)), np.int32(0), None, length=2)[1]

        return scanned
    if kind == "checkpoint":
        return lambda *args: jax.checkpoint(fn)(*args)
    if kind == "cond":
        return lambda *args: lax.cond(args[0].size > 0, fn, fn, *args)
    return fn


def _beside(left: Graph, right: Graph) -> Graph:
    """Two graphs of the same inputs as one that returns what both do."""
    count = len(left.inputs)
    shift = len(left.types) - count

    def moved(operands: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(o if isinstance(o, Literal) or o < count else o + shift for o in operands)

    nodes = tuple(replace(node, inputs=moved(node.inputs)) for node in right.nodes)
    joined: tuple[Node, ...] = (*left.nodes, *nodes)
    return Graph(left.inputs, joined, (*left.outputs, *moved(right.outputs)))


def main() -> int:
    """Prints counts by rule, and all that is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz.rewrites")
    parser.add_argument("--seeds", type=int, default=20, help="how many; 64 programs each")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jax-every", type=int, default=16, help="0 for never")
    given = parser.parse_args()
    total, start = Report(), time.monotonic()
    for seed in range(given.first, given.first + given.seeds):
        total.add(rewrites(seed, jax_every=given.jax_every))
        total.add(parallel(seed))
    for rule, count in sorted(total.places.items()):
        print(f"{rule:32s} {count:6d} places, {total.refused[rule]} refused by the trial")
    for text in total.wrong:
        print(f"wrong: {text}")
    print(
        f"{total.programs} programs, {len(total.places)} rules at {sum(total.places.values())} "
        f"places, {total.by_jax} of them with JAX too; {len(total.wrong)} wrong; "
        f"{time.monotonic() - start:.0f} s"
    )
    return 1 if total.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

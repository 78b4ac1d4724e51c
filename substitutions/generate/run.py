"""Finds rules: terms of equal fingerprint are proved equal, and kept if no kept rule implies them.

Only one term of each class of proved-equal terms is built upon, so that what follows by replacing
a part is not found again. Decisions are kept in a journal; a run that was interrupted makes the
same decisions up to its last one without proving them anew.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from ..errors import RuleError
from ..rule import Rule
from ..text import Term, rule_of_text, show_term
from ..verify.judge import ACCEPTED, PROVED, judge, renamed
from ..verify.saturate import saturates
from .prune import independent
from .terms import OP_SETS, Made, OpSet, extensions, inputs_of

MOST_OPS = 4
# Limits of the search for a derivation from rules kept before; longer ones are not found.
ROUNDS, TERMS = 3, 1500
KEPT, IMPLIED, REJECTED = "kept", "implied", "rejected"


@dataclass(frozen=True, slots=True)
class Found:
    """A rule that was kept, with its verdict and condition."""

    left: str
    right: str
    verdict: str
    condition: str
    parallel: bool


@dataclass
class Generated:
    """What a run found; `counts` has terms, candidates, and candidates by decision."""

    rules: list[Found] = field(default_factory=list[Found])
    counts: Counter[str] = field(default_factory=Counter[str])


@dataclass
class _State:
    """The search while it runs."""

    chosen: OpSet
    journal: Journal
    classes: dict[str, list[Made]] = field(default_factory=dict[str, "list[Made]"])
    seen: dict[Rule, str] = field(default_factory=dict[Rule, str])
    kept: list[Rule] = field(default_factory=list[Rule])
    axioms: list[tuple[Rule, ...]] = field(default_factory=list[tuple[Rule, ...]])
    out: Generated = field(default_factory=Generated)


class Journal:
    """Decisions by candidate, appended to a file line by line; a torn last line is forgotten."""

    def __init__(self, path: Path | None, head: str) -> None:
        self.path, self.known = path, dict[str, tuple[str, str, str]]()
        if path is None:
            return
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        if lines and lines[0] != head:
            raise RuleError(
                "belongs to another search", where=str(path), remedy="delete it or name another"
            )
        for i, line in enumerate(lines[1:]):
            entry = _entry(line)
            if entry is None:
                if i + 2 < len(lines):
                    raise RuleError(f"line {i + 2} is not a decision", where=str(path))
                break
            self.known[entry[0]] = entry[1:]
        body = [json.dumps([key, *rest]) for key, rest in self.known.items()]
        path.write_text("\n".join([head, *body]) + "\n", "utf-8")

    def add(self, key: str, decision: tuple[str, str, str]) -> None:
        self.known[key] = decision
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, *decision]) + "\n")


def _entry(line: str) -> tuple[str, str, str, str] | None:
    try:
        found: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, list) or len(cast("list[Any]", found)) != 4:
        return None
    key, decision, verdict, condition = cast("list[Any]", found)
    texts = all(isinstance(item, str) for item in (key, decision, verdict, condition))
    if not texts or decision not in (KEPT, IMPLIED, REJECTED):
        return None
    return key, decision, verdict, condition


def generate(
    name: str, ops: int, journal: Path | None = None, tell: Callable[[str], None] = lambda _: None
) -> Generated:
    """Rules between terms of up to `ops` ops of an op set.

    Args:
        name: of the op set, see `OP_SETS`.
        ops: the most ops on a side.
        journal: file for decisions, to be able to go on after an interruption.
        tell: is told how far the search is.

    Raises:
        RuleError: for an unknown op set, too many ops, or a journal of another search.
    """
    if name not in OP_SETS:
        raise RuleError(f"no op set '{name}'; there are {', '.join(OP_SETS)}", where="generate")
    if not 1 <= ops <= MOST_OPS:
        raise RuleError(f"{ops} ops; between 1 and {MOST_OPS} are possible", where="generate")
    state = _State(OP_SETS[name], Journal(journal, f"meshwright-rules {name} 1"))
    known: list[list[Made]] = [inputs_of(state.chosen)]
    for made in known[0]:
        state.classes.setdefault(made.print, []).append(made)
    for size in range(1, ops + 1):
        fresh: list[Made] = []
        for made in extensions(state.chosen, known, size):
            state.out.counts["terms"] += 1
            if _is_new(state, made):
                fresh.append(made)
            if state.out.counts["terms"] % 500 == 0:
                tell(f"{size} ops: {state.out.counts['terms']} terms, {len(state.out.rules)} rules")
        known.append(fresh)
    tell(f"{len(state.out.rules)} rules: which follow from the others")
    texts = [(rule.left, rule.right) for rule in state.out.rules]
    chosen = independent(texts, state.kept, state.axioms, ROUNDS, TERMS)
    state.out.counts["follow from later ones"] = len(texts) - len(chosen)
    state.out.rules = [state.out.rules[i] for i in chosen]
    return state.out


def _is_new(state: _State, made: Made) -> bool:
    """Whether a term is equal to none before it; if it is, the rule is kept or implied."""
    bucket = state.classes.setdefault(made.print, [])
    for other in bucket:
        if _decide(state, made.term, other.term) != REJECTED:
            return False
    bucket.append(made)
    return True


def _decide(state: _State, left: Term, right: Term) -> str:
    rule = _rule(state, left, right)
    if rule is None:
        return REJECTED
    state.out.counts["candidates"] += 1
    plain = _canonical(rule)
    if plain in state.seen:
        state.out.counts["renamed"] += 1
        return state.seen[plain]
    key = f"{show_term(left)} = {show_term(right)}"
    decision = state.journal.known.get(key)
    if decision is None:
        decision = _decision(state, rule)
        state.journal.add(key, decision)
    state.seen[plain] = decision[0]
    state.out.counts[decision[0]] += 1
    if decision[0] == KEPT:
        parallel = state.chosen.parallel
        found = Found(show_term(left), show_term(right), decision[1], decision[2], parallel)
        state.out.rules.append(found)
        state.kept.append(rule)
        state.axioms.append(tuple(_axioms(rule, decision[1])))
    return decision[0]


def _rule(state: _State, left: Term, right: Term) -> Rule | None:
    ranks = {name: rank for name, rank, _ in state.chosen.inputs}
    try:
        return rule_of_text(
            "", show_term(left), show_term(right), ranks, parallel=state.chosen.parallel
        )
    except RuleError:
        return None


def _decision(state: _State, rule: Rule) -> tuple[str, str, str]:
    found = judge(rule)
    if found.verdict not in ACCEPTED:
        return REJECTED, found.verdict, found.condition
    axioms = [axiom for each in state.axioms for axiom in each]
    if saturates(rule, axioms, ROUNDS, TERMS):
        return IMPLIED, found.verdict, found.condition
    return KEPT, found.verdict, found.condition


def _axioms(rule: Rule, verdict: str) -> Iterator[Rule]:
    """The directions of a kept rule that hold without a condition."""
    if verdict == PROVED:
        yield rule
    back = replace(
        rule, source=rule.target, target=rule.source, outputs=tuple((b, a) for a, b in rule.outputs)
    )
    if judge(back).verdict == PROVED:
        yield back


def _canonical(rule: Rule) -> Rule:
    names = {ref.name: f"-{i + 1}" for i, ref in enumerate(rule.inputs())}
    return renamed(rule, names)


def catalogue_of(name: str, ops: int, found: Generated) -> Mapping[str, Any]:
    """What is written to a file: the search, its counts and the rules with their evidence."""
    return {
        "format": "meshwright-rules",
        "version": 1,
        "set": name,
        "ops": ops,
        "counts": dict(sorted(found.counts.items())),
        "rules": [
            {
                "from": rule.left,
                "to": rule.right,
                "parallel": rule.parallel,
                "verdict": rule.verdict,
                "condition": rule.condition or None,
                "proof": "equal normal forms for all sizes and degrees; "
                "then tried in a prime field and in the reals",
            }
            for rule in found.rules
        ],
    }

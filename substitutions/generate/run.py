"""Finds rules: terms of equal fingerprint are equal by rules found before, or proved equal.

Only one term of each class of equal terms is built upon, so that rules that follow by replacing a
part are not found a second time. A candidate is proved only if rewriting does not derive it. Proofs
are kept in a journal, so that a run that was interrupted does not repeat them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import RuleError
from ..rule import Rule
from ..term import Term
from ..text import rule_of_text, show_term
from ..verify.judge import ACCEPTED, PROVED, judge
from ..verify.saturate import saturates
from .classes import Class, Classes, Orbit
from .derive import Rewriter
from .journal import IMPLIED, KEPT, REJECTED, Decision, Journal
from .limits import LIMITS
from .prune import independent
from .sets import OP_SETS, OpSet
from .terms import Enumeration
from .values import Renamings, Value, input_values


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
    """What a run found.

    counts: terms made (names aside), classes of them, candidates, and what became of these:
        derived by rewriting, by verdict, implied (found by saturation after the proof), kept, and
        dropped because they follow from later ones.
    """

    rules: list[Found] = field(default_factory=list[Found])
    counts: Counter[str] = field(default_factory=Counter[str])


@dataclass
class _State:
    """The search while it runs."""

    chosen: OpSet
    journal: Journal
    classes: Classes
    rewriter: Rewriter
    kept: list[Rule] = field(default_factory=list[Rule])
    axioms: list[tuple[Rule, ...]] = field(default_factory=list[tuple[Rule, ...]])
    out: Generated = field(default_factory=Generated)


def generate(
    name: str, ops: int, journal: Path | None = None, tell: Callable[[str], None] = lambda _: None
) -> Generated:
    """Rules between terms of up to `ops` ops of an op set.

    Args:
        name: of the op set, see `OP_SETS`.
        ops: the most ops on a side.
        journal: file for decisions, to be able to go on after an interruption.
        tell: called with a line of text on the progress.

    Raises:
        RuleError: for an unknown op set, too many ops, or a journal of another search.
    """
    if name not in OP_SETS:
        raise RuleError(f"no op set '{name}'; there are {', '.join(OP_SETS)}", where="generate")
    if not 1 <= ops <= LIMITS.ops:
        raise RuleError(f"{ops} ops; between 1 and {LIMITS.ops} are possible", where="generate")
    chosen = OP_SETS[name]
    classes = Classes(Renamings(chosen))
    state = _State(chosen, Journal(journal, f"meshwright-rules {name} 3"), classes,
                   Rewriter(classes))  # fmt: skip
    made = Enumeration(chosen, classes)
    made.close(_input_orbits(state))
    counts = state.out.counts
    for size in range(1, ops + 1):
        fresh: list[Orbit] = []
        for term, value in made.terms():
            counts["terms"] += 1
            if counts["terms"] % 500 == 0:
                tell(f"{size} ops: {counts['terms']} terms, {len(state.out.rules)} rules")
            orbit = _placed(state, term, size, value)
            if orbit is not None:
                fresh.append(orbit)
                if size == ops:
                    orbit.value = None  # nothing is built upon it
        counts["classes"] += len(fresh)
        if size < ops:
            made.close(fresh)
    tell(f"{len(state.out.rules)} rules: which follow from the others")
    texts = [(rule.left, rule.right) for rule in state.out.rules]
    left = independent(texts, state.kept, state.axioms, LIMITS.rounds, LIMITS.terms)
    counts["follow from later ones"] = len(texts) - len(left)
    state.out.rules = [state.out.rules[i] for i in left]
    return state.out


def _input_orbits(state: _State) -> list[Orbit]:
    found: list[Orbit] = []
    for name, value in input_values(state.chosen, state.classes.renamings).items():
        orbit = state.classes.new_orbit(Term("", name), 0, value)
        if not any(state.classes.alike(orbit.prints)):
            state.classes.add(orbit)
            found.append(orbit)
    return found


def _placed(state: _State, term: Term, size: int, value: Value) -> Orbit | None:
    """The orbit of a term if it is new; else the term joins the one that it is equal to."""
    orbit = state.classes.new_orbit(term, size, value)
    for other, renaming in list(state.classes.alike(orbit.prints)):
        found = other.class_of(renaming)
        if _decide(state, term, state.classes.least(found), found) != REJECTED:
            state.classes.join(term, other, renaming)
            return None
    renamings = state.classes.renamings
    for i, each in enumerate(orbit.prints):
        other_name = renamings.renamed(term, i)
        if each == orbit.prints[0] and other_name != term:
            _decide(state, state.classes.normal_parts(other_name), term, None)
    state.classes.add(orbit)
    return orbit


def _decide(state: _State, left: Term, right: Term, goal: Class | None) -> str:
    if left == right:
        return IMPLIED
    counts = state.out.counts
    counts["candidates"] += 1
    if state.rewriter.equal(left, right, goal):
        counts["derived"] += 1
        return IMPLIED
    key = f"{show_term(left)} = {show_term(right)}"
    found = state.journal.known.get(key)
    rule = _rule(state, left, right)
    if found is None:
        found = _decision(state, rule)
        state.journal.add(key, found)
    counts[found.verdict] += 1
    if found.decision != REJECTED:
        counts[found.decision] += 1
        state.rewriter.add(left, right, found.ways)
    if found.decision == KEPT:
        state.out.rules.append(
            Found(show_term(left), show_term(right), found.verdict, found.condition,
                  state.chosen.parallel)
        )  # fmt: skip
        state.kept.append(rule)
        ways = ((">", rule), ("<", _back(rule)))
        state.axioms.append(tuple(each for way, each in ways if way in found.ways))
    return found.decision


def _rule(state: _State, left: Term, right: Term) -> Rule:
    ranks, parallel = state.chosen.ranks, state.chosen.parallel
    return rule_of_text("", show_term(left), show_term(right), ranks, parallel=parallel)


def _back(rule: Rule) -> Rule:
    outputs = tuple((b, a) for a, b in rule.outputs)
    return replace(rule, source=rule.target, target=rule.source, outputs=outputs)


def _decision(state: _State, rule: Rule) -> Decision:
    found = judge(rule)
    if found.verdict not in ACCEPTED:
        return Decision(REJECTED, found.verdict, found.condition, "")
    ways = ">" if found.verdict == PROVED else ""
    ways += "<" if judge(_back(rule)).verdict == PROVED else ""
    axioms = [axiom for each in state.axioms for axiom in each]
    implied = saturates(rule, axioms, LIMITS.rounds, LIMITS.terms)
    return Decision(IMPLIED if implied else KEPT, found.verdict, found.condition, ways)


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

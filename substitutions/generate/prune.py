"""Rules that follow from other rules of the same search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..rule import Rule
from ..term import Term
from ..text import parse_term
from ..verify.saturate import saturates
from .limits import LIMITS


def instance_of(general: tuple[Term, Term], special: tuple[Term, Term]) -> bool:
    """Whether terms put for the variables of one equation give the other, either way round."""
    for left, right in (special, special[::-1]):
        found = _match(general[0], left, {})
        if found is not None and _match(general[1], right, found) is not None:
            return True
    return False


def _match(pattern: Term, term: Term, known: Mapping[str, Term]) -> dict[str, Term] | None:
    if not pattern.kind:
        if pattern.name in known:
            return dict(known) if known[pattern.name] == term else None
        return {**known, pattern.name: term}
    head = (pattern.kind, pattern.params, pattern.part, len(pattern.args))
    if head != (term.kind, term.params, term.part, len(term.args)):
        return None
    found: dict[str, Term] | None = dict(known)
    for a, b in zip(pattern.args, term.args, strict=True):
        if found is not None:
            found = _match(a, b, found)
    return found


def independent(
    texts: Sequence[tuple[str, str]], rules: Sequence[Rule], axioms: Sequence[Sequence[Rule]],
    rounds: int, terms: int,
) -> list[int]:  # fmt: skip
    """Numbers of the rules that do not follow from the other ones.

    Args:
        texts: both sides of each rule.
        rules: the same rules.
        axioms: what each rule gives for saturation.
        rounds: limit of saturation.
        terms: limit of saturation.
    """
    pairs = [(parse_term(a), parse_term(b)) for a, b in texts]
    kept = list(range(len(pairs)))
    for i in range(len(pairs)):
        if any(j != i and instance_of(pairs[j], pairs[i]) for j in kept):
            kept.remove(i)
    if len(kept) <= LIMITS.derived:
        for i in list(kept):
            others = [rule for j in kept if j != i for rule in axioms[j]]
            if saturates(rules[i], others, rounds, terms):
                kept.remove(i)
    return kept

"""The verdict on a rule, with its reason."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..rule import Op, Ref, Rule, Side
from .falsify import domain, refute, survives
from .prove import (
    Case,
    Kernels,
    Proof,
    assumptions,
    degree_cases,
    kernel_choices,
    prove,
    typed,
    written_degrees,
)
from .solve import IllTypedError, UndecidedError
from .types import IllFormedError

PROVED, CONDITION, FIXED = "proved", "proved-with-condition", "fixed-degree"
ILL_FORMED, FALSE, UNKNOWN = "ill-formed", "false", "unknown"
VERDICTS = (PROVED, CONDITION, FIXED, ILL_FORMED, FALSE, UNKNOWN)
ACCEPTED = (PROVED, CONDITION, FIXED)

# Well-typed instances on which a proved rule must also hold, in a field and in the reals.
WITNESSES = 6


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a rule.

    condition: what must hold where the rule is applied, beyond what its source demands.
    counterexample: concrete inputs on which the sides differ; for a rule that is proved under a
        restriction, inputs outside of it.
    """

    name: str
    verdict: str
    condition: str = ""
    counterexample: dict[str, Any] | None = None
    reason: str = ""
    seconds: float = 0.0

    @property
    def accepted(self) -> bool:
        return self.verdict in ACCEPTED


def judge(rule: Rule) -> Verdict:
    """Proves, refutes or gives up on a rule; never accepts what a counterexample refutes."""
    start = time.perf_counter()
    try:
        found = _judge(rule)
    except IllFormedError as error:
        found = Verdict(rule.name, ILL_FORMED, reason=str(error))
    except IllTypedError as error:
        found = Verdict(rule.name, ILL_FORMED, reason=f"never well-typed: {error}")
    return replace(found, seconds=time.perf_counter() - start)


def judge_all(
    rules: Sequence[Rule], tell: Callable[[int], None] = lambda _: None
) -> Iterator[Verdict]:
    """Verdicts in order; rules that differ in the names of inputs only are judged once."""
    known: dict[Rule, Verdict] = {}
    for i, rule in enumerate(rules):
        start = time.perf_counter()
        names = {ref.name: f"-{j + 1}" for j, ref in enumerate(rule.inputs())}
        plain = renamed(rule, names)
        if plain not in known:
            known[plain] = judge(plain)
        back = {new: old for old, new in names.items()}
        yield _in_names(known[plain], rule.name, back, time.perf_counter() - start)
        tell(i + 1)


def renamed(rule: Rule, names: dict[str, str]) -> Rule:
    """The rule with other names of inputs, and none of its own."""

    def ref(r: Ref) -> Ref:
        return replace(r, name=names[r.name]) if r.op < 0 else r

    def side(ops: Side) -> Side:
        return tuple(Op(op.kind, tuple(map(ref, op.inputs)), op.params) for op in ops)

    outputs = tuple((ref(a), ref(b)) for a, b in rule.outputs)
    ranks = tuple(sorted((names[n], r) for n, r in rule.ranks if n in names))
    return Rule("", side(rule.source), side(rule.target), outputs, ranks, rule.parallel)


def _in_names(found: Verdict, name: str, names: dict[str, str], seconds: float) -> Verdict:
    """A verdict with the names of inputs that the rule has in its file."""
    condition = _renamed_text(found.condition, names)
    reason = _renamed_text(found.reason, names)
    example = found.counterexample
    if example is not None:
        example = dict(example)
        for key in ("shapes", "inputs", "degrees", "cuts"):
            if key in example:
                example[key] = {names[n]: value for n, value in example[key].items()}
        example["rule"] = _renamed_text(example["rule"], names)
    return Verdict(name, found.verdict, condition, example, reason, seconds)


def _renamed_text(text: str, names: dict[str, str]) -> str:
    """Input names stand after a bracket or a space, and before a comma, a bracket or the end."""
    text += " "
    for old in names:
        for before in "( ":
            for after in (",", ")", " ", "'"):
                text = text.replace(f"{before}{old}{after}", f"{before}\0{old}{after}")
    for old, new in names.items():
        text = text.replace(f"\0{old}", f"\1{new}")
    return text.replace("\1", "").replace("\0", "").removesuffix(" ")


def refuted_again(rule: Rule, instances: int) -> bool:
    """Whether an accepted rule fails on many more instances of the case that was proved."""
    for case, kernels in _general_cases(rule):
        good = [choice for choice in kernels if prove(rule, replace(case, kernels=choice)).proved]
        for choice in good:
            where = domain(rule, replace(case, kernels=choice))
            if where and survives(where, instances, seed=1)[1]:
                return True
        if good:
            return False
    return False


def _judge(rule: Rule) -> Verdict:
    if free := rule.free_inputs():
        return Verdict(rule.name, ILL_FORMED, reason=f"only one side reads {', '.join(free)}")
    if not rule.ranks:
        return Verdict(rule.name, ILL_FORMED, reason="no input says how large the constants are")
    _check_types(rule)
    for case, kernels in _general_cases(rule):
        proofs = [prove(rule, replace(case, kernels=choice)) for choice in kernels]
        if any(proof.proved for proof in proofs):
            return _proved(rule, case, proofs)
    fixed = Case(written_degrees(rule), fixed=True)
    if rule.parallel and fixed.degrees:
        proof = prove(rule, fixed)
        if proof.proved:
            return _fixed(rule, proof)
    return _unproved(rule)


def _check_types(rule: Rule) -> None:
    """Raises IllFormedError or IllTypedError where no sizes make both sides well-typed."""
    first = next(iter(kernel_choices(rule)))
    for degrees in dict.fromkeys((next(degree_cases(rule)), written_degrees(rule))):
        with contextlib.suppress(UndecidedError):
            typed(rule, Case(degrees, kernels=first))


def _general_cases(rule: Rule) -> Iterator[tuple[Case, tuple[Kernels, ...]]]:
    kernels = tuple(kernel_choices(rule))
    for degrees in degree_cases(rule):
        for assume in assumptions(rule):
            yield Case(degrees, assume), kernels


def _proved(rule: Rule, case: Case, proofs: Sequence[Proof]) -> Verdict:
    good = [p for p in proofs if p.proved]
    conditions = [*dict.fromkeys(c for p in good for c in p.conditions)]
    bad = [p for p in proofs if not p.proved]
    if bad:
        conditions.append(_kernel_condition([p.case.kernels for p in good], proofs))
    for proof in good[:1] if len(good) == 1 else good[:: max(1, len(good) // 3)]:
        if refusal := _refusal(rule, proof.case):
            return refusal
    example = None
    if case.assume:
        example = _outside(rule, [replace(case, assume=(), kernels=p.case.kernels) for p in good])
    elif bad:
        example = _outside(rule, [p.case for p in bad])
    verdict = CONDITION if conditions else PROVED
    return Verdict(rule.name, verdict, " and ".join(conditions), example)


def _refusal(rule: Rule, case: Case) -> Verdict | None:
    """A verdict against a proof that the numbers contradict, or that says nothing."""
    where = domain(rule, case)
    tried, found = survives(where, WITNESSES) if where else (0, None)
    if found:
        return Verdict(
            rule.name, UNKNOWN, reason=f"proved, yet the sides differ on numbers: {found.text}"
        )
    if not tried:
        return Verdict(rule.name, UNKNOWN, reason="no well-typed instance was found")
    return None


def _fixed(rule: Rule, proof: Proof) -> Verdict:
    if refusal := _refusal(rule, proof.case):
        return refusal
    degrees = ", ".join(str(d) for d, _ in proof.case.degrees)
    condition = " and ".join([f"the degree is {degrees}", *proof.conditions])
    example = _outside(rule, [Case(next(iter(degree_cases(rule))))])
    return Verdict(rule.name, FIXED, condition, example)


def _outside(rule: Rule, cases: Iterable[Case]) -> dict[str, Any] | None:
    for case in cases:
        where = domain(rule, case, partly=True)
        example = refute(where) if where else None
        if example:
            return example
    return None


def _kernel_condition(good: Sequence[Kernels], proofs: Sequence[Proof]) -> str:
    every = [p.case.kernels for p in proofs]
    odd = [kernels for kernels in every if all(h % 2 and w % 2 for _, h, w in kernels)]
    names = " and ".join(name for name, _, _ in every[0])
    if sorted(odd) == sorted(good):
        return f"height and width of the kernels {names} are odd"
    shown = (" and ".join(f"{h}x{w}" for _, h, w in kernels) for kernels in good)
    return f"the kernels {names} are {', or '.join(shown)}"


def _unproved(rule: Rule) -> Verdict:
    """A rule is false for the degrees that it has; what others do says nothing of it."""
    written = written_degrees(rule)
    for assume in assumptions(rule):
        for kernels in kernel_choices(rule):
            where = domain(rule, Case(written, assume, kernels), partly=True)
            example = refute(where) if where else None
            if example:
                return Verdict(rule.name, FALSE, counterexample=example)
    first = Case(written, kernels=next(iter(kernel_choices(rule))))
    return Verdict(rule.name, UNKNOWN, reason=prove(rule, first).reason)

"""The verdict on a rule, with its reason."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..effort import Effort, SpentError
from ..graph import Op, Ref, Side
from ..rule import Rule, Unread
from ..symbolic.solve import IllTypedError, UndecidedError
from ..symbolic.types import IllFormedError
from ..worth import Worth
from .falsify import domain, refute, survives
from .prove import (
    Case,
    Kernels,
    Proof,
    assumptions,
    degree_cases,
    kernel_choices,
    kernels_that_fit,
    prove,
    too_many_kernels,
    typed,
    written_degrees,
)
from .worth import worth_in

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
    proof: the rule, and the case that was proved.
    """

    name: str
    verdict: str
    condition: str = ""
    counterexample: dict[str, Any] | None = None
    reason: str = ""
    seconds: float = 0.0
    proof: tuple[Rule, Case] | None = field(default=None, repr=False, compare=False)

    @property
    def accepted(self) -> bool:
        return self.verdict in ACCEPTED

    def worth(self) -> Worth | None:
        """What the rule is worth in floats and whole numbers; None if it is not accepted."""
        return None if self.proof is None else worth_in(*self.proof)


def judge(rule: Rule) -> Verdict:
    """Proves, refutes or gives up on a rule; never accepts one that a counterexample refutes."""
    start = time.perf_counter()
    try:
        found = _judge(rule)
    except IllFormedError as error:
        found = Verdict(rule.name, ILL_FORMED, reason=str(error))
    except IllTypedError as error:
        found = Verdict(rule.name, ILL_FORMED, reason=f"never well-typed: {error}")
    return replace(found, seconds=time.perf_counter() - start)


def judge_all(
    rules: Sequence[Rule | Unread], tell: Callable[[int], None] = lambda _: None
) -> Iterator[Verdict]:
    """Verdicts in order; rules that differ in the names of inputs only are judged once.

    Every rule has one, also one that cannot be read and one on which the prover fails.
    """
    known: dict[Rule, Verdict] = {}
    for i, rule in enumerate(rules):
        start = time.perf_counter()
        if isinstance(rule, Unread):
            yield Verdict(rule.name, ILL_FORMED, reason=rule.reason)
            tell(i + 1)
            continue
        names = {ref.name: f"-{j + 1}" for j, ref in enumerate(rule.inputs())}
        plain = renamed(rule, names)
        if plain not in known:
            known[plain] = _judged(plain)
        back = {new: old for old, new in names.items()}
        yield _in_names(known[plain], rule.name, back, time.perf_counter() - start)
        tell(i + 1)


def _judged(rule: Rule) -> Verdict:
    """The verdict; `unknown` where the prover fails, so that the other rules are still judged."""
    try:
        return judge(rule)
    except Exception as error:
        reason = f"the prover failed, please report it: {type(error).__name__}: {error}"
        return Verdict(rule.name, UNKNOWN, reason=reason)


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
    return Verdict(name, found.verdict, condition, example, reason, seconds, found.proof)


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
    for proofs in _general_proofs(rule, Effort()):
        good = [proof for proof in proofs if proof.proved]
        for proof in good:
            where = domain(rule, proof.case)
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
    effort, numbers = Effort(), Effort()
    reason = f"not decided: {too_many_kernels(rule)}"
    try:
        _check_types(rule, effort)
        proofs = () if too_many_kernels(rule) else _first_proofs(rule, effort)
        if any(proof.proved for proof in proofs):
            return _accepted(rule, proofs, numbers)
        if proofs:
            reason = proofs[0].reason
    except SpentError as error:
        reason = f"not decided: {error}"
    return _unproved(rule, reason, numbers)


def _check_types(rule: Rule, effort: Effort) -> None:
    """Raises IllFormedError or IllTypedError where no sizes make both sides well-typed."""
    first = next(iter(kernel_choices(rule)))
    for degrees in dict.fromkeys((next(degree_cases(rule)), written_degrees(rule))):
        with contextlib.suppress(UndecidedError):
            typed(rule, Case(degrees, kernels=first), effort)


def _first_proofs(rule: Rule, effort: Effort) -> Sequence[Proof]:
    """Proofs of the most general case that has one for some kernels, else a failed one."""
    for proofs in _general_proofs(rule, effort):
        if any(proof.proved for proof in proofs):
            return proofs
    first = next(iter(kernel_choices(rule)))
    written = Case(written_degrees(rule), kernels=first, fixed=bool(written_degrees(rule)))
    return (prove(rule, written, effort),)


def _general_proofs(rule: Rule, effort: Effort) -> Iterator[Sequence[Proof]]:
    """For any degrees, case by case, one attempt for each choice of kernels."""
    for degrees in degree_cases(rule):
        for assume in assumptions(rule):
            cases = (Case(degrees, assume, kernels) for kernels in kernel_choices(rule))
            yield [prove(rule, case, effort) for case in cases]


def _accepted(rule: Rule, proofs: Sequence[Proof], numbers: Effort) -> Verdict:
    good = [p for p in proofs if p.proved]
    for proof in good[:1] if len(good) == 1 else good[:: max(1, len(good) // 3)]:
        if refusal := _refusal(rule, proof.case, numbers):
            return Verdict(rule.name, UNKNOWN, reason=refusal)
    conditions = [*dict.fromkeys(c for p in good for c in p.conditions)]
    case = good[0].case
    if case.fixed:
        degrees = ", ".join(str(d) for d, _ in case.degrees)
        condition = " and ".join([f"the degree is {degrees}", *conditions])
        example = _outside(rule, [replace(case, degrees=next(degree_cases(rule)))], numbers)
        return Verdict(rule.name, FIXED, condition, example, proof=(rule, case))
    conditions += kernels_that_fit(rule)
    bad = [p for p in proofs if not p.proved]
    if bad:
        conditions.append(_kernel_condition([p.case.kernels for p in good], proofs))
    example = None
    if case.assume:
        every = [replace(p.case, assume=()) for p in good]
        example = _outside(rule, every, numbers)
    elif bad:
        example = _outside(rule, [p.case for p in bad], numbers)
    verdict = CONDITION if conditions else PROVED
    return Verdict(rule.name, verdict, " and ".join(conditions), example, proof=(rule, case))


def _refusal(rule: Rule, case: Case, numbers: Effort) -> str:
    """Why a proof is not accepted: numbers contradict it, or no instance exists; empty if it is."""
    where = domain(rule, case, numbers)
    try:
        tried, found = survives(where, WITNESSES) if where else (0, None)
    except SpentError as error:
        return f"proved, yet numbers to try it on were {error}"
    if found:
        return f"proved, yet the sides differ on numbers: {found.text}"
    return "" if tried else "no well-typed instance was found"


def _outside(rule: Rule, cases: Iterable[Case], numbers: Effort) -> dict[str, Any] | None:
    with contextlib.suppress(SpentError):
        for case in cases:
            where = domain(rule, case, numbers, partly=True)
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


def _unproved(rule: Rule, reason: str, numbers: Effort) -> Verdict:
    """The verdict without a proof: false only by a counterexample with the degrees of the rule."""
    written = written_degrees(rule)
    every = (Case(written, a, k) for a in assumptions(rule) for k in kernel_choices(rule))
    example = _outside(rule, every, numbers)
    if example:
        return Verdict(rule.name, FALSE, counterexample=example)
    return Verdict(rule.name, UNKNOWN, reason=reason)

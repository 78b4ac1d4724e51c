# pyright: basic
"""Whether the condition of a verdict holds for inputs: read as text, apart from what wrote it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from substitutions import Rule
from tests.substitutions.computes import NUMPY
from tests.substitutions.instances import Tried
from tests.substitutions.jax_meaning import RefusedError, Run, watched

_SIZE = re.compile(r"(size|degree)\(([^,()]+), (\d+)\)")
_KERNELS = re.compile(r"(?:the kernels .* are .*|height and width of the kernels .* are odd)")
_SUM = re.compile(r"[-+*0-9k ]+")


def holds(rule: Rule, condition: str, found: Tried) -> bool:
    """Whether the condition holds; what cannot be read is taken to hold."""
    kernels = _KERNELS.search(condition)
    parts = [condition[kernels.start() :]] if kernels else []
    rest = condition[: kernels.start()].removesuffix(" and ") if kernels else condition
    parts += [part for part in rest.split(" and ") if part]
    letters = set(re.findall(r"\bk\d*\b", rest))
    choices = [names for names in _letters(rule) if letters <= names.keys()] or [{}]
    return any(all(_true(rule, part, found, names) for part in parts) for names in choices)


def _letters(rule: Rule) -> Iterator[Mapping[str, int]]:
    """What k, or k1, k2 and so on, may stand for: degrees of the rule in their order."""
    ops = (*rule.source, *rule.target)
    degrees = sorted({op["degree"] for op in ops if op.get("degree", 0)})
    for count in range(len(degrees) + 1):
        for chosen in itertools.combinations(degrees, count):
            names = {f"k{i + 1}": d for i, d in enumerate(chosen)}
            yield {**names, **({"k": chosen[0]} if chosen else {})}


def _true(rule: Rule, part: str, found: Tried, names: Mapping[str, int]) -> bool:
    if part.startswith(("no convolution", "all convolutions")):
        return _convolutions(rule, part, found)
    if part == "no dimension of an input is divided":
        return all(d == 1 for x in found.inputs.values() for d in x.degrees[1:])
    if _KERNELS.fullmatch(part):
        return _kernels(part, found)
    if part.startswith("the degree is "):
        return True  # as written
    for word, test in (
        (" divides ", lambda a, b: b % a == 0), (" is at least ", lambda a, b: a >= b),
        (" = ", lambda a, b: a == b),
    ):  # fmt: skip
        if word in part:
            a, b = (_number(text, rule, found, names) for text in part.split(word, 1))
            return a is None or b is None or test(a, b)
    return True


def _number(text: str, rule: Rule, found: Tried, names: Mapping[str, int]) -> int | None:
    def size(match: re.Match[str]) -> str:
        x, axis = found.inputs[match[2]], int(match[3]) + (0 if rule.parallel else 1)
        return str(x.degrees[axis] if match[1] == "degree" else x.whole().shape[axis])

    plain = _SIZE.sub(size, text)
    if not _SUM.fullmatch(plain) or not all(name in names for name in re.findall(r"k\d*", plain)):
        return None
    total = 0
    for sign, term in re.findall(r"([-+]?) *([k0-9*]+)", plain):
        product = 1
        for factor in term.split("*"):
            product *= names[factor] if factor in names else int(factor)
        total += -product if sign == "-" else product
    return total


def _convolutions(rule: Rule, part: str, found: Tried) -> bool:
    run = Run(rule.parallel, NUMPY)
    with suppress(RefusedError):  # the groups of those before it are seen
        watched(rule, found.inputs, found.constants, run)
    if part.startswith("no"):
        return all(groups == 1 for groups, _ in run.groups)
    return len({outs for _, outs in run.groups}) <= 1


def _kernels(part: str, found: Tried) -> bool:
    odd = re.fullmatch(r"height and width of the kernels (.*) are odd", part)
    named = odd or re.fullmatch(r"the kernels (.*?) are (.*)", part)
    assert named is not None
    shapes = [found.inputs[name].whole().shape[-2:] for name in named[1].split(" and ")]
    if odd:
        return all(h % 2 and w % 2 for h, w in shapes)
    shown = " and ".join(f"{h}x{w}" for h, w in shapes)
    return shown in named[2].split(", or ")

"""Rules over replicas and partial sums: true ones proved, false ones refused, JAX agreeing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from itertools import islice

import numpy as np
import pytest

from substitutions import Rule, judge
from substitutions.text import rule_of_text
from tests.substitutions.instances import tried
from tests.substitutions.jax_meaning import reproduces
from tests.substitutions.logical_devices import placed

Cases = tuple[tuple[str, str, Mapping[str, int]], ...]
LETTERS = {"k": 2, "m": 3}
IMAGE = {"x": 4, "w": 4}
BATCH = {"x": 3, "y": 3}
ROWS = {"i": 1}


def rule(left: str, right: str, ranks: Mapping[str, int]) -> Rule:
    held = {**dict.fromkeys("xyzw", 2), "s": 0, "u": 1, **ranks}
    return rule_of_text("rule", left, right, held, parallel=True, letters=LETTERS)


PRODUCT: Cases = (
    ("matmul(x, y)", "combine[1, k](matmul(partition[1, k](x), replicate[k](y)))", {}),
    ("matmul(x, y)", "combine[2, k](matmul(replicate[k](x), partition[2, k](y)))", {}),
    ("matmul(x, y)", "reduce[k](matmul(partition[2, k](x), partition[1, k](y)))", {}),
    ("conv(x, w)", "combine[1, k](conv(partition[1, k](x), replicate[k](w)))", IMAGE),
    ("conv(x, w)", "combine[2, k](conv(replicate[k](x), partition[1, k](w)))", IMAGE),
    ("conv(x, w)", "reduce[k](conv(partition[2, k](x), partition[2, k](w)))", IMAGE),
    ("batch-matmul(x, y)",
     "combine[2, k](batch-matmul(partition[2, k](x), replicate[k](y)))", BATCH),
    ("batch-matmul(x, y)",
     "combine[3, k](batch-matmul(replicate[k](x), partition[3, k](y)))", BATCH),
    ("batch-matmul(x, y)",
     "reduce[k](batch-matmul(partition[3, k](x), partition[2, k](y)))", BATCH),
    ("gather(x, i)", "combine[1, k](gather(replicate[k](x), partition[1, k](i)))", ROWS),
    ("gather(x, i)", "combine[2, k](gather(partition[2, k](x), replicate[k](i)))", ROWS),
    ("expand[1](u, x)", "combine[1, k](expand[1](replicate[k](u), partition[1, k](x)))", {}),
    ("expand[1](u, x)", "combine[2, k](expand[1](partition[1, k](u), partition[2, k](x)))", {}),
    ("scale(x, s)", "combine[1, k](scale(partition[1, k](x), replicate[k](s)))", {}),
    ("scale(x, s)", "combine[2, k](scale(partition[2, k](x), replicate[k](s)))", {}),
    ("avgpool[2, 2](x)", "combine[1, k](avgpool[2, 2](partition[1, k](x)))", IMAGE),
    ("maxpool[3, 3, 2, 2](x)", "combine[2, k](maxpool[3, 3, 2, 2](partition[2, k](x)))", IMAGE),
)  # fmt: skip
COPIES: Cases = (
    ("scale(reduce[k](x), s)", "reduce[k](scale(x, replicate[k](s)))", {}),
    ("scale(replicate[k](x), replicate[k](s))", "replicate[k](scale(x, s))", {}),
    ("avgpool[2, 2](reduce[k](x))", "reduce[k](avgpool[2, 2](x))", IMAGE),
    ("avgpool[2, 2](replicate[k](x))", "replicate[k](avgpool[2, 2](x))", IMAGE),
    ("maxpool[2, 2](replicate[k](x))", "replicate[k](maxpool[2, 2](x))", IMAGE),
    ("enlarge[3, 3](reduce[k](x))", "reduce[k](enlarge[3, 3](x))", IMAGE),
    ("reduce[2](reduce[4](x))", "reduce[8](x)", {}),
    ("reduce[2](reduce[3](x))", "reduce[6](x)", {}),
    ("reduce[k](reduce[m](x))", "reduce[m](reduce[k](x))", {}),
    ("replicate[2](replicate[4](x))", "replicate[8](x)", {}),
    ("replicate[2](replicate[2](x))", "replicate[4](x)", {}),
    ("replicate[k](replicate[m](x))", "replicate[m](replicate[k](x))", {}),
    ("partition[1, 2](partition[1, 3](x))", "partition[1, 6](x)", {}),
    ("combine[1, 2](combine[1, 4](x))", "combine[1, 8](x)", {}),
)
FALSE: Cases = (
    ("matmul(x, y)", "matmul(partition[2, k](x), partition[1, k](y))", {}),
    ("matmul(x, y)", "combine[1, k](matmul(replicate[k](x), partition[2, k](y)))", {}),
    ("conv(x, w)", "conv(partition[2, k](x), partition[2, k](w))", IMAGE),
    ("conv[2](x, w)", "reduce[k](conv[2](partition[2, k](x), partition[2, k](w)))", IMAGE),
    ("maxpool[2, 2](reduce[k](x))", "reduce[k](maxpool[2, 2](x))", IMAGE),
    ("avgpool[2, 2](reduce[k](x))", "avgpool[2, 2](x)", IMAGE),
    ("avgpool[2, 2](replicate[k](x))", "avgpool[2, 2](x)", IMAGE),
    ("batch-matmul(x, y)", "batch-matmul(partition[3, k](x), partition[2, k](y))", BATCH),
    ("reduce[2](reduce[4](x))", "reduce[4](x)", {}),
    ("replicate[2](replicate[4](x))", "replicate[4](x)", {}),
    ("reduce[k](replicate[k](x))", "x", {}),
    ("combine[1, 2](relu(partition[1, 8](x)))", "relu(x)", {}),
)
# Operands of an op are on different devices, whatever the sizes and degrees.
REFUSED: Cases = (
    ("scale(x, s)", "scale(x, replicate[k](s))", {}),
    ("scale(x, s)", "combine[2, k](scale(partition[2, k](x), s))", {}),
    ("scale(reduce[k](x), s)", "reduce[k](scale(x, s))", {}),
    ("conv(x, w)", "conv(replicate[k](x), w)", IMAGE),
    ("conv(x, w)", "combine[1, k](conv(partition[1, k](x), w))", IMAGE),
    ("matmul(x, y)", "matmul(replicate[k](x), y)", {}),
    ("batch-matmul(x, y)", "combine[2, k](batch-matmul(partition[2, k](x), y))", BATCH),
    ("gather(x, i)", "combine[1, k](gather(x, partition[1, k](i)))", ROWS),
    ("gather(x, i)", "gather(replicate[k](x), i)", ROWS),
    ("expand[1](u, x)", "combine[1, k](expand[1](u, partition[1, k](x)))", {}),
    ("avgpool[2, 2](x)", "combine[3, k](avgpool[2, 2](partition[3, k](x)))", IMAGE),
)


def seen(made: Rule, enough: int, tries: int = 300) -> list[str]:
    """How JAX sees the sides differ, on each of `enough` inputs that the source takes."""
    return [found.difference for found in islice(tried(made, random.Random(3), tries), enough)]


@pytest.mark.parametrize(("left", "right", "ranks"), PRODUCT)
def test_a_split_op_is_the_op_where_its_parts_are_whole(
    left: str, right: str, ranks: Mapping[str, int]
) -> None:
    made = rule(left, right, ranks)
    found = judge(made)
    assert found.verdict == "proved-with-condition", found
    assert "divides size" in found.condition
    if found.counterexample is not None:  # a case outside of the condition
        assert reproduces(made, found.counterexample)
    assert "" in seen(made, 4)


@pytest.mark.parametrize(("left", "right", "ranks"), COPIES)
def test_ops_of_copies_and_partial_sums_are_proved(
    left: str, right: str, ranks: Mapping[str, int]
) -> None:
    for a, b in ((left, right), (right, left)):
        found = judge(rule(a, b, ranks))
        assert found.accepted, (a, b, found)
        if "scale" not in left:
            assert found.verdict.startswith("proved")
            assert set(seen(rule(a, b, ranks), 2)) == {""}


@pytest.mark.parametrize(("left", "right", "ranks"), FALSE)
def test_what_drops_a_sum_or_a_copy_is_false(
    left: str, right: str, ranks: Mapping[str, int]
) -> None:
    made = rule(left, right, ranks)
    found = judge(made)
    assert found.verdict == "false", found
    assert found.counterexample is not None
    assert reproduces(made, found.counterexample)


@pytest.mark.parametrize(("left", "right", "ranks"), REFUSED)
def test_operands_on_different_devices_are_refused(
    left: str, right: str, ranks: Mapping[str, int]
) -> None:
    made = rule(left, right, ranks)
    found = judge(made)
    assert found.verdict == "ill-formed", found
    assert "never well-typed" in found.reason
    told = seen(made, 3)
    assert told
    assert all(text.startswith("refused") for text in told), told


def test_a_verdict_on_other_degrees_says_nothing_of_the_written_ones() -> None:
    """Twice is a sum of two copies; the same rule with three is false."""
    twice = rule("reduce[2](replicate[2](x))", "add(x, x)", {})
    assert judge(twice).verdict == "fixed-degree"
    assert judge(rule("reduce[3](replicate[3](x))", "add(x, x)", {})).verdict == "false"
    joined = rule("linear(partition[2, 2](concat[2](x, x)), partition[2, 2](concat[2](x, x)))",
                  "replicate[2](linear(x, x))", {})  # fmt: skip
    assert judge(joined).verdict == "unknown"  # true of 2, false of 3; the numbers say so
    assert set(seen(joined, 2, 3000)) == {""}


def test_a_target_that_drops_an_input_may_be_true() -> None:
    first = rule_of_text("r", "split[0](concat[0](x, y)).0", "x", {"x": 2, "y": 2})
    assert judge(first).verdict == "proved"
    other = rule_of_text("r", "split[0](concat[0](x, y)).0", "y", {"x": 2, "y": 2})
    assert judge(other).verdict == "false"
    free = rule_of_text("r", "relu(x)", "split[0](concat[0](relu(x), y)).0", {"x": 2, "y": 2})
    assert judge(free).verdict == "ill-formed"


def test_devices_are_numbered_as_they_hold_their_parts() -> None:
    """An input, cut and joined again, is itself for all degrees that divide it."""
    values = np.arange(2 * 4 * 6).reshape(2, 4, 6)
    for degrees in itertools.product((2,), (1, 2, 4), (1, 2, 3, 6)):
        found = placed(values, degrees, {})
        assert found.degrees == degrees
        assert (found.whole() == values).all()

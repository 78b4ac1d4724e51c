# pyright: basic
"""Alpa's all-reduce rows, compiled for CPU devices: the collectives of the plan and no others."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pytest

from costmodel import wire_bytes
from planner.emit import compile_plan, count_collectives
from tests.helpers_numerics import check_numerics
from tests.oracles.helpers import Solved
from tests.oracles.rows import ROWS, Pins

DEVICES = jax.devices()[:4]

# Columns and rows in turn over the second dimension, as Alpa has it on a grid.
GRID: Pins = [
    (f"params/{k}/kernel", "[-,y]" if k % 2 == 0 else "[y,-]") for k in range(6)
] + [(f"params/{k}/bias", "[y]" if k % 2 == 0 else "[-]") for k in range(6)]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A row with the all-reduces that Alpa counts in its compiled program."""

    row: str
    all_reduces: int
    pins: Pins = ()
    recipe: str = ""


CASES = (
    Case("4.1 MLP-6 data parallel 4x1", 1),
    Case("4.1 MLP-6 data parallel 1x4", 1),
    Case("4.1 MLP-6 model parallel 4x1", 5),
    Case("4.1 MLP-6 model parallel 1x4", 5),
    Case("4.1 MLP-6 2-D 2x2", 6, GRID, "megatron"),
    Case("4.2 BERT model parallel 4x1", 7),
    Case("4.5 two micro-batches 4x1", 1),
)


def solve(case: Case) -> Solved:
    row = next(row for row in ROWS if str(row) == case.row)
    return replace(row, pins=case.pins, recipe=case.recipe).solve()


def arguments(found: Solved) -> Any:
    """Arguments with data: normal floats, ones elsewhere, a key."""
    rng = np.random.default_rng(0)

    def make(x: Any) -> Any:
        if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        if np.issubdtype(x.dtype, np.floating):
            # Second moments must not be negative.
            return np.abs(rng.normal(size=x.shape) / 8).astype(x.dtype)
        return np.ones(x.shape, x.dtype)

    return jax.tree.unflatten(found.traced.in_tree, [make(x) for x in found.traced.args_info])[0]


def cases(*usual: str) -> list[Any]:
    """All cases, of which those named are always run."""
    return [
        pytest.param(case, marks=[] if case.row in usual else [pytest.mark.exhaustive], id=case.row)
        for case in CASES
    ]


FEW = ("4.1 MLP-6 data parallel 4x1", "4.1 MLP-6 model parallel 4x1", "4.1 MLP-6 2-D 2x2",
       "4.5 two micro-batches 4x1")  # fmt: skip


@functools.lru_cache(maxsize=1)
def solved(case: str) -> Solved:
    return solve(next(c for c in CASES if c.row == case))


@pytest.mark.parametrize("case", cases("4.2 BERT model parallel 4x1", *FEW))
def test_compiled_collectives_are_those_of_the_plan(case: Case) -> None:
    found = solved(case.row)
    planned = compile_plan(found.traced, found.plan, devices=DEVICES)
    text = planned.lower(*arguments(found)).compile().as_text()
    compiled = count_collectives(text, devices=len(DEVICES))
    sent: defaultdict[str, float] = defaultdict(float)
    for item in compiled:
        kind: Any = item.kind  # one that is no kind of ours is an error there
        sent[kind] += wire_bytes(kind, item.group_size, item.bytes) * item.count
    expected: defaultdict[str, float] = defaultdict(float)
    for row in found.account.collectives:
        expected[row.kind] += row.bytes
    assert sent == pytest.approx(expected)
    assert sum(c.count for c in compiled if c.kind == "all-reduce") == case.all_reduces


@pytest.mark.parametrize("case", cases(*FEW))
def test_the_compiled_step_computes_what_one_device_does(case: Case) -> None:
    found = solved(case.row)
    report = check_numerics(found.traced, found.plan, arguments(found), DEVICES, rtol=1e-4)
    assert report.ok, str(report)

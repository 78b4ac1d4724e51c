# pyright: basic
"""What Alpa's tests expect of a plan, against ours at Alpa's prices."""

from __future__ import annotations

import functools

import pytest

from tests.helpers_exhaustive import usual
from tests.oracles.helpers import Solved
from tests.oracles.rows import ROWS, Row

BY_NAME = {str(row): row for row in ROWS}


@functools.cache
def solved(name: str) -> Solved:
    return BY_NAME[name].solve()


def test_rows_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(ROWS)


# Devices along the other dimension are the same but for its links.
ALIKE = [row for row in ROWS if row.mesh == (1, 4) and f"{row.section} {row.name} 4x1" in BY_NAME]
FIRST = [row for row in ROWS if row not in ALIKE]


@pytest.mark.parametrize("row", usual(ROWS, FIRST), ids=str)
def test_the_plan_is_no_dearer_than_expected(row: Row) -> None:
    found, expected = solved(str(row)), row.expected(row.step(), row)
    cost = found.solution.cost
    assert cost <= expected * (1 + row.tolerance) + 1e-9
    if row.same_space:
        assert cost == pytest.approx(expected, rel=row.tolerance, abs=1e-9)
    assert found.solution.bound <= cost * (1 + 1e-9)
    assert found.account.step_s == pytest.approx(cost, rel=1e-9)
    if cost == pytest.approx(expected, rel=row.tolerance) and row.reductions is not None:
        assert found.all_reduces == row.reductions
        assert found.counts().get("all-to-all", 0) == row.moves


def of(name: str, mesh: str = "4x1") -> Solved:
    return solved(f"{name} {mesh}")


@pytest.mark.parametrize("mesh", usual(["4x1", "1x4"], ["4x1"]))
@pytest.mark.parametrize(
    "name", ["4.1 MLP-6 data parallel", "4.2 BERT data parallel", "4.2 BERT MLM data parallel"]
)
def test_data_parallel_keeps_parameters_whole_and_only_reduces(name: str, mesh: str) -> None:
    found = of(name, mesh)
    assert set(found.counts()) == {"all-reduce"}
    for item, state in zip(found.traced.graph.inputs, found.plan.arguments, strict=True):
        assert item.role != "parameter" or state.is_replicated


@pytest.mark.parametrize("mesh", usual(["4x1", "1x4"], ["4x1"]))
def test_kernels_of_an_mlp_alternate_between_columns_and_rows(mesh: str) -> None:
    found = of("4.1 MLP-6 model parallel", mesh)
    kernels = [found.sharding(f"params/{k}/kernel") for k in range(6)]
    assert kernels == ["[-,x]", "[x,-]"] * 3


@pytest.mark.parametrize("mesh", usual(["4x1", "1x4"], ["4x1"]))
def test_megatron_is_recovered_from_bert(mesh: str) -> None:
    found = of("4.2 BERT model parallel", mesh)
    for layer in range(2):
        head = f"params/{layer}"
        assert found.sharding(f"{head}/attention/qkv/kernel") == "[-,x]"
        assert found.sharding(f"{head}/attention/out/kernel") == "[x,-]"
        assert found.sharding(f"{head}/up/kernel") == "[-,x]"
        assert found.sharding(f"{head}/down/kernel") == "[x,-]"


@pytest.mark.parametrize("mesh", usual(["4x1", "1x4"], ["4x1"]))
def test_experts_are_split_and_the_rest_of_the_layer_is_not(mesh: str) -> None:
    found = of("4.3 MoE layer", mesh)
    assert found.sharding("params/up") == "[x,-,-]"
    assert found.sharding("params/down") == "[x,-,-]"
    for name in ("gate", "attention/qkv/kernel", "attention/out/kernel"):
        assert found.sharding(f"params/{name}") == "[-,-]"


def test_sharded_state_needs_no_all_reduce() -> None:
    found = of("4.1 MLP-6 data parallel, sharded state")
    assert set(found.counts()) == {"all-gather", "reduce-scatter"}
    for item, state in zip(found.traced.graph.inputs, found.plan.arguments, strict=True):
        if item.role == "optimizer-state" and item.type.rank:
            assert not state.is_replicated


def test_sharded_parameters_need_no_all_reduce() -> None:
    found = of("4.1 MLP-6 ZeRO-3")
    assert set(found.counts()) == {"all-gather", "reduce-scatter"}
    for item, state in zip(found.traced.graph.inputs, found.plan.arguments, strict=True):
        if item.role in ("parameter", "optimizer-state") and item.type.rank:
            assert not state.is_replicated


def test_accumulated_gradients_are_reduced_once() -> None:
    found = of("4.5 two micro-batches")
    assert found.counts() == {"all-reduce": 5}  # two kernels, two biases, the loss

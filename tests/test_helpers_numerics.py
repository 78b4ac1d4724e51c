# pyright: basic
"""The numerical check tells the truth, also of programs that XLA gets wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir import parse_sharding, replicated
from ir.analysis.decisions import Decisions
from ir.trace import Traced, trace
from planner.emit import compile_plan
from tests.helpers_numerics import check_numerics
from tests.planner.emit.models import floats
from tests.planner.emit.plans import CUBE, lowered

X, E = floats(8, 16, 64), floats(128, 64)


def head(x, e):
    logits = x @ e.T
    return jnp.einsum("btv,vd->btd", jnp.tanh(logits), e)


def known_bad() -> tuple[Traced, Decisions]:
    """States under which jaxlib 0.10.2's partitioner computes wrong numbers."""
    traced = trace(head, X, E)
    graph = traced.graph
    (transposed,) = (
        graph.values_of(i)[0] for i, n in enumerate(graph.nodes) if n.op == "transpose"
    )
    (result,) = graph.outputs
    states = {
        ((), 0): parse_sharding("[b,-,-]"),
        ((), 1): parse_sharding("[a,-]"),
        ((), transposed): parse_sharding("[b,a]"),
        ((), result): parse_sharding("[a,c*b,-]"),
    }
    roles = {(i,): ("", "", "") for i in range(len(graph.nodes))}
    inputs = (states[((), 0)], states[((), 1)])
    return traced, Decisions(CUBE, roles, states, inputs, (states[((), result)],))


def test_manual_emission_of_the_known_bad_states_is_right() -> None:
    traced, decisions = known_bad()
    report = check_numerics(traced, lowered(traced, decisions), (X, E), rtol=1e-5)
    assert report.ok, str(report)


def test_report_on_constraints_is_truthful() -> None:
    """Whatever this version of XLA makes of the constraints, the report says it."""
    traced, decisions = known_bad()
    report = check_numerics(traced, lowered(traced, decisions), (X, E), emission="constraints")
    planned = compile_plan(traced, lowered(traced, decisions), emission="constraints")
    found, expected = np.asarray(planned(X, E)), np.asarray(jax.jit(head)(X, E))
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert report.max_rel == pytest.approx(error, rel=0.05, abs=1e-6)
    assert report.ok == (error <= 1e-4)
    if error > 1e-2:  # as with jaxlib 0.10.2, where it is above 1
        assert report.worst is not None
        assert f"{report.max_rel:.3g} relative" in str(report)


def test_exact_types_must_be_equal() -> None:
    traced = trace(lambda n: (n + 1, n > 2), np.arange(8, dtype=np.int32))
    whole = replicated(1)
    graph = traced.graph
    roles = {(i,): ("", "", "") for i in range(len(graph.nodes))}
    values = {((), v): whole for v in range(len(graph.types))}
    decisions = Decisions(CUBE, roles, values, (whole,), (whole, whole))
    args = (np.arange(8, dtype=np.int32),)
    report = check_numerics(traced, lowered(traced, decisions), args)
    assert report.ok
    assert all(output.exact for output in report.outputs)
    assert report.worst is not None
    assert "2 outputs, 0 beyond" in str(report)

# pyright: basic
"""Predicted and scheduled exposed seconds, matched by the names of reshards."""

from __future__ import annotations

import functools
import re

import optax
import pytest

from planner import Plan, plan, verify
from planner.emit import compilers
from planner.emit.hlo import collective_instructions
from planner.emit.scheduled.overlap import Played, Schedule
from planner.result.verify.scheduled import Overlap, compare_overlap
from tests.planner.programs import BATCH, PARAMS, mean_loss


@functools.cache
def trained() -> Plan:
    return plan(mean_loss, PARAMS, BATCH, optimizer=optax.adam(1e-3), cluster="8xh100", mesh=(8,),
                baseline="fsdp")  # fmt: skip


def as_predicted(*, named: bool = True, worse: float = 0.0) -> list[Played]:
    """A schedule that has every collective of the plan and exposes what the plan predicts.

    Args:
        named: collectives have the names of their reshards.
        worse: seconds that the dearest one exposes beyond that.
    """
    p = trained()
    account, reshards = p.analysed.account, p.analysed.decided.plan.reshards
    found: list[Played] = []
    for n, reshard in enumerate(reshards):
        for step in reshard.change.steps:
            if step.collective is not None:
                found.append(
                    Played(f"c{n}", step.collective, p.mesh.product(step.axes), 4,
                           (n,) if named else (), "", account.seconds[n], 1.0, 0.0,
                           account.exposed[n])
                )  # fmt: skip
    dearest = max(found, key=lambda c: c.seconds)
    dearest.exposed_s += worse
    return found


def compared(collectives: list[Played]) -> Overlap:
    p = trained()
    analysed, schedule = p.analysed, Schedule(p.analysed.account.compute_s, tuple(collectives))
    return compare_overlap(
        analysed.account, analysed.decided.plan.reshards, p.mesh, schedule, p.step_s
    )


def test_a_schedule_as_predicted_has_no_notes() -> None:
    found = compared(as_predicted())
    assert found.notes == ()
    assert found.scheduled_exposed_s == pytest.approx(found.predicted_exposed_s)
    for c in found.collectives:
        assert c.predicted_exposed_s == pytest.approx(c.scheduled_exposed_s)
        assert c.causes
    for w in found.windows:
        assert w.predicted_exposed_s == pytest.approx(w.scheduled_exposed_s)


def test_what_is_not_hidden_is_named_and_the_reverse() -> None:
    step_s = trained().step_s
    (worse,) = compared(as_predicted(worse=step_s)).notes
    assert re.match(r"[a-z-]+ over 8 for .* \(c\d+\): predicted to expose", worse)
    assert "the schedule exposes" in worse
    hidden = as_predicted()
    for c in hidden:
        c.exposed_s = 0.0
    notes = compared(hidden).notes
    assert all("hides more than predicted" in note for note in notes)


@pytest.mark.parametrize("named", [True, False])
def test_nothing_predicted_is_lost(named: bool) -> None:
    """Reshards whose names were lost are divided among collectives of their kind and group."""
    found = compared(as_predicted(named=named))
    total = sum(c.predicted_exposed_s for c in found.collectives)
    assert total == pytest.approx(found.predicted_exposed_s)
    assert sum(w.scheduled_exposed_s for w in found.windows) == pytest.approx(
        found.scheduled_exposed_s
    )


def test_compiled_collectives_name_their_reshards() -> None:
    p = trained()
    checked = verify(p, compiler="host")
    assert checked.overlap is None  # a CPU runs one after the other
    reshards = p.analysed.decided.plan.reshards
    found = collective_instructions(checked.compiled.text, devices=8)
    named = [
        (item, [reshards[int(n)] for n in re.findall(r"reshard(\d+)", item.op_name)])
        for item in found
    ]
    assert sum(bool(mine) for _, mine in named) > len(found) / 2
    for item, mine in named:
        kinds = {step.collective for reshard in mine for step in reshard.change.steps}
        # CPUs have no reduce-scatter
        assert not mine or kinds & {item.collective.kind, "reduce-scatter"}


@pytest.mark.slow
@pytest.mark.skipif(not compilers.has_plugin(), reason="needs meshwright[gpu-aot]")
def test_the_gpu_compilers_schedule() -> None:
    p = trained()
    found = verify(p, compiler="gpu-aot").overlap
    assert found is not None
    assert found.predicted_exposed_s == pytest.approx(p.program.exposed_s)
    assert found.scheduled_exposed_s <= found.scheduled_communication_s
    assert all(c.causes for c in found.collectives if c.bytes > 1024)
    for c in found.collectives:
        more = c.scheduled_exposed_s - c.predicted_exposed_s
        assert c.note or more <= max(0.1 * c.seconds, 1e-3 * p.step_s)

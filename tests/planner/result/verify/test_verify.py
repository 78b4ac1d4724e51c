# pyright: basic
"""Predictions held against the compilers; what differs is explained or fails."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import msgspec
import optax
import pytest
from jax import lax

from costmodel import CollectiveModel, ReshardModel, parse_cluster, wire_bytes
from ir import Mesh, TensorType, parse_sharding
from planner import Collective, Plan, PlanError, plan, verify
from planner.emit import compilers
from planner.emit.gpu_targets import GPU_TARGETS
from planner.emit.hlo import HloCollective, HloInstruction
from planner.emit.row_exchange import noted
from planner.emit.run import Written
from planner.files.plan_file import one_stage
from planner.result.verify.collectives import Row, compare_collectives
from profiles import CollectiveKind
from tests.planner.programs import BATCH, PARAMS, mean_loss, slow_machine, struct

MESH = Mesh((("x", 8),))
TYPE = TensorType((64, 32), "float32")
FULL = 64 * 32 * 4


@functools.cache
def trained(baseline: str | None) -> Plan:
    return plan(mean_loss, PARAMS, BATCH, optimizer=optax.adam(1e-3), cluster=slow_machine(),
                mesh=(8,), baseline=baseline)  # fmt: skip


# --- compiled for CPU devices --------------------------------------------------------------------


@pytest.mark.parametrize("baseline", [None, "data-parallel", "fsdp", "megatron"])
def test_a_training_step_is_verified(baseline: str | None) -> None:
    p = trained(baseline)
    checked = verify(p, compiler="host")
    assert checked.ok, str(checked)
    assert checked.unexplained_bytes == 0
    assert sum(row.predicted_bytes for row in checked.collectives) > 0
    assert sum(c.bytes for c in p.collectives) == pytest.approx(
        sum(row.predicted_bytes for row in checked.collectives)
    )


def test_argument_bytes_are_exact() -> None:
    checked = verify(trained("fsdp"), compiler="host")
    # the compiler holds scalars, such as the step count, too
    assert checked.compiled.argument_bytes == pytest.approx(
        checked.predicted_argument_bytes, abs=64
    )


def test_loops_and_branches_count_as_the_plan_has_them() -> None:
    def stacked(x, ws):
        def body(h, w):
            return jnp.tanh(h @ w), None

        for_all, _ = lax.scan(body, x, ws)
        return for_all

    p = plan(stacked, struct(16, 64), struct(5, 64, 64), cluster=slow_machine(), mesh=(8,),
             baselines=False, pins=(("ws", "[-,x,-]"), ("x", "[-,-]")))  # fmt: skip
    checked = verify(p, compiler="host")
    assert checked.ok, str(checked)
    assert any(row.compiled_count >= 5 or row.note for row in checked.collectives)


def test_more_devices_than_this_process_has() -> None:
    def product(a, b):
        return a @ b

    p = plan(product, struct(256, 256), struct(256, 256), cluster="64xh100", mesh=(64,),
             baselines=False, pins=(("a", "[-,x]"), ("b", "[x,-]")))  # fmt: skip
    (row,) = verify(p, compiler="host").collectives
    assert (row.kind, row.group_size) == ("reduce-scatter", 64)
    assert row.predicted_bytes == row.compiled_bytes == 63 / 64 * 256 * 256 * 4


def changed(p: Plan, **fields) -> Plan:
    program = msgspec.structs.replace(p.program, **fields)
    return Plan(one_stage(program, len(p.graph.nodes)), p.bound)


def test_a_wrong_prediction_fails() -> None:
    p = trained("data-parallel")
    rows = [msgspec.structs.replace(c, bytes=c.bytes * 2) for c in p.program.collectives]
    checked = verify(changed(p, collectives=tuple(rows)), compiler="host")
    assert not checked.ok
    assert checked.unexplained_bytes > 0
    assert any("others than the plan says" in row.note for row in checked.collectives)


def test_a_collective_that_is_not_in_the_plan_fails() -> None:
    p = trained("fsdp")
    kept = tuple(c for c in p.program.collectives if c.kind != "all-gather")
    assert len(kept) < len(p.program.collectives)
    assert not verify(changed(p, collectives=kept), compiler="host").ok


def test_a_partitioner_that_chooses_otherwise_is_found_out() -> None:
    """From one grid to its transpose there are several ways; the partitioner has its own."""

    def added(x, y):
        return jnp.tanh(x) * 2 + y

    p = plan(added, struct(512, 512), struct(512, 512), cluster="8xh100", mesh=(4, 2),
             baselines=False, pins=(("x", "[x,y]"), ("y", "[y,x]")))  # fmt: skip
    assert verify(p, compiler="host").ok
    loose = verify(changed(p, emission="constraints"), compiler="host")
    assert not loose.ok
    assert any("unplanned: made for" in row.note for row in loose.collectives)


# --- compilers that are not here ---------------------------------------------------------------


def test_without_the_plugin_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "PLUGINS", ("no_such_plugin",))
    p = plan(jnp.tanh, struct(8, 8), cluster="8xh100", baselines=False)
    with pytest.raises(PlanError, match=r"meshwright\[gpu-aot\]") as error:
        verify(p, compiler="gpu-aot")
    assert error.value.kind == "no-compiler"
    assert verify(p).compiler == "host"


def test_a_plugin_that_does_not_start_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("built for another version\nwith details")

    monkeypatch.setattr(compilers, "has_plugin", lambda: True)
    monkeypatch.setattr(compilers.topologies, "get_topology_desc", broken)
    p = plan(jnp.tanh, struct(8, 8), cluster="8xh100", baselines=False)
    with pytest.raises(PlanError, match=r"does not start: built for another version; ") as error:
        verify(p, compiler="gpu-aot")
    assert error.value.kind == "no-compiler"
    assert "--compiler host" in str(error.value.remedy)


def test_a_compiler_that_gives_up_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lowered:
        def compile(self) -> None:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no registers left\nmore")

    monkeypatch.setattr(compilers.CompiledPlan, "lower_as_planned", lambda _: Lowered())
    p = plan(jnp.tanh, struct(8, 8), cluster="8xhost", baselines=False)
    with pytest.raises(PlanError, match=r"gives up: RESOURCE_EXHAUSTED: no registers left; ") as e:
        verify(p, compiler="host")
    assert e.value.kind == "no-compiler"
    assert e.value.remedy


@pytest.mark.parametrize(
    ("compiler", "kind", "text"),
    [
        ("tpu", "bad-option", "use one of host, gpu-aot, gpu"),
        ("gpu", "no-compiler", "needs 8 GPUs, JAX has 0"),
        ("gpu-aot", "no-compiler", "not known, only of a100, b200"),
    ],
)
def test_compilers_that_cannot(compiler: str, kind: str, text: str) -> None:
    p = plan(jnp.tanh, struct(8, 8), cluster="8xv100-16gb", baselines=False)
    with pytest.raises(PlanError, match=text) as error:
        verify(p, compiler=compiler)
    assert error.value.kind == kind


def test_a_plan_without_its_function_says_so() -> None:
    p = plan(jnp.tanh, struct(8, 8), cluster="8xh100", baselines=False)
    with pytest.raises(PlanError) as error:
        verify(Plan(p.file), compiler="host")
    assert error.value.kind == "not-bound"


@pytest.mark.slow
@pytest.mark.skipif(not compilers.has_plugin(), reason="needs meshwright[gpu-aot]")
@pytest.mark.parametrize("gpu", sorted(GPU_TARGETS))
def test_the_gpu_compiler_agrees(gpu: str) -> None:
    p = plan(mean_loss, PARAMS, BATCH, optimizer=optax.adam(1e-3), cluster=f"8x{gpu}", mesh=(8,),
             baseline="fsdp")  # fmt: skip
    checked = verify(p, compiler="gpu-aot")
    assert checked.ok, str(checked)
    assert checked.compiler == verify(p).compiler == "gpu-aot"


# --- explanations, by hand ---------------------------------------------------------------------


def written(before: str, after: str, count: float = 1.0) -> list[Written]:
    machine = parse_cluster("8xh100")
    model = ReshardModel(machine, MESH, CollectiveModel(machine))
    start, end = (parse_sharding(s) for s in (before, after))
    return [Written(step, TYPE, count) for step in model.path(TYPE, start, end)]


def planned(kind: CollectiveKind, count: float = 1.0) -> list[Collective]:
    sent = wire_bytes(kind, 8, FULL) * count
    return [Collective(kind, ("x",), 8, sent, count, 0.0, "a test", 0.0)]


def compiled(kind: str, size: int, count: float = 1.0, **more) -> HloInstruction:
    facts = {"tensors": 1, "promoted": False, "op_name": "jit(f)/dot_general"} | more
    return HloInstruction(HloCollective(kind, 8, size, count), **facts)


def rows(
    said: Sequence[Collective], put: Sequence[Written] | None, found: Sequence[HloInstruction]
) -> dict[str, Row]:
    return {row.kind: row for row in compare_collectives(said, put, MESH, found)}


SCATTER = written("[-,-]+sum(x)", "[x,-]")
REDUCE = written("[-,-]+sum(x)", "[-,-]")
GATHER = written("[x,-]", "[-,-]")


def test_equal_rows_have_no_note() -> None:
    (row,) = rows(planned("all-gather"), GATHER, [compiled("all-gather", FULL)]).values()
    assert (row.unexplained_bytes, row.note) == (0, "")


def test_combined_collectives() -> None:
    found = rows(planned("all-gather", 3), written("[x,-]", "[-,-]", 3),
                 [compiled("all-gather", 3 * FULL)])  # fmt: skip
    assert found["all-gather"].note == "combined by the compiler"


def test_sixteen_bits_are_sent_in_thirty_two_by_cpus() -> None:
    """Exactly twice the bytes are explained, for 16-bit numbers and that compiler only."""
    half, sent = TensorType(TYPE.shape, "bfloat16"), wire_bytes("all-gather", 8, FULL / 2)
    put = [dataclasses.replace(GATHER[0], type=half)]
    said = [Collective("all-gather", ("x",), 8, sent, 1.0, 0.0, "a test", 0.0)]
    found = [compiled("all-gather", FULL)]  # 32 bits
    (cpu,) = compare_collectives(said, put, MESH, found, widens=True)
    (gpu,) = compare_collectives(said, put, MESH, found)
    assert (cpu.unexplained_bytes, gpu.unexplained_bytes) == (0.0, sent)
    assert "32 bits" in cpu.note


def test_rows_are_sent_in_blocks_by_cpus() -> None:
    """Three rows between eight devices are one for each there, and three elsewhere."""
    full = 3 * 32 * 4
    step, type_ = noted("all-to-all", ("x",), (3, 32), "float32")
    said = [Collective("all-to-all", ("x",), 8, full * 7 / 8, 1.0, 0.0, "a test", 0.0)]
    put, found = [Written(step, type_, 1.0)], [compiled("all-to-all", full * 8 // 3)]
    (cpu,) = compare_collectives(said, put, MESH, found, widens=True)
    assert (cpu.unexplained_bytes, "blocks" in cpu.note) == (0.0, True)
    (more,) = compare_collectives(said, put, MESH, [*found, *found], widens=True)
    assert more.unexplained_bytes == pytest.approx(full * 7 / 3)
    (gpu,) = compare_collectives(said, put, MESH, [compiled("ragged-all-to-all", full)])
    assert (gpu.unexplained_bytes, gpu.note) == (0.0, "")


def test_of_sums_in_thirty_two_bits_only_some_are_marked() -> None:
    half, sent = TensorType(TYPE.shape, "bfloat16"), wire_bytes("all-reduce", 8, FULL / 2)
    put = [dataclasses.replace(REDUCE[0], type=half, count=2.0)]
    said = [Collective("all-reduce", ("x",), 8, 2 * sent, 2.0, 0.0, "a test", 0.0)]
    marked, plain = (compiled("all-reduce", FULL, promoted=known) for known in (True, False))
    (row,) = compare_collectives(said, put, MESH, [marked, plain], widens=True)
    assert row.unexplained_bytes == 0.0
    (third,) = compare_collectives(said, put, MESH, [marked, plain, plain], widens=True)
    assert third.unexplained_bytes > 0.0


def test_a_reduce_scatter_as_all_reduce_and_slice() -> None:
    found = rows(planned("reduce-scatter"), SCATTER, [compiled("all-reduce", FULL)])
    assert "became all-reduce and slice" in found["reduce-scatter"].note
    assert sum(row.unexplained_bytes for row in found.values()) == 0


def test_an_all_reduce_in_two_halves() -> None:
    halves = [compiled("reduce-scatter", FULL), compiled("all-gather", FULL)]
    found = rows(planned("all-reduce"), REDUCE, halves)
    assert "became reduce-scatter and all-gather" in found["all-reduce"].note
    assert sum(row.unexplained_bytes for row in found.values()) == 0


def test_two_sums_as_one() -> None:
    """Over pairs and then over fours of devices: 1/2 and 3/4 of twice the bytes, and 7/8."""
    mesh = Mesh((("x", 2), ("y", 4)))
    machine = parse_cluster("8xh100")
    model = ReshardModel(machine, mesh, CollectiveModel(machine))
    steps = [step for one in ("x", "y") for step in model.path(
        TYPE, parse_sharding(f"[-,-]+sum({one})"), parse_sharding("[-,-]")
    )]  # fmt: skip
    put = [Written(step, TYPE, 1.0) for step in steps]
    said = [Collective("all-reduce", (axis,), n, wire_bytes("all-reduce", n, FULL), 1.0, 0.0, "", 0)
            for axis, n in (("x", 2), ("y", 4))]  # fmt: skip
    joined = compare_collectives(said, put, mesh, [compiled("all-reduce", FULL)])
    assert [row.unexplained_bytes for row in joined] == [0.0, 0.0, 0.0]
    assert joined[-1].note == "holds sums over 2 and then 4 that the compiler joined"
    twice = compare_collectives(said, put, mesh, [compiled("all-reduce", FULL)] * 2)
    assert sum(row.unexplained_bytes for row in twice) == wire_bytes("all-reduce", 8, FULL)


def test_wider_sums() -> None:
    found = rows(planned("all-reduce"), REDUCE, [compiled("all-reduce", 2 * FULL, promoted=True)])
    assert found["all-reduce"].note == "16-bit numbers summed in 32 bits by the compiler"
    assert found["all-reduce"].unexplained_bytes == 0


def test_fewer_than_written_were_left_out() -> None:
    found = rows(planned("all-gather", 4), written("[x,-]", "[-,-]", 4),
                 [compiled("all-gather", FULL)])  # fmt: skip
    assert "left out by the compiler" in found["all-gather"].note
    assert found["all-gather"].unexplained_bytes == 0


def test_more_than_written_is_unplanned_and_says_what_for() -> None:
    extra = [compiled("all-gather", FULL), compiled("all-to-all", FULL)]
    found = rows(planned("all-gather"), GATHER, extra)
    assert found["all-to-all"].note == "unplanned: made for jit(f)/dot_general"
    assert found["all-to-all"].unexplained_bytes == wire_bytes("all-to-all", 8, FULL)


def test_without_what_was_written_a_lack_is_unexplained() -> None:
    found = rows(planned("all-gather"), None, [])
    assert found["all-gather"].unexplained_bytes == wire_bytes("all-gather", 8, FULL)


def test_states_that_tests_use_are_paths_of_one_step() -> None:
    assert [item.step.kind for item in (*SCATTER, *REDUCE, *GATHER)] == [
        "reduce-scatter", "all-reduce", "all-gather",
    ]  # fmt: skip

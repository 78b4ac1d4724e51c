"""Schedules of compiled programs: instructions, prices of kernels, and what hides behind what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costmodel import INTERFERENCE, ComputeModel, parse_cluster
from planner.emit import count_collectives
from planner.emit.hlo import HloInstruction
from planner.emit.scheduled.groups import axes_of
from planner.emit.scheduled.instructions import HloProgram, Instruction, instruction
from planner.emit.scheduled.kernels import KernelPrices, dtype_name
from planner.emit.scheduled.overlap import Schedule, play

DATA = Path(__file__).parents[1] / "data"
COMPUTE = ComputeModel(parse_cluster("8xh100"))
GROUPS = "replica_groups={{0,1,2,3,4,5,6,7}}"


def an_instruction(line: str) -> Instruction:
    found = instruction(line)
    assert found is not None
    return found


def kernel_s(text: str) -> float:
    """Seconds of the root of the entry."""
    program = HloProgram("HloModule f, is_scheduled=true\n\n" + text)
    return KernelPrices(program, COMPUTE).seconds(program.entry.root, program.entry)


# --- instructions --------------------------------------------------------------------------------


def test_an_instruction_with_a_tuple_for_a_result() -> None:
    found = an_instruction(
        "  ROOT %f.1 = (f32[8,16]{1,0:T(8,128)}, /*index=1*/bf16[<=4]{0}) fusion(%a, f32[] %b.2), "
        'kind=kLoop, calls=%fused, metadata={op_name="jit(f)/while/reshard3/psum"}'
    )
    assert (found.name, found.opcode, found.operands) == ("f.1", "fusion", ("a", "b.2"))
    assert [(t.dtype, t.sizes) for t in found.results] == [("f32", (8, 16)), ("bf16", (4,))]
    assert (found.called, found.is_root, found.nbytes) == ("fused", True, 8 * 16 * 4 + 8)
    assert found.op_name.endswith("reshard3/psum")


def test_lines_without_an_instruction() -> None:
    assert instruction("}") is None
    assert instruction("ENTRY %main (a: f32[8]) -> f32[8] {") is None


@pytest.mark.parametrize(
    ("name", "numpy_name"),
    [("f32", "float32"), ("bf16", "bfloat16"), ("pred", "bool"), ("s8", "int8"), ("u32", "uint32"),
     ("c64", "complex64"), ("f8e4m3fn", "float8_e4m3fn"), ("f16", "float16")],
)  # fmt: skip
def test_names_of_types(name: str, numpy_name: str) -> None:
    assert dtype_name(name) == numpy_name


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", (1, 2)),
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", (0,)),
        ("replica_groups=[2,4]<=[8]", (1, 2)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", (0,)),
        ("replica_groups=mesh['a'=2,'b'=2,'c'=2] {'a','c'}", (0, 2)),
        ("source_target_pairs={{0,2},{2,0},{1,3},{3,1}}", (1,)),
        ("replica_groups={}", (0, 1, 2)),
    ],
)
def test_axes_along_which_groups_lie(groups: str, axes: tuple[int, ...]) -> None:
    assert axes_of(f"%r = f32[8] all-reduce(%x), {groups}, to_apply=%add", (2, 2, 2)) == axes


# --- prices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mask", "window", "share"), [
    ("NO_MASK", 0, 1.0), ("CAUSAL", 0, 0.5), ("CAUSAL", 128, 128 / 4096),
])  # fmt: skip
def test_attention_is_priced_by_the_sizes_and_the_mask_of_its_call(
    mask: str, window: int, share: float
) -> None:
    config = (
        '{"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"element_type": "BF16", '
        f'"dimensions": ["2", "32", "4096", "4096"]}}, "mask_type": "{mask}", '
        f'"sliding_window_length": {window}}}}}'
    )
    text = """
ENTRY %main (q: bf16[2,4096,32,128], k: bf16[2,4096,8,128]) -> bf16[2,32,4096,128] {
  %q = bf16[2,4096,32,128]{3,2,1,0} parameter(0)
  %k = bf16[2,4096,8,128]{3,2,1,0} parameter(1)
  ROOT %a = (bf16[2,32,4096,128]{3,1,2,0}, f32[2,32,4096]{2,1,0}) custom-call(%q, %k, %k), {at}
}
""".replace("{at}", f'custom_call_target="__cudnn$fmhaSoftmax", backend_config={config}')
    expected = COMPUTE.attention_s(64, 16, share * 4096 * 4096, 4096, 128, "bfloat16")
    assert kernel_s(text) == pytest.approx(float(expected), rel=0.05)
    back = text.replace("fmhaSoftmax", "fmhaSoftmaxBackward")
    assert kernel_s(back) > 2.0 * kernel_s(text)


def test_a_product_costs_what_the_plan_says() -> None:
    text = """%gemm (a: bf16[4,512,256], b: bf16[4,256,1024]) -> bf16[4,512,1024] {
  %a = bf16[4,512,256]{2,1,0} parameter(0)
  %b = bf16[4,256,1024]{2,1,0} parameter(1)
  ROOT %dot = bf16[4,512,1024]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, \
rhs_batch_dims={0}, rhs_contracting_dims={1}
}

ENTRY %main (a: bf16[4,512,256], b: bf16[4,256,1024]) -> bf16[4,512,1024] {
  %a = bf16[4,512,256]{2,1,0} parameter(0)
  %b = bf16[4,256,1024]{2,1,0} parameter(1)
  ROOT %f = bf16[4,512,1024]{2,1,0} fusion(%a, %b), kind=kCustom, calls=%gemm
}
"""
    assert kernel_s(text) == pytest.approx(COMPUTE.gemm_s(4, 512, 1024, 256, "bfloat16"))


def test_a_product_of_the_gpu_library() -> None:
    text = """ENTRY %main (a: f32[512,256], b: f32[1024,256]) -> f32[512,1024] {
  %a = f32[512,256]{1,0} parameter(0)
  %b = f32[1024,256]{1,0} parameter(1)
  ROOT %f = (f32[512,1024]{1,0}, s8[4194304]{0}) custom-call(%a, %b), \
custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":\
{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"]}}}
}
"""
    moved = float(COMPUTE.memory_s(4 * (512 * 256 + 1024 * 256 + 512 * 1024)))
    product = float(COMPUTE.gemm_s(1, 512, 1024, 256, "float32"))
    assert kernel_s(text) == pytest.approx(max(product, moved))


def test_a_fusion_moves_the_part_that_it_slices_or_updates() -> None:
    text = """%fused (s: f32[24,1024,1024], n: s32[], x: f32[24,1024,1024]) -> f32[24,1024,1024] {
  %s = f32[24,1024,1024]{2,1,0} parameter(0)
  %n = s32[] parameter(1)
  %x = f32[24,1024,1024]{2,1,0} parameter(2)
  %zero = s32[] constant(0)
  %cut = f32[1,1024,1024]{2,1,0} dynamic-slice(%x, %n, %zero, %zero)
  ROOT %put = f32[24,1024,1024]{2,1,0} dynamic-update-slice(%s, %cut, %n, %zero, %zero)
}

ENTRY %main (s: f32[24,1024,1024], n: s32[], x: f32[24,1024,1024]) -> f32[24,1024,1024] {
  %s = f32[24,1024,1024]{2,1,0} parameter(0)
  %n = s32[] parameter(1)
  %x = f32[24,1024,1024]{2,1,0} parameter(2)
  ROOT %f = f32[24,1024,1024]{2,1,0} fusion(%s, %n, %x), kind=kLoop, calls=%fused
}
"""
    part = 1024 * 1024 * 4
    assert kernel_s(text) == pytest.approx(
        float(COMPUTE.memory_s(2 * part + 4)) + COMPUTE.launch_s, rel=1e-6
    )


# --- played --------------------------------------------------------------------------------------

SENT_S = 1e-3


def a_millisecond(_: str, __: HloInstruction) -> float:
    return SENT_S


def played(body: str, *, loop: bool = False) -> Schedule:
    """Plays a body, five times if in a loop, with collectives of a millisecond."""
    entry = f"ENTRY %main (p: bf16[4096,4096]) -> bf16[8] {{\n{body}\n}}\n"
    if loop:
        entry = f"""%body (p: bf16[4096,4096]) -> bf16[8] {{
{body}
}}

ENTRY %main (q: bf16[4096,4096]) -> bf16[8] {{
  %q = bf16[4096,4096] parameter(0)
  %w = bf16[8] while(%q), condition=%no, body=%body, \
backend_config={{"known_trip_count":{{"n":"5"}}}}
}}
"""
    program = HloProgram("HloModule f, is_scheduled=true\n\n" + entry)
    kernels = KernelPrices(program, COMPUTE)

    return play(program, kernels, a_millisecond, devices=8)


PARAMETER = "  %p = bf16[4096,4096]{1,0} parameter(0)"


def started(name: str) -> str:
    return f"  %{name} = (bf16[1], bf16[8]) all-gather-start(%p), {GROUPS}, dimensions={{0}}"


def ended(name: str) -> str:
    return f"  %{name}-done = bf16[8] all-gather-done(%{name})"


def product(name: str) -> str:
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    return f"  %{name} = bf16[4096,4096] dot(%p, %p), {dims}"


def products(count: int) -> str:
    return "\n".join(product(f"dot.{n}") for n in range(count))


PRODUCT_S = float(COMPUTE.gemm_s(1, 4096, 4096, 4096, "bfloat16"))


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 8])
def test_what_the_compute_in_between_does_not_hide_is_exposed(count: int, loop: bool) -> None:
    lines = [PARAMETER, started("g"), products(count), ended("g")]
    found = played("\n".join(lines), loop=loop)
    (gather,) = found.collectives
    runs = 5 if loop else 1
    hidden = min(SENT_S, INTERFERENCE * count * PRODUCT_S)
    assert gather.runs == runs
    assert gather.beside_s == pytest.approx(count * PRODUCT_S)
    assert gather.exposed_s == pytest.approx(runs * (SENT_S - hidden / INTERFERENCE))
    assert found.compute_s == pytest.approx(runs * count * PRODUCT_S)
    assert gather.in_loop == ("w" if loop else "")


def test_the_link_carries_one_collective_at_a_time() -> None:
    lines = [PARAMETER, started("g"), started("h"), products(8), ended("h"), ended("g")]
    found = played("\n".join(lines))
    assert 8 * PRODUCT_S * INTERFERENCE < 2 * SENT_S  # the second one is not hidden whole
    expected = 2 * SENT_S - 8 * PRODUCT_S
    assert found.exposed_s == pytest.approx(expected)
    first, second = found.collectives
    assert first.exposed_s == pytest.approx(SENT_S - SENT_S / INTERFERENCE)
    assert second.exposed_s > first.exposed_s


def test_a_collective_without_a_start_waits() -> None:
    gather = f"  %g = bf16[8] all-gather(%p), {GROUPS}, dimensions={{0}}"
    found = played("\n".join([PARAMETER, gather, products(2)]))
    assert found.exposed_s == pytest.approx(SENT_S)


STEP_S = 2e-6


def random_events(rng: np.random.Generator) -> list[tuple[str, str]]:
    """Starts, ends and products in a random order in which every collective ends."""
    events, running = list[tuple[str, str]](), list[str]()
    for n in range(12):
        act = str(rng.choice(["start", "end", "product"]))
        if act == "start":
            running.append(f"g{n}")
            events.append((act, f"g{n}"))
        elif act == "end" and running:
            events.append((act, running.pop(int(rng.integers(len(running))))))
        else:
            events.append(("product", f"dot.{n}"))
    return events + [("end", name) for name in running]


def simulated_exposed_s(events: list[tuple[str, str]]) -> float:
    """Elapsed seconds less those of products, in small steps.

    Compute advances by 1/i of the time in which the link is busy, else with it.
    """
    elapsed = work = 0.0
    left: dict[str, float] = {}

    def tick() -> bool:
        busy = next((name for name, s in left.items() if s > 0.0), None)
        if busy is not None:
            left[busy] -= STEP_S
        return busy is not None

    for act, name in events:
        if act == "start":
            left[name] = SENT_S
        todo = PRODUCT_S if act == "product" else 0.0
        work += todo
        while todo > 0.0 or (act == "end" and left[name] > 0.0):
            todo -= STEP_S / INTERFERENCE if tick() else STEP_S
            elapsed += STEP_S
    return elapsed - work


def test_random_schedules_agree_with_a_simulation_in_small_steps() -> None:
    rng = np.random.default_rng(3)
    line = {"start": started, "end": ended, "product": product}
    for _ in range(25):
        events = random_events(rng)
        body = "\n".join([PARAMETER, *(line[act](name) for act, name in events)])
        expected = simulated_exposed_s(events)
        assert played(body).exposed_s == pytest.approx(expected, abs=3 * STEP_S * len(events))


def test_every_collective_of_a_compiled_program_is_played() -> None:
    text = (DATA / "compiled_gpu.hlo").read_text(encoding="utf-8")
    program = HloProgram(text)
    found = play(program, KernelPrices(program, COMPUTE), a_millisecond, devices=8)
    counted = count_collectives(text, devices=8)
    assert sum(c.runs for c in found.collectives) == sum(c.count for c in counted)
    assert {(c.kind, c.bytes) for c in found.collectives} == {(c.kind, c.bytes) for c in counted}
    assert program.is_scheduled

"""Counting collectives in compiled text: forms seen on CPU, GPU and TPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.emit import HloCollective, count_collectives
from planner.emit.hlo import collective_instructions
from planner.emit.hlo_groups import group_size

DATA = Path(__file__).parent / "data"


def read(name: str) -> str:
    return (DATA / f"{name}.hlo").read_text(encoding="utf-8")


# What one program puts on the wire, compiled by jaxlib 0.10.2 for eight CPU devices and for eight
# H100: shards of 8x16 and 8x8 f32 gathered over 4, a 32x16 bf16 reduced over 2 and scattered over
# 8, an all-to-all, a ring, and a sum over 4 in a loop of five.
BOTH = {
    HloCollective("all-reduce", 4, 8 * 16 * 4, 5),
    HloCollective("all-to-all", 4, 8 * 16 * 4, 1),
    HloCollective("collective-permute", 8, 8 * 16 * 4, 1),
}


def test_a_program_compiled_for_cpu() -> None:
    found = count_collectives(read("compiled_cpu"), devices=8)
    assert set(found) == BOTH | {
        HloCollective("all-gather", 4, 32 * 16 * 4, 1),
        HloCollective("all-gather", 4, 32 * 8 * 4, 1),
        HloCollective("all-reduce", 2, 32 * 16 * 4, 1),  # 16-bit sums in 32 bits
        HloCollective("reduce-scatter", 8, 32 * 16 * 4, 1),
    }


def test_a_program_compiled_for_gpus() -> None:
    found = count_collectives(read("compiled_gpu"), devices=8)
    assert set(found) == BOTH | {
        HloCollective("all-gather", 4, 32 * 16 * 4 + 32 * 8 * 4, 1),  # combined
        HloCollective("all-reduce", 2, 32 * 16 * 2, 1),
        HloCollective("reduce-scatter", 8, 32 * 16 * 2, 1),
    }


def test_instructions_say_what_they_are_for() -> None:
    cpu = collective_instructions(read("compiled_cpu"), devices=8)
    promoted = {i.op_name.rpartition("/")[2] for i in cpu if i.promoted}
    assert promoted == {"psum", "reduce_scatter"}
    (gather,) = (
        i for i in collective_instructions(read("compiled_gpu"), devices=8)
        if i.collective.kind == "all-gather"
    )  # fmt: skip
    assert (gather.tensors, gather.promoted) == (2, False)
    assert gather.op_name == "jit(f)/shard_map/all_gather"


def test_loops_multiply_and_metadata_does_not_count() -> None:
    assert count_collectives(read("loops")) == (
        HloCollective("all-gather", 4, 512, 15),
        HloCollective("all-reduce", 2, 256, 5),
        HloCollective("all-to-all", 2, 256, 1),
        HloCollective("collective-permute", 2, 128, 1),
        HloCollective("reduce-scatter", 4, 1024, 1),
    )


def test_loops_of_unknown_length_count_as_often_as_asked() -> None:
    found = count_collectives(read("loops"), unknown_trips=8)
    assert HloCollective("collective-permute", 2, 128, 8) in found
    assert HloCollective("all-gather", 4, 512, 15) in found


def test_each_branch_counts_its_share() -> None:
    text = """HloModule f

%one (x: f32[8]) -> f32[8] {
  ROOT %r = f32[8]{0} all-reduce(%x), replica_groups={}, to_apply=%add
}

%two (x: f32[8]) -> f32[8] {
  ROOT %x = f32[8]{0} parameter(0)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  ROOT %c = f32[8]{0} conditional(%i, %x, %x), branch_computations={%one, %two}
}
"""
    assert count_collectives(text, devices=8) == (HloCollective("all-reduce", 8, 32, 0.5),)


def test_asynchronous_forms_count_once() -> None:
    assert count_collectives(read("asynchronous"), devices=8) == (
        HloCollective("all-gather", 4, 64, 1),
        HloCollective("all-reduce", 8, 35, 1),
        HloCollective("collective-permute", 4, 32, 1),
        HloCollective("reduce-scatter", 4, 32, 1),
        HloCollective("reduce-scatter", 4, 96, 1),
    )


@pytest.mark.parametrize("text", ["", "HloModule empty\n\nENTRY %main () -> f32[] {\n}\n"])
def test_no_collectives(text: str) -> None:
    assert count_collectives(text) == ()


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", 4),
        ("replica_groups={{0,1,2},{3}}", 3),
        ("replica_groups={}", 16),
        ("replica_groups=[2,4]<=[8]", 4),
        ("replica_groups=[4,2]<=[2,2,2]T(0,2,1)", 2),
        ("replica_groups=mesh['x'=8] {'x'}", 8),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", 4),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", 8),
        ("replica_groups=mesh['a'=2,'b'=8] {'a','b':(2)2}", 4),
        ("replica_groups=mesh['a'=2,'b'=8]", 16),
        ("source_target_pairs={{0,1},{1,0},{2,3},{3,2}}", 2),
        ("source_target_pairs={{0,1},{1,2},{2,3}}", 4),
        ("", 16),
    ],
)
def test_groups_in_every_form(groups: str, size: int) -> None:
    line = f"  %r = f32[8]{{0}} all-reduce(%x), channel_id=1, {groups}, to_apply=%add"
    assert group_size(line, 16) == size


def test_other_kinds_send_what_their_kin_send() -> None:
    assert HloCollective("ragged-all-to-all", 4, 400, 1).wire_bytes == 300
    assert HloCollective("collective-broadcast", 4, 400, 1).wire_bytes == 400
    assert HloCollective("all-reduce", 4, 400, 1).wire_bytes == 600

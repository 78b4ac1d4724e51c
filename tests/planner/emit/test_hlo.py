"""Counting collectives in compiled text: forms seen on CPU, GPU and TPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.emit import HloCollective, count_collectives

DATA = Path(__file__).parent / "data"

CPU = (DATA / "loops.hlo").read_text(encoding="utf-8")
GPU = (DATA / "asynchronous.hlo").read_text(encoding="utf-8")


def test_loops_multiply_and_metadata_does_not_count() -> None:
    assert count_collectives(CPU) == (
        HloCollective("all-gather", 4, 512, 15),
        HloCollective("all-reduce", 2, 256, 5),
        HloCollective("all-to-all", 2, 256, 1),
        HloCollective("collective-permute", 2, 128, 1),
        HloCollective("reduce-scatter", 4, 1024, 1),
    )


def test_asynchronous_forms_count_once() -> None:
    assert count_collectives(GPU, devices=8) == (
        HloCollective("all-gather", 4, 64, 1),
        HloCollective("all-reduce", 8, 35, 1),
        HloCollective("collective-permute", 4, 32, 1),
        HloCollective("reduce-scatter", 4, 32, 1),
        HloCollective("reduce-scatter", 4, 96, 1),
    )


@pytest.mark.parametrize("text", ["", "HloModule empty\n\nENTRY %main () -> f32[] {\n}\n"])
def test_no_collectives(text: str) -> None:
    assert count_collectives(text) == ()

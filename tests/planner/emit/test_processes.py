"""Pipelines over processes: two with groups of one and of both; four with a stage each."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .pipelines import RUN

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 480
JOIN = """
import runpy, sys, jax
module, address, count, number = (sys.argv.pop(1) for _ in range(4))
jax.distributed.initialize(address, int(count), int(number))
runpy.run_module(f"tests.planner.emit.{module}", run_name="__main__")
"""
ENVIRONMENT = {
    "XLA_FLAGS": re.sub(r"--xla_force_host_platform_device_count=\d+", "",
                        os.environ["XLA_FLAGS"]),
    "PYTHONPATH": str(ROOT),
    "JAX_PLATFORMS": "cpu",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", "JAX_CPU_ENABLE_ASYNC_DISPATCH": "false",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["4,4", pytest.param("2,6", marks=pytest.mark.exhaustive)])
def test_two_processes_compute_the_unsharded_step(sizes: str):
    assert_equal_on("two_processes", 2, sizes, "1f1b")


@pytest.mark.slow
def test_values_that_wait_on_the_host_stay_with_their_process():
    assert_equal_on("two_processes", 2, "4,4", "1f1b", "hosted")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("sizes", ["4,4", "2,2,2,2"])
def test_four_processes_compute_the_unsharded_step_under_every_schedule(sizes: str):
    """Two stages over two processes each, and four of one each; tensors are split inside."""
    assert_equal_on("two_processes", 4, sizes, ",".join(RUN))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_one_program_of_four_processes_computes_the_unsharded_step():
    assert_equal_on("four_processes", 4)


def assert_equal_on(module: str, count: int, *arguments: str) -> None:
    """Processes of eight devices together run a module of this folder; all say that it is equal."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    cases = len(arguments[1].split(",")) if arguments else 1
    own = ENVIRONMENT | {"JAX_NUM_CPU_DEVICES": str(8 // count)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN, module, address, str(count), str(n), *arguments],
            cwd=ROOT, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )
        for n in range(count)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for n, (process, text) in enumerate(zip(started, said, strict=True)):
        assert process.returncode == 0, text[-2000:]
        said_equal = re.findall(rf"process {n}: .*\d+ shards equal the unsharded step", text)
        assert len(said_equal) == cases, text[-2000:]

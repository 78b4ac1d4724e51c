"""A pipeline over two processes, with groups of one process and of both."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 300
JOIN = """
import runpy, sys, jax
jax.distributed.initialize(sys.argv.pop(1), 2, int(sys.argv.pop(1)))
runpy.run_module("tests.planner.emit.two_processes", run_name="__main__")
"""
ENVIRONMENT = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0", "PYTHONPATH": str(ROOT),
    "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", "JAX_CPU_ENABLE_ASYNC_DISPATCH": "false",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["4,4", pytest.param("2,6", marks=pytest.mark.exhaustive)])
def test_two_processes_compute_the_unsharded_step(sizes: str):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN, address, str(n), sizes], cwd=ROOT,
            env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )
        for n in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for n, (process, text) in enumerate(zip(started, said, strict=True)):
        assert process.returncode == 0, text[-2000:]
        assert f"process {n}: " in text
        assert "shards equal the unsharded step" in text

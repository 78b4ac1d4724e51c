"""A plan runs on two processes of four devices each, as it does on one with eight."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.distributed
@pytest.mark.slow
def test_plan_over_two_processes() -> None:
    port = str(free_port())
    flags = re.sub(r"(device_count)=\d+", r"\1=4", os.environ["XLA_FLAGS"])
    env = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.worker", str(process), port],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=180)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for process, (worker, output) in enumerate(zip(workers, outputs, strict=True)):
        assert worker.returncode == 0, output
        assert f"process {process} agrees" in output

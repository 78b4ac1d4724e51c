"""The program as a process: clean standard output, signals, closed pipes, terminals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.planner.cli.runner import TARGETS

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = (sys.executable, "-m", "planner.cli")

NOISY = """
import os, subprocess, sys
from step import sgd

def noisy():
    print("python")
    os.write(1, b"descriptor\\n")
    subprocess.run([sys.executable, "-c", "print('child')"], check=True)
    return sgd()

def waits():
    open("waiting", "w").close()
    import time
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "step.py").write_text(TARGETS, encoding="utf-8")
    (tmp_path / "noisy.py").write_text(NOISY, encoding="utf-8")
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | more


def started(folder: Path, *args: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *args],
        cwd=folder,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_standard_output_holds_the_answer_and_nothing_else(folder: Path) -> None:
    done = started(folder, "plan", "noisy.py:noisy", "-c", "2xh100", "--no-baselines", "--json")
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0
    assert json.loads(out)["fits"] is True
    assert len(out.splitlines()) == 1
    for word in ("python", "descriptor", "child"):
        assert word in err
    assert "\x1b" not in err


def test_an_interrupt_is_one_line(folder: Path) -> None:
    process = started(folder, "plan", "noisy.py:waits", "-c", "2xh100", "--json")
    for _ in range(600):
        if (folder / "waiting").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["error"]["kind"] == "interrupted"
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PROGRAM, "clusters"],
        cwd=folder,
        env=environment(),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(folder: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [*PROGRAM, "version"],
            cwd=folder,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: OSError")


TERMINAL = """
    import fcntl, os, pty, struct, sys, termios

    pid, fd = pty.fork()
    if pid == 0:
        size = struct.pack("HHHH", 24, 40, 0, 0)
        fcntl.ioctl(1, termios.TIOCSWINSZ, size)
        os.execv(sys.argv[1], sys.argv[1:])
    out = b""
    try:
        while data := os.read(fd, 65536):
            out += data
    except OSError:
        pass
    sys.stdout.write(out.decode())
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_terminal_of_40_columns_gets_colour_and_no_cut_cells(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TERMINAL), *PROGRAM, "clusters"],
        cwd=folder,
        env=environment(TERM="xterm"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b[1mh100" in done.stdout
    assert "network: infiniband-ndr 50.00 GB/s" in done.stdout


def test_a_gpu_cluster_is_planned_without_a_gpu_on_a_dumb_terminal(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TERMINAL), *PROGRAM, "plan", "step.py:sgd",
         "-c", "2xh100", "--no-baselines"],
        cwd=folder,
        env=environment(TERM="dumb", JAX_PLATFORMS="cuda"),
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("Plan for train_step on 2xh100")


def test_the_process_ends_without_looking_for_cycles_among_all_objects(folder: Path) -> None:
    program = (
        "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 10_000));"
        "from planner.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "version"], cwd=folder, env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"

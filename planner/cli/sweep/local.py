"""Rows planned by processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WORKER = "planner.cli.sweep.worker"
ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def local_rows(tasks: Sequence[Row], jobs: int) -> Generator[Iterator[tuple[int, Row]]]:
    """Number and row of each task as they are done; leaving ends all processes.

    Args:
        tasks: what to plan.
        jobs: processes at once.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Row]] = queue.SimpleQueue()
    for number in range(len(tasks)):
        waiting.put(number)
    workers = [_Worker() for _ in range(min(jobs, len(tasks)))]
    over = threading.Event()

    def serve(worker: _Worker) -> None:
        with contextlib.suppress(queue.Empty):
            while not over.is_set():
                number = waiting.get_nowait()
                done.put((number, worker.row(tasks[number])))

    threads = [threading.Thread(target=serve, args=(w,), daemon=True) for w in workers]
    try:
        for thread in threads:
            thread.start()
        yield (done.get() for _ in tasks)
    finally:
        over.set()
        for worker in workers:
            worker.end()
        for thread in threads:
            thread.join()


class _Worker:
    """A process that is started when it is first needed, and again when it has died."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.lock = threading.Lock()
        self.ended = False

    def row(self, task: Row) -> Row:
        """Plans a task."""
        process = self._started()
        if process is None:
            return _failed(task, "interrupted")
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        with contextlib.suppress(OSError, ValueError):
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if line:
            return json.loads(line)
        status = process.wait()
        return _failed(task, f"the process that planned it ended with status {status}")

    def _started(self) -> subprocess.Popen[str] | None:
        with self.lock:
            if self.ended:
                return None
            if self.process is None or self.process.poll() is not None:
                self._close()
                paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
                self.process = subprocess.Popen(
                    [sys.executable, "-m", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                )  # fmt: skip
            return self.process

    def end(self) -> None:
        """Ends the process, whatever it is at."""
        with self.lock:
            self.ended = True
            if self.process is not None:
                self.process.kill()
                self.process.wait()
                self._close()

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout) if self.process else ():
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _failed(task: Row, message: str) -> Row:
    error = {"kind": "worker", "message": message, "where": "", "remedy": "run it again"}
    return {**task["values"], "fits": False, "error": error, "status": 2}

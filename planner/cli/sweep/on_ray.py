"""Rows planned by the processes of a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from ...common.errors import PlanError
from .row import plan_row

Row = dict[str, Any]


@contextlib.contextmanager
def ray_rows(tasks: Sequence[Row], address: str) -> Generator[Iterator[tuple[int, Row]]]:
    """Number and row of each task as they are done; leaving gives up those that are not.

    Args:
        tasks: what to plan.
        address: of a cluster that runs, such as `auto`, `10.0.0.1:6379` or `ray://head:10001`.

    Raises:
        PlanError: if Ray is not installed or does not answer at the address.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise PlanError(
            "needs Ray, which is not installed", kind="missing-library", where="--ray",
            remedy="pip install 'meshwright[ray]', or leave it out to use this machine",
        ) from error  # fmt: skip
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise PlanError(
            f"no Ray cluster answers at '{address}': {' '.join(str(error).split())[:200]}",
            kind="no-ray", where="--ray", remedy="start one with `ray start --head`",
        ) from error  # fmt: skip
    try:
        remote = ray.remote(num_cpus=1, max_retries=1)(plan_row)
        numbers = {remote.remote(task): k for k, task in enumerate(tasks)}
        yield _done(ray, numbers, tasks)
    finally:
        ray.shutdown()


def _done(ray: Any, numbers: dict[Any, int], tasks: Sequence[Row]) -> Iterator[tuple[int, Row]]:
    left = list(numbers)
    while left:
        (ready, *_), left = ray.wait(left, num_returns=1)
        number = numbers[ready]
        try:
            yield number, ray.get(ready)
        except ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            failure = {"kind": "worker", "message": lines[-1] if lines else type(error).__name__,
                       "where": "", "remedy": "run it again"}  # fmt: skip
            row = {**tasks[number]["values"], "fits": False, "error": failure, "status": 2}
            yield number, row

"""How far predicted steps were off, where published measurements could be compared."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel import Cluster

from ..common.units_text import seconds_text

SOURCE = "benchmarks/results/2026-11-27/published.json (`python -m benchmarks published`)"


@dataclass(frozen=True, slots=True)
class Compared:
    """Predicted seconds over published seconds of steps on one kind of device.

    steps: number of steps.
    low, median, high: 10th, 50th and 90th percentile.
    """

    steps: int
    low: float
    median: float
    high: float


# Device -> comparison; held against the file in SOURCE by tests/planner/inspect/test_accuracy.py.
COMPARED: dict[str, Compared] = {
    "a100": Compared(59, 0.85, 0.97, 1.03),
    "b200": Compared(3, 1.01, 1.01, 1.02),
    "gb200": Compared(3, 0.94, 0.97, 0.99),
    "gb300": Compared(2, 1.11, 1.13, 1.14),
    "h100": Compared(89, 0.92, 0.99, 1.07),
    "h100-hbm2e": Compared(8, 0.78, 0.84, 0.89),
    "v100-16gb": Compared(19, 0.76, 0.89, 0.97),
}


def accuracy_text(cluster: Cluster, step_s: float) -> str:
    """One sentence on predictions for the device of a cluster, and what a step may take when run.

    Args:
        cluster: where the step runs.
        step_s: its predicted time [s].
    """
    device = cluster.device.name
    found = COMPARED.get(device)
    if found is None:
        kind = {"published": "published peak", "assumed": "assumed"}.get(cluster.device.evidence)
        tables = cluster.gemm or cluster.collectives or cluster.ops
        basis = f"from {kind} figures, not measured: " if kind and not tables else ""
        return f"{basis}no published step on {device} was compared with a prediction"
    return (
        f"{found.steps} published steps on {device} were predicted at {found.median:.2f} times the "
        f"measured time in the median, {found.low:.2f} to {found.high:.2f} in eight of ten: by "
        f"these, {seconds_text(step_s)} may be {seconds_text(step_s / found.high)} to "
        f"{seconds_text(step_s / found.low)} when run"
    )

"""What a planner answers, as numbers and as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage: layer indices, devices, degrees, recomputation, peak memory of a device."""

    nodes: tuple[int, ...]
    devices: int
    data_parallel: int
    tensor_parallel: int
    recompute: str
    peak_bytes: float
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan and its cost, or why there is none.

    exact: whether no plan is better under the convention, of all the convention can express.
    needed_bytes: least memory with which something fits, where nothing does.
    notes: sentences on what was left out or left over.
    """

    planner: str
    convention: str
    feasible: bool
    seconds_per_sample: float | None
    step_s: float | None
    stages: tuple[StageReport, ...]
    schedule: str
    microbatches: int | None
    search_s: float
    exact: bool = False
    needed_bytes: float | None = None
    memory_bytes: float | None = None
    layers: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def data(self) -> dict[str, Any]:
        """The contract of `meshwright pipeline --json`."""
        return {
            "planner": self.planner,
            "feasible": self.feasible,
            "seconds_per_sample": self.seconds_per_sample,
            "step_s": self.step_s,
            "stages": [
                {
                    "nodes": list(stage.nodes),
                    "devices": stage.devices,
                    "data_parallel": stage.data_parallel,
                    "tensor_parallel": stage.tensor_parallel,
                    "recompute": stage.recompute,
                    "peak_bytes": int(stage.peak_bytes),
                    "shares": list(stage.shares),
                }
                for stage in self.stages
            ],
            "schedule": self.schedule,
            "microbatches": self.microbatches,
            "convention": self.convention,
            "search_s": self.search_s,
            "exact": self.exact,
            "needed_bytes": self.needed_bytes,
            "memory_bytes": self.memory_bytes,
            "layers": list(self.layers),
            "notes": list(self.notes),
        }

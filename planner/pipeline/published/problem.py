"""What is planned, and what comes out: `Problem`, `Stage`, `PipelinePlan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...common.errors import PlanError
from .graph import LayerGraph
from .machine import Machine


@dataclass(frozen=True, slots=True)
class Problem:
    """Layers, devices and a batch.

    graphs: profile of each device kind that the machine has.
    batch: samples of a training step.
    microbatches: parts of it that go through the pipeline one after another.
    """

    graphs: Mapping[str, LayerGraph]
    machine: Machine
    batch: int
    microbatches: int

    def __post_init__(self) -> None:
        if self.microbatches < 1 or self.batch < 1 or self.batch % self.microbatches:
            raise PlanError(
                f"a batch of {self.batch} cannot be cut into {self.microbatches} equal "
                "micro-batches", kind="bad-option", where="--microbatches",
                remedy="choose a divisor of the batch",
            )  # fmt: skip
        for host in self.machine.hosts:
            if host.kind not in self.graphs:
                raise PlanError(
                    f"no profile of device kind '{host.kind}'; there are "
                    f"{', '.join(map(repr, sorted(self.graphs)))}", kind="bad-option",
                    where="--hosts", remedy="name a kind that was measured",
                )  # fmt: skip

    @property
    def graph(self) -> LayerGraph:
        """The profile of the first device kind; layers and edges are the same in all."""
        return self.graphs[self.machine.hosts[0].kind]

    @property
    def degrees(self) -> tuple[int, ...]:
        """Tensor-parallel degrees measured on every device kind of the machine."""
        kinds = {host.kind for host in self.machine.hosts}
        found = [self.graphs[kind].degrees() for kind in kinds]
        return tuple(d for d in self.graph.degrees() if all(d in each for each in found))

    @property
    def scale(self) -> float:
        """Samples of a micro-batch over samples of the profile."""
        return self.batch / self.microbatches / self.graph.batch


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers that the same devices run.

    nodes: indices of layers in the graph, ascending.
    first: index of its first device in the machine's order.
    recompute: per layer, `none` or `full`.
    """

    nodes: tuple[int, ...]
    first: int
    data_parallel: int
    tensor_parallel: int
    recompute: tuple[str, ...]

    @property
    def devices(self) -> int:
        """How many it takes."""
        return self.data_parallel * self.tensor_parallel

    @property
    def recompute_kind(self) -> str:
        """`none`, `full`, or `selective` where some layers differ from others."""
        kinds = set(self.recompute)
        return kinds.pop() if len(kinds) == 1 else "selective"


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Stages, first to last.

    machine: the problem's, its hosts perhaps in another order.
    exact: whether no plan of the space searched is better under the convention searched for.
    """

    stages: tuple[Stage, ...]
    machine: Machine
    microbatches: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Priced:
    """A plan's cost under a convention.

    shares: per stage, what each replica takes of a micro-batch.
    excess_bytes: by how much the worst device is over its memory; 0 or below fits.
    against: which rule of the convention the plan breaks, if any.
    """

    step_s: float
    seconds_per_sample: float
    peak_bytes: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]
    excess_bytes: float
    against: str = ""

    @property
    def fits(self) -> bool:
        """Whether every device has the memory it needs, and the convention allows the plan."""
        return self.excess_bytes <= 0 and not self.against

"""Placement of the chunks of a pipeline: the device of each, and how data flows among them.

A *device* of a schedule is a stage's whole sub-mesh. A *chunk* (virtual stage) is a part of the
model on one device. Chunks that hold the same part of the model are *copies* of one stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, final

from ...common.errors import PlanError

MOST_CHUNKS = 100_000


def _bad(message: str, remedy: str) -> PlanError:
    return PlanError(message, kind="bad-schedule", where="placement", remedy=remedy)


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """Assignment of chunks to devices.

    devices: number of devices.
    device: device of each chunk.
    stage: part of the model that each chunk holds, from 0 in model order; copies share it.
    edges: (from, to) pairs of chunks between which activations flow forward.
    routes: sets of chunks, each sorted; a micro-batch visits those of one route.
    """

    devices: int
    device: tuple[int, ...]
    stage: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    routes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        count = len(self.device)
        if not 1 <= count <= MOST_CHUNKS or self.devices < 1:
            raise _bad(f"has {count} chunks on {self.devices} devices", "give at least one of each")
        if len(self.stage) != count:
            raise _bad(f"names {len(self.stage)} stages for {count} chunks", "give one for each")
        for chunk, device in enumerate(self.device):
            if not 0 <= device < self.devices:
                raise _bad(
                    f"chunk {chunk} is on device {device}, there are {self.devices}",
                    "number devices from 0",
                )
        if set(self.stage) != set(range(max(self.stage) + 1)):
            raise _bad(
                f"stages are {sorted(set(self.stage))}", "number stages from 0, without gaps"
            )
        for edge in self.edges:
            if len(edge) != 2 or any(not 0 <= chunk < count for chunk in edge):
                raise _bad(f"edge {edge} joins no two of {count} chunks", "number chunks from 0")
        self._check_routes()

    def _check_routes(self) -> None:
        visited = {chunk for route in self.routes for chunk in route}
        if visited != set(range(len(self.device))):
            raise _bad(f"routes visit chunks {sorted(visited)}", "visit every chunk in some route")
        if any(list(route) != sorted(set(route)) for route in self.routes):
            raise _bad("a route is not a sorted set of chunks", "sort it, each chunk once")
        flow: TopologicalSorter[int] = TopologicalSorter()
        for before, after in self.edges:
            flow.add(after, before)
        try:
            flow.prepare()
        except CycleError as error:
            raise _bad(
                f"data would flow in a circle through chunks {error.args[1]}", "cut the circle"
            ) from error

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.device)

    @property
    def stages(self) -> int:
        """Number of parts that the model is cut into."""
        return max(self.stage) + 1

    def chunks_on(self, device: int) -> tuple[int, ...]:
        """Chunks of one device."""
        return tuple(c for c, where in enumerate(self.device) if where == device)

    def copies(self, chunk: int) -> tuple[int, ...]:
        """Chunks of the same stage, itself included."""
        return tuple(c for c, stage in enumerate(self.stage) if stage == self.stage[chunk])


class Turns(NamedTuple):
    """How the stages of a pipeline take turns on groups of devices.

    chunks: stages on each group.
    back: whether every second row of stages goes back from the last group to the first, as in a V.
    """

    chunks: int = 1
    back: bool = False

    def group(self, stages: int) -> tuple[int, ...]:
        """Group of each stage."""
        row = range(stages // self.chunks)
        rows = [row[::-1] if self.back and k % 2 else row for k in range(self.chunks)]
        return tuple(g for each in rows for g in each)


ONE_EACH = Turns()  # each stage has a group of its own


def along(devices: int, device: Sequence[int]) -> Placement:
    """One chain of chunks, chunk c on `device[c]`."""
    chunks = range(len(device))
    edges = tuple((c, c + 1) for c in chunks[:-1])
    return Placement(devices, tuple(device), tuple(chunks), edges, (tuple(chunks),))


def chain(devices: int) -> Placement:
    """One chunk on each device, in order."""
    return along(devices, range(devices))


def looped(devices: int, chunks: int) -> Placement:
    """`chunks` on each device: chunk c on device c mod devices."""
    return along(devices, [c % devices for c in range(devices * chunks)])


def v_shape(devices: int) -> Placement:
    """Two chunks on each device, down the devices and back up."""
    return along(devices, [*range(devices), *reversed(range(devices))])


def bidirectional(devices: int, pairs: int = 1) -> Placement:
    """2 * pairs copies of the chain, half of them in opposite direction.

    Pair k puts stage s of its downward copy on device (s + k * devices / pairs) mod devices and
    stage s of its upward copy on the mirror of that device.

    Source: Li and Hoefler, Chimera, SC 2021, section 3.
    """
    if pairs < 1 or devices % (2 * pairs):
        raise PlanError(
            f"{devices} devices cannot hold {pairs} pairs of opposite pipelines",
            kind="bad-schedule", where="placement",
            remedy="use a number of devices that 2 * pairs divides",
        )  # fmt: skip
    device: list[int] = []
    for k in range(pairs):
        down = [(s + k * (devices // pairs)) % devices for s in range(devices)]
        device += [*down, *(devices - 1 - d for d in down)]
    copies = range(2 * pairs)
    edges = tuple(
        (r * devices + s, r * devices + s + 1) for r in copies for s in range(devices - 1)
    )
    routes = tuple(tuple(range(r * devices, (r + 1) * devices)) for r in copies)
    return Placement(devices, tuple(device), tuple(range(devices)) * len(copies), edges, routes)

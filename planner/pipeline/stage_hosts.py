"""What of a stage waits in the memory of the host between its forward and its backward pass.

A stage that begins F micro-batches before the first comes back holds F copies of what it keeps; of
a stack of a loop over layers that waits on the host, or of the values of layers that are written
out, it holds none on the device. Copies of a stack run beside the loop that makes it, and beside
the loop that reads it; those of layers that are written out beside the forward pass, and beside the
backward pass. Of values of b bytes each, beside C seconds,

    exposed = max(0, seconds of copying sum b - C)        once in each direction

orders the choices that may fit; those that are planned have the prices of `host_copies.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from costmodel import Cluster
from ir.analysis import Place

from ..sharding.host_limit import host_limit_of
from ..sharding.recompute.frontier import SecondsOf
from ..sharding.recompute.hosted import stacked_values
from ..sharding.recompute.hosted_written import behind_the_first, written_classes
from ..sharding.recompute.saved import Key
from ..sharding.recompute.variants import Variant
from .cut.forward_backward import Split, split
from .cut.replaced import late_inputs
from .cut.stage_gradient import Joint

BUFFERS = 2  # layers of what waits on the host that are on a device at once
EVERY_SET_OF = 6  # kinds of values, of which every set is looked at; of more the largest, in order


@dataclass(frozen=True)
class Recomputation:
    """A choice of what a stage computes again, everything else on its devices.

    seconds: of its nodes; work_s: of all of them, of one micro-batch.
    """

    variant: Variant
    seconds: SecondsOf
    work_s: float


@dataclass(frozen=True)
class Waiting:
    """Values that may wait on the host together: a stack, or those of layers alike written out.

    nbytes: of all of them, of all devices together; layer_bytes: of one layer.
    beside: what their copies there run beside, and those back: by place its seconds.
    """

    keys: tuple[Key, ...]
    nbytes: float
    layer_bytes: float
    beside: tuple[tuple[Place, float], tuple[Place, float]]


@dataclass(frozen=True)
class HostedWay:
    """Values of a choice that wait on the host.

    least_s: least seconds of a micro-batch, with the copies that nothing hides.
    here_bytes: of all micro-batches in flight, of all devices together: what stays, and the two
        layers of all else that are on their way.
    host_bytes: of what goes, of a micro-batch.
    """

    work: Recomputation
    keys: tuple[Key, ...]
    least_s: float
    here_bytes: float
    host_bytes: float


def waiting_values(work: Recomputation, joint: Joint) -> list[Waiting]:
    """What of a choice may wait on the host, the most bytes first.

    Of layers that are written out, the values that the backward pass reads first stay: there is
    nothing that their copies could run beside.

    Args:
        work: the choice.
        joint: the stage.
    """
    program, seconds = work.variant.traced.program, work.seconds
    late = late_inputs(joint, work.variant.traced)
    found = [
        Waiting(
            (one.key,), one.nbytes, one.slice_bytes,
            ((one.key[0][:-1], seconds(one.key[0][:-1])), (one.reader, seconds(one.reader))),
        )
        for one in stacked_values(program)
    ]  # fmt: skip
    gives, sent = len(joint.gives), len(joint.outgoing)
    outputs = program.graph.outputs
    parts = split(
        program, outputs[:gives], outputs[gives : gives + sent], outputs[gives + sent :], late
    )
    saved = {v for v in parts.saved if v not in outputs[:gives]}
    classes = behind_the_first(written_classes(program, saved, late))
    passes = _seconds_of_passes(parts, seconds)
    for one, first in classes:
        keys = tuple(((), v) for v in one.numbers)
        found.append(Waiting(keys, len(keys) * one.nbytes, first * one.nbytes, passes))
    return sorted(found, key=lambda one: (-one.nbytes, one.keys))


def _seconds_of_passes(
    parts: Split, seconds: SecondsOf
) -> tuple[tuple[Place, float], tuple[Place, float]]:
    """Seconds of the passes of a stage; their places are those of no loop."""
    first, second = (
        sum(seconds((i,)) for i in part.nodes) for part in (parts.forward, parts.backward)
    )
    return ((), first), ((-1,), second)


def hosted_ways(
    some: Iterable[tuple[Recomputation, Sequence[Waiting]]],
    flight: int,
    copy_s: Callable[[float], float],
) -> list[HostedWay]:
    """Sets of values on the host under each choice, those of the least seconds first.

    Of equal ones those with the least on the devices come first, then those that move the least.

    Args:
        some: choices of what is computed again, each with what may wait on the host.
        flight: micro-batches in flight.
        copy_s: seconds of copying an amount of all devices together [byte].
    """
    found: list[HostedWay] = []
    for work, waiting in some:
        whole = sum(one.nbytes for one in waiting)
        for away in _sets(waiting):
            moved = sum(one.nbytes for one in away)
            least_s = work.work_s + _exposed_s(away, copy_s)
            here = flight * (whole - moved) + BUFFERS * sum(one.layer_bytes for one in away)
            keys = tuple(key for one in away for key in one.keys)
            found.append(HostedWay(work, keys, least_s, here, moved))
    return sorted(found, key=lambda one: (one.least_s, one.here_bytes, one.host_bytes))


def fewer_here(ways: Iterable[HostedWay]) -> list[HostedWay]:
    """Of `hosted_ways`, those that have less on the devices than all before them."""
    front: list[HostedWay] = []
    for one in ways:
        if not front or one.here_bytes < front[-1].here_bytes:
            front.append(one)
    return front


def fewest_moved(ways: Iterable[HostedWay], one: HostedWay, more_bytes: float) -> HostedWay:
    """Of the ways that take no longer than one, that which moves the least.

    Args:
        ways: to choose from.
        one: that is among them.
        more_bytes: what may be on the devices more than with that one, of all of them together.
    """
    able = [
        way
        for way in ways
        if way.least_s <= one.least_s and way.here_bytes <= one.here_bytes + more_bytes
    ]
    return min(able, key=lambda way: (way.host_bytes, way.here_bytes))


def _sets(waiting: Sequence[Waiting]) -> Iterator[Sequence[Waiting]]:
    """Sets of values that are not empty."""
    for n in range(1, len(waiting) + 1):
        yield from combinations(waiting, n) if len(waiting) <= EVERY_SET_OF else (waiting[:n],)


def _exposed_s(away: Collection[Waiting], copy_s: Callable[[float], float]) -> float:
    """Seconds of copies that nothing hides."""
    moved: dict[Place, float] = {}
    room_s: dict[Place, float] = {}
    for one in away:
        for place, seconds in one.beside:
            moved[place] = moved.get(place, 0.0) + one.nbytes
            room_s[place] = seconds
    return sum(max(copy_s(nbytes) - room_s[place], 0.0) for place, nbytes in moved.items())


@dataclass
class HostRoom:
    """The memory of each host, which the stages on it share.

    taken: bytes by host.
    """

    machine: Cluster
    taken: dict[int, float] = field(default_factory=dict[int, float])

    def fits(self, devices: range, nbytes: float) -> bool:
        """Whether a stage's hosts have room for more of each of its devices [byte]."""
        limit = host_limit_of(self.machine) * self.machine.devices_per_host
        asked = self._by_host(devices, nbytes)
        return all(self.taken.get(host, 0.0) + more <= limit for host, more in asked.items())

    def take(self, devices: range, nbytes: float) -> None:
        """Takes as much for each device of a stage [byte]."""
        for host, more in self._by_host(devices, nbytes).items():
            self.taken[host] = self.taken.get(host, 0.0) + more

    def _by_host(self, devices: range, nbytes: float) -> dict[int, float]:
        found: dict[int, float] = {}
        for device in devices:
            host = device // self.machine.devices_per_host
            found[host] = found.get(host, 0.0) + nbytes
        return found

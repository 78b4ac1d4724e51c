"""What of a stage waits in the memory of the host between its forward and its backward pass.

A stage that begins F micro-batches before the first comes back holds F copies of what it keeps; a
stack of a loop over layers that waits on the host holds none of them on the device. Its copies run
beside the loop that makes it, and beside the loop that reads it. Of stacks of b bytes each, on a
loop of C seconds,

    exposed = max(0, seconds of copying sum b - C)        once in each direction

orders the choices that may fit; those that are planned have the prices of `host_copies.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from costmodel import Cluster

from ..sharding.host_limit import host_limit_of
from ..sharding.recompute.frontier import SecondsOf
from ..sharding.recompute.hosted import Stacked, stacked_values
from ..sharding.recompute.saved import Key
from ..sharding.recompute.variants import Variant

BUFFERS = 2  # slices of a stack on the host that are on a device at once
EVERY_SET_OF = 6  # stacks, of which every set is looked at; of more the largest, in order


@dataclass(frozen=True)
class Recomputation:
    """A choice of what a stage computes again, everything else on its devices.

    seconds: of its nodes; work_s: of all of them, of one micro-batch.
    """

    variant: Variant
    seconds: SecondsOf
    work_s: float


@dataclass(frozen=True)
class HostedWay:
    """Stacks of a choice that wait on the host.

    least_s: least seconds of a micro-batch, with the copies that nothing hides.
    here_bytes: of all micro-batches in flight, of all devices together: stacks that stay, and the
        two slices of each other one that are on its way.
    host_bytes: of the stacks that go, of a micro-batch.
    """

    work: Recomputation
    keys: tuple[Key, ...]
    least_s: float
    here_bytes: float
    host_bytes: float


def hosted_ways(
    some: Iterable[Recomputation], flight: int, copy_s: Callable[[float], float]
) -> list[HostedWay]:
    """Sets of stacks on the host under each choice, those of the least seconds first.

    Of equal ones those with the least on the devices come first, then those that move the least.

    Args:
        some: choices of what is computed again.
        flight: micro-batches in flight.
        copy_s: seconds of copying an amount of all devices together [byte].
    """
    found: list[HostedWay] = []
    for work in some:
        stacked = stacked_values(work.variant.traced.program)
        whole = sum(one.nbytes for one in stacked)
        for away in _sets(stacked):
            moved = sum(one.nbytes for one in away)
            least_s = work.work_s + _exposed_s(away, work.seconds, copy_s)
            here = flight * (whole - moved) + BUFFERS * sum(one.slice_bytes for one in away)
            found.append(HostedWay(work, tuple(one.key for one in away), least_s, here, moved))
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


def _sets(stacked: Sequence[Stacked]) -> Iterator[Sequence[Stacked]]:
    """Sets of stacks that are not empty."""
    for n in range(1, len(stacked) + 1):
        yield from combinations(stacked, n) if len(stacked) <= EVERY_SET_OF else (stacked[:n],)


def _exposed_s(
    away: Collection[Stacked], seconds: SecondsOf, copy_s: Callable[[float], float]
) -> float:
    """Seconds of copies that no compute of their loops hides."""
    moved: dict[tuple[int, ...], float] = {}
    for one in away:
        for loop in (one.key[0][:-1], one.reader):
            moved[loop] = moved.get(loop, 0.0) + one.nbytes
    return sum(max(copy_s(nbytes) - seconds(loop), 0.0) for loop, nbytes in moved.items())


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

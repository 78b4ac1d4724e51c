"""The devices a pipeline is planned for, in the order in which stages take them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...common.errors import PlanError


@dataclass(frozen=True, slots=True)
class Host:
    """Equal devices with equal links between them.

    kind: names the profile of the device; empty where a profile knows one kind only.
    memory_bytes: of one device.
    intra_bytes_per_s: between two devices of this host.
    inter_bytes_per_s: between this host and others.
    """

    devices: int
    memory_bytes: float
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    kind: str = ""

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise _bad("devices", self.devices, "at least 1")
        for name in ("memory_bytes", "intra_bytes_per_s", "inter_bytes_per_s"):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise _bad(name, value, "a number above 0")


@dataclass(frozen=True, slots=True)
class Machine:
    """Hosts in the order in which stages take their devices."""

    hosts: tuple[Host, ...]

    @property
    def devices(self) -> int:
        """Devices of all hosts."""
        return sum(host.devices for host in self.hosts)

    @property
    def is_flat(self) -> bool:
        """Whether it does not matter which devices a stage takes."""
        first = self.hosts[0]
        same = all(
            (h.memory_bytes, h.intra_bytes_per_s, h.inter_bytes_per_s, h.kind)
            == (first.memory_bytes, first.intra_bytes_per_s, first.inter_bytes_per_s, first.kind)
            for h in self.hosts
        )
        return same and (len(self.hosts) == 1 or first.intra_bytes_per_s == first.inter_bytes_per_s)

    def host_of(self, device: int) -> int:
        """Index of the host of a device."""
        for index, host in enumerate(self.hosts):
            if device < host.devices:
                return index
            device -= host.devices
        raise IndexError(f"device beyond the {self.devices} of the machine")

    def link(self, first: int, last: int) -> float:
        """Bytes per second of the slowest link among devices first..last, ends included."""
        a, b = self.host_of(first), self.host_of(last)
        if a == b:
            return self.hosts[a].intra_bytes_per_s
        return min(host.inter_bytes_per_s for host in self.hosts[a : b + 1])

    def orders(self) -> Iterator[Machine]:
        """This machine with its hosts in every order that differs, most memory first."""
        ranked = sorted(self.hosts, key=lambda h: -h.memory_bytes)
        seen: set[tuple[Host, ...]] = set()
        for order in itertools.permutations(ranked):
            if order not in seen:
                seen.add(order)
                yield Machine(order)


def flat(devices: int, *, memory_bytes: float, bandwidth_bytes_per_s: float) -> Machine:
    """Equal devices, equal links between all of them."""
    link = bandwidth_bytes_per_s
    return Machine((Host(devices, memory_bytes, link, link),))


def _bad(what: str, found: object, expected: str) -> PlanError:
    return PlanError(
        f"{what} is {found}, expected {expected}", kind="bad-machine", where="machine",
        remedy="correct the description of the machine",
    )  # fmt: skip

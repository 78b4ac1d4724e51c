"""The machine that is planned for: devices, hosts and links."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import Meta

from profiles import (
    AttentionTable,
    CollectiveTable,
    Device,
    GemmTable,
    Link,
    OpTable,
    ProfileError,
    convert,
    digest,
    load_profile,
    profile_names,
)

# Rows of the busiest of w devices that hold groups (experts) are w to this power times the mean:
# medians of fused experts under a power law of 1.01, `costmodel/grouped.py`.
IMBALANCE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of host in a mixed cluster."""

    device: Device
    num_devices: int
    devices_per_host: int
    intra_host: Link
    network: Link


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the user pays for a device while it computes; none are shipped."""

    dollars_per_device_hour: Annotated[float, Meta(ge=0.0, le=1e6)] | None = None
    watts_per_device: Annotated[float, Meta(ge=0.0, le=1e6)] | None = None
    source: str = "cluster file"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices in host-major order: device `i` is on host `i // devices_per_host`.

    In a mixed cluster `device`, `intra_host` and `network` hold the worst of each figure over
    `parts`: one mesh over all devices advances at the pace of the slowest.

    Attributes:
        domain: devices joined at the speed of `intra_host`; more than `devices_per_host` where a
            switch spans hosts.
        profile: the shipped profile the cluster was built from, or "" if it is not from one.
        parts: the groups of a mixed cluster, else empty.
        prices: what a device costs, where the user says so; plans do not depend on it.
        imbalance: how unequal groups of rows are that run on it (`IMBALANCE`); 0 if they are equal.
        loop_copies: whether loops copy slices into stacks, and carries, as XLA's do; False prices a
            program whose framework writes its layers out.
    """

    name: str
    num_devices: int
    devices_per_host: int
    domain: int
    device: Device
    intra_host: Link
    network: Link
    profile: str = ""
    collectives: CollectiveTable | None = field(default=None, hash=False, repr=False)
    gemm: GemmTable | None = field(default=None, hash=False, repr=False)
    ops: OpTable | None = field(default=None, hash=False, repr=False)
    attention: AttentionTable | None = field(default=None, hash=False, repr=False)
    parts: tuple[Part, ...] = ()
    prices: Prices | None = None
    imbalance: float = IMBALANCE
    loop_copies: bool = True

    def __post_init__(self) -> None:
        if self.num_devices < 1 or self.devices_per_host < 1 or self.domain < 1:
            raise ProfileError(
                f"devices, devices per host and domain must be at least 1, found "
                f"{self.num_devices}, {self.devices_per_host}, {self.domain}",
                where=self.name,
            )
        if self.num_devices % self.devices_per_host:
            raise ProfileError(
                f"{self.num_devices} devices do not fill hosts of {self.devices_per_host}",
                where=self.name,
                remedy="write NxDEVICE:PER_HOST with a PER_HOST that divides N",
            )

    @property
    def num_hosts(self) -> int:
        return self.num_devices // self.devices_per_host

    @property
    def has_cpus(self) -> bool:
        """Whether devices are CPUs, which compute and communicate one after the other."""
        return self.profile == "host"

    @property
    def memory_bytes(self) -> int:
        return self.device.memory_bytes

    @property
    def island(self) -> int:
        """Devices that talk over the fast link: the domain, or all devices if they are fewer."""
        return min(self.num_devices, max(self.domain, self.devices_per_host))

    @property
    def _tables(self) -> tuple[CollectiveTable | GemmTable | OpTable | AttentionTable | None, ...]:
        return (self.collectives, self.gemm, self.ops, self.attention)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits naming everything that prices depend on."""
        return digest([self.to_dict(), *(t.digest for t in self._tables if t)])

    def with_memory(self, memory_bytes: int) -> Cluster:
        """The same cluster with another memory limit per device."""
        raw = msgspec.to_builtins(self.device) | {"memory_bytes": memory_bytes}
        device = convert(raw, Device, where=f"memory of {self.name}")
        return replace(self, device=device)

    def subset(self, num_devices: int) -> Cluster:
        """The first `num_devices` devices, such as a pipeline stage gets.

        Raises:
            ProfileError: if they are neither within one host nor whole hosts.
        """
        per_host = min(self.devices_per_host, num_devices)
        return replace(self, num_devices=num_devices, devices_per_host=per_host)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for plan files; tables of shipped profiles go by name, others in full."""
        priced: dict[str, Any] = {}
        if self.prices is not None:
            priced["prices"] = msgspec.to_builtins(self.prices)
        priced |= {} if self.imbalance == IMBALANCE else {"imbalance": self.imbalance}
        priced |= {} if self.loop_copies else {"loop_copies": False}
        return priced | {
            "name": self.name,
            "num_devices": self.num_devices,
            "devices_per_host": self.devices_per_host,
            "domain": self.domain,
            "device": msgspec.to_builtins(self.device),
            "intra_host": msgspec.to_builtins(self.intra_host),
            "network": msgspec.to_builtins(self.network),
            "profile": self.profile,
            "collectives": _table_to_plain(self.collectives, self.profile, "collectives"),
            "gemm": _table_to_plain(self.gemm, self.profile, "gemm"),
            "ops": _table_to_plain(self.ops, self.profile, "ops"),
            "attention": _table_to_plain(self.attention, self.profile, "attention"),
            "parts": [msgspec.to_builtins(part) for part in self.parts],
        }

    @staticmethod
    def from_dict(raw: object, where: str = "cluster") -> Cluster:
        """Reads what `to_dict` wrote.

        Raises:
            ProfileError: if a key is unknown, missing or wrong, or a table has changed since.
        """
        plain = convert(raw, _PlainCluster, where=where)
        return Cluster(
            name=plain.name,
            num_devices=plain.num_devices,
            devices_per_host=plain.devices_per_host,
            domain=plain.domain,
            device=plain.device,
            intra_host=plain.intra_host,
            network=plain.network,
            profile=plain.profile,
            collectives=_table_from_plain(
                plain.collectives, plain.profile, "collectives", CollectiveTable, where
            ),
            gemm=_table_from_plain(plain.gemm, plain.profile, "gemm", GemmTable, where),
            ops=_table_from_plain(plain.ops, plain.profile, "ops", OpTable, where),
            attention=_table_from_plain(
                plain.attention, plain.profile, "attention", AttentionTable, where
            ),
            parts=plain.parts,
            prices=plain.prices,
            imbalance=plain.imbalance,
            loop_copies=plain.loop_copies,
        )


class _PlainCluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    num_devices: int
    devices_per_host: int
    domain: int
    device: Device
    intra_host: Link
    network: Link
    profile: str
    collectives: Any
    gemm: Any
    ops: Any
    parts: tuple[Part, ...]
    attention: Any = None
    prices: Prices | None = None
    imbalance: Annotated[float, Meta(ge=0.0, le=1.0)] = IMBALANCE
    loop_copies: bool = True


def _shipped(profile: str) -> Any:
    return load_profile(profile) if profile in profile_names() else None


def _table_to_plain(table: Any, profile: str, field_name: str) -> Any:
    if table is None:
        return None
    shipped = _shipped(profile)
    if shipped is not None and getattr(shipped, field_name) == table:
        return {"shipped": table.name, "digest": table.digest}
    return msgspec.to_builtins(table)


def _table_from_plain(raw: Any, profile: str, field_name: str, kind: Any, where: str) -> Any:
    if raw is None:
        return None
    if not isinstance(raw, dict) or "shipped" not in raw:
        return convert(cast("object", raw), kind, where=f"{where}, key `{field_name}`")
    named = cast("dict[str, Any]", raw)
    table = getattr(_shipped(profile), field_name, None)
    found = None if table is None else table.digest
    if table is None or found != named.get("digest"):
        raise ProfileError(
            f"was priced with table {named['shipped']!r} of digest {named.get('digest')}, but the "
            f"installed profile {profile!r} has {found}",
            where=f"{where}, key `{field_name}`",
            remedy="plan again with the installed profiles",
        )
    return table

"""Records of what was measured or published about machines: facts only, no formulas."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from .errors import ProfileError
from .plausible import LINKS, MEMORY, PRODUCTS, check_rates

FORMAT_VERSION = 1

# The bounds catch a wrong unit (GB/s for bytes/s, microseconds for seconds), not a slow machine.
Seconds = Annotated[float, Meta(ge=0.0, le=1.0)]
PositiveSeconds = Annotated[float, Meta(gt=0.0, le=3600.0)]
BytesPerS = Annotated[float, Meta(ge=1e6, le=1e15)]
MemoryBytes = Annotated[int, Meta(ge=1_000_000, le=10**14)]
FlopsPerS = Annotated[float, Meta(ge=1e6, le=1e19)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Size = Annotated[int, Meta(ge=1, le=2**62)]
Name = Annotated[str, Meta(min_length=1, max_length=80)]
Text = Annotated[str, Meta(min_length=1)]
SOME = Meta(min_length=1)
Date = Annotated[str, Meta(pattern=r"^\d{4}(-\d{2}){0,2}$")]
Evidence = Literal["published", "measured", "assumed"]
CollectiveKind = Literal[
    "all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"
]
OpKind = Literal[
    "attention", "convolution", "copy", "elementwise", "gather", "optimizer", "reduce", "scatter",
    "transcendental", "transpose",
]  # fmt: skip

Record = TypeVar("Record")


class HostLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The way between the memory of a device and that of its host, while all devices copy.

    `to_host_bytes_per_s` and `from_host_bytes_per_s` are of one device and one direction, from and
    to memory that the operating system does not move (pinned). `memory_bytes` is the memory of the
    host for each of its devices; None where nothing is known of it, and nothing limits it then.
    """

    name: Name
    to_host_bytes_per_s: BytesPerS
    from_host_bytes_per_s: BytesPerS
    memory_bytes: MemoryBytes | None = None
    source: Text
    date: Date


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One accelerator (or one CPU host device).

    `peak_flops` pairs a numpy dtype name with dense FLOP/s. `float32` is the vector unit;
    `tensorfloat32`, where present, is the rate of matrix products on float32 operands.
    `sustained_flops` is that of matrix products which the power limit lets last, where it is lower
    than what products reach that are timed one at a time; a dtype without it is not limited.
    `fresh_bytes_per_s` is the rate at which memory is taken from the operating system and first
    written; None where the runtime keeps its memory, as it does on GPUs.
    `host_link` is None where nothing is known of it: nothing is kept in the host's memory then.
    """

    name: Name
    memory_bytes: MemoryBytes
    memory_bandwidth_bytes_per_s: BytesPerS
    peak_flops: tuple[tuple[Name, FlopsPerS], ...]
    kernel_launch_s: Seconds
    sustained_flops: tuple[tuple[Name, FlopsPerS], ...] = ()
    fresh_bytes_per_s: BytesPerS | None = None
    host_link: HostLink | None = None
    source: Text
    date: Date
    evidence: Evidence

    def __post_init__(self) -> None:
        names = [dtype for dtype, _ in self.peak_flops]
        if "float32" not in names or len(set(names)) != len(names):
            raise ValueError(f"`peak_flops` must name float32 and no dtype twice, found {names}")

    def peak(self, dtype: str) -> float | None:
        """Dense FLOP/s of `dtype`, or None where the sources give none."""
        return dict(self.peak_flops).get(dtype)

    def sustained(self, dtype: str) -> float | None:
        """FLOP/s of products of `dtype` under the power limit, or None where it limits none."""
        return dict(self.sustained_flops).get(dtype)


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A way out of a device.

    `bandwidth_bytes_per_s` is what one device sends in one direction while it is alone on the
    link; `shared_by_devices` devices divide it between them when all of them send. `cube_devices`
    says that so many devices are wired to each other as a hypercube, without a switch, so that a
    smaller group reaches only the wires between its members; 1 where a switch joins them.
    `mesh_devices` says the same of a full mesh, with a wire between every two of so many devices.
    `torus_axes` says that devices are wired to their neighbours on so many axes, two wires on each,
    whose ends are joined where an axis has at least `ring_from` devices; 0 for no torus. The
    bandwidth is that of all wires of a device together.
    """

    name: Name
    latency_s: Seconds
    bandwidth_bytes_per_s: BytesPerS
    shared_by_devices: Count = 1
    cube_devices: Count = 1
    mesh_devices: Count = 1
    torus_axes: Annotated[int, Meta(ge=0, le=6)] = 0
    ring_from: Count = 1
    source: Text
    date: Date

    def __post_init__(self) -> None:
        if sum((self.cube_devices > 1, self.mesh_devices > 1, self.torus_axes > 0)) > 1:
            raise ValueError(
                "devices are wired in one way, found more than one of `cube_devices`, "
                "`mesh_devices` and `torus_axes`"
            )
        if self.ring_from > 1 and not self.torus_axes:
            raise ValueError(f"`ring_from` = {self.ring_from} is of a torus, found none")


class CollectiveRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One timing; `full_bytes` as in `costmodel.CollectiveModel`.

    `stride` is the distance between neighbours of a group: 1 for devices 0 and 1, 2 for 0 and 2.
    """

    kind: CollectiveKind
    group_size: Annotated[int, Meta(ge=2, le=1_000_000)]
    stride: Count
    full_bytes: Size
    seconds: PositiveSeconds


class CollectiveTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Collectives timed inside one link domain, all devices of the domain busy."""

    name: Name
    source: Text
    date: Date
    licence: Text
    rows: Annotated[tuple[CollectiveRow, ...], SOME]

    @property
    def digest(self) -> str:
        return digest(self)


class GemmRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One timing of `[batch, m, k] @ [batch, k, n]`."""

    dtype: Name
    batch: Size
    m: Size
    n: Size
    k: Size
    seconds: PositiveSeconds


class GemmTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Matrix products timed on one device."""

    name: Name
    source: Text
    date: Date
    licence: Text
    rows: Annotated[tuple[GemmRow, ...], SOME]

    @property
    def digest(self) -> str:
        return digest(self)


class AttentionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One timing of causal attention with as many keys as queries.

    `heads` and `key_heads` count those of all batches: batch times heads of the model.
    """

    dtype: Name
    head_dim: Size
    length: Size
    heads: Size
    key_heads: Size
    seconds: PositiveSeconds


class KernelRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One timing of an attention kernel that JAX calls, forward and backward.

    `heads` counts those of all batches, `pairs` those of a query and a key that one head computes.
    """

    dtype: Name
    head_dim: Size
    heads: Size
    keys: Size
    pairs: Size
    seconds: PositiveSeconds
    backward_s: PositiveSeconds


class AttentionTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """Attention kernels timed on one device: forward in `rows`, as JAX calls them in `kernels`."""

    name: Name
    source: Text
    date: Date
    licence: Text
    rows: Annotated[tuple[AttentionRow, ...], SOME]
    kernels: tuple[KernelRow, ...] = ()
    kernels_source: Text = "none"

    @property
    def digest(self) -> str:
        return digest(self)


class OpRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One timing of an operation that is no matrix product.

    `flops` and `moved_bytes` are what one device computes, and reads plus writes.
    """

    op: OpKind
    dtype: Name
    flops: Annotated[int, Meta(ge=0, le=2**62)]
    moved_bytes: Size
    seconds: PositiveSeconds


class OpTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Other operations timed on one device, all devices of the host busy."""

    name: Name
    source: Text
    date: Date
    licence: Text
    rows: Annotated[tuple[OpRow, ...], SOME]

    @property
    def digest(self) -> str:
        return digest(self)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kind of machine: its device, its links and its tables.

    `domain` is the number of devices that `intra_host` joins at full speed; it passes
    `devices_per_host` where a switch spans hosts (72 in an NVL72 rack of hosts of 4).
    """

    version: Literal[1] = FORMAT_VERSION
    name: Name
    aliases: tuple[Name, ...] = ()
    device: Device
    devices_per_host: Count
    domain: Count
    intra_host: Link
    network: Link
    collectives: CollectiveTable | None = None
    gemm: GemmTable | None = None
    ops: OpTable | None = None
    attention: AttentionTable | None = None

    def __post_init__(self) -> None:
        if self.domain < self.devices_per_host or self.domain % self.devices_per_host:
            raise ValueError(
                f"`domain` must be a multiple of `devices_per_host` = {self.devices_per_host}, "
                f"found {self.domain}"
            )
        if 1 < self.intra_host.mesh_devices < self.domain:
            raise ValueError(
                f"`mesh_devices` of the link must be at least the domain of {self.domain}, found "
                f"{self.intra_host.mesh_devices}"
            )
        if self.network.torus_axes or self.network.mesh_devices > 1:
            raise ValueError("a torus or full mesh joins the devices of a domain, not of a network")
        self._check_rates()

    def _check_rates(self) -> None:
        device, link = self.device, self.intra_host.bandwidth_bytes_per_s
        memory = device.memory_bandwidth_bytes_per_s
        peaks = [rate for _, rate in device.peak_flops]
        if self.gemm:
            products = [(2.0 * r.batch * r.m * r.n * r.k, r.seconds) for r in self.gemm.rows]
            check_rates("gemm", products, max(peaks), PRODUCTS, "device's peak")
        if self.attention:
            pairs = [
                (2.0 * r.heads * r.length * r.length * r.head_dim, r.seconds)
                for r in self.attention.rows
            ]
            pairs += [
                (4.0 * r.heads * r.pairs * r.head_dim, r.seconds) for r in self.attention.kernels
            ]
            check_rates("attention", pairs, max(peaks), PRODUCTS, "device's peak")
        if self.ops:
            moved = [(r.moved_bytes, r.seconds) for r in self.ops.rows]
            check_rates("ops", moved, memory, MEMORY, "memory bandwidth")
        if self.collectives:
            sent = [(r.full_bytes, r.seconds) for r in self.collectives.rows]
            check_rates("collectives", sent, link, LINKS, "link's bandwidth")


def digest(record: object) -> str:
    """16 hexadecimal digits that name the content of a record on every machine."""
    return hashlib.sha256(msgspec.json.encode(record, order="deterministic")).hexdigest()[:16]


def convert(raw: object, kind: type[Record], where: str) -> Record:
    """Builds a record from plain data, strictly.

    Raises:
        ProfileError: names `where`, the key, what was found there and what was expected.
    """
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        text, _, path = str(error).partition(" - at `$")
        path = path.rstrip("`").lstrip(".")
        place = f"{where}, key `{path}`" if path else where
        if path == "version":
            raise ProfileError(
                f"is of version {_at(raw, path)!r}, expected {FORMAT_VERSION}", where=place,
                remedy="export it again with this version of meshwright",
            ) from error  # fmt: skip
        if "unknown field" in text or "missing required" in text:
            found, remedy = "", f"the keys are {', '.join(_keys_at(kind, path))}"
        elif path.endswith("rows") and "length" in text:
            found, remedy = ", found none", "leave the table out where nothing was timed"
        else:
            found = "" if "found" in text else f", found {_at(raw, path)!r}"
            remedy = "units are bytes, seconds, bytes/s and FLOP/s"
        raise ProfileError(f"{text}{found}", where=place, remedy=remedy) from error


def _steps(path: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", path)


def _at(raw: object, path: str) -> object:
    """The value under a msgspec path such as `links[0].latency_s`, shortened for a message."""
    value: Any = raw
    for step in _steps(path):
        try:
            value = value[int(step)] if step.isdigit() else value[step]
        except (KeyError, IndexError, TypeError):
            return "nothing"
    return value if len(repr(value)) <= 80 else type(value).__name__


def _keys_at(kind: Any, path: str) -> tuple[str, ...]:
    """Fields of the record that a msgspec path leads to from `kind`."""
    for step in _steps(path):
        fields: Mapping[str, Any] = {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
        if step not in fields:
            continue
        options = getattr(fields[step], "__args__", (fields[step],))
        kind = next((o for o in options if hasattr(o, "__struct_fields__")), kind)
    return tuple(kind.__struct_fields__)

"""Placements that a program requests for a value: a sharding over a mesh, a memory, a device.

JAX's objects are read by their attributes, into plain data that a graph can hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from .graph import Attr, Node
from .types import TensorType

# Operations that only request a placement of a value, and the attribute that holds it.
PLACEMENTS = {"device_put": "devices", "reshard": "dst_sharding", "sharding_constraint": "sharding"}
# The attribute of operations that also compute something.
OF_RESULTS = ("out_sharding", "sharding")
ASKED = "sharding_constraint"
# Copies of a value between the memory of a device and that of its host.
TO_HOST, FROM_HOST = "to_host", "from_host"
HOST_COPIES = (TO_HOST, FROM_HOST)
ANY = "*"  # a dimension that the planner may split freely
Entry = tuple[str, ...] | str  # the axes that split a dimension, or `ANY`


@dataclass(frozen=True, slots=True)
class Placement:
    """The requested placement of a value; empty fields request nothing.

    mesh: axes of the user's mesh and their sizes.
    dims: for each dimension the axes that split it; unnamed ones are replicated.
    partial: axes over which it is a partial result.
    memory: kind of memory, if not the device's default.
    device: the only device to hold it.
    """

    mesh: tuple[tuple[str, int], ...] = ()
    dims: tuple[Entry, ...] = ()
    partial: tuple[str, ...] = ()
    memory: str = ""
    device: str = ""

    @property
    def attr(self) -> Attr:
        """As an attribute of a node."""
        fields = ((name, getattr(self, name)) for name in _FIELDS)
        return tuple((name, value) for name, value in fields if value)

    def __str__(self) -> str:
        entries = (e if isinstance(e, str) else "*".join(e) or "-" for e in self.dims)
        axes = ",".join(f"{name}={size}" for name, size in self.mesh)
        waits = f" partial over {','.join(self.partial)}" if self.partial else ""
        parts = (
            f"[{','.join(entries)}]{waits} on {axes}" if self.mesh else "",
            f"memory '{self.memory}'" if self.memory else "",
            self.device,
        )
        return ", ".join(part for part in parts if part)


_FIELDS = ("mesh", "dims", "partial", "memory", "device")


def asked(place: Placement, value: int, type_: TensorType, by: str, source: str) -> Node:
    """A node that requests the placement of a value.

    Args:
        place: the requested placement.
        value: number of the value.
        type_: type of the value.
        by: source of the request: `jit`, a function inside the program; `result`, the program
            itself; `op`, the operation that computes the value.
        source: the user's source line.
    """
    return Node(ASKED, (value,), (type_,), (("by", by), ("sharding", place.attr)), (), source)


def asks(node: Node) -> Iterator[tuple[str, Placement]]:
    """Requested placements of a node's results, each with its source; empty for most nodes."""
    if node.op in PLACEMENTS and node.has_attr(PLACEMENTS[node.op]):
        by = node.attr("by") if node.has_attr("by") else node.op
        attr = node.attr(PLACEMENTS[node.op])
        rows = attr if node.op == "device_put" and isinstance(attr, tuple) else (attr,)
        yield from ((str(by), place) for place in map(read_placement, rows) if place)


def read_placement(attr: Attr) -> Placement | None:
    """The placement that an attribute holds; None if it holds none."""
    rows = attr if isinstance(attr, tuple) else ()
    pairs = [row for row in rows if isinstance(row, tuple) and len(row) == 2]
    fields = {name: value for name, value in pairs if isinstance(name, str)}
    if not fields or len(fields) != len(rows) or set(fields) - {*_FIELDS}:
        return None
    return Placement(**cast("dict[str, Any]", fields)) if _are_right(fields) else None


def _are_right(fields: Mapping[str, Attr]) -> bool:
    """Whether fields have their types: an attribute may come from a file."""
    mesh, dims = fields.get("mesh", ()), fields.get("dims", ())
    partial = fields.get("partial", ())
    return (
        isinstance(mesh, tuple)
        and all(isinstance(axis, tuple) and [*map(type, axis)] == [str, int] for axis in mesh)
        and isinstance(dims, tuple)
        and all(entry == ANY or _are_words(entry) for entry in dims)
        and _are_words(partial)
        and all(isinstance(fields.get(name, ""), str) for name in ("memory", "device"))
    )


def _are_words(value: Attr) -> bool:
    return isinstance(value, tuple) and all(isinstance(word, str) for word in value)


def placement(value: Any) -> Placement | None:
    """The request of a JAX sharding, memory or device; None for anything else, or no request."""
    if hasattr(value, "spec") and hasattr(value, "mesh"):
        return _named(value)
    if hasattr(value, "device_set") and hasattr(value, "memory_kind"):
        devices = sorted(map(str, value.device_set))
        memory = _memory(value)
        if len(devices) == 1:
            return Placement(memory=memory, device=f"device {devices[0]}")
        return Placement(memory=memory, device=f"{type(value).__name__} of {len(devices)} devices")
    if hasattr(value, "process_index") and hasattr(value, "device_kind"):
        return Placement(device=f"device {value}")
    return _of_memory(value)


def is_explicit(value: Any) -> bool:
    """Whether a sharding is over a mesh with explicit axes, where types include shardings."""
    kinds = getattr(getattr(value, "mesh", None), "axis_types", None) or ()
    return any(getattr(kind, "name", "") == "Explicit" for kind in kinds)


def host_copy(params: Mapping[str, Any], operands: Sequence[Any]) -> str:
    """The op that a `device_put` is: a copy to the host, one back, or "" for anything else.

    Args:
        params: its parameters.
        operands: abstract values of its operands; they say in which memory a value is.
    """
    goals = tuple(params.get("devices", ()))
    if len(goals) != 1 or hasattr(goals[0], "device_set"):
        return ""
    place = _of_memory(goals[0])
    if place is not None:
        return TO_HOST if place.memory in _HOSTS else ""
    to_device = type(goals[0]).__name__ in _MEMORIES
    return FROM_HOST if to_device and is_on_host(operands[0]) else ""


def is_on_host(aval: Any) -> bool:
    """Whether an abstract value is in the memory of the host."""
    space = getattr(getattr(aval, "memory_space", None), "name", "")
    return str(space).lower() in _HOSTS


_HOSTS = ("host", "pinned_host")
_MEMORIES = ("MemorySpace", "Space", "TransferToMemoryKind")


def _of_memory(value: Any) -> Placement | None:
    """The request of a memory such as `jax.memory.Space.Host`; None for the device's own."""
    kind = type(value).__name__
    if kind == "TransferToMemoryKind":
        name = str(value.memory_kind)
    elif kind in ("MemorySpace", "Space"):
        name = str(value.name).lower()
    else:
        return None
    return Placement(memory=name) if name != "device" else None


def _named(sharding: Any) -> Placement | None:
    mesh, spec = sharding.mesh, sharding.spec
    axes = tuple((str(name), int(size)) for name, size in mesh.shape.items())
    memory = _memory(sharding)
    if all(size == 1 for _, size in axes):
        return Placement(memory=memory) if memory else None
    wide = {name for name, size in axes if size > 1}
    dims = tuple(_entry(entry, wide) for entry in getattr(spec, "partitions", spec))
    partial = tuple(sorted(map(str, getattr(spec, "unreduced", ()))))
    return Placement(axes, dims, partial, memory)


def _entry(entry: Any, wide: set[str]) -> Entry:
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,) if entry in wide else ()
    if isinstance(entry, (tuple, list)):
        return tuple(str(name) for name in cast("Sequence[Any]", entry) if str(name) in wide)
    return ANY


def _memory(sharding: Any) -> str:
    """A sharding's kind of memory; empty for the default of its devices."""
    kind = getattr(sharding, "memory_kind", None)
    if kind in (None, "device"):
        return ""
    try:
        usual = {device.default_memory().kind for device in sharding.device_set}
    except (AttributeError, ValueError, RuntimeError):  # an abstract mesh has no devices
        usual = set[str]()
    return "" if usual == {kind} else str(kind)

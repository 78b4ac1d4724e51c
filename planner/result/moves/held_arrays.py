"""Where the arrays of a plan lie between steps, in one program or in stages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir import Mesh, Sharding, TensorType, dtype_kind, replicated

from ...common.units_text import sharding_text
from ...inspect.analysed_plan import AnalysedPlan
from ..plan import Plan
from .device_shards import DeviceShards, Ints, device_shards_of

# Roles of arguments that do not live from step to step.
PASSING = ("batch", "constant")
_PIECE = re.compile(r"(?P<name>.*)\[(?P<low>\d+):(?P<high>\d+)\]", re.DOTALL)


@dataclass(frozen=True)
class HeldPiece:
    """A part of an array along its first dimension, on one mesh.

    first: number of its first device.
    low: its first entry.
    type_: its type.
    """

    mesh: Mesh
    first: int
    low: int
    type_: TensorType
    state: Sharding

    def shards(self, count: int) -> DeviceShards:
        """The shard of each of `count` devices."""
        there = np.arange(count) - self.first
        inside = (there >= 0) & (there < self.mesh.num_devices)
        found = device_shards_of(self.state, self.type_.shape, self.mesh)
        if self.type_.rank:
            move = np.array([self.low, *(0,) * (self.type_.rank - 1)])
            found = DeviceShards(found.low + move, found.high + move)
        return found.on(np.where(inside, there, -1))

    @property
    def text(self) -> str:
        """Its sharding and devices."""
        end = self.first + self.mesh.num_devices - 1
        return f"{sharding_text(self.state, self.mesh)} on devices {self.first} to {end}"


@dataclass(frozen=True)
class HeldArray:
    """An array in one piece, or in several of which each device may have some.

    pieces: in the order of their first entries.
    """

    pieces: tuple[HeldPiece, ...]
    in_stages: bool

    @property
    def type_(self) -> TensorType:
        """Type of the whole array."""
        first = self.pieces[0].type_
        if len(self.pieces) == 1:
            return first
        rows = sum(piece.type_.shape[0] for piece in self.pieces)
        return replace(first, shape=(rows, *first.shape[1:]))

    @property
    def text(self) -> str:
        """Its shardings."""
        if not self.in_stages:
            return sharding_text(self.pieces[0].state, self.pieces[0].mesh)
        if len(self.pieces) == 1:
            return self.pieces[0].text
        return "; ".join(
            f"{piece.low}:{piece.low + piece.type_.shape[0]} {piece.text}" for piece in self.pieces
        )

    def shards(self, count: int) -> list[DeviceShards]:
        """The shards of each piece on each of `count` devices; those of one device are disjoint."""
        return [piece.shards(count) for piece in self.pieces]


def held_arrays(plan: Plan) -> dict[str, HeldArray]:
    """Name -> every array that lives from step to step.

    Of a plan in stages these are parameters that some stage reads and the state of the optimizer,
    where the runtime keeps them: with the first stage that reads the parameter, and what belongs to
    none of them with the first.
    """
    if plan.file.in_stages:
        return _in_stages(plan)
    items = zip(plan.graph.inputs, plan.program.roles, plan.decisions.inputs, strict=True)
    return {
        item.name: HeldArray((HeldPiece(plan.mesh, 0, 0, item.type, state),), in_stages=False)
        for item, role, state in items if role not in PASSING
    }  # fmt: skip


def _in_stages(plan: Plan) -> dict[str, HeldArray]:
    found: dict[str, dict[int, HeldPiece]] = {}
    states: dict[int, dict[tuple[int, ...], Sharding]] = {}  # by first device of a group
    for row in plan.file.stages:
        analysed, first = plan.analysed_programs[row.program], row.devices[0]
        mesh = analysed.decisions.mesh
        known = states.setdefault(first, _states(analysed))
        own = list[tuple[str, int, TensorType, bool]]()
        for name, (type_, state) in zip(row.params, _inputs(analysed, "parameter"), strict=True):
            match = _PIECE.fullmatch(name)
            base, low = (match["name"], int(match["low"])) if match else (name, 0)
            pieces = found.setdefault(f"params/{base}", {})
            if dtype_kind(type_.dtype) in ("float", "complex"):
                own.append((base, low, type_, low not in pieces))
            pieces.setdefault(low, HeldPiece(mesh, first, low, type_, state))
        for path, type_ in _state_paths(analysed):
            prefix, _, last = path.rpartition("/")
            at = int(last) if last.isdecimal() else len(own)
            if at < len(own) and own[at][2].shape == type_.shape and type_.rank:
                base, low, _, is_owner = own[at]
                name = f"opt_state/{prefix}/{base}"
            else:
                name, low, is_owner = f"opt_state/{path}", 0, first == 0
            if is_owner:
                state = known.get(type_.shape, replicated(type_.rank))
                piece = HeldPiece(mesh, first, low, type_, state)
                found.setdefault(name, {}).setdefault(low, piece)
    return {
        name: HeldArray(tuple(pieces[low] for low in sorted(pieces)), in_stages=True)
        for name, pieces in found.items()
    }


def _inputs(analysed: AnalysedPlan, wanted: str) -> Iterator[tuple[TensorType, Sharding]]:
    rows = zip(
        analysed.graph.inputs, analysed.program.roles, analysed.decisions.inputs, strict=True
    )
    return ((item.type, state) for item, role, state in rows if role == wanted)


def _states(analysed: AnalysedPlan) -> dict[tuple[int, ...], Sharding]:
    """Shape -> sharding of the optimizer's state, as the runtime takes it."""
    found: dict[tuple[int, ...], Sharding] = {}
    for type_, state in _inputs(analysed, "optimizer-state"):
        found.setdefault(type_.shape, state)
    return found


def _state_paths(analysed: AnalysedPlan) -> list[tuple[str, TensorType]]:
    """Path in the state, without the name of the argument, and type of each of its arrays."""
    rows = zip(analysed.graph.inputs, analysed.program.roles, strict=True)
    return [
        (item.name.partition("/")[2], item.type) for item, role in rows
        if role == "optimizer-state"
    ]  # fmt: skip


def entries(shards: Sequence[DeviceShards]) -> Ints:
    """Entries that each device holds in all pieces."""
    return sum((each.entries for each in shards), np.zeros(1, dtype=np.int64))


def received(before: Sequence[DeviceShards], after: Sequence[DeviceShards]) -> Ints:
    """Entries that each device has to receive; both are on the same devices."""
    common = (a.shared(b) for a in before for b in after)
    return entries(after) - sum(common, np.zeros(1, dtype=np.int64))

"""Pins and forbidden dimensions, resolved to the values of one program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ir import Mesh, Placement, Sharding, asks
from ir.analysis import FlatProgram

from .errors import PlanError
from .mesh_setting import names_of
from .options import Options
from .pins import Pin, is_called


@dataclass(frozen=True, slots=True)
class Inside:
    """A pin of a value inside the program, and the source line that asks for it."""

    pin: Pin
    where: str


@dataclass(frozen=True)
class Wishes:
    """Pins and forbidden dimensions, resolved to the arguments of one program.

    names: flat value -> name of the argument.
    inside: flat value of an operation -> what the program asks of it.
    results: the same of what the program returns, by -1 - position, or by the flat value of the
        argument that holds the same state.
    """

    pins: tuple[Pin, ...] = ()
    forbidden: tuple[tuple[str, int], ...] = ()
    names: Mapping[int, str] = field(default_factory=dict[int, str])
    inside: Mapping[int, Inside] = field(default_factory=dict[int, Inside])
    results: Mapping[int, Inside] = field(default_factory=dict[int, Inside])

    def allows(self, value: int, state: Sharding, mesh: Mesh) -> bool:
        """Whether a value may be kept so; results are -1 - position."""
        asked = self.inside.get(value) or self.results.get(value)
        if asked is not None and (state.partial or not asked.pin.allows(state, mesh)):
            return False
        name = self.names.get(value)
        if name is None:
            return True
        rank = len(state.dims)
        split = [d - rank * way for way in (0, 1) for d, axes in enumerate(state.dims) if axes]
        if any(dim in split and is_called(name, pattern) for pattern, dim in self.forbidden):
            return False
        return all(pin.allows(state, mesh) for pin in self.pins if pin.matches(name))

    def asked(self, value: int) -> tuple[object, ...]:
        """For every pin and forbidden dimension: does it concern this value?"""
        name = self.names.get(value)
        patterns = [*(pin.pattern for pin in self.pins), *(p for p, _ in self.forbidden)]
        found = (self.inside.get(value), self.results.get(value))
        inside = tuple(one.pin.dims for one in found if one is not None)
        return (*(name is not None and is_called(name, p) for p in patterns), *inside)

    def speaks_of(self, value: int) -> bool:
        """Whether some pin or forbidden dimension concerns this value."""
        return any(self.asked(value)) or value in self.inside or value in self.results

    def of_program(self, name: str) -> list[Pin]:
        """What the program asks of one argument, or of values at a source line."""
        inside = [*self.inside.items(), *self.results.items()]
        found = (one.pin for v, one in inside if name in (one.where, self.names.get(v)))
        return [*dict.fromkeys(found)]

    def of_argument(self, name: str) -> list[Pin]:
        """Pins and forbidden dimensions of one argument."""
        forbidden = [
            Pin(pattern, (f"dimension {dim} whole",))
            for pattern, dim in self.forbidden
            if is_called(name, pattern)
        ]
        return [*(pin for pin in self.pins if pin.matches(name)), *forbidden]


def wishes(options: Options, names: Mapping[int, str], ranks: Mapping[int, int]) -> Wishes:
    """Resolves the pins of some options.

    Args:
        options: with pins and forbidden dimensions.
        names: of the arguments, by flat value.
        ranks: of the arguments, by flat value.

    Raises:
        PlanError: if a pattern matches no argument, or one without the dimensions it speaks of.
    """
    pins = tuple(Pin.parse(*pin) for pin in options.pins)
    for pin in pins:
        _check_pin(pin, names, ranks, options)
    for pattern, dim in options.forbidden:
        most = max(ranks[v] for v in _called(pattern, names))
        if not -most <= dim < most:
            raise PlanError(
                f"there is no dimension {dim}: arguments of that name have {most}", kind="bad-pin",
                where=f"forbidden '{pattern}'", remedy="dimensions count from 0, or back from -1",
            )  # fmt: skip
    return Wishes(pins, options.forbidden, names)


def _called(pattern: str, names: Mapping[int, str]) -> list[int]:
    found = [v for v, name in names.items() if is_called(name, pattern)]
    if not found:
        some = ", ".join(sorted(names.values())[:6])
        raise PlanError(
            f"no argument is called like '{pattern}'", kind="bad-pin", where="pins",
            remedy=f"arguments are named like: {some}",
        )  # fmt: skip
    return found


def _check_pin(
    pin: Pin, names: Mapping[int, str], ranks: Mapping[int, int], options: Options
) -> None:
    for v in _called(pin.pattern, names):
        dims = pin.of_rank(ranks[v])
        if ranks[v] != len(dims):
            raise PlanError(
                f"has {len(dims)} dimensions, the argument '{names[v]}' has {ranks[v]}",
                kind="bad-pin", where=f"pin '{pin.pattern}'", remedy="write one entry each",
            )  # fmt: skip
    known = options.axes
    if unknown := [axis for axis in pin.axes if axis not in known]:
        own = "" if options.mesh and names_of(options.mesh) else " unless mesh= names them"
        raise PlanError(
            f"there is no mesh axis '{unknown[0]}'", kind="bad-pin", where=f"pin '{pin.pattern}'",
            remedy=f"axes are called {', '.join(known)}{own}, the outermost first; a number of "
            "parts leaves the axes open",
        )  # fmt: skip


def pin_dims(
    place: Placement, rank: int, axes: Sequence[str], sizes: Sequence[int]
) -> tuple[str, ...]:
    """Dimensions of a pin in the plan's axes.

    Args:
        place: the requested placement; each axis of its mesh is one or more axes of the plan.
        rank: rank of the value.
        axes: names of the plan's axes, the outermost first.
        sizes: sizes of the plan's axes.

    Raises:
        PlanError: if the axes of the placement are not made of the plan's.
    """
    runs = _runs(place, [*zip(axes, sizes, strict=False)])
    dims = [
        entry if isinstance(entry, str) else "*".join(x for a in entry for x in runs[a]) or "-"
        for entry in place.dims[:rank]
    ]
    return (*dims, *["-"] * (rank - len(dims)))


def _check_even(place: Placement, shape: Sequence[int], where: str) -> None:
    """Checks that a placement inside the program splits its value evenly.

    Raises:
        PlanError: if a dimension does not divide.
    """
    sizes = dict(place.mesh)
    for d, entry in enumerate(place.dims[: len(shape)]):
        ways = 1 if isinstance(entry, str) else math.prod(sizes.get(axis, 1) for axis in entry)
        if shape[d] % ways:
            raise PlanError(
                f"asks for {place} of a value of shape {'x'.join(map(str, shape))}: dimension {d} "
                f"of {shape[d]} does not divide {ways} ways", kind="bad-pin", where=where,
                remedy="pad the dimension or leave it whole, or plan with shardings='warn'",
            )  # fmt: skip


def _runs(place: Placement, parts: Sequence[tuple[str, int]]) -> Mapping[str, tuple[str, ...]]:
    """The plan's axes that make up each axis of a placement's mesh."""
    runs: dict[str, tuple[str, ...]] = {}
    start = 0
    for name, size in place.mesh:
        end, found = start, 1
        while found < size and end < len(parts):
            found, end = found * parts[end][1], end + 1
        if found != size:
            mesh = ",".join(f"{axis}={n}" for axis, n in parts)
            raise PlanError(
                f"asks for {place}, and axis '{name}' is not made of whole axes of the plan's mesh "
                f"{mesh}", kind="bad-pin", where="shardings", remedy="plan with shardings='warn'",
            )  # fmt: skip
        runs[name] = tuple(axis for axis, _ in parts[start:end])
        start = end
    if unknown := {a for entry in place.dims if not isinstance(entry, str) for a in entry} - {
        *runs
    }:
        raise PlanError(
            f"asks for {place}, whose mesh has no axis '{min(unknown)}'", kind="bad-pin",
            where="shardings", remedy="plan with shardings='warn'",
        )  # fmt: skip
    return runs


def wishes_for(options: Options, flat: FlatProgram, ties: Iterable[tuple[int, int]]) -> Wishes:
    """What the user wishes of a flat program.

    Args:
        options: with pins and forbidden dimensions.
        flat: the program.
        ties: (input, result) that hold one state: a pin of the one holds for the other.

    Raises:
        PlanError: if the wishes speak of what the program does not have.
    """
    names = {v: flat.values[v].name for v in flat.inputs}
    found = wishes(options, names, {v: flat.values[v].type.rank for v in names})
    if options.shardings != "pin":
        return found
    inside: dict[int, Inside] = {}
    ends: set[int] = set()  # values that the program is asked to give back so
    for op in flat.ops:
        for v, (by, place) in zip(op.outputs, asks(op.node), strict=False):
            if place.mesh:
                dims = pin_dims(place, flat.values[v].type.rank, options.axes, options.shape or ())
                shape = flat.values[v].type.shape
                where = op.node.source or op.node.op
                _check_even(place, shape, where)
                inside[v] = Inside(Pin(str(place), dims), where)
                ends.update([v] if by == "result" else [])
    kept = {result: flat.inputs[argument] for argument, result in ties}
    results = {
        kept.get(k, -1 - k): inside[v]
        for k, v in enumerate(flat.outputs)
        if isinstance(v, int) and v in ends
    }
    return replace(found, inside=inside, results=results)

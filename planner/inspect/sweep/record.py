"""A sweep as it is kept in a file, and its rows as lines over one axis."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ...common.errors import PlanError

FORMAT = "meshwright-sweep"
FORMAT_VERSION = 2
DEVICES = "devices"
PER_DEVICE = "/device"

Value = int | float | str
Amount = Annotated[float, Meta(ge=0.0)]
DOES_NOT_FIT = "does-not-fit"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a combination has no plan."""

    kind: str
    message: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One combination; figures are None where it has no plan.

    swept: its values as they were given, such as `4/device`.
    step_s, device_seconds: of a step, and times the number of devices.
    mfu: matrix products at the devices' peak rate, as a share of the step.
    dollars, kwh: of a step; None also where the cluster names no prices.
    """

    swept: dict[str, Value]
    fits: bool
    step_s: Amount | None = None
    device_seconds: Amount | None = None
    peak_bytes: Amount | None = None
    mfu: Amount | None = None
    examples_per_s: Amount | None = None
    tokens_per_s: Amount | None = None
    dollars: Amount | None = None
    kwh: Amount | None = None
    mesh: dict[str, int] | None = None
    stages: int | None = None
    microbatches: int | None = None
    error: Problem | None = None

    def __post_init__(self) -> None:
        if self.fits and not (self.step_s and self.device_seconds and self.mesh is not None):
            raise ValueError("a row that fits must have `step_s`, `device_seconds` and `mesh`")


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Plans of one target for every combination of some values.

    sweep: values of each name, in the order given.
    complete: whether every combination has a row.
    """

    format: Literal["meshwright-sweep"]
    version: Literal[2]
    planner: str
    target: str
    cluster: str
    sweep: dict[str, list[Value]]
    complete: bool
    rows: list[Row]

    def __post_init__(self) -> None:
        for row in self.rows:
            if row.swept.keys() != self.sweep.keys():
                raise ValueError(f"a row has {list(row.swept)}, swept were {list(self.sweep)}")

    @property
    def across(self) -> str:
        """The axis of the picture: devices, else the first one whose values are all numbers."""
        numeric = [
            name
            for name, values in self.sweep.items()
            if all(isinstance(value, (int, float)) and value > 0 for value in values)
        ]
        return DEVICES if DEVICES in self.sweep else (numeric or list(self.sweep))[0]


@dataclass(frozen=True, slots=True)
class Point:
    """A row at a place of the axis; words stand at 1, 2, 3, ..."""

    x: float
    label: str
    row: Row

    def speed(self, *, grows: bool) -> float:
        """Work in a second, up to a factor that is the same along a line."""
        assert self.row.step_s
        return (self.x if grows else 1.0) / self.row.step_s


@dataclass(frozen=True, slots=True)
class Line:
    """Rows that differ in the number of devices only, or in another axis.

    name: their other values; empty if there are none.
    grows: whether their work grows with the number of devices, as a value per device does.
    """

    name: str
    grows: bool
    points: tuple[Point, ...]

    @property
    def fitting(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.row.fits)


def lines_of(sweep: Sweep) -> tuple[Line, ...]:
    """The rows as lines over `sweep.across`, points from left to right."""
    across = sweep.across
    values = sweep.sweep[across]
    held: dict[str, list[Point]] = {}
    grows: dict[str, bool] = {}
    for row in sweep.rows:
        others = {name: value for name, value in row.swept.items() if name != across}
        name = ", ".join(f"{name}={value}" for name, value in others.items())
        grows[name] = any(str(value).endswith(PER_DEVICE) for value in others.values())
        value = row.swept[across]
        x = float(values.index(value) + 1 if isinstance(value, str) else value)
        held.setdefault(name, []).append(Point(x, str(value), row))
    return tuple(
        Line(name, grows[name], tuple(sorted(points, key=lambda point: point.x)))
        for name, points in held.items()
    )


def read_sweep(path: Path) -> Sweep:
    """Reads the file of a sweep.

    Raises:
        PlanError: if it cannot be read or is none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Sweep)
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"is no sweep of this version: {error}") from error


def _bad(path: Path, message: str) -> PlanError:
    return PlanError(
        message, kind="bad-sweep", where=str(path),
        remedy="write it again with `meshwright plan ... --sweep ... -o FILE`",
    )  # fmt: skip

"""Tensors on logical devices: each device holds an array of its own, and ops see nothing else.

The devices of a tensor are numbered by replica and by the chunk of each data dimension that they
hold. An op runs on every device on what that device holds; where its operands are on different
devices, it is not typed. Only the ops of `ops/parallel.py` move data between devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..effort import COSTS, Effort
from ..graph import Op
from .arrays import Array, NotTypedError, Numbers, need


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a dimension was joined, and how its parts were."""

    at: int
    left: Cut | None = None
    right: Cut | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """`data[replica, chunks...]` is the local array of one device; all have one shape.

    degrees: how many replicas and how many chunks of each dimension there are.
    cuts: the history of the replica and of each data dimension, as positions in the whole tensor.
    """

    data: Array
    degrees: tuple[int, ...]
    cuts: tuple[Cut | None, ...]

    def __post_init__(self) -> None:
        if self.data.shape[: len(self.degrees)] != self.degrees:
            raise AssertionError(f"arrays of {self.data.shape} on devices {self.degrees}")

    @property
    def rank(self) -> int:
        return len(self.degrees) - 1

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of what one device holds."""
        return self.data.shape[len(self.degrees) :]

    @property
    def whole(self) -> Array:
        """All of it as one array [replica, dims...]."""
        m = self.rank
        order = (0, *(i for d in range(m) for i in (1 + d, 1 + m + d)))
        sizes = (d * n for d, n in zip(self.degrees[1:], self.local, strict=True))
        return self.data.transpose(order).reshape(self.degrees[0], *sizes)


def spread(whole: Array, degrees: Sequence[int], cuts: Sequence[Cut | None]) -> Tensor:
    """The tensor of an array [replica, dims...].

    Raises:
        NotTypedError: if a degree does not divide its size.
    """
    sizes, held = whole.shape[1:], tuple(degrees)
    fits = whole.shape[0] == held[0] and not any(
        n % d for n, d in zip(sizes, held[1:], strict=True)
    )
    need(fits, f"degrees {held} of a tensor {whole.shape}")
    m = len(sizes)
    parts = (k for d, n in zip(held[1:], sizes, strict=True) for k in (d, n // d))
    order = (0, *range(1, 2 * m + 1, 2), *range(2, 2 * m + 1, 2))
    return Tensor(whole.reshape(held[0], *parts).transpose(order), held, tuple(cuts))


def tensor(data: Array, degrees: Sequence[int], cuts: Mapping[int, int] | None = None) -> Tensor:
    """An input [replica, dims...]; `cuts` says where its dimensions are split, if they are."""
    known = cuts or {}
    history = tuple(Cut(known[i]) if i in known else None for i in range(data.ndim))
    return spread(data, degrees, history)


@dataclass(frozen=True, slots=True)
class Run:
    """What ops need besides their operands."""

    numbers: Numbers
    parallel: bool
    effort: Effort = field(default_factory=Effort)

    def spend(self, elements: int) -> None:
        """Counts the work of an op that computes some elements."""
        self.effort.spend(COSTS.op + elements // COSTS.numbers)

    def axis(self, op: Op, x: Tensor) -> int:
        """The place of an op's axis among [replica, dims...]."""
        axis = op["axis"] if self.parallel else op["axis"] + 1
        if not 1 <= axis <= x.rank:
            raise NotTypedError(f"axis {op['axis']}")
        return axis


def on_each(
    op: Op, devices: str, args: Sequence[Tensor], run: Run, compute: Callable[..., Array]
) -> tuple[Array, tuple[int, ...]]:
    """Local results of an op of several operands, and their degrees.

    Args:
        op: for messages.
        devices: a letter for the replica and for each dimension of every operand and, after an
            arrow, of the result: a device holds the chunks of operands that its letters number.
            A point is a dimension that is not divided.
        args: the operands.
        run: counts the work.
        compute: what each device computes of its own arrays.

    Raises:
        NotTypedError: if operands are on different devices.
    """
    *taken, made = devices.replace("->", ",").replace(" ", "").split(",")
    sizes: dict[str, int] = {".": 1}
    for letters, x in zip(taken, args, strict=True):
        for letter, degree in zip(letters, x.degrees, strict=True):
            fits = sizes.setdefault(letter, degree) == degree
            need(fits, f"{op.kind} of degrees {[a.degrees for a in args]}, takes {devices}")
    degrees = tuple(sizes[letter] for letter in made)
    results: list[Array] = []
    for numbers in itertools.product(*map(range, degrees)):
        run.spend(0)
        at = dict(zip(made, numbers, strict=True)) | {".": 0}
        held = (x.data[tuple(at[i] for i in ls)] for ls, x in zip(taken, args, strict=True))
        results.append(compute(*held))
    return np.stack(results).reshape(*degrees, *results[0].shape), degrees

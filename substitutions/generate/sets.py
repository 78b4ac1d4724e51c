"""Op sets: which ops terms are built of, and over which inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Params = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Input:
    """A variable: its sizes in the fingerprint (not in proofs), and its replicas.

    Inputs of one shape may be exchanged; rules that differ in that only are one rule.
    """

    name: str
    shape: tuple[int, ...]
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class OpSet:
    """Ops to build terms of, each with its parameters, and inputs."""

    ops: tuple[tuple[str, Params], ...]
    inputs: tuple[Input, ...]
    parallel: bool = False

    @property
    def ranks(self) -> dict[str, int]:
        """Data dimensions of each input."""
        return {given.name: len(given.shape) for given in self.inputs}


def _plain(*names: str) -> tuple[tuple[str, Params], ...]:
    return tuple((name, ()) for name in names)


def _along(name: str, *axes: int) -> tuple[tuple[str, Params], ...]:
    return tuple((name, (("axis", axis),)) for axis in axes)


def _inputs(names: str, *shape: int, replicas: int = 1) -> tuple[Input, ...]:
    return tuple(Input(name, shape, replicas) for name in names)


_MATMUL = ("matmul", (("activation", 0),))
_CONV = ("conv", (("activation", 0), ("padding", 0), ("stride_h", 1), ("stride_w", 1)))

# Sizes are equal where ops allow, so that most ops apply; what holds only for that is not proved.
OP_SETS: Mapping[str, OpSet] = {
    "plain": OpSet(
        (
            *_plain("add", "mul", "relu", "exp", "scale", "transpose"),
            _MATMUL,
            *_along("concat", 0, 1),
            *_along("split", 0, 1),
            *_along("sum", 0, 1),
            *_along("max", 0),
        ),
        (*_inputs("xyzw", 6, 6), *_inputs("s")),
    ),
    "broadcast": OpSet(
        (
            *_plain("add", "mul", "relu"),
            _MATMUL,
            *_along("along", 0, 1),
            *_along("expand", 0),
            *_along("sum", 0, 1),
        ),
        (*_inputs("xyz", 6, 6), *_inputs("g", 6)),
    ),
    "lookups": OpSet(
        (
            *_plain("add", "relu", "gather"),
            _MATMUL,
            *_along("concat", 0, 1),
            *_along("split", 0, 1),
            *_along("sum", 1),
        ),
        (*_inputs("xyz", 6, 6), *_inputs("ij", 6)),
    ),
    "conv": OpSet(
        (_CONV, *_plain("add", "relu", "scale"), *_along("concat", 0, 1)),
        (*_inputs("xy", 4, 4, 5, 5), *_inputs("wv", 4, 4, 3, 3), *_inputs("s")),
    ),
    "parallel": OpSet(
        (
            *_plain("add", "mul", "relu"),
            ("linear", (("activation", 0),)),
            *_along("concat", 1, 2),
            *(
                (kind, (("degree", 2), ("dim", dim)))
                for kind in ("partition", "combine")
                for dim in (1, 2)
            ),
            ("replicate", (("degree", 2), ("dim", 0))),
            ("reduce", (("degree", 2), ("dim", 0))),
        ),
        (*_inputs("xyz", 8, 8), *_inputs("pq", 8, 8, replicas=2)),
        parallel=True,
    ),
}

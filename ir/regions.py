"""Wiring of loops and branches: which operands enter each body, and which results leave.

    op      operands                                          a body takes             results
    scan    constants, carries, xs                            these, xs in slices      carries, ys
    while   constants of the test, of the step, carries       its constants, carries   carries
    cond    index of the branch, operands                     the operands             its results
    remat   operands                                          the operands             its results

A body takes its captured constants before all these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import IRError
from .graph import Graph, Node

T = TypeVar("T")

REGIONS = ("scan", "while", "cond", "remat")
# Iterations assumed in the price of a `while` of unknown length; the plan warns of it.
ASSUMED_ITERATIONS = 8


@dataclass(frozen=True, slots=True)
class Scan:
    """Numbers of constants and of carries of a scan."""

    constants: int
    carries: int

    @classmethod
    def of(cls, node: Node) -> Scan:
        """The wiring of a node."""
        return cls(*(_number(node, name) for name in ("num_consts", "num_carry")))

    @classmethod
    def in_jaxpr(cls, params: Mapping[str, Any]) -> Scan:
        """The wiring of an equation with these parameters."""
        return cls(params["num_consts"], params["num_carry"])

    def operands(self, values: Sequence[T]) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
        """Constants, carries and xs among the operands, or among the inputs of the body."""
        first, last = self.constants, self.constants + self.carries
        return values[:first], values[first:last], values[last:]

    def results(self, values: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
        """Carries and ys among the results, or among the results of the body."""
        return values[: self.carries], values[self.carries :]


@dataclass(frozen=True, slots=True)
class While:
    """Numbers of constants of the test and of the step of a loop, and of their bodies."""

    test_constants: int
    step_constants: int
    test: int
    step: int

    @classmethod
    def of(cls, node: Node) -> While:
        """The wiring of a node."""
        counts = (_number(node, name) for name in ("cond_nconsts", "body_nconsts"))
        return cls(*counts, *(body_number(node, name) for name in ("cond_jaxpr", "body_jaxpr")))

    def operands(self, values: Sequence[T]) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
        """Constants of the test, constants of the step, and carries among the operands."""
        first, last = self.test_constants, self.test_constants + self.step_constants
        return values[:first], values[first:last], values[last:]


def _number(node: Node, name: str) -> int:
    value = node.attr(name)
    if not isinstance(value, int):
        raise IRError(f"{node.op}: attribute '{name}' should be a number, found {value!r}")
    return value


def body_number(node: Node, name: str) -> int:
    """Index of the body that an attribute names, as in `cond_jaxpr = "body 1"`."""
    return int(str(node.attr(name)).removeprefix("body "))


def captured(body: Graph) -> int:
    """Number of constants that a body has captured: its first inputs."""
    return sum(item.role == "constant" for item in body.inputs)


def entering(node: Node, body: int) -> Sequence[int]:
    """Positions of the operands that enter a body, in the order in which it takes them."""
    positions = range(len(node.inputs))
    if node.op == "cond":
        return positions[1:]
    if node.op == "while":
        loop = While.of(node)
        of_test, of_step, carries = loop.operands(positions)
        return (*(of_test if body == loop.test else of_step), *carries)
    return positions


def iterations(node: Node) -> range:
    """Numbers of the iterations of a scan, in the order in which they run."""
    order = range(_number(node, "length"))
    return order[::-1] if node.attr("reverse") else order

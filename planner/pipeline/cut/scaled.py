# pyright: basic
"""A stage's program at another size of micro-batch, from those at two sizes.

Where every number of two traces is affine in the number of examples, the third trace is told from
them. The loss is traced at its size before that, so that what the program itself says there is
compared and not assumed: its equations, their numbers, derivatives by `jax.custom_jvp`, and what is
in captured arrays. A program that differs in any of these, as by a branch on the size of the batch,
is refused, and traced; so are numbers that are not affine, and dimensions that become one, which
JAX's derivatives broadcast.

What derivatives and the loop over micro-batches add is assumed, not compared, at the third size:
that JAX's own rules write the same equations there, with numbers on the line through the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import jax
import numpy as np

from ir import Graph, Input, IRError, Literal, Node, Operand, TensorType, digest
from ir.trace import content_of

from .opened_loss import Opened
from .outline import Same, anywhere
from .stage import Staged
from .stage_training_step import StageTrainingStep

EXACT = 2.0**24  # below which a whole number is one of 32 bits
LONG = ("float32", "float64", "int32", "int64", "uint32", "uint64")
Item = TypeVar("Item")


class NotAffineError(Exception):
    """Something of two programs is not affine in the number of examples."""


@dataclass(frozen=True)
class Size:
    """Number of micro-batches, and examples in each."""

    count: int
    examples: int


@dataclass(frozen=True)
class Sample:
    """A stage that was traced at a size.

    outline: what it computes, as of `Staged.outline`.
    """

    size: Size
    outline: tuple[object, ...]
    stage: StageTrainingStep


def scaled_stage(
    one: Sample, other: Sample, size: Size, outline: tuple[object, ...]
) -> StageTrainingStep | None:
    """A stage at a third size, for prices alone: it has a graph of that size, functions of `one`.

    Args:
        one: the stage at a size.
        other: the same stage at another one.
        size: the third size.
        outline: what it computes there.

    Returns:
        None if it cannot be told from the others.
    """
    if min(one.size.examples, other.size.examples, size.examples) < 2:
        return None
    line = _Line(one.size, other.size, size)
    traced, loop = one.stage.traced, one.stage.loop
    try:
        if not line.fits(one.outline, other.outline, outline):
            return None
        graph = line.graph(traced.graph, other.stage.traced.graph)
    except (NotAffineError, IRError):
        return None
    bindings = [*traced.program.bindings]
    body = replace(bindings[loop].bodies[0], graph=graph.nodes[loop].bodies[0])
    bindings[loop] = replace(bindings[loop], bodies=(body,))
    program = replace(traced.program, graph=graph, bindings=tuple(bindings))
    return replace(one.stage, traced=replace(traced, program=program))


@dataclass
class Samples:
    """Stages of one cut of a loss at all sizes of micro-batch, traced at two of them."""

    found: dict[tuple[int, object], tuple[StageTrainingStep, str]] = field(
        default_factory=dict[tuple[int, object], "tuple[StageTrainingStep, str]"]
    )
    traced: dict[object, list[Sample]] = field(default_factory=dict[object, "list[Sample]"])

    def stage(
        self, loss: Opened, cut: Staged, s: int, what: object,
        trace: Callable[[Opened, Staged, int], tuple[StageTrainingStep, str]],
    ) -> tuple[StageTrainingStep, str]:  # fmt: skip
        """A stage, for prices alone, and the digest of its program.

        Layers that take their entries from other places of the same array share one.

        Args:
            loss: the loss at a size.
            cut: its stages.
            s: index of the stage.
            what: what tells it from others of this cut at any size.
            trace: traces it.
        """
        outline, parts = cut.outline(s), loss.built.parts
        size = Size(loss.microbatches, parts.batch // parts.count if parts else 1)
        key = size.count, (anywhere(outline[0]), *outline[1:])
        if key not in self.found:
            seen = self.traced.setdefault(what, [])
            stage = scaled_stage(seen[0], seen[1], size, outline) if len(seen) == 2 else None
            if stage is not None:
                self.found[key] = stage, digest(stage.traced.graph)
            else:
                self.found[key] = trace(loss, cut, s)
                if len(seen) < 2 and size.examples > 1:
                    seen.append(Sample(size, outline, self.found[key][0]))
        return self.found[key]


@dataclass(frozen=True)
class _Line:
    """The affine functions of the number of examples through two sizes, at a third."""

    one: Size
    other: Size
    at: Size

    def number(self, a: Any, b: Any) -> Any:
        """The number that is `a` and `b` at the two sizes: of micro-batches, or of examples.

        Where there are more micro-batches there are fewer examples in each.
        """
        if type(a) is type(b) and repr(a) == repr(b):
            return a
        if (a, b) == (self.one.count, self.other.count):
            return self.at.count
        if type(a) is not type(b) or type(a) not in (int, float):
            raise NotAffineError
        if not (float(a).is_integer() and float(b).is_integer()):
            raise NotAffineError
        steps = (int(b) - int(a)) * (self.at.examples - self.one.examples)
        run = self.other.examples - self.one.examples
        more, rest = divmod(steps, run)
        found, falls = type(a)(int(a) + more), (int(b) - int(a)) * run < 0
        if rest or falls or (type(a) is float and max(abs(a), abs(b), abs(found)) >= EXACT):
            raise NotAffineError
        return found

    def graph(self, a: Graph, b: Graph) -> Graph:
        return Graph(
            self._each(self._input, a.inputs, b.inputs),
            self._each(self._node, a.nodes, b.nodes),
            self._each(self._operand, a.outputs, b.outputs),
        )  # fmt: skip

    def _each(
        self, of: Callable[[Item, Item], Item], a: tuple[Item, ...], b: tuple[Item, ...]
    ) -> tuple[Item, ...]:
        if len(a) != len(b):
            raise NotAffineError
        return tuple(map(of, a, b))

    def _input(self, a: Input, b: Input) -> Input:
        if (a.name, a.role, a.digest) != (b.name, b.role, b.digest):
            raise NotAffineError
        return replace(a, type=self._type(a.type, b.type))

    def _type(self, a: TensorType, b: TensorType) -> TensorType:
        if a == b:
            return a
        if a.dtype != b.dtype:
            raise NotAffineError
        return replace(a, shape=self._each(self._dimension, a.shape, b.shape))

    def _dimension(self, a: int, b: int) -> int:
        found = self.number(a, b)
        if a != b and min(a, b, found) < 2:
            raise NotAffineError  # other equations where one is broadcast
        return found

    def _operand(self, a: Operand, b: Operand) -> Operand:
        if isinstance(a, Literal) and isinstance(b, Literal):
            type_ = self._type(a.type, b.type)
            same = repr(a.value) == repr(b.value)
            if not same and a.type.dtype not in LONG:
                raise NotAffineError  # shorter numbers are rounded
            found = self.number(a.value, b.value)
            if not same and found < 0 and a.type.dtype.startswith("u"):
                raise NotAffineError
            return Literal(found, type_)
        if a != b:
            raise NotAffineError
        return a

    def _node(self, a: Node, b: Node) -> Node:
        if a.op != b.op:
            raise NotAffineError
        return replace(
            a, inputs=self._each(self._operand, a.inputs, b.inputs),
            outputs=self._each(self._type, a.outputs, b.outputs),
            attrs=self._each(self._attr, a.attrs, b.attrs),
            bodies=self._each(self.graph, a.bodies, b.bodies),
        )  # fmt: skip

    def _attr(self, a: tuple[str, Any], b: tuple[str, Any]) -> tuple[str, Any]:
        if a[0] != b[0]:
            raise NotAffineError
        return a[0], self._value(a[1], b[1])

    def _value(self, a: Any, b: Any) -> Any:
        if isinstance(a, tuple) and isinstance(b, tuple):
            return self._each(self._value, a, b)
        return self.number(a, b)

    def fits(self, a: Any, b: Any, c: Any) -> bool:
        """Whether `c` is at the third size what `a` and `b` are at the two."""
        if not type(a) is type(b) is type(c):
            return False
        if isinstance(a, Same):  # arrays and contexts of other traces
            return a.value is b.value is c.value or self.fits(a.value, b.value, c.value)
        if isinstance(a, (tuple, list, dict)):
            a, b, c = (_opened(each) for each in (a, b, c))
            return len(a) == len(b) == len(c) and all(map(self.fits, a, b, c))
        if hasattr(a, "shape") and not isinstance(a, type):
            kinds = self.fits(*(_kind(each) for each in (a, b, c)))
            return kinds and (not _is_data(a) or content_of(a) == content_of(b) == content_of(c))
        if type(a) in (int, float):
            return repr(self.number(a, b)) == repr(c)
        return bool(a == b == c)


def _opened(row: tuple[Any, ...] | list[Any] | dict[Any, Any]) -> tuple[Any, ...]:
    """Items of a row; of one that ends as `literal_of`, numbers in place of their bits."""
    row = tuple(row.items() if isinstance(row, dict) else row)
    if not (len(row) > 3 and isinstance(row[-1], bytes) and np.dtype(row[-3]).kind in "biuf"):
        return row
    return *row[:-1], tuple(np.frombuffer(row[-1], row[-3]).tolist())


def _is_data(value: Any) -> bool:
    """Whether a value with a shape has numbers in it, or keys of random numbers."""
    return hasattr(value, "__array__") or isinstance(value, jax.Array)


def _kind(value: Any) -> tuple[Any, ...]:
    """Type and shape of a value."""
    shape = tuple(getattr(value, "shape", ()))
    return type(value), shape, str(getattr(value, "dtype", "")), getattr(value, "weak_type", False)

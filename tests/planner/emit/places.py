# pyright: basic
"""Random programs that read and write at computed places; all their numbers are whole.

A program is a chain: sums, sorts and turns between gathers, scatters, dynamic slices and updates
of every mode, with any dimension numbers, and with places on both sides of what is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax

Array = Any
MODES = ("clip", "fill", "promise_in_bounds")
SIZES = (1, 2, 3, 5, 8, 8, 8, 12, 16, 16, 24)
WORDS = ("int32", "int32", "int32", "int8", "uint8", "uint32", "int16")
WRITES = {
    "scatter": lax.scatter, "scatter_add": lax.scatter_add, "scatter_max": lax.scatter_max,
    "scatter_min": lax.scatter_min, "scatter_mul": lax.scatter_mul, "scatter_sub": lax.scatter_sub,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A program, some arguments for it, and the ops that it was made of."""

    function: Callable[..., Any]
    arguments: tuple[tuple[np.ndarray, ...], ...]
    ops: tuple[str, ...]


@dataclass(frozen=True)
class _Numbers:
    """Dimension numbers of a gather, or mirrored of a scatter, and the shapes that they imply."""

    offset: tuple[int, ...]
    collapsed: tuple[int, ...]
    indexed: tuple[int, ...]
    batching: tuple[int, ...]
    places_batching: tuple[int, ...]
    sizes: tuple[int, ...]
    places: tuple[int, ...]
    result: tuple[int, ...]

    def reads(self) -> lax.GatherDimensionNumbers:
        return lax.GatherDimensionNumbers(
            self.offset, self.collapsed, self.indexed, self.batching, self.places_batching
        )

    def writes(self) -> lax.ScatterDimensionNumbers:
        return lax.ScatterDimensionNumbers(
            self.offset, self.collapsed, self.indexed, self.batching, self.places_batching
        )


@dataclass
class _Chain:
    """A program while it is drawn: `steps` take what is there and all arguments."""

    rng: np.random.Generator
    shape: tuple[int, ...]
    dtype: str
    arguments: list[Callable[[], np.ndarray]] = field(default_factory=list)
    steps: list[Callable[[Array, tuple[Array, ...]], Array]] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)

    def add(self, op: str, step: Callable[[Array, tuple[Array, ...]], Array]) -> None:
        self.ops.append(op)
        self.steps.append(step)
        structs = tuple(
            jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (a() for a in self.arguments)
        )
        here = jax.ShapeDtypeStruct(self.shape, self.dtype)
        self.shape = jax.eval_shape(lambda x, xs: step(x, xs), here, structs).shape

    def argument(self, draw: Callable[[], np.ndarray]) -> int:
        """A further argument of the program; its number."""
        self.arguments.append(draw)
        return len(self.arguments) - 1

    # --- what a place may be ---------------------------------------------------------------

    def places(self, shape: tuple[int, ...], far: int) -> int:
        """Whole numbers around [0, far), the furthest of their type among them."""
        word = str(self.rng.choice(WORDS))
        info = np.iinfo(word)

        def draw() -> np.ndarray:
            x = self.rng.integers(-far - 2, 2 * far + 3, shape)
            x = np.where(self.rng.random(shape) < 0.6, self.rng.integers(0, far, shape), x)
            ends = np.where(self.rng.random(shape) < 0.5, info.min, info.max)
            x = np.where(self.rng.random(shape) < 0.05, ends, x)
            return np.clip(x, info.min, info.max).astype(word)

        return self.argument(draw)

    def numbers(self) -> _Numbers:
        rng, rank = self.rng, len(self.shape)
        if rng.random() < 0.5:
            return self._rows()
        batching = tuple(d for d in range(rank) if rng.random() < 0.2)
        free = [d for d in range(rank) if d not in batching]
        rng.shuffle(free)
        indexed = tuple(free[: int(rng.integers(1, len(free) + 1))]) if free else ()
        sizes = [1 if d in batching else self._size(d, d in indexed) for d in range(rank)]
        collapsed = tuple(
            d for d in range(rank)
            if d not in batching and sizes[d] == 1 and (d in indexed or self.shape[d] == 1)
            and rng.random() < 0.8
        )  # fmt: skip
        more = [int(rng.choice((1, 1, 2, 3, 8))) for _ in range(int(rng.integers(0, 3)))]
        heads = [(self.shape[d], d) for d in batching] + [(size, -1) for size in more]
        rng.shuffle(heads)
        at = {d: i for i, (_, d) in enumerate(heads) if d >= 0}
        window = [sizes[d] for d in range(rank) if d not in (*batching, *collapsed)]
        whole = len(heads) + len(window)
        offset = tuple(sorted(rng.permutation(whole)[: len(window)].tolist()))
        rows, inner = iter([size for size, _ in heads]), iter(window)
        result = tuple(int(next(inner if j in offset else rows)) for j in range(whole))
        places = (*(int(size) for size, _ in heads), len(indexed))
        return _Numbers(
            offset, collapsed, indexed, batching, tuple(at[d] for d in batching),
            tuple(sizes), places, result,
        )  # fmt: skip

    def _rows(self) -> _Numbers:
        """Whole rows along one dimension, as `x[i]` has them; often a single one."""
        rank = len(self.shape)
        d = int(self.rng.integers(0, rank))
        rest = tuple(size for k, size in enumerate(self.shape) if k != d)
        count = int(self.rng.choice((1, 1, 1, 2, 8)))
        sizes = tuple(1 if k == d else size for k, size in enumerate(self.shape))
        offset = tuple(range(1, rank))
        return _Numbers(offset, (d,), (d,), (), (), sizes, (count, 1), (count, *rest))

    def _size(self, d: int, indexed: bool) -> int:
        whole = self.shape[d]
        kinds = (1, 1, whole, int(self.rng.integers(1, whole + 1))) if indexed else (whole,)
        return int(self.rng.choice(kinds))

    # --- steps -----------------------------------------------------------------------------

    def gather(self) -> None:
        numbers, mode = self.numbers(), str(self.rng.choice(MODES))
        if math.prod(numbers.result) > 4000:
            return
        at = self.places(numbers.places, max([1, *(self.shape[d] for d in numbers.indexed)]))
        fill = int(self.rng.integers(-3, 4)) if mode == "fill" else None
        self.add(
            f"gather {mode}",
            lambda x, xs: lax.gather(
                x, xs[at], numbers.reads(), numbers.sizes, mode=mode, fill_value=fill
            ),
        )

    def scatter(self) -> None:
        kind, mode = str(self.rng.choice([*WRITES])), str(self.rng.choice(MODES))
        numbers = self.numbers()
        if math.prod(numbers.result) > 4000:
            return
        at = self.places(numbers.places, max([1, *(self.shape[d] for d in numbers.indexed)]))
        update = self.argument(lambda: self.rng.integers(-1, 3, numbers.result).astype(self.dtype))
        self.add(
            f"{kind} {mode}",
            lambda x, xs: WRITES[kind](x, xs[at], xs[update], numbers.writes(), mode=mode),
        )

    def dynamic_slice(self) -> None:
        sizes = tuple(self._size(d, True) for d in range(len(self.shape)))
        at = self.places((len(sizes),), max(1, *self.shape))

        def step(x: Array, xs: tuple[Array, ...]) -> Array:
            starts = [xs[at][d] for d in range(len(sizes))]
            return lax.dynamic_slice_p.bind(x, *starts, slice_sizes=sizes)

        self.add("dynamic_slice", step)

    def dynamic_update_slice(self) -> None:
        sizes = tuple(self._size(d, True) for d in range(len(self.shape)))
        at = self.places((len(sizes),), max(1, *self.shape))
        update = self.argument(lambda: self.rng.integers(-9, 10, sizes).astype(self.dtype))

        def step(x: Array, xs: tuple[Array, ...]) -> Array:
            starts = [xs[at][d] for d in range(len(sizes))]
            return lax.dynamic_update_slice_p.bind(x, xs[update], *starts)

        self.add("dynamic_update_slice", step)

    def plain(self) -> None:
        """A step between, that moves elements or combines them along a dimension."""
        rng, rank = self.rng, len(self.shape)
        axis = int(rng.integers(0, rank))
        turned = tuple(rng.permutation(rank).tolist())
        first = math.prod(self.shape[:1])
        steps: dict[str, Callable[[Array], Array]] = {
            "cummax": lambda x: lax.cummax(x, axis),
            "double": lambda x: x + x,
            "flat": lambda x: x.reshape(first, -1),
            "neg": lambda x: -x,
            "sort": lambda x: lax.sort(x, dimension=axis),
            "transpose": lambda x: lax.transpose(x, turned),
            "rev": lambda x: lax.rev(x, (axis,)),
        }
        if rank > 1:
            steps["sum"] = lambda x: lax.reduce_sum_p.bind(x, axes=(axis,), out_sharding=None)
        name = str(rng.choice([*steps]))
        self.add(name, lambda x, xs: steps[name](x))


PLACED = ("gather", "scatter", "dynamic_slice", "dynamic_update_slice")


def draw(seed: int, chains: int = 2, inputs: int = 3) -> Case:
    """A program of some chains, and arguments of it."""
    rng = np.random.default_rng(seed)
    parts = [_chain(rng) for _ in range(chains)]
    heads = [
        lambda c=chain, s=chain.shape: rng.integers(-9, 10, s).astype(c.dtype) for chain in parts
    ]
    counts: list[int] = []
    for chain in parts:
        for _ in range(int(rng.integers(2, 4))):
            if rng.random() < 0.5 and chain.shape:
                chain.plain()
            if chain.shape and min(chain.shape) > 0:
                getattr(chain, str(rng.choice(PLACED)))()
        if rng.random() < 0.5 and chain.shape:
            chain.plain()
        counts.append(1 + len(chain.arguments))

    def function(*args: Array) -> tuple[Array, ...]:
        results, first = [], 0
        for chain, count in zip(parts, counts, strict=True):
            x, *rest = args[first : first + count]
            for step in chain.steps:
                x = step(x, tuple(rest))
            results.append(x)
            first += count
        return tuple(results)

    def arguments() -> tuple[np.ndarray, ...]:
        return tuple(
            x for head, chain in zip(heads, parts, strict=True)
            for x in (head(), *(a() for a in chain.arguments))
        )  # fmt: skip

    ops = tuple(op for chain in parts for op in chain.ops)
    return Case(function, tuple(arguments() for _ in range(inputs)), ops)


def _chain(rng: np.random.Generator) -> _Chain:
    rank = int(rng.integers(1, 4))
    shape = tuple(int(rng.choice(SIZES)) for _ in range(rank))
    return _Chain(rng, shape, str(rng.choice(("float32", "int32"))))

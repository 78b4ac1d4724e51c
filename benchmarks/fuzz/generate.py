# pyright: basic
"""Draws random programs: steps of all kinds, on shapes that split evenly and on odd ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import jax

from .kinds import KINDS
from .program import Argument, Drawn, Kind, Program, Step, Type, function, many, type_of
from .sorts import COMPLEX, SHORT_FLOATS, SHORT_INTS, SORTS, WIDE, is_sort

ODD = (1, 2, 3, 5, 7, 12)
MOST_ELEMENTS = 600  # of an argument or a result
REUSE, LATEST, EMPTY, EVEN = 0.85, 0.35, 0.03, 0.65
FREQUENT = {"float32": 12.0, "int32": 6.0, "bfloat16": 2.0, "float16": 2.0}
RARE = {**dict.fromkeys((*SHORT_FLOATS, *SHORT_INTS), 0.3), **dict.fromkeys(COMPLEX, 0.6)}
NESTING = frozenset(
    ("by_platform", "checkpoint", "cond", "custom_jvp", "custom_vjp", "fori", "grad", "jit",
     "scan", "vmap", "while")
)  # fmt: skip
DEEPEST = 2
# What JAX says of programs that are none.
NOT_A_PROGRAM = (
    TypeError, ValueError, IndexError, NotImplementedError, ZeroDivisionError, OverflowError,
)  # fmt: skip


class Drawing:
    """A program while it is drawn.

    rng: decides everything.
    ways: sizes of mesh axes, of whose products dimensions are often a multiple.
    arguments: of a body, which takes nothing else.
    depth: of bodies around this one.
    wide: JAX has types of 64 bits.
    """

    def __init__(
        self,
        rng: random.Random,
        ways: Sequence[int],
        *,
        arguments: Sequence[Type] = (),
        depth: int = 0,
        wide: bool = False,
    ) -> None:
        self.rng, self.ways, self.depth, self.wide = rng, tuple(ways), depth, wide
        self.arguments = [Argument(t.shape, t.dtype) for t in arguments]
        self.types: list[Type] = list(arguments)
        self.given = [True] * len(arguments)  # value -> whether it is an argument
        self.steps: list[Step] = []

    # --- types ------------------------------------------------------------------------------

    def size(self) -> int:
        """A dimension: odd, or one that mesh axes divide."""
        draw = self.rng.random()
        if draw < EMPTY:
            return 0
        if draw < EMPTY + EVEN:
            return self.rng.choice(self.ways) * self.rng.choice((1, 1, 1, 2, 3))
        return self.rng.choice(ODD)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """A shape of not too many elements."""
        rank = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)) if rank is None else rank
        while True:
            found = tuple(self.size() for _ in range(rank))
            if Type(found, "").size <= MOST_ELEMENTS // 2:
                return found

    def dtype(self, sort: str) -> str:
        """An element type of a sort."""
        names = sorted(d for d in SORTS.get(sort, (sort,)) if self.wide or d not in WIDE)
        weights = [FREQUENT.get(d, RARE.get(d, 1.0)) for d in names]
        return self.rng.choices(names, weights)[0]

    # --- values -----------------------------------------------------------------------------

    def new(self, type_: Type, fill: str = "any") -> int | None:
        """A new argument; a body has those it is given."""
        if self.depth:
            return None
        self.arguments.append(Argument(type_.shape, type_.dtype, fill))
        self.types.append(type_)
        self.given.append(True)
        return len(self.types) - 1

    def find(self, fits: Callable[[Type], bool], make: Callable[[], Type]) -> int | None:
        """A value that fits, or a new argument."""
        found = [v for v, type_ in enumerate(self.types) if fits(type_)]
        if found and (self.depth or self.rng.random() < REUSE):
            return found[-1] if self.rng.random() < LATEST else self.rng.choice(found)
        return self.new(make())

    def value(self, sort: str = "any", *, rank: int | None = None, least: int = 0) -> int | None:
        """A value of a sort of element types, of a rank or with at least `least` dimensions."""

        def fits(type_: Type) -> bool:
            ranked = type_.rank >= least if rank is None else type_.rank == rank
            return ranked and is_sort(type_.dtype, sort)

        def make() -> Type:
            most = max(least, self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)))
            return Type(self.shape(most if rank is None else rank), self.dtype(sort))

        return self.find(fits, make)

    def typed(self, shape: Sequence[int], dtype: str) -> int | None:
        """A value of exactly that type."""
        wanted = Type(tuple(shape), dtype)
        return self.find(lambda type_: type_ == wanted, lambda: wanted)

    def dim(self, value: int) -> int:
        """A dimension of a value that has some."""
        return self.rng.randrange(self.types[value].rank)

    # --- steps ------------------------------------------------------------------------------

    def add(self, kind: Kind) -> bool:
        """Adds a step of that kind, if there are operands for it."""
        values, arguments = len(self.types), len(self.arguments)
        drawn = kind.draw(self)
        results = None if drawn is None else self._results(kind, drawn)
        if drawn is None or results is None:
            del self.types[values:], self.given[values:], self.arguments[arguments:]
            return False
        self.types += results
        self.given += [False] * len(results)
        self.steps.append(
            Step(kind.name, tuple(drawn.inputs), dict(drawn.attrs), tuple(drawn.bodies))
        )
        return True

    def _results(self, kind: Kind, drawn: Drawn) -> list[Type] | None:
        bodies = [function(body, KINDS) for body in drawn.bodies]
        structs = [self.types[v].struct() for v in drawn.inputs]
        try:
            found = jax.eval_shape(lambda *xs: many(kind.run(drawn.attrs, bodies, xs)), *structs)
        except NOT_A_PROGRAM:
            return None
        types = [type_of(x) for x in found]
        return types if all(t.size <= MOST_ELEMENTS for t in types) else None

    def grow(self, count: int) -> None:
        """Adds up to `count` steps."""
        kinds = [k for k in KINDS.values() if self.depth < DEEPEST or k.name not in NESTING]
        weights = [k.weight for k in kinds]
        for _ in range(3 * count):
            if len(self.steps) < count:
                self.add(self.rng.choices(kinds, weights)[0])

    def leaves(self) -> list[int]:
        """Results that no step reads."""
        read = {v for step in self.steps for v in step.inputs}
        return [v for v, given in enumerate(self.given) if not given and v not in read]

    def finish(self, outputs: Sequence[int], *, gradient: bool = False) -> Program:
        """The program, its arguments numbered before all results."""
        order = sorted(range(len(self.types)), key=lambda v: (not self.given[v], v))
        number = {v: k for k, v in enumerate(order)}
        steps = tuple(
            Step(s.kind, tuple(number[v] for v in s.inputs), s.attrs, s.bodies) for s in self.steps
        )
        return Program(tuple(self.arguments), steps, tuple(number[v] for v in outputs), gradient)

    # --- bodies -----------------------------------------------------------------------------

    def body(
        self,
        takes: Sequence[Type],
        gives: Sequence[Type] | None = None,
        steps: int = 3,
        more: int = 0,
    ) -> Program | None:
        """A program on given types, with results of given types and some more, or what it has."""
        if not takes:
            return None
        inner = Drawing(
            self.rng, self.ways, arguments=takes, depth=self.depth + 1, wide=self.wide
        )  # fmt: skip
        inner.grow(self.rng.randint(1, steps))
        if gives is None:
            return inner.finish((inner.leaves() or [len(inner.types) - 1])[-3:])
        reached = [inner.reach(type_) for type_ in gives]
        outputs = [v for v in reached if v is not None]
        outputs += inner.leaves()[:more]
        return inner.finish(outputs) if None not in reached else None

    @staticmethod
    def gives(body: Program) -> list[Type]:
        """Types of the results of a body."""
        structs = [argument.type.struct() for argument in body.arguments]
        return [type_of(x) for x in jax.eval_shape(function(body, KINDS), *structs)]

    def reach(self, wanted: Type) -> int | None:
        """A value of a type; made from another one where no step has made any."""
        exact = [v for v, type_ in enumerate(self.types) if type_ == wanted]
        made = [v for v in exact if not self.given[v]]
        if made:
            return self.rng.choice(made)
        near = [
            v for v, t in enumerate(self.types)
            if t.shape == wanted.shape and t != wanted and is_sort(t.dtype, "plain")
        ]  # fmt: skip
        if near and is_sort(wanted.dtype, "plain"):
            cast = self.call("cast", (self.rng.choice(near),), {"dtype": wanted.dtype})
            return cast if not exact else self.call("add", (exact[-1], cast), {})
        if exact and is_sort(wanted.dtype, "number"):
            return self.call("add", (exact[-1], self.rng.choice(exact)), {})
        return exact[-1] if exact else None

    def call(self, kind: str, inputs: Sequence[int | None], attrs: dict[str, object]) -> int | None:
        """The result of a step that is not drawn."""
        given = [v for v in inputs if v is not None]
        called = KINDS[kind]._replace(draw=lambda _: Drawn(given, attrs))
        return len(self.types) - 1 if len(given) == len(inputs) and self.add(called) else None


def random_program(
    rng: random.Random, ways: Sequence[int], *, steps: int = 10, wide: bool = False
) -> Program:
    """A program of some steps, whose results are what no step reads and some of what they do."""
    drawing = Drawing(rng, ways, wide=wide)
    while not drawing.steps:
        drawing.grow(rng.randint(max(steps // 2, 1), steps))
    made = [v for v, given in enumerate(drawing.given) if not given]
    also = [v for v in made if rng.random() < 0.1]
    outputs = list(dict.fromkeys([*drawing.leaves(), *also]))
    if rng.random() < 0.25:
        program = drawing.finish(outputs, gradient=True)
        if is_program(program):
            return program
    return drawing.finish(outputs)


def is_program(program: Program) -> bool:
    """Whether JAX takes it: some steps have no derivative."""
    try:
        Drawing.gives(program)
    except NOT_A_PROGRAM:
        return False
    return True


def step_types(program: Program) -> list[list[Type]]:
    """Types of the results of each step."""
    structs = [argument.type.struct() for argument in program.arguments]
    values, found = list(structs), list[list[Type]]()
    for step in program.steps:
        kind, bodies = KINDS[step.kind], [function(body, KINDS) for body in step.bodies]
        results = jax.eval_shape(
            lambda *xs, run=kind.run, step=step, bodies=bodies: many(run(step.attrs, bodies, xs)),
            *(values[v] for v in step.inputs),
        )
        values += results
        found.append([type_of(x) for x in results])
    return found

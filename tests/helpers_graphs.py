# pyright: basic
"""Graphs for tests: written by hand, and generated without regard to what ops mean."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
from hypothesis import strategies as st

from ir.check import check
from ir.graph import Attr, Graph, Input, Literal, Node, Operand
from ir.text import parse, show
from ir.trace import Traced, trace
from ir.types import DTYPES, TensorType
from tests.examples.test_examples import build


def f32(*shape: int) -> TensorType:
    return TensorType(shape, "float32")


@cache
def example(target: str) -> Traced:
    """The traced training step of an example, made without computing its parameters."""
    kept: list[tuple[Any, Any]] = []

    def arguments() -> Any:
        fn, args, options = build(target)
        kept.append((fn, options))
        return args

    with jax.disable_jit():  # its options for the compiler are allowed outside of a trace only
        args = jax.eval_shape(arguments)
    fn, options = kept[0]
    return trace(fn, *args, **options)


def ops(graph: Graph) -> list[str]:
    """Names of the ops outside bodies, in order."""
    return [node.op for node in graph.nodes]


def checked(traced: Traced) -> Graph:
    """The graph of a traced function, which keeps every invariant."""
    graph = check(traced.graph, after="tracing")
    assert parse(show(graph)) == graph
    assert len(traced.program.bindings) == len(graph.nodes)
    return graph


def mlp() -> Graph:
    """Two inputs, a product, and a maximum with zero."""
    numbers = (((1,), (0,)), ((), ()))
    return Graph(
        (Input("x", f32(8, 16), "batch"), Input("params/w", f32(16, 32), "parameter")),
        (
            Node(
                "dot_general", (0, 1), (f32(8, 32),), (("dimension_numbers", numbers),), (), "m:3"
            ),
            Node("max", (2, Literal(0.0, f32())), (f32(8, 32),), (), (), "m:4"),
        ),
        (3,),
    )


scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.complex_numbers(allow_nan=True, allow_infinity=True),
    st.sampled_from(
        [math.inf, -math.inf, math.nan, -0.0, complex(-0.0, math.nan), complex(1, -0.0)]
    ),
)
words = st.one_of(
    st.text(),
    st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Z", "C"]), max_size=6),
    st.sampled_from(["add", "input", "return", "body", "nan", "inf", "True", "None", "%0", "a b"]),
    st.sampled_from(
        ['"', "\\", "\n", "a\r\nb", "# x", "}", "\u2028", "\ud800", "\U0001f600", "f32[2]"]
    ),
)
attributes: st.SearchStrategy[Attr] = st.recursive(
    st.one_of(st.none(), scalars, words),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)
types = st.builds(
    TensorType,
    st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
    st.sampled_from(list(DTYPES)),
)
inputs = st.builds(Input, words, types, words, words)


@st.composite
def graphs(draw: st.DrawFn, depth: int = 2) -> Graph:
    """Any graph whose operands are defined: ops, roles and attributes are arbitrary."""
    arguments = draw(st.lists(inputs, max_size=3))
    defined = len(arguments)
    nodes: list[Node] = []

    def operands() -> tuple[Operand, ...]:
        literals = st.builds(Literal, scalars, types)
        values = st.integers(0, defined - 1) if defined else literals
        return tuple(draw(st.lists(st.one_of(values, literals), max_size=3)))

    for _ in range(draw(st.integers(0, 3))):
        outputs = tuple(draw(st.lists(types, max_size=2)))
        attrs = tuple(draw(st.lists(st.tuples(words, attributes), max_size=2)))
        bodies = draw(st.lists(graphs(depth - 1), max_size=2)) if depth else []
        op, source = draw(words), draw(words)
        nodes.append(Node(op, operands(), outputs, attrs, tuple(bodies), source))
        defined += len(outputs)
    return Graph(tuple(arguments), tuple(nodes), operands())

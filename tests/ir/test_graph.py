from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings

from ir.errors import IRError
from ir.graph import Attr, Graph, Input, Literal, Node, digest
from ir.types import TensorType, dtype_bytes, dtype_kind, parse_type
from tests.helpers_graphs import example, f32, graphs, mlp

ROOT = Path(__file__).resolve().parents[2]
# Of hashes of strings; not that of this process.
OTHER = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"


def with_attr(value: Attr) -> Node:
    return Node("op", (), (f32(),), (("a", value),))


@cache
def told(seed: str) -> tuple[str, ...]:
    """What another process says, with hashes of its own: of a pickled graph, and of digests."""
    program = (
        "import pickle; from ir import digest; from tests.helpers_graphs import example, mlp; "
        f"g = pickle.loads({pickle.dumps(mlp())!r}); print(len({{g, mlp()}})); "
        "print(digest(mlp()), digest(example('gpt:small_scanned').graph))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return tuple(done.stdout.splitlines())


# --- structure ---------------------------------------------------------------------------------


def test_values_are_numbered_inputs_first() -> None:
    split = Node("split", (0,), (f32(2), f32(2)), (("axis", 0), ("sizes", (2, 2))))
    silent = Node("debug_print", (1,), ())
    graph = Graph((Input("x", f32(4)),), (split, silent, Node("add", (2, 1), (f32(2),))), (3,))
    assert graph.types == (f32(4), f32(2), f32(2), f32(2))
    assert [list(graph.values_of(i)) for i in range(3)] == [[1, 2], [], [3]]
    assert graph.users() == (((0, 0),), ((1, 0), (2, 1)), ((2, 0),), ())
    assert graph.type_of(3) == f32(2)
    assert graph.type_of(Literal(1.0, f32())) == f32()


@pytest.mark.parametrize("operand", [1, 2, -1])
def test_a_node_reads_only_values_before_it(operand: int) -> None:
    with pytest.raises(IRError, match=r"node 0 \(sin\) reads .* defined later or never"):
        Graph((Input("x", f32(4)),), (Node("sin", (operand,), (f32(4),)),), ())


@pytest.mark.parametrize("output", [2, -1])
def test_outputs_are_defined(output: int) -> None:
    with pytest.raises(IRError, match="which no node defines"):
        Graph((Input("x", f32(4)),), (Node("sin", (0,), (f32(4),)),), (output,))


def test_nodes_inside_bodies_are_counted() -> None:
    body = Graph((Input("in0", f32(4), "body"),), (Node("sin", (0,), (f32(4),)),), (1,))
    loop = Node("remat", (0,), (f32(4),), (("jaxpr", "body 0"),), (body,))
    graph = Graph((Input("x", f32(4)),), (loop, Node("cos", (1,), (f32(4),))), (2,))
    assert graph.count_nodes() == 3


def test_attributes_by_name() -> None:
    node = with_attr(None)
    assert node.attr("a") is None
    assert node.has_attr("a")
    assert not node.has_attr("b")
    with pytest.raises(IRError, match=r"op has no attribute 'b'; it has \['a'\]"):
        node.attr("b")


# --- equality, hashes, digests -----------------------------------------------------------------

DIFFERENT: tuple[tuple[Attr, Attr], ...] = (
    (0.0, -0.0),
    (1, True),
    (1, 1.0),
    (1.0, 1 + 0j),
    (0j, -0j),
    ((1,), (1.0,)),
    ("1", 1),
)


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_what_prints_differently_differs(left: Attr, right: Attr) -> None:
    """Python calls most of these equal; a program does not: 1 / 0.0 is not 1 / -0.0."""
    assert with_attr(left) != with_attr(right)
    one, two = (Graph((), (with_attr(value),), (0,)) for value in (left, right))
    assert digest(one) != digest(two)
    if not isinstance(left, (str, tuple)) and not isinstance(right, (str, tuple)):
        assert left is not None
        assert right is not None
        assert Literal(left, f32()) != Literal(right, f32())


@pytest.mark.parametrize("value", [math.nan, complex(math.nan, 1.0), (1, (math.nan,))])
def test_not_a_number_is_equal_to_itself(value: Attr) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert with_attr(value) == with_attr(again)
    assert hash(with_attr(value)) == hash(with_attr(again))
    assert len({Literal(math.nan, f32()), Literal(float("nan"), f32())}) == 1


def test_nodes_are_not_equal_to_other_things() -> None:
    assert with_attr(1) != "op"
    assert Literal(1.0, f32()) != 1.0


@settings(max_examples=20)
@given(graphs())
def test_pickling_keeps_equality_and_hash(graph: Graph) -> None:
    again = pickle.loads(pickle.dumps(graph))
    assert again == graph
    assert hash(again) == hash(graph)
    assert digest(again) == digest(graph)
    assert again.types == graph.types


def test_the_hash_of_an_unpickled_graph_is_that_of_the_process() -> None:
    """Hashes of strings differ between processes, and a cached one must not travel."""
    assert told(OTHER)[0] == "1"


def test_the_digest_is_stable_across_processes() -> None:
    """It names graphs in plan files, also that of a step traced anew in another process."""
    here = digest(mlp()), digest(example("gpt:small_scanned").graph)
    assert told(OTHER)[1] == " ".join(here)


def test_source_lines_do_not_count() -> None:
    graph = mlp()
    moved = Graph(
        graph.inputs,
        tuple(Node(n.op, n.inputs, n.outputs, n.attrs, n.bodies, "x:1") for n in graph.nodes),
        graph.outputs,
    )
    assert moved != graph
    assert digest(moved) == digest(graph)


def test_everything_else_counts() -> None:
    w, graph = Input("w", f32(4)), mlp()
    x = graph.inputs[0]
    first = graph.nodes[0]
    found = {
        digest(Graph(inputs, nodes, outputs))
        for inputs, nodes, outputs in (
            (graph.inputs, graph.nodes, (3,)),
            (graph.inputs, graph.nodes, (2,)),
            (graph.inputs, graph.nodes, (3, 3)),
            (graph.inputs, graph.nodes[:1], (2,)),
            ((*graph.inputs, w), (), (2,)),
            ((*graph.inputs, Input("w", f32(4), "batch")), (), (2,)),
            ((*graph.inputs, Input("w", f32(4), digest="ab")), (), (2,)),
            ((x, w), (), (0,)),
            (graph.inputs, (Node("dot", first.inputs, first.outputs, first.attrs),), (2,)),
            (graph.inputs, (Node(first.op, (1, 0), first.outputs, first.attrs),), (2,)),
            (graph.inputs, (Node(first.op, first.inputs, first.outputs),), (2,)),
        )
    }
    assert len(found) == 11


# --- types -------------------------------------------------------------------------------------


def test_types_measure_themselves() -> None:
    type_ = TensorType((8, 16), "bfloat16")
    assert (str(type_), type_.rank, type_.size, type_.nbytes) == ("bf16[8,16]", 2, 128, 256)
    assert parse_type("bf16[8,16]") == type_
    assert (f32().size, f32(3, 0).nbytes) == (1, 0)
    assert (dtype_bytes("complex64"), dtype_kind("uint8")) == (8, "int")


@pytest.mark.parametrize(
    "text", ["", "f32", "f32[", "f32[]]", "f32[a]", "f32[-1]", "f32[1_0]", "f32[ 1]", "f31[2]"]
)
def test_a_type_has_one_form(text: str) -> None:
    with pytest.raises(IRError, match="is not a tensor type; expected something like"):
        parse_type(text)


def test_types_are_valid_once_built() -> None:
    with pytest.raises(IRError, match="unknown element type 'float31'; known: bool"):
        TensorType((2,), "float31")
    with pytest.raises(IRError, match="a shape has a negative size"):
        f32(2, -1)

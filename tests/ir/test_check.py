from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache

import pytest

from ir.check import check
from ir.errors import IRError
from ir.graph import Attr, Graph, Input, Literal, Node
from ir.ops.build import opaque
from ir.signatures import SIGNATURES
from ir.table import OPS
from ir.text import parse
from ir.trace import trace
from ir.types import TensorType
from tests.helpers_graphs import example, f32, mlp
from tests.helpers_layouts import moving
from tests.op_examples import computing

CALLS = {f"{i}-{call.label}": call for i, call in enumerate((*computing(), *moving()))}

# Ops whose result shapes follow from formulas that the factors do not hold.
FREE_SHAPES = frozenset(
    {"approx_top_k", "conv_general_dilated", "empty", "empty2", "random_bits", "reduce_window"}
    | {"random_gamma", "random_seed", "random_split", "random_unwrap", "random_wrap", "rng_uniform"}
    | {"reduce_window_max", "reduce_window_min", "reduce_window_sum", "rng_bit_generator"}
    | {"bitcast_convert_type", "ragged_dot_general", "select_and_gather_add", "tridiagonal_solve"}
    | {"debug_callback", "debug_print", "io_callback", "registered_op"}  # of the user's own making
    | {"eig", "eigh", "fft", "householder_product", "lu", "lu_pivots_to_permutation", "qr", "svd"}
)
# Ops whose result may be of any element type as far as signatures and attributes tell.
FREE_DTYPES = frozenset(
    {"abs", "complex", "conj", "imag", "ragged_dot_general", "random_bits", "random_seed", "real"}
    | {"random_unwrap", "random_wrap", "top_k"}
)


@cache
def traced(label: str) -> Graph:
    call = CALLS[label]
    return trace(call.fn, *call.args).graph


def with_node(graph: Graph, number: int, **changes: object) -> Graph:
    """The graph with some fields of one node replaced."""
    nodes = list(graph.nodes)
    nodes[number] = dataclasses.replace(nodes[number], **changes)  # pyright: ignore[reportArgumentType]
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def refused(graph: Graph, message: str = "") -> None:
    with pytest.raises(IRError, match=f"after a test: line .*{message}"):
        check(graph, after="a test")


# --- on every op -------------------------------------------------------------------------------


@pytest.mark.parametrize("label", CALLS)
def test_every_op_as_it_is_traced_passes(label: str) -> None:
    graph = traced(label)
    assert check(graph, after="tracing") is graph


def is_checked(node: Node) -> bool:
    record = OPS.get(node.op)
    return record is not None and record.factors is not opaque


def damaged_shapes(node: Node) -> Iterator[tuple[TensorType, ...]]:
    first, *rest = node.outputs
    yield (TensorType((*first.shape, 3), first.dtype), *rest)
    for i, size in enumerate(first.shape):
        for other in {1, size + 1} - {size}:
            shape = (*first.shape[:i], other, *first.shape[i + 1 :])
            yield (TensorType(shape, first.dtype), *rest)


@pytest.mark.parametrize("label", [k for k, c in CALLS.items() if c.op not in FREE_SHAPES])
def test_a_result_of_another_shape_is_refused(label: str) -> None:
    graph = traced(label)
    for number, node in enumerate(graph.nodes):
        if node.op == CALLS[label].op and is_checked(node):
            for outputs in damaged_shapes(node):
                refused(with_node(graph, number, outputs=outputs))


@pytest.mark.parametrize("label", [k for k, c in CALLS.items() if c.op not in FREE_DTYPES])
def test_a_result_of_another_element_type_is_refused(label: str) -> None:
    graph = traced(label)
    for number, node in enumerate(graph.nodes):
        if node.op == CALLS[label].op and node.op in SIGNATURES and node.op != "constant":
            first, *rest = node.outputs
            other = "float16" if first.dtype != "float16" else "int8"
            refused(with_node(graph, number, outputs=(TensorType(first.shape, other), *rest)))


@pytest.mark.parametrize("label", CALLS)
def test_one_operand_more_or_less_is_refused(label: str) -> None:
    graph = traced(label)
    for number, node in enumerate(graph.nodes):
        fixed = node.op in SIGNATURES and "*" not in SIGNATURES[node.op]
        if node.op == CALLS[label].op and fixed:
            refused(with_node(graph, number, inputs=(*node.inputs, Literal(1.5, f32()))))
            if node.inputs:
                refused(with_node(graph, number, inputs=node.inputs[1:]))


def test_every_op_with_factors_of_its_own_has_a_signature() -> None:
    free = ("effect", "linalg", "opaque")
    own = [n for n, r in OPS.items() if r.factors is not opaque and r.family not in free]
    missing = [name for name in own if name not in SIGNATURES]
    assert missing == [
        "approx_top_k", "empty", "empty2", "reduce", "reduce_window", "registered_op", "shard_map",
    ]  # fmt: skip
    assert set(SIGNATURES) <= set(OPS)


# --- the error ---------------------------------------------------------------------------------


def test_the_error_shows_the_step_the_line_and_a_window() -> None:
    broken = with_node(mlp(), 1, outputs=(f32(8, 31),))
    with pytest.raises(IRError) as caught:
        check(broken, after="fuse-relu")
    assert str(caught.value) == (
        "after fuse-relu: line 4: max: its results have the shapes [(8, 31)], "
        "expected [(8, 32)]\n"
        '%1: f32[16,32] = input "params/w" parameter\n'
        "%2: f32[8,32] = dot_general %0 %1 {dimension_numbers=(((1,), (0,)), ((), ()))}  # m:3\n"
        "%3: f32[8,31] = max %2 0.0:f32[]  # m:4    <-- here\n"
        "return %3\n"
    )


def test_the_window_is_five_lines_and_finds_its_way_into_bodies() -> None:
    graph = example("lstm:small").graph
    loop = next(i for i, node in enumerate(graph.nodes) if node.op == "scan")
    body = graph.nodes[loop].bodies[0]
    place = next(i for i, node in enumerate(body.nodes) if node.op == "tanh")
    wrong = with_node(body, place, op="atan2")
    with pytest.raises(IRError) as caught:
        check(with_node(graph, loop, bodies=(wrong,)), after="a test")
    head, *window = str(caught.value).split("\n")
    assert "atan2: it has 1 operands, expected 'T T -> T'" in head
    assert len(window) == 5
    assert window[2].startswith("    %")
    assert " = atan2 " in window[2]
    assert window[2].endswith("<-- here")


def test_what_has_no_text_form_is_refused() -> None:
    node = Node("op", (), (), (("a", {}),))  # pyright: ignore[reportArgumentType]
    with pytest.raises(IRError, match="a dict has no text form"):
        check(Graph((), (node,), ()), after="a test")


# --- single invariants -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("literal", "message"),
    [
        (Literal(1.0, TensorType((), "int32")), "the literal 1.0 cannot be of type i32"),
        (Literal(1, TensorType((), "bool")), "the literal 1 cannot be of type pred"),
        (Literal(True, f32()), "the literal True cannot be of type f32"),
        (Literal(1j, f32()), "the literal 1j cannot be of type f32"),
        (Literal(1.0, f32(2)), "the literal 1.0 cannot be of type f32"),
        (Literal(0, TensorType((), "token")), "the literal 0 cannot be of type token"),
    ],
)
def test_literals_are_scalars_of_their_type(literal: Literal, message: str) -> None:
    refused(Graph((), (Node("unknown", (literal,), ()),), ()), message)
    refused(Graph((), (), (literal,)), message)


def test_constants_come_before_arguments() -> None:
    constant, argument = Input("c", f32(), "constant", "ab"), Input("x", f32())
    check(Graph((constant, argument), (), ()), after="a test")
    refused(Graph((argument, constant), (), ()), "the constant 'c' comes after arguments")


def test_an_unknown_op_may_have_any_types() -> None:
    graph = Graph((Input("x", f32(3)),), (Node("strange op", (0, 0), (f32(7), f32())),), (2,))
    assert check(graph, after="a test") is graph


BROKEN = {
    "missing attribute": ("%1: f32[4] = reduce_sum %0", "reduce_sum: the attribute 'axes' is mis"),
    "odd attribute": ("%1: f32[4] = reduce_sum %0 {axes=1}", "expected a tuple of whole numbers"),
    "axis": ("%1: f32[4] = reduce_sum %0 {axes=(7,)}", "its axes \\(7,\\) are not those"),
    "lost": ("%1: f32[1] = reduce_sum %0 {axes=(1,)}", "expected \\[\\(4,\\)\\]"),
    "squeezed": ("%1: f32[4] = squeeze %0 {dimensions=(1,)}", "which are not all 1"),
    "permutation": ("%1: f32[4,4] = transpose %0 {permutation=(0, 0)}", "its permutation"),
    "reshape": ("%1: f32[5] = reshape %0 {dimensions=None, new_sizes=(5,)}", "5 elements of 24"),
    "shapes": ("%1: f32[4,6] = add %0 %0a", "cannot read"),
    "slice": (
        "%1: f32[4,9] = slice %0 {limit_indices=(4, 9), start_indices=(0, 0), strides=None}",
        "do not lie within",
    ),
    "split": (
        "%1: f32[4,2], %2: f32[4,2] = split %0 {axis=1, sizes=(2, 2)}",
        "its sizes \\(2, 2\\) do not add up to 6",
    ),
    "too many": ("%1: f32[6], %2: f32[6] = unstack %0 {axis=0}", "its results have the shapes"),
    "contraction": (
        "%1: f32[4,4] = dot_general %0 %0 {dimension_numbers=(((1,), (0,)), ((), ()))}",
        "it joins dimension 1 of \\(4, 6\\) and 0 of \\(4, 6\\): 6 and 4",
    ),
    "accumulator": (
        "%1: bf16[4,4] = dot_general %0 %0 {dimension_numbers=(((1,), (1,)), ((), ())), "
        'preferred_element_type="float32"}',
        "its results are bf16\\[4,4\\], expected '_ _ -> float32'",
    ),
    "conversion": (
        '%1: f32[4,6] = convert_element_type %0 {new_dtype="bfloat16", weak_type=False}',
        "its results are f32\\[4,6\\], expected '_ -> bfloat16'",
    ),
    "comparison": ("%1: f32[4,6] = lt %0 %0", "its results are f32"),
    "mixed": ("%1: f32[4,6] = add %0 1:i32[]", "its operands are f32\\[4,6\\], i32"),
    "no body": (
        '%1: f32[4,6] = remat %0 {jaxpr="body 0"}',
        "it names the body 'body 0', but has 0",
    ),
}


@pytest.mark.parametrize("name", sorted(set(BROKEN) - {"shapes"}))
def test_single_nodes(name: str) -> None:
    line, message = BROKEN[name]
    refused(parse(f'%0: f32[4,6] = input "x" batch\n{line}\nreturn\n'), message)


def test_a_text_may_claim_any_size() -> None:
    shape = f"f32[{10**18}]"
    text = f'%0: {shape} = input "x" batch\n%1: f32[] = unstack %0 {{axis=0}}\nreturn\n'
    refused(parse(text), "results, expected at most")


def test_dimensions_of_size_one_repeat() -> None:
    graph = Graph(
        (Input("x", f32(4, 1)), Input("y", f32(1, 6))), (Node("add", (0, 1), (f32(4, 6),)),), (2,)
    )
    check(graph, after="a test")
    refused(with_node(graph, 0, outputs=(f32(4, 1),)), "expected \\[\\(4, 6\\)\\]")
    other = Graph((Input("x", f32(4)), Input("y", f32(1, 6))), graph.nodes, ())
    refused(other, "expected one rank or scalars")
    other = Graph((Input("x", f32(4, 2)), Input("y", f32(1, 6))), graph.nodes, ())
    refused(other, "expected one shape or scalars")


# --- bodies ------------------------------------------------------------------------------------

I32, PRED = TensorType((), "int32"), TensorType((), "bool")


def body(takes: tuple[TensorType, ...], returns: tuple[TensorType, ...]) -> Graph:
    """A graph of the given type, made of an unknown op."""
    inputs = tuple(Input(f"in{i}", type_, "body") for i, type_ in enumerate(takes))
    first = len(takes)
    return Graph(
        inputs,
        (Node("anything", tuple(range(first)), returns),),
        tuple(range(first, first + len(returns))),
    )


def region(
    op: str,
    takes: tuple[TensorType, ...],
    returns: tuple[TensorType, ...],
    bodies: tuple[Graph, ...],
    **attrs: Attr,
) -> Graph:
    inputs = tuple(Input(f"x{i}", type_) for i, type_ in enumerate(takes))
    node = Node(op, tuple(range(len(takes))), returns, tuple(sorted(attrs.items())), bodies)
    return Graph(inputs, (node,), ())


SCAN = {"jaxpr": "body 0", "length": 5, "num_carry": 1, "num_consts": 1, "reverse": False}
WHILE = {"body_jaxpr": "body 0", "body_nconsts": 1, "cond_jaxpr": "body 1", "cond_nconsts": 0}
A, B = f32(2), f32(3)


def test_scan() -> None:
    step = body((A, B, f32(7)), (B, f32(9)))
    takes, returns = (A, B, f32(5, 7)), (B, f32(5, 9))
    check(region("scan", takes, returns, (step,), **SCAN), after="a test")
    refused(region("scan", (A, B, f32(4, 7)), returns, (step,), **SCAN), "expected 5 slices")
    refused(region("scan", (A, B, f32()), returns, (step,), **SCAN), "expected 5 slices")
    refused(region("scan", (B, B, f32(5, 7)), returns, (step,), **SCAN), "its body takes")
    refused(region("scan", takes, (B, f32(9)), (step,), **SCAN), "its results are")
    refused(region("scan", takes, returns, (step,), **{**SCAN, "num_consts": 9}), "at most 3")
    refused(region("scan", takes, returns, (step,), **{**SCAN, "num_carry": -1}), "at most 2")
    refused(region("scan", takes, returns, (step,), **{**SCAN, "jaxpr": "body 1"}), "body 0")
    refused(region("scan", takes, returns, (), **{**SCAN, "jaxpr": None}), "it names the body None")
    other = body((A, B, f32(7)), (A, f32(9)))
    refused(region("scan", takes, returns, (other,), **SCAN), "its body returns the carry")


def test_constants_of_a_body_are_its_own() -> None:
    step = body((A, B, f32(7)), (B, f32(9)))
    own = Graph((Input("const0", f32(1), "constant", "ab"), *step.inputs), (), (2, 3))
    takes = (A, B, f32(5, 7))
    check(region("scan", takes, (B, f32(5, 7)), (own,), **SCAN), after="a test")


def test_while() -> None:
    step, test = body((A, I32), (I32,)), body((I32,), (PRED,))
    check(region("while", (A, I32), (I32,), (step, test), **WHILE), after="a test")
    refused(region("while", (B, I32), (I32,), (step, test), **WHILE), "its body takes")
    refused(region("while", (A, I32), (A,), (step, test), **WHILE), "its results are")
    refused(region("while", (A, A), (A,), (step, test), **WHILE), "its test takes")
    wrong = body((I32,), (I32,))
    refused(region("while", (A, I32), (I32,), (step, wrong), **WHILE), "its test returns")
    wrong = body((A, I32), (A,))
    refused(region("while", (A, I32), (I32,), (wrong, test), **WHILE), "its body returns")


def test_cond() -> None:
    one, two = body((A,), (B,)), body((A,), (A,))
    both: dict[str, Attr] = {"branches": ("body 0", "body 1")}
    check(region("cond", (I32, A), (B,), (one, one), **both), after="a test")
    refused(region("cond", (I32, A), (B,), (one, two), **both), "its branch 1 returns")
    refused(region("cond", (I32, B), (B,), (one, one), **both), "its branch 0 takes")
    refused(region("cond", (PRED, A), (B,), (one, one), **both), "its index is")
    refused(region("cond", (I32, A), (B,), (), branches=()), "its branches are \\(\\)")
    refused(region("cond", (I32, A), (B,), (one, one), branches=("body 0",)), "names body 1")


def test_remat() -> None:
    one: dict[str, Attr] = {"jaxpr": "body 0"}
    check(region("remat", (A,), (B,), (body((A,), (B,)),), **one), after="a test")
    refused(region("remat", (A,), (A,), (body((A,), (B,)),), **one), "its body returns")
    refused(region("remat", (A, A), (B,), (body((A,), (B,)),), **one), "its body takes")


def test_every_body_has_a_name() -> None:
    refused(region("scatter-strange", (A,), (A,), (body((), ()),)), "none of its attributes names")

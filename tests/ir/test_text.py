from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.errors import IRError
from ir.graph import Attr, Graph, Input, Literal, Node
from ir.text import MAX_DEPTH, parse, show
from ir.tokens import MAX_DIGITS
from ir.types import DTYPES, TensorType
from tests.examples.test_examples import SMALL
from tests.helpers_graphs import example, f32, graphs, mlp

MLP = """
%0: f32[8,16] = input "x" batch
%1: f32[16,32] = input "params/w" parameter
%2: f32[8,32] = dot_general %0 %1 {dimension_numbers=(((1,), (0,)), ((), ()))}  # m:3
%3: f32[8,32] = max %2 0.0:f32[]  # m:4
return %3
""".lstrip()


def assert_round_trip(graph: Graph) -> None:
    text = show(graph)
    found = parse(text)
    assert found == graph
    assert hash(found) == hash(graph)
    assert show(found) == text


def test_reads_well() -> None:
    assert show(mlp()) == MLP
    assert parse(MLP) == mlp()


def test_layout_and_comments_have_no_meaning() -> None:
    lines = [f"   {line}\r" for line in MLP.splitlines()]
    assert parse("# a product\n\n" + "\n  # and more\n".join(lines)) == mlp()


@pytest.mark.parametrize("target", sorted(SMALL))
def test_examples_round_trip(target: str) -> None:
    assert_round_trip(example(target).graph)


def assert_read_or_refused(text: str) -> None:
    message = ""
    try:
        assert_round_trip(parse(text))
    except IRError as error:
        message = str(error)
    assert message == "" or message.startswith("line ")


@settings(max_examples=40)
@given(graphs())
def test_any_graph_round_trips(graph: Graph) -> None:
    assert_round_trip(graph)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    assert_read_or_refused(text)


@given(st.data())
def test_a_damaged_text_is_read_or_refused(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(MLP)))
    length = data.draw(st.integers(0, 3))
    inserted = data.draw(st.text('%0123(){}[],:="# \n\\abn.-', max_size=3))
    text = MLP[:place] + inserted + MLP[place + length :]
    assert_read_or_refused(text)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_element_type(dtype: str) -> None:
    type_ = TensorType((), dtype)
    assert_round_trip(Graph((Input("x", type_),), (), (0, Literal(1, type_))))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "True"),
        (-7, "-7"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e-30, "1e-30"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (complex(1, -2), "(1-2j)"),
        (complex(-0.0, math.inf), "(-0+infj)"),
        (complex(math.nan, math.nan), "(nan+nanj)"),
        (2j, "2j"),
        (complex(0, -math.inf), "-infj"),
        (None, "None"),
        ((), "()"),
        ((None,), "(None,)"),
        ((1, (2.0, "a")), '(1, (2.0, "a"))'),
        ((1j, (1 + 1j,)), "(1j, ((1+1j),))"),
        ('say "hi"\\\n', '"say \\"hi\\"\\\\\\n"'),
        ("Größe \u2028\ud83d\ude00\x00", '"Größe \\u2028\\ud83d\\ude00\\x00"'),
    ],
)
def test_attributes(value: Attr, text: str) -> None:
    graph = Graph((), (Node("op", (), (), (("a", value),)),), ())
    assert show(graph) == f"() = op {{a={text}}}\nreturn\n"
    assert_round_trip(graph)


def test_names_that_look_like_something_else_are_quoted() -> None:
    nodes = tuple(
        Node(name, (), (f32(),), ((name, 1),), (), name)
        for name in ("input", "return", "body", "inf", "nanj", "", "a b", "x\ny", '"q"', "1", " # ")
    )
    assert_round_trip(Graph((Input("a\n'b\" c", f32(), "", "d\\"),), nodes, ()))


def test_bodies_are_nested_blocks() -> None:
    attrs = (("jaxpr", "body 0"),)
    inner = Graph((Input("in0", f32(2), "body"),), (Node("sin", (0,), (f32(2),)),), (1,))
    outer = Graph(inner.inputs, (Node("remat", (0,), (f32(2),), attrs, (inner,)),), (1,))
    two = Node("cond", (0,), (f32(2),), (), (inner, outer), "here")
    graph = Graph((Input("x", f32(2)),), (two,), (1,))
    assert_round_trip(graph)
    assert show(graph).splitlines()[1:8] == [
        "%1: f32[2] = cond %0  # here",
        "  body 0 {",
        '    %0: f32[2] = input "in0" body',
        "    %1: f32[2] = sin %0",
        "    return %1",
        "  }",
        "  body 1 {",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: found the end, expected 'return'"),
        ("return\nreturn", "line 2: found 'return', expected nothing after 'return'"),
        ("return %0", "line 1: found '%0', expected a value defined before; there are 0"),
        ("%1: f32[] = iota\n", "line 1: found '%1', expected '%0', the next value"),
        ("%0 f32[] = iota", "line 1: found 'f32\\[\\]', expected ':'"),
        ("%0: f33[] = iota", "found 'f33\\[\\]', expected a type such as"),
        ("%0: f32[8,] = iota", "found 'f32\\[8,\\]', expected a type such as"),
        (f"%0: f32[{'9' * 30}] = iota", "expected a type such as"),
        ("%0: f32[] = iota (1)", "found '\\(', expected an operand"),
        ("%0: f32[] = iota {a=(1)}", "found '\\)', expected ','"),
        ("%0: f32[] = iota {a=(1, 2}", "found '}', expected ','"),
        ("%0: f32[] = iota {a=b}", "found 'b', expected a number, a string"),
        ("%0: f32[] = iota {a=1", "found the end, expected ',' or '}'"),
        ("%0: f32[] = iota {1=1}", "found '1', expected the name of an attribute"),
        ('%0: f32[] = iota {a="x}', "line 1: cannot read"),
        ('%0: f32[] = iota {a="\\q"}', "line 1: cannot read"),
        ('%0: f32[] = iota # "x', "line 1: cannot read the source"),
        ("%0: f32[] = iota; return", "line 1: cannot read '; return'"),
        ("%0: f32[] = input x batch", "found 'x', expected the name of the input"),
        ('%0: f32[] = iota\n%1: f32[] = input "x" batch', "line 2: found an input"),
        ('() = input "x" batch', "line 1: found an input"),
        ("%0: f32[] = iota 1", "found the end, expected ':'"),
        ("%0: f32[] = iota True", "found the end, expected ':'"),
        ("body 0 {", "line 1: found a body, expected the node it belongs to"),
        ("() = remat\nbody 1 {", "line 2: found '1', expected 0, the number of the body"),
        ("() = remat\nbody 0 {\nreturn", "line 3: found the end, expected '}'"),
        ("() = remat\nbody 0 {\n}", "line 3: found the end, expected 'return'"),
        ("}", "line 1: found '}', but no body is open"),
        ("% = iota", "line 1: cannot read '% = iota'"),
        ("hello", "line 1: found 'hello', expected a definition"),
    ],
)
def test_errors_say_where_what_and_what_instead(text: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        parse(text)


def test_nesting_is_bounded() -> None:
    deep = "(" * 100_000
    with pytest.raises(IRError, match=f"line 1: tuples are nested more than {MAX_DEPTH} deep"):
        parse(f"() = op {{a={deep}}}")
    with pytest.raises(IRError, match=f"bodies are nested more than {MAX_DEPTH} deep"):
        parse("() = op\nbody 0 {\n" * 100_000)
    graph = Graph((), (), ())
    for _ in range(MAX_DEPTH):
        graph = Graph((), (Node("remat", (), (), (), (graph,)),), ())
    assert_round_trip(graph)
    with pytest.raises(IRError, match="bodies are nested more than"):
        show(Graph((), (Node("remat", (), (), (), (graph,)),), ()))


def test_numbers_are_bounded() -> None:
    largest = 10**MAX_DIGITS - 1
    assert_round_trip(Graph((), (Node("op", (), (), (("a", -largest),)),), ()))
    with pytest.raises(IRError, match="more than 1000 digits"):
        show(Graph((), (Node("op", (), (), (("a", largest + 1),)),), ()))
    with pytest.raises(IRError, match="line 1: cannot read"):
        parse(f"() = op {{a={'1' * 100_000}}}")


def test_what_is_not_plain_data_has_no_text_form() -> None:
    node = Node("op", (), (), (("a", [1]),), (), "m:7")  # pyright: ignore[reportArgumentType]
    with pytest.raises(IRError, match="a list has no text form") as caught:
        show(Graph((), (node,), ()))
    assert caught.value.__notes__ == ["while writing the attributes of op m:7"]


def chain(length: int) -> Graph:
    attrs = (("dimension_numbers", (((1,), (0,)), ((), ()))), ("precision", None))
    nodes = tuple(
        Node("dot_general", (i, 0), (f32(64, 64),), attrs, (), f"model.py:{i}")
        for i in range(length)
    )
    return Graph((Input("x", f32(64, 64)),), nodes, (length,))


def test_time_is_linear() -> None:
    """Four thousand nodes take about four times a thousand."""
    few, many = (min(_seconds(chain(n)) for _ in range(3)) for n in (1_000, 4_000))
    assert many < 10 * few


def _seconds(graph: Graph) -> float:
    """Processor time to write a graph and read it."""
    start = time.process_time()
    assert parse(show(graph)) == graph
    return time.process_time() - start


@pytest.mark.parametrize(
    "line",
    ['"\\"' * 50_000, '"' + "\\" * 100_000, "1" * 200_000, " " * 200_000 + ";", "(1+" * 50_000],
    ids=["quotes", "backslashes", "digits", "spaces", "complex"],
)
def test_hostile_lines_are_refused_at_once(line: str) -> None:
    start = time.process_time()
    with pytest.raises(IRError, match="line 1: "):
        parse(f"() = op {{a={line}")
    assert time.process_time() - start < 1.0


def test_nothing_is_evaluated(tmp_path: Path) -> None:
    target = tmp_path / "made"
    for text in (f"__import__('os').mkdir('{target}')", f"open('{target}', 'w')"):
        with pytest.raises(IRError):
            parse(f"() = op {{a={text}}}")
    assert not target.exists()

"""The text form of a graph: one line per input and node, bodies in indented blocks.

    %0: f32[8,16] = input "x" batch
    %1: f32[16,32] = input "params/w" parameter
    %2: f32[8,32] = dot_general %0 %1 {dimension_numbers=(((1,), (0,)), ((), ()))}  # mlp.py:12
    %3: f32[8,32] = remat %2 {jaxpr="body 0"}  # mlp.py:13
      body 0 {
        %0: f32[8,32] = input "in0" body
        %1: f32[8,32] = max %0 0.0:f32[]
        return %1
      }
    return %3

`parse(show(graph)) == graph`. Indentation, empty lines and lines that begin with `#` have no
meaning. A word that is not plain is quoted, with Python's escapes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from .errors import IRError
from .graph import Attr, Attrs, Graph, Input, Literal, Node, Operand
from .tokens import MAX_DIGITS, RESERVED, STRING, TOO_LARGE, Line, clip, quote, unquote, word
from .types import TensorType, parse_type

MAX_DEPTH = 64  # of bodies in bodies, and of tuples in tuples
Notes = Callable[[tuple[int, ...], str], Iterable[str]]
OnNote = Callable[[int, str, tuple[int, ...], int], None]
_CONSTANTS: dict[str, bool | None] = {"False": False, "None": None, "True": True}


# --- from graph to text ------------------------------------------------------------------------


def show(graph: Graph) -> str:
    """The text form of a graph.

    Raises:
        IRError: if something in the graph has no text form, such as an attribute that is a list.
    """
    return annotated(graph, lambda _place, _event: ())


def annotated(graph: Graph, notes: Notes) -> str:
    """The text form with notes, which are lines that begin with `@`.

    Args:
        graph: the graph to write.
        notes: lines (place, event), without the mark. Events of a body are "inputs", after its
            inputs, and "return", before it; of a node "before", "after", and "end", after its
            bodies.

    Raises:
        IRError: as `show`.
    """
    return "\n".join(_lines(graph, "", (), notes)) + "\n"


def _lines(graph: Graph, indent: str, prefix: tuple[int, ...], notes: Notes) -> Iterator[str]:
    if len(prefix) > 2 * MAX_DEPTH:
        raise IRError(f"bodies are nested more than {MAX_DEPTH} deep, which has no text form")

    def noted(place: tuple[int, ...], event: str) -> Iterator[str]:
        yield from (f"{indent}  @ {note}" for note in notes(place, event))

    for number, item in enumerate(graph.inputs):
        yield f"{indent}%{number}: {item.type} = input {_show_input(item)}"
    yield from noted(prefix, "inputs")
    for i, (node, first) in enumerate(zip(graph.nodes, graph.first_value, strict=True)):
        place = (*prefix, i)
        yield from noted(place, "before")
        yield indent + _show_node(node, first)
        yield from noted(place, "after")
        for number, body in enumerate(node.bodies):
            yield f"{indent}  body {number} {{"
            yield from _lines(body, indent + "    ", (*place, number), notes)
            yield f"{indent}  }}"
        yield from noted(place, "end")
    yield from noted(prefix, "return")
    yield indent + " ".join(["return", *map(_show_operand, graph.outputs)])


def _show_input(item: Input) -> str:
    digest = f" digest={quote(item.digest)}" if item.digest else ""
    return f"{quote(item.name)} {word(item.role)}{digest}"


def _show_node(node: Node, first: int) -> str:
    values = ", ".join(f"%{first + i}: {type_}" for i, type_ in enumerate(node.outputs))
    op = quote(node.op) if node.op in RESERVED else word(node.op)
    words = [values or "()", "=", op, *map(_show_operand, node.inputs)]
    if node.attrs:
        try:
            attrs = [f"{word(name)}={_show_attr(value, 0)}" for name, value in node.attrs]
        except IRError as error:
            error.add_note(f"while writing the attributes of {node.op} {node.source}".rstrip())
            raise
        words.append(f"{{{', '.join(attrs)}}}")
    if node.source:
        words.append(f" # {_show_source(node.source)}")
    return " ".join(words)


def _show_operand(operand: Operand) -> str:
    if isinstance(operand, Literal):
        return f"{_show_attr(operand.value, 0)}:{operand.type}"
    return f"%{operand}"


def _show_attr(value: Attr, depth: int) -> str:
    if isinstance(value, tuple):
        if depth == MAX_DEPTH:
            raise IRError(f"tuples are nested more than {MAX_DEPTH} deep, which has no text form")
        inner = ", ".join([_show_attr(item, depth + 1) for item in value])
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, str):
        return quote(value)
    if type(value) is int and abs(value) >= TOO_LARGE:
        raise IRError(f"an integer has more than {MAX_DIGITS} digits, which has no text form")
    if value is None or type(value) in (bool, int, float, complex):
        return repr(value)
    raise IRError(f"a {type(value).__name__} has no text form; attributes are plain data in tuples")


def _show_source(source: str) -> str:
    plain = source.isprintable() and source == source.strip() and source[0] != '"'
    return source if plain else quote(source)


# --- from text to graph ------------------------------------------------------------------------


def parse(text: str) -> Graph:
    """The graph of a text as `show` writes it.

    Takes time linear in the text and evaluates nothing, so the text may be anyone's.

    Raises:
        IRError: with the number of the line, what was found there and what was expected.
    """
    return parse_annotated(text, None)


def parse_annotated(text: str, note: OnNote | None) -> Graph:
    """The graph of a text as `annotated` writes it.

    Args:
        text: a graph with notes.
        note: called with each note as (number of its line, text without the mark, place of the
            body it is in, nodes of that body before it); None if there may be none.

    Raises:
        IRError: as `parse`.
    """
    top = _Block()
    open_blocks = [top]
    count = 0
    for count, content in enumerate(text.split("\n"), start=1):
        if note is not None and content.lstrip().startswith("@"):
            note(count, content.strip()[1:].strip(), *_where(open_blocks))
            continue
        line = Line(count, content)
        if line.tokens:
            _statement(line, open_blocks)
    end = Line(count, "")
    if len(open_blocks) > 1:
        end.fail("'}'")
    return top.graph(end)


def _where(open_blocks: list[_Block]) -> tuple[tuple[int, ...], int]:
    """Place of the innermost body, and how many nodes it has so far."""
    outer = [(len(block.nodes) - 1, len(block.bodies)) for block in open_blocks[:-1]]
    return tuple(itertools.chain.from_iterable(outer)), len(open_blocks[-1].nodes)


@dataclass
class _Block:
    """What has been read of a graph."""

    inputs: list[Input] = field(default_factory=list[Input])
    nodes: list[Node] = field(default_factory=list[Node])
    bodies: list[Graph] = field(default_factory=list[Graph])  # of the last node
    outputs: tuple[Operand, ...] | None = None
    count: int = 0  # values defined so far

    def finish_node(self) -> None:
        """Gives the last node the bodies that followed it."""
        if self.bodies:
            last = self.nodes[-1]
            whole = Node(
                last.op, last.inputs, last.outputs, last.attrs, tuple(self.bodies), last.source
            )
            self.nodes[-1] = whole
            self.bodies = []

    def graph(self, line: Line) -> Graph:
        if self.outputs is None:
            line.fail("'return'")
        self.finish_node()
        return Graph(tuple(self.inputs), tuple(self.nodes), self.outputs)


def _statement(line: Line, open_blocks: list[_Block]) -> None:
    block = open_blocks[-1]
    if line.accept("}"):
        line.end()
        if len(open_blocks) == 1:
            raise IRError(f"line {line.number}: found '}}', but no body is open")
        body = block.graph(line)
        open_blocks.pop()
        open_blocks[-1].bodies.append(body)
    elif block.outputs is not None:
        line.fail("'}'" if len(open_blocks) > 1 else "nothing after 'return'")
    elif line.accept("body"):
        _open_body(line, open_blocks)
    elif line.accept("return"):
        block.outputs = _operands(line, block.count)
        line.end()
    else:
        _definition(line, block)


def _open_body(line: Line, open_blocks: list[_Block]) -> None:
    block = open_blocks[-1]
    if not block.nodes:
        raise IRError(f"line {line.number}: found a body, expected the node it belongs to first")
    if len(open_blocks) > MAX_DEPTH:
        raise IRError(f"line {line.number}: bodies are nested more than {MAX_DEPTH} deep")
    if line.peek() != ("number", str(len(block.bodies))):
        line.fail(f"{len(block.bodies)}, the number of the body")
    line.place += 1
    line.expect("{")
    line.end()
    open_blocks.append(_Block())


def _definition(line: Line, block: _Block) -> None:
    types = _results(line, block.count)
    line.expect("=")
    if line.accept("input"):
        if block.nodes or len(types) != 1:
            raise IRError(
                f"line {line.number}: found an input, expected a node; "
                "an input is one value, and all inputs come before the nodes"
            )
        block.inputs.append(_input(line, types[0]))
    else:
        block.finish_node()
        op = _plain(line, "the name of an op")
        inputs = _operands(line, block.count)
        attrs = _attrs(line)
        block.nodes.append(Node(op, inputs, types, attrs, (), _source(line)))
    line.end()
    block.count += len(types)


def _results(line: Line, first: int) -> tuple[TensorType, ...]:
    if line.accept("("):
        line.expect(")")
        return ()
    types: list[TensorType] = []
    while True:
        number = f"%{first + len(types)}"
        if line.peek() != ("value", number):
            line.fail(f"'{number}', the next value" if line.peek()[0] == "value" else _STARTS)
        line.place += 1
        line.expect(":")
        types.append(_type(line))
        if not line.accept(","):
            return tuple(types)


_STARTS = "a definition such as '%0: f32[8] = ...', 'return', 'body' or '}'"


def _type(line: Line) -> TensorType:
    expected = "a type such as 'f32[8,16]'"
    text = line.take("type", expected)
    try:
        return parse_type(text)
    except IRError:
        line.place -= 1
        line.fail(expected)


def _input(line: Line, type_: TensorType) -> Input:
    name = unquote(line.take("string", "the name of the input in double quotes"))
    role = _plain(line, "the role of the input")
    if not line.accept("digest"):
        return Input(name, type_, role)
    line.expect("=")
    return Input(name, type_, role, unquote(line.take("string", "a digest in double quotes")))


def _operands(line: Line, count: int) -> tuple[Operand, ...]:
    found: list[Operand] = []
    while True:
        kind, text = line.peek()
        if kind == "value":
            number = int(text[1:])
            if number >= count:
                raise IRError(
                    f"line {line.number}: found '{text}', expected a value defined before; "
                    f"there are {count}"
                )
            line.place += 1
            found.append(number)
        elif kind in ("number", "complex") or text in ("True", "False"):
            found.append(_literal(line))
        else:
            return tuple(found)


def _literal(line: Line) -> Literal:
    value = _attr(line, 0)
    line.expect(":")
    if value is None or isinstance(value, (str, tuple)):
        line.fail("a number")
    return Literal(value, _type(line))


def _attrs(line: Line) -> Attrs:
    if not line.accept("{"):
        if line.peek()[0]:
            line.fail("an operand, '{' or the end of the line")
        return ()
    found: list[tuple[str, Attr]] = []
    while True:
        name = _plain(line, "the name of an attribute")
        line.expect("=")
        found.append((name, _attr(line, 0)))
        if line.accept("}"):
            return tuple(found)
        if not line.accept(","):
            line.fail("',' or '}'")


def _attr(line: Line, depth: int) -> Attr:
    kind, text = line.peek()
    if line.accept("("):
        return _tuple(line, depth + 1)
    if kind not in ("string", "number", "complex") and text not in _CONSTANTS:
        line.fail("a number, a string in double quotes, True, False, None or a tuple")
    line.place += 1
    if kind == "string":
        return unquote(text)
    if kind == "number":
        return int(text) if text.lstrip("-").isdigit() else float(text)
    return complex(text) if kind == "complex" else _CONSTANTS[text]


def _tuple(line: Line, depth: int) -> Attr:
    if depth > MAX_DEPTH:
        raise IRError(f"line {line.number}: tuples are nested more than {MAX_DEPTH} deep")
    items: list[Attr] = []
    while not line.accept(")"):
        items.append(_attr(line, depth))
        if not line.accept(",") and (len(items) == 1 or line.peek()[1] != ")"):
            line.fail("','")
    return tuple(items)


def _source(line: Line) -> str:
    text = line.comment or ""
    if not text.startswith('"'):
        return text
    if not re.fullmatch(STRING, text):
        raise IRError(f"line {line.number}: cannot read the source {clip(text)!r}")
    return unquote(text)


def _plain(line: Line, expected: str) -> str:
    """A word, or a string in quotes."""
    if line.peek()[0] == "string":
        return unquote(line.take("string", expected))
    return line.take("word", expected)

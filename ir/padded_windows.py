"""Windows over padded operands, and results of them that are cropped, as one op each.

A pad before a convolution or a reduction over windows is a part of the padding of that, and so is
a slice, or a negative pad, after a convolution that moves by one. So `jnp.pad` and padding `VALID`
can be split along the window as padding of the op's own is, with their gradients, and those of
poolings by sums.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .graph import Graph, Literal, Node, Operand
from .ops.build import fields, ints, pairs
from .program import Binding, Program

CONVOLUTION = "conv_general_dilated"
# Ops with windows, and what of a pad is as if there was nothing.
_NEUTRAL: Mapping[str, float] = {
    CONVOLUTION: 0.0, "reduce_window_sum": 0.0,
    "reduce_window_max": -math.inf, "reduce_window_min": math.inf,
}  # fmt: skip

Edges = tuple[tuple[int, int], ...]


def with_padded_windows(program: Program) -> Program:
    """The program with pads and crops as parts of its windows; values keep their numbers."""
    graph = program.graph
    if not any(node.op in _NEUTRAL for node in graph.nodes):
        return program
    nodes, bindings = list(graph.nodes), list(program.bindings)
    uses = Counter(v for node in graph.nodes for v in node.inputs if isinstance(v, int))
    uses.update(v for v in graph.outputs if isinstance(v, int))
    for i, node in enumerate(graph.nodes):
        found = None
        if node.op in _NEUTRAL:
            found = _of_pad(graph, nodes[i], bindings[i])
        elif node.op in ("slice", "pad") and isinstance(node.inputs[0], int):
            maker = graph.maker.get(node.inputs[0])
            if maker is not None and uses[node.inputs[0]] == 1:
                found = _cropped(nodes[maker], bindings[maker], node)
        if found is not None:
            nodes[i], bindings[i] = found
    return replace(
        program, graph=Graph(graph.inputs, tuple(nodes), graph.outputs), bindings=tuple(bindings)
    )


def _places(node: Node) -> tuple[int, ...]:
    """Dimensions of the operand along which windows move, in the order of their padding."""
    attrs = dict(node.attrs)
    if node.op != CONVOLUTION:
        return tuple(range(len(pairs(attrs["padding"]))))
    return ints(fields(attrs["dimension_numbers"])["lhs_spec"])[2:]


def _of_pad(graph: Graph, node: Node, binding: Binding) -> tuple[Node, Binding] | None:
    """A window over what is padded, as one over what the pad is given."""
    value = node.inputs[0]
    maker = graph.maker.get(value) if isinstance(value, int) else None
    pad = None if maker is None else graph.nodes[maker]
    if pad is None or pad.op != "pad" or _number(graph, pad.inputs[1]) != _NEUTRAL[node.op]:
        return None
    attrs, places = dict(node.attrs), _places(node)
    config = pairs(dict(pad.attrs)["padding_config"])
    if any(config[d] != (0, 0, 0) for d in range(len(config)) if d not in places):
        return None
    key = "lhs_dilation" if node.op == CONVOLUTION else "base_dilation"
    dilation = ints(attrs.get(key, (1,) * len(places)))
    padding: list[tuple[int, int]] = []
    spread: list[int] = []
    for d, (low, high), own in zip(places, pairs(attrs["padding"]), dilation, strict=True):
        before, after, inside = config[d]
        if min(before, after, low, high) < 0 or (own != 1 and config[d] != (0, 0, 0)):
            return None
        padding.append((low + before, high + after))
        spread.append(own * (inside + 1))
    changed = {"padding": tuple(padding), key: tuple(spread)}
    return _with(replace(node, inputs=(pad.inputs[0], *node.inputs[1:])), binding, changed)


def _number(graph: Graph, value: Operand) -> float | None:
    """The number that a literal is, or what it is converted to."""
    if isinstance(value, Literal):
        number = value.value
        if isinstance(number, bool) or not isinstance(number, int | float):
            return None
        return float(number)
    maker = graph.maker.get(value)
    if maker is None or graph.nodes[maker].op != "convert_element_type":
        return None
    return _number(graph, graph.nodes[maker].inputs[0])


def _cut(crop: Node, whole: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Elements that a slice, or a pad with negative edges, cuts off either end of dimensions."""
    attrs = dict(crop.attrs)
    if crop.op == "pad":
        config = pairs(attrs["padding_config"])
        if any(low > 0 or high > 0 or inside for low, high, inside in config):
            return None
        return [(-low, -high) for low, high, _ in config]
    if attrs.get("strides") is not None and {*ints(attrs["strides"])} != {1}:
        return None
    starts, ends = ints(attrs["start_indices"]), ints(attrs["limit_indices"])
    return [(start, n - end) for start, end, n in zip(starts, ends, whole, strict=True)]


def _cropped(node: Node, binding: Binding, crop: Node) -> tuple[Node, Binding] | None:
    """A convolution that makes only what is kept of it."""
    if node.op != CONVOLUTION:
        return None
    attrs, cut = dict(node.attrs), _cut(crop, node.outputs[0].shape)
    places = ints(fields(attrs["dimension_numbers"])["out_spec"])[2:]
    if cut is None or any(cut[d] != (0, 0) for d in range(len(cut)) if d not in places):
        return None
    padding: list[tuple[int, int]] = []
    steps = ints(attrs["window_strides"])
    for d, (low, high), step in zip(places, pairs(attrs["padding"]), steps, strict=True):
        before, after = cut[d]
        if (before or after) and (step != 1 or low < before or high < after):
            return None
        padding.append((low - before, high - after))
    kept = replace(node, outputs=crop.outputs, source=node.source or crop.source)
    return _with(kept, binding, {"padding": tuple(padding)})


def _with(node: Node, binding: Binding, changed: dict[str, Any]) -> tuple[Node, Binding]:
    attrs = tuple(sorted((dict(node.attrs) | changed).items()))
    params = {**binding.params, **changed}
    return replace(node, attrs=attrs), replace(binding, params=params)

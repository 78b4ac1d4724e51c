# pyright: basic
"""Ops that slide: on shards with the borders that records name, they give the whole result."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ir import Node, Slide, TensorType, slides
from ir.interpret import apply

RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Op:
    node: Node
    operands: tuple[Any, ...]
    fill: float

    @property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(TensorType(x.shape, str(x.dtype)) for x in self.operands)


def result_size(n: int, k: int, stride: int, spread: int, base: int, edges: Any) -> int:
    room = (n - 1) * base + 1 + sum(edges) - (k - 1) * spread - 1
    return room // stride + 1


def drawn_edges(rng: random.Random, n: int, k: int, stride: int, spread: int, base: int) -> Any:
    """Padding that often makes shards of operand and result meet."""
    if rng.random() < 0.2:
        return rng.choice(((0, 0), (1, 2), (-1, 1), (2, -1)))
    wanted = n * base // stride
    room = (wanted - 1) * stride + (k - 1) * spread + 1 - (n - 1) * base - 1
    low = rng.choice((room // 2, room // 2, 0, room, -(-room // 2)))
    return low, room - low


def drawn_conv(seed: int) -> Op | None:
    rng = random.Random(seed)
    rank, groups = rng.choice((1, 1, 1, 2, 3)), rng.choice((1, 1, 2, 4))
    sizes = [rng.choice((4, 6, 8, 12)) for _ in range(rank)]
    window = [rng.choice((1, 2, 3, 5, n)) for n in sizes]
    each = [[rng.choice((1, 1, 1, 2, 3)) for _ in sizes] for _ in range(3)]
    strides, spread, base = each
    settings = list(zip(sizes, window, strides, spread, base, strict=True))
    padding = tuple(drawn_edges(rng, *row) for row in settings)
    made = [result_size(*row, edges) for row, edges in zip(settings, padding, strict=True)]
    if min(made) < 1:
        return None
    order = tuple(rng.sample(range(rank + 2), rank + 2))
    numbers = {"lhs_spec": order, "rhs_spec": order, "out_spec": order}
    shapes = [[0] * (rank + 2) for _ in range(3)]
    for shape, sizes_ in zip(shapes, ([2, 4, *sizes], [4, 4 // groups, *window], [2, 4, *made]),
                             strict=True):  # fmt: skip
        for at, size in zip(order, sizes_, strict=True):
            shape[at] = size
    attrs = {
        "window_strides": tuple(strides), "padding": padding, "lhs_dilation": tuple(base),
        "rhs_dilation": tuple(spread), "dimension_numbers": tuple(numbers.items()),
        "feature_group_count": groups, "batch_group_count": 1, "preferred_element_type": "float64",
    }  # fmt: skip
    node = Node("conv_general_dilated", (), (TensorType(tuple(shapes[2]), "float64"),),
                tuple(sorted(attrs.items())), ())  # fmt: skip
    arrays = tuple(RNG.integers(-8, 8, shape).astype("float64") for shape in shapes[:2])
    return Op(node, arrays, 0.0)


def drawn_window(seed: int) -> Op | None:
    rng = random.Random(seed)
    rank = rng.choice((1, 2, 3))
    sizes = tuple(rng.choice((4, 6, 8, 12)) for _ in range(rank))
    window = tuple(rng.choice((1, 2, 3, 5)) for _ in sizes)
    strides, spread, base = (tuple(rng.choice((1, 1, 2, 3)) for _ in sizes) for _ in range(3))
    if rng.random() < 0.7:
        base = (1,) * rank
    settings = list(zip(sizes, window, strides, spread, base, strict=True))
    padding = tuple(drawn_edges(rng, *row) for row in settings)
    made = tuple(result_size(*row, edges) for row, edges in zip(settings, padding, strict=True))
    if min(made) < 1 or min(edge for edges in padding for edge in edges) < 0:
        return None
    name, fill = rng.choice((("max", -np.inf), ("min", np.inf), ("sum", 0.0)))
    attrs = {"window_dimensions": window, "window_strides": strides, "padding": padding,
             "base_dilation": base, "window_dilation": spread}  # fmt: skip
    node = Node(f"reduce_window_{name}", (), (TensorType(made, "float64"),),
                tuple(sorted(attrs.items())), ())  # fmt: skip
    return Op(node, (RNG.integers(-99, 99, sizes).astype("float64"),), fill)


def in_parts(op: Op, slide: Slide, parts: int) -> Any:
    """The result of an op whose operands are split along one dimension, put together."""
    x, found = op.operands[0], []
    size = x.shape[slide.dim] // parts
    ends = [(0, 0)] * x.ndim
    ends[slide.dim] = slide.border
    wide = np.pad(x, ends, constant_values=op.fill)
    attrs: dict[str, Any] = dict(op.node.attrs)
    padding = list(attrs["padding"])
    padding[slide.number] = slide.padding
    attrs["padding"] = tuple(padding)
    kernel = list(op.operands[1:])
    out, along = list(op.node.outputs[0].shape), None
    if slide.sums:
        along = dict(attrs["dimension_numbers"])["rhs_spec"][2 + slide.number]
    elif kernel:
        along = dict(attrs["dimension_numbers"])["out_spec"][2 + slide.number]
    else:
        along = slide.dim
    if not slide.sums:
        out[along] //= parts
    type_ = TensorType(tuple(out), op.node.outputs[0].dtype)
    for i in range(parts):
        place = [slice(None)] * x.ndim
        place[slide.dim] = slice(i * size, (i + 1) * size + sum(slide.border))
        others = [np.split(k, parts, along)[i] if slide.sums else k for k in kernel]
        node = Node(op.node.op, (), (type_,), tuple(attrs.items()), ())
        found.extend(apply(node, [wide[tuple(place)], *others]))
        assert found[-1].shape == type_.shape
    return sum(found) if slide.sums else np.concatenate(found, along)


def check(draw: Any, count: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(count):
        op = draw(seed)
        if op is None:
            continue
        whole = None
        for slide in slides(op.node, op.types):
            (whole,) = apply(op.node, list(op.operands)) if whole is None else (whole,)
            for parts in range(2, slide.parts + 1):
                if slide.parts % parts == 0:
                    np.testing.assert_array_equal(in_parts(op, slide, parts), whole, str(op.node))
                    seen["sums" if slide.sums else "parts"] += 1
                    seen["border"] += bool(slide.before or slide.after)
                    seen["cut"] += min(slide.padding) < 0
                    seen["padded"] += max(slide.padding) > 0
    kinds = ("sums", "cut", "padded") if draw is drawn_conv else ()
    assert min(seen["parts"], 2 * seen["border"]) > count // 4, seen
    assert all(seen[kind] > count // 80 for kind in kinds), seen


def test_shards_with_borders_give_the_whole() -> None:
    check(drawn_conv, 50)
    check(drawn_window, 50)


@pytest.mark.exhaustive
@pytest.mark.parametrize("draw", [drawn_conv, drawn_window])
def test_many_shards_with_borders_give_the_whole(draw: Any) -> None:
    check(draw, 2000)


def slides_of_conv(size: int, window: int, stride: int, edges: tuple[int, int]) -> Any:
    made = result_size(size, window, stride, 1, 1, edges)
    attrs = {
        "window_strides": (stride,), "padding": (edges,), "lhs_dilation": (1,),
        "rhs_dilation": (1,), "feature_group_count": 1, "batch_group_count": 1,
        "preferred_element_type": None,
        "dimension_numbers": tuple((f"{side}_spec", (0, 1, 2)) for side in ("lhs", "rhs", "out")),
    }  # fmt: skip
    types = (TensorType((1, 1, size), "float32"), TensorType((1, 1, window), "float32"))
    outputs = (TensorType((1, 1, made), "float32"),)
    return slides(Node("conv_general_dilated", (), outputs, tuple(attrs.items()), ()), types)


@pytest.mark.parametrize(("case", "expected"), [
    ((64, 3, 1, (1, 1)), (1, 1, 64)),  # a same convolution: one element of either side
    ((64, 3, 2, (0, 1)), (0, 1, 32)),  # of stride 2
    ((64, 2, 2, (0, 0)), (0, 0, 32)),  # windows that do not overlap
    ((64, 5, 1, (4, 0)), (4, 0, 64)),  # causal: of several devices if need be
    ((64, 3, 1, (0, 0)), None),  # 62 results of 64 elements do not meet
    ((63, 3, 2, (1, 1)), None),
])  # fmt: skip
def test_borders_are_what_the_window_reaches(case: Any, expected: Any) -> None:
    found = [(each.before, each.after, each.parts) for each in slides_of_conv(*case)]
    assert found == ([expected] if expected else [])


def test_permutes_bring_borders_from_as_many_devices_as_hold_them() -> None:
    rng = random.Random(0)
    for _ in range(300):
        parts, shard = rng.choice((2, 3, 4, 8)), rng.choice((1, 2, 3, 5))
        x, before, after = np.arange(parts * shard) + 1, rng.randrange(13), rng.randrange(13)
        slide = Slide("halo", parts, (), 0, (0,), 0, before, after, (0, 0))
        wide = np.pad(x, (before, after))
        for i in range(parts):
            here = np.zeros(before + shard + after, int)
            here[before : before + shard] = x[i * shard :][:shard]
            for far, n in slide.permutes(parts, len(x)):
                assert n <= shard
                if 0 <= i - far < parts:
                    other = x[(i - far) * shard :][:shard]
                    at = before - far * shard
                    if far > 0:
                        here[at + shard - n : at + shard] = other[-n:]
                    else:
                        here[at : at + n] = other[:n]
            np.testing.assert_array_equal(here, wide[i * shard :][: len(here)])


def test_a_shift_brings_a_shard_from_two_devices() -> None:
    for parts, shard in itertools.product((2, 3, 4), (1, 2, 5)):
        size = parts * shard
        for by in range(-size + 1, size):
            slide = Slide(
                "halo", size, (), -1, (0,), 0, max(0, by), max(0, -by), (0, 0), shifts=True
            )
            sent = slide.permutes(parts, size)
            assert len(sent) <= 2
            assert sum(n for _, n in sent) <= shard

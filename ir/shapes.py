"""Result shapes that factors leave undetermined, from operand shapes and attributes.

A factor spec relates dimensions of equal size. It does not determine a whole dimension that changes
its size, as in a slice, nor dimensions of size zero and one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from .errors import IRError
from .opdef import Attributes
from .ops.attention_math import HEADS_FIRST, has_bias_gradient
from .ops.build import fields, ints, pairs, whole_number
from .ops.elementwise import pointwise
from .table import lookup
from .types import Shape

MAX_RESULTS = 1_000_000  # of one node; a text may claim any number

ShapeRule = Callable[[Sequence[Shape], Attributes], Sequence[Shape]]


def expected_shapes(
    op: str, operands: Sequence[Shape], results: Sequence[Shape], attrs: Attributes
) -> Sequence[Shape]:
    """Shapes that the results of an op should have; the given ones where no rule determines them.

    Raises:
        IRError: if the operands do not fit each other.
    """
    if lookup(op).factors is pointwise:
        return [_common(operands)] * len(results)
    rule = _RULES.get(op)
    return results if rule is None else rule(operands, attrs)


def _common(operands: Sequence[Shape]) -> Shape:
    """The common shape of all operands of rank above 0; dimensions of size 1 broadcast."""
    full = [shape for shape in operands if shape]
    if len({len(shape) for shape in full}) > 1:
        raise IRError(f"its operands have the shapes {_list(full)}, expected one rank or scalars")
    sizes = [{*dim} - {1} for dim in zip(*full, strict=True)]
    if any(len(different) > 1 for different in sizes):
        raise IRError(f"its operands have the shapes {_list(full)}, expected one shape or scalars")
    return tuple(max(different, default=1) for different in sizes)


def _list(shapes: Sequence[Shape]) -> str:
    return " and ".join(map(str, shapes))


def _same(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    del attrs
    return [operands[0]]


def _second(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    del attrs
    return [operands[1]]


def _together(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    del attrs
    return [_common(operands)]


def _given(key: str) -> ShapeRule:
    return lambda operands, attrs: [ints(attrs[key])]


def _without_axes(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    axes = ints(attrs["axes"])
    if len(set(axes)) != len(axes) or not all(0 <= i < len(operands[0]) for i in axes):
        raise IRError(f"its axes {axes} are not those of the shape {operands[0]}")
    return [tuple(size for i, size in enumerate(operands[0]) if i not in axes)]


def _set(shape: Shape, axis: int, size: int) -> Shape:
    if not 0 <= axis < len(shape):
        raise IRError(f"its axis {axis} is not one of the shape {shape}")
    return (*shape[:axis], size, *shape[axis + 1 :])


def _reshape(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    after = ints(attrs["new_sizes"])
    if math.prod(operands[0]) != math.prod(after):
        raise IRError(f"it makes {math.prod(after)} elements of {math.prod(operands[0])}")
    return [after]


def _broadcast(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    after, places = ints(attrs["shape"]), ints(attrs["broadcast_dimensions"])
    for size, place in zip(operands[0], places, strict=True):
        if size not in (1, after[place]):
            raise IRError(f"it broadcasts {size} elements to {after[place]}")
    return [after]


def _transpose(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    order = ints(attrs["permutation"])
    if sorted(order) != list(range(len(operands[0]))):
        raise IRError(f"its permutation {order} is not one of the shape {operands[0]}")
    return [tuple(operands[0][i] for i in order)]


def _squeeze(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    gone = ints(attrs["dimensions"])
    if any(operands[0][i] != 1 for i in gone):
        raise IRError(f"it drops the dimensions {gone} of {operands[0]}, which are not all 1")
    return [tuple(size for i, size in enumerate(operands[0]) if i not in gone)]


def _concatenate(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    axis = whole_number(attrs["dimension"])
    if len({_set(shape, axis, 0) for shape in operands}) != 1:
        raise IRError(f"its operands differ in more than dimension {axis}: {_list(operands)}")
    return [_set(operands[0], axis, sum(shape[axis] for shape in operands))]


def _stack(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    axis = whole_number(attrs["axis"])
    if len(set(operands)) != 1:
        raise IRError(f"its operands differ: {_list(operands)}")
    return [(*operands[0][:axis], len(operands), *operands[0][axis:])]


def _unstack(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    axis = whole_number(attrs["axis"])
    part = (*operands[0][:axis], *operands[0][axis + 1 :])
    if operands[0][axis] > MAX_RESULTS:
        raise IRError(f"it makes {operands[0][axis]} results, expected at most {MAX_RESULTS}")
    return [part] * operands[0][axis]


def _split(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    axis, sizes = whole_number(attrs["axis"]), ints(attrs["sizes"])
    if sum(sizes) != operands[0][axis]:
        raise IRError(f"its sizes {sizes} do not add up to {operands[0][axis]}")
    return [_set(operands[0], axis, size) for size in sizes]


def _slice(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    starts, limits = ints(attrs["start_indices"]), ints(attrs["limit_indices"])
    strides = (1,) * len(starts) if attrs["strides"] is None else ints(attrs["strides"])
    edges = list(zip(operands[0], starts, limits, strides, strict=True))
    if not all(0 <= start <= limit <= size and step > 0 for size, start, limit, step in edges):
        raise IRError(f"its start {starts} and limit {limits} do not lie within {operands[0]}")
    return [tuple(-((start - limit) // step) for _, start, limit, step in edges)]


def _pad(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    config = pairs(attrs["padding_config"])
    return [
        tuple(
            max(0, low + size + max(0, size - 1) * inner + high)
            for size, (low, high, inner) in zip(operands[0], config, strict=True)
        )
    ]


def _top_k(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    axis = whole_number(attrs["axis"]) % len(operands[0])
    return [_set(operands[0], axis, whole_number(attrs["k"]))] * 2


def _tile(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    reps = ints(attrs["reps"])
    return [tuple(n * size for n, size in zip(reps, operands[0], strict=True))]


def _bits(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    return [(*operands[0], *ints(attrs["shape"]))]


def _dot(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    numbers = attrs["dimension_numbers"]
    if not isinstance(numbers, tuple):
        raise IRError(f"its dimension numbers are {numbers!r}, expected (contracting, batch)")
    contracting, batch = map(pairs, numbers)
    left, right = operands[:2]
    for i, j in (*zip(*contracting, strict=True), *zip(*batch, strict=True)):
        if left[i] != right[j]:
            raise IRError(
                f"it joins dimension {i} of {left} and {j} of {right}: {left[i]} and {right[j]}"
            )
    kept = [left[i] for i in batch[0]]
    for side, shape in enumerate(operands[:2]):
        used = (*contracting[side], *batch[side])
        kept += [size for i, size in enumerate(shape) if i not in used]
    return [tuple(kept)]


def _gather(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    numbers = fields(attrs["dimension_numbers"])
    gone = (*ints(numbers["collapsed_slice_dims"]), *ints(numbers["operand_batching_dims"]))
    offsets = ints(numbers["offset_dims"])
    window = iter([n for i, n in enumerate(ints(attrs["slice_sizes"])) if i not in gone])
    batch = iter(operands[1][:-1])
    rank = len(offsets) + len(operands[1]) - 1
    return [tuple(next(window if i in offsets else batch) for i in range(rank))]


def _rows(rule: ShapeRule, ops: str) -> dict[str, ShapeRule]:
    return dict.fromkeys(ops.split(), rule)


def _attention_forward(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    query, _, value, *_ = operands
    first, second = query[1:3]
    heads_and_queries = (first, second) if attrs["layout"] == HEADS_FIRST else (second, first)
    offsets = operands[6]
    segments = offsets[1] - 1 if len(offsets) == 2 else 1
    found = [(*query[:3], value[3]), (query[0] * segments, *heads_and_queries)]
    return found if attrs["is_training"] else found[:1]


def _scaled(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    del attrs
    a, b = operands[:2]
    return ((a[0], a[1], b[1]),)


def _attention_backward(operands: Sequence[Shape], attrs: Attributes) -> Sequence[Shape]:
    return operands[: 4 if has_bias_gradient(attrs) else 3]


_RULES: Mapping[str, ShapeRule] = {
    **_rows(_same, "cholesky copy cumlogsumexp cummax cummin cumprod cumsum dynamic_update_slice"),
    **_rows(_same, "from_host to_host"),
    **_rows(_same, "name random_clone reshard rev sharding_constraint shift stop_gradient"),
    **_rows(_same, "scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub"),
    **_rows(_second, "select_and_scatter_add triangular_solve"),
    **_rows(_without_axes, "argmax argmin reduce_and reduce_max reduce_min reduce_or"),
    **_rows(_without_axes, "reduce_prod reduce_sum reduce_xor"),
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "dot_general": _dot,
    "dot_product_attention_bwd_wrapper": _attention_backward,
    "dot_product_attention_fwd_wrapper": _attention_forward,
    "dynamic_slice": _given("slice_sizes"),
    "gather": _gather,
    "iota": _given("shape"),
    "pad": _pad,
    "random_bits": _bits,
    "random_fold_in": _together,
    "reshape": _reshape,
    "scaled_dot": _dot,
    "scaled_matmul_wrapper": _scaled,
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "tile": _tile,
    "top_k": _top_k,
    "transpose": _transpose,
    "unstack": _unstack,
}

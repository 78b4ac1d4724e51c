"""The factors of a reshape: the sizes that both shapes have in common, in order."""

from __future__ import annotations

from itertools import pairwise

from ..factors import Dim, FactorSpec
from ..opdef import Attributes, Types
from ..types import Shape
from .build import WHOLE, build_spec, ints


def reshape_spec(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    """Splits both shapes into stretches of equal size, and each into common factors.

    Within a stretch the borders of both shapes, as products counted from the left, make one
    chain; if each divides the next, the quotients are the factors of both sides. If not, as for
    [6, 4] -> [8, 3], no split of one side is a split of the other, and the stretch is whole.
    """
    order = attrs.get("dimensions")
    places = ints(order) if order is not None else tuple(range(operands[0].rank))
    sizes: dict[str, int] = {}
    kinds: dict[str, str] = {}
    # with `dimensions` the operand is transposed first, as the gradient of a grouped convolution is
    left = tuple(operands[0].shape[i] for i in places)
    right = results[0].shape
    if 0 in left:
        before: list[Dim] = [(f"x{i}",) for i in range(len(left))]
        after: list[Dim] = [(f"y{i}",) for i in range(len(right))]
        kinds = {name: WHOLE for dim in (*before, *after) for name in dim}
        return build_spec(operands, [before], results, [after], kinds)
    ins: list[Dim] = []
    outs: list[Dim] = []
    for part, other in _stretches(left, right):
        chain = sorted(_borders(part) | _borders(other))
        if all(b % a == 0 for a, b in pairwise(chain)):
            number = len(sizes)
            sizes |= {f"f{number + i}": chain[i + 1] // chain[i] for i in range(len(chain) - 1)}
            ins += _cut(part, chain, number)
            outs += _cut(other, chain, number)
        else:
            ins += _whole("x", len(ins), len(part), kinds)
            outs += _whole("y", len(outs), len(other), kinds)
    given: list[Dim] = [()] * len(ins)
    for place, dim in zip(places, ins, strict=True):
        given[place] = dim
    return build_spec(operands, [given], results, [outs], kinds, sizes)


def _stretches(left: Shape, right: Shape) -> list[tuple[Shape, Shape]]:
    """Shortest runs of dimensions with equal products; trailing units join the last."""
    found: list[tuple[Shape, Shape]] = []
    i = j = start_i = start_j = 0
    product_i = product_j = 1
    while i < len(left) or j < len(right):
        if j >= len(right) or (i < len(left) and product_i <= product_j):
            product_i *= left[i]
            i += 1
        else:
            product_j *= right[j]
            j += 1
        if product_i == product_j > 1 or (i == len(left) and j == len(right)):
            found.append((left[start_i:i], right[start_j:j]))
            start_i, start_j, product_i, product_j = i, j, 1, 1
    return found


def _borders(shape: Shape) -> set[int]:
    found, product = {1}, 1
    for size in shape:
        product *= size
        found.add(product)
    return found


def _cut(shape: Shape, chain: list[int], number: int) -> list[Dim]:
    """Factors of each dimension: the links of the chain between its two borders."""
    dims: list[Dim] = []
    product = 1
    for size in shape:
        low, high = chain.index(product), chain.index(product * size)
        dims.append(tuple(f"f{number + k}" for k in range(low, high)))
        product *= size
    return dims


def _whole(prefix: str, start: int, count: int, kinds: dict[str, str]) -> list[Dim]:
    dims: list[Dim] = [(f"{prefix}{start + i}",) for i in range(count)]
    kinds |= {name: WHOLE for (name,) in dims}
    return dims

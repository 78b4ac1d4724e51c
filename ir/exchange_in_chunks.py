"""Exchanges in chunks: all-to-alls that run chunk by chunk beside the products next to them.

Rows of experts go to the devices that hold the matrices of these, and their results come back: an
all-to-all between the dimension of the tokens and that of the experts, along which a product
multiplies matrix by matrix. Neither changes how the slots of an expert are split. So the exchange
may run in c chunks of the slots: chunk i + 1 on its way while the product has chunk i, or, where
the product's result is exchanged, chunk i on its way while the product makes chunk i + 1.

Between product and exchange there may be element by element operations and transposes, which run
chunk by chunk as well.

Source: Li et al., Lancet: Accelerating Mixture-of-Experts Training via Whole Graph
Computation-Communication Overlapping, MLSys 2024, arXiv:2404.19429, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from .analysis.flat_program import FlatOp, FlatProgram, Site, operand_types
from .collective_matmul import is_product
from .factors import FactorSpec
from .lowered import Change
from .mesh import Mesh
from .sharding import Sharding
from .table import lookup
from .types import TensorType

COUNTS: Final = (2, 4, 8)  # numbers of chunks
MOST_BETWEEN: Final = 4  # operations between a product and its exchange

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Beside:
    """A product beside which an exchange may run, seen from the value that is exchanged.

    op: flat number of the product.
    cuts: (dimension of the value, factor of the product) of what both may be cut along.
    groups: dimensions of the value along which the product multiplies matrix by matrix.
    between: operations between the two.
    copied_bytes: of the operand that is cut, or the result that is put together, on all devices.
    """

    op: int
    cuts: tuple[tuple[int, str], ...]
    groups: Dims
    between: tuple[int, ...] = ()
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Products beside the exchange of a value at one site; all of a side run beside a chunk."""

    beside: tuple[Beside, ...]

    def between(self, dim: int) -> frozenset[int]:
        """Operations between the exchange and the products that are cut along a dimension."""
        return frozenset(
            i for b in self.beside if any(d == dim for d, _ in b.cuts) for i in b.between
        )

    def copied_bytes(self, dim: int) -> int:
        """Bytes that cutting along a dimension copies, on all devices."""
        return sum(b.copied_bytes for b in self.beside if any(d == dim for d, _ in b.cuts))

    def factors(self, dim: int) -> tuple[tuple[int, str], ...]:
        """Products that may be cut along a dimension of the value, and their factors of it."""
        return tuple((b.op, f) for b in self.beside for d, f in b.cuts if d == dim)


def exchanged(
    neighbours: Neighbours, type_: TensorType, before: Sharding, after: Sharding, mesh: Mesh
) -> tuple[int, int, int] | None:
    """What an all-to-all between two states is cut along.

    Args:
        neighbours: products beside it.
        type_: of the whole value.
        before: its state.
        after: its state then.
        mesh: the mesh.

    Returns:
        Dimension that is cut, that which loses the axes, that which gains them; None if the change
        is no all-to-all to or from a dimension of groups, or nothing can be cut.
    """
    if before.partial or after.partial:
        return None
    moved = [d for d, axes in enumerate(before.dims) if after.dims[d] != axes]
    if len(moved) != 2:
        return None
    loses, gains = moved if len(before.dims[moved[0]]) > len(after.dims[moved[0]]) else moved[::-1]
    count = len(after.dims[loses])
    axes = before.dims[loses][count:]
    if not axes or before.dims[loses][:count] != after.dims[loses]:
        return None
    if after.dims[gains] != (*before.dims[gains], *axes):
        return None
    dim = cut_dim(neighbours, type_, before, (loses, gains), mesh)
    return None if dim is None else (dim, loses, gains)


def cut_dim(
    neighbours: Neighbours, type_: TensorType, before: Sharding, moved: tuple[int, int], mesh: Mesh
) -> int | None:
    """The dimension that an all-to-all is cut along.

    Args:
        neighbours: products beside it.
        type_: of the whole value.
        before: its state.
        moved: dimensions that lose and gain the axes.
        mesh: the mesh.

    Returns:
        None if neither is a dimension of groups, or nothing can be cut.
    """
    able = {
        dim
        for beside in neighbours.beside
        if not set(moved).isdisjoint(beside.groups)
        for dim, _ in beside.cuts
        if dim not in moved and counts_of(type_, dim, before, mesh)
    }
    return min(able, key=lambda dim: (neighbours.copied_bytes(dim), dim), default=None)


def chunk_type(type_: TensorType, dim: int, count: int) -> TensorType:
    """The type of one of `count` chunks of a value."""
    shape = type_.shape
    return TensorType((*shape[:dim], shape[dim] // count, *shape[dim + 1 :]), type_.dtype)


def counts_of(type_: TensorType, dim: int, state: Sharding, mesh: Mesh) -> tuple[int, ...]:
    """Numbers of chunks that a dimension divides into on every device."""
    parts = mesh.product(state.dims[dim])
    return tuple(c for c in COUNTS if type_.shape[dim] % (parts * c) == 0)


def chunks_of(change: Change, neighbours: Neighbours, mesh: Mesh) -> int | None:
    """The dimension along which a lowered change may run in chunks; None if it may not."""
    found = exchanged(neighbours, change.type, change.before, change.after, mesh)
    if found is None or [step.kind for step in change.steps] != ["all-to-all"]:
        return None
    return found[0]


def neighbours_of(
    flat: FlatProgram, spec: Callable[[FlatOp], FactorSpec]
) -> Mapping[int, Neighbours]:
    """Products beside which values may be exchanged, by the number of the passage.

    Args:
        flat: the program.
        spec: factors of an op.
    """
    found: dict[int, list[Beside]] = {}
    sites = {p.site: n for n, p in enumerate(flat.passages)}
    for i, op in enumerate(flat.ops):
        if is_product(op.node):
            for site, beside in _around(flat, i, op, spec(op)):
                if site in sites:
                    each = found.setdefault(sites[site], [])
                    if beside not in each:
                        each.append(beside)
    return {n: Neighbours(tuple(each)) for n, each in found.items()}


def _around(
    flat: FlatProgram, i: int, op: FlatOp, spec: FactorSpec
) -> Iterator[tuple[Site, Beside]]:
    """Sites near a product at which its operands and its result may be exchanged."""
    tensors = (*spec.operands, spec.results[0])
    left, right, result = ([dim[0] if len(dim) == 1 else "" for dim in t] for t in tensors)
    groups = set(left) & set(right) & set(result) - {""}
    if not groups:
        return
    for position, (own, other) in enumerate(((left, right), (right, left))):
        v = op.inputs[position]
        if isinstance(v, int):
            kept = set(own) & set(result) - set(other) - {""}
            beside = replace(_seen(i, own, kept, groups), copied_bytes=_put_together(flat, op))
            if beside.cuts:
                yield _site(op, "operand", position), beside
                yield from _upwards(flat, v, beside, op, 0)
    rows = set(result) - groups - {""}
    sides = set(left) - set(right), set(right) - set(left)
    for mine, type_ in zip(sides, operand_types(flat, op), strict=True):
        beside = replace(_seen(i, result, mine & rows, groups), copied_bytes=type_.nbytes)
        if beside.cuts:
            yield _site(op, "result", 0), beside
            yield from _downwards(flat, op.outputs[0], beside, op, 0)


def _put_together(flat: FlatProgram, op: FlatOp) -> int:
    """Bytes of a product's result if it is read as a whole: not element by element alone."""
    (v,) = op.outputs
    readers = flat.readers.get(v, ())
    alone = readers and all(through(reader, flat) is not None for reader in readers)
    return 0 if alone else flat.values[v].type.nbytes


def _seen(i: int, names: Sequence[str], kept: set[str], groups: set[str]) -> Beside:
    cuts = tuple((d, name) for d, name in enumerate(names) if name in kept)
    return Beside(i, cuts, tuple(d for d, name in enumerate(names) if name in groups))


def _site(op: FlatOp, at: str, position: int) -> Site:
    return Site(op.place, at, position)


def _upwards(
    flat: FlatProgram, v: int, beside: Beside, product: FlatOp, far: int
) -> Iterator[tuple[Site, Beside]]:
    """Sites before a value that a product reads."""
    made = flat.maker.get(v)
    if made is None or flat.ops[made[0]].place[:-1] != product.place[:-1]:
        return
    op = flat.ops[made[0]]
    yield _site(op, "result", made[1]), beside
    order = through(op, flat)
    if order is None or far == MOST_BETWEEN:
        return
    seen = _turned(beside, order, made[0])
    for position, u in enumerate(op.inputs):
        if isinstance(u, int) and flat.values[u].type.rank == len(order):
            yield _site(op, "operand", position), seen
            yield from _upwards(flat, u, seen, product, far + 1)


def _downwards(
    flat: FlatProgram, v: int, beside: Beside, product: FlatOp, far: int
) -> Iterator[tuple[Site, Beside]]:
    """Sites after a value that a product makes."""
    for op in flat.readers.get(v, ()):
        if op.place[:-1] != product.place[:-1]:
            continue
        for position, u in enumerate(op.inputs):
            if u == v:
                yield _site(op, "operand", position), beside
        order = through(op, flat)
        if order is None or far == MOST_BETWEEN:
            continue
        inverse = tuple(order.index(d) for d in range(len(order)))
        seen = _turned(beside, inverse, flat.maker[op.outputs[0]][0])
        yield _site(op, "result", 0), seen
        yield from _downwards(flat, op.outputs[0], seen, product, far + 1)


def through(op: FlatOp, flat: FlatProgram) -> Dims | None:
    """For each dimension of an op's result that of its operands, where it runs chunk by chunk.

    None for ops that are neither element by element, with operands of the shape of the result, nor
    transposes.
    """
    if op.node.op == "transpose":
        found = dict(op.node.attrs)["permutation"]
        return tuple(int(d) for d in found) if isinstance(found, tuple) else None  # pyright: ignore
    if lookup(op.node.op).family != "elementwise" or len(op.node.outputs) != 1:
        return None
    shape = op.node.outputs[0].shape
    types = [flat.values[v].type for v in op.inputs if isinstance(v, int)]
    if not types or any(t.shape != shape and t.rank for t in types):
        return None
    return tuple(range(len(shape)))


def _turned(beside: Beside, order: Dims, i: int) -> Beside:
    """The same seen through operation i: dimension d of here is `order[d]` there."""
    cuts = tuple(sorted((order[d], name) for d, name in beside.cuts))
    groups = tuple(sorted(order[d] for d in beside.groups))
    return replace(beside, cuts=cuts, groups=groups, between=(*beside.between, i))

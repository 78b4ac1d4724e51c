# pyright: basic
"""Runs one traced op whole and on the shards of logical devices, and combines the results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ir.factors import FactorSpec, shardings_of
from ir.graph import Literal, Node
from ir.mesh import Mesh
from ir.opdef import OpDef
from ir.ops.attention import ATTENTION
from ir.sharding import Sharding
from ir.table import lookup
from ir.trace import Binding, trace
from ir.types import Shape, TensorType

from .op_examples import Example

Coordinates = Mapping[str, int]


@dataclass(frozen=True)
class Call:
    """One node of a traced example, with the values of its operands and results."""

    node: Node
    binding: Binding
    operands: tuple[Any, ...]
    operand_types: tuple[TensorType, ...]
    results: tuple[Any, ...]

    @property
    def record(self) -> OpDef:
        return lookup(self.node.op)

    @property
    def spec(self) -> FactorSpec:
        return self.record.factors(self.operand_types, self.node.outputs, dict(self.node.attrs))

    def run(self, operands: list[Any], changed: Mapping[str, Any]) -> tuple[Any, ...]:
        """The same primitive on other operands and with some changed parameters."""
        return bind(self.binding, operands, changed)


def bind(binding: Binding, operands: list[Any], changed: Mapping[str, Any]) -> tuple[Any, ...]:
    found = binding.primitive.bind(*operands, **{**binding.params, **changed})
    return tuple(found) if binding.primitive.multiple_results else (found,)


def calls_of(example: Example) -> list[Call]:
    """Runs an example node by node; the calls of the op that it is an example of."""
    program = trace(example.fn, *example.args).program
    graph = program.graph
    leaves = jax.tree.leaves(example.args)
    values = [*program.consts, *(jnp.asarray(x) for x in leaves)]
    assert len(values) == len(graph.inputs), "every argument of an example must be used"
    found: list[Call] = []
    for node, binding in zip(graph.nodes, program.bindings, strict=True):
        operands = [
            jnp.asarray(o.value, o.type.dtype) if isinstance(o, Literal) else values[o]
            for o in node.inputs
        ]
        results = bind(binding, operands, {})
        values.extend(results)
        if node.op == example.op:
            types = tuple(graph.type_of(o) for o in node.inputs)
            found.append(Call(node, binding, tuple(operands), types, results))
    assert found, f"{example.label} does not trace to {example.op}, but to {ops(graph.nodes)}"
    return found


def ops(nodes: tuple[Node, ...]) -> str:
    return ", ".join(node.op for node in nodes)


# --- splits ------------------------------------------------------------------------------------

Split = tuple[Mesh, dict[str, tuple[str, ...]]]


Pairs = Callable[[list[str]], Iterable[tuple[str, str]]]


def no_two(factors: list[str]) -> Iterable[tuple[str, str]]:
    """No pairs."""
    return ()


def neighbours(factors: list[str]) -> Iterable[tuple[str, str]]:
    """Each factor with the next one, in a circle: of up to three all pairs."""
    if len(factors) < 4:
        return every_two(factors)
    return zip(factors, [*factors[1:], factors[0]], strict=True)


def every_two(factors: list[str]) -> Iterable[tuple[str, str]]:
    """All pairs."""
    return itertools.combinations(factors, 2)


def splits_of(spec: FactorSpec, pairs: Pairs) -> Iterator[Split]:
    """Every factor that can be split in two, alone, and pairs of those that can.

    Within a compound the factors that are more major are split completely. Along joint factors
    devices exchange parts, which logical ones do not: tests/planner/emit/test_attention.py.
    """
    kinds = dict(spec.kinds) | {name: "whole" for name, _ in spec.joint}
    free = [
        name
        for name, size in spec.sizes
        if size % 2 == 0 and kinds.get(name) not in ("whole", "window")
    ]
    for chosen in (*((name,) for name in free), *pairs(free)):
        ways = dict.fromkeys(chosen, 2)
        for name in chosen:
            ways |= {major: spec.size(major) for major in _majors(spec, name)}
        if any(kinds.get(name) in ("whole", "window") for name in ways):
            continue
        axes = {name: f"a{i}" for i, name in enumerate(ways)}
        mesh = Mesh(tuple((axes[name], n) for name, n in ways.items()))
        yield mesh, {name: (axis,) for name, axis in axes.items()}


def _majors(spec: FactorSpec, name: str) -> set[str]:
    """Factors that must be split completely before this one."""
    found: set[str] = set()
    for dims in (*spec.operands, *spec.results):
        for dim in dims:
            if name in dim:
                found.update(dim[: dim.index(name)])
    return found.union(*(_majors(spec, major) for major in found))


def devices_of(mesh: Mesh) -> list[Coordinates]:
    places = itertools.product(*(range(size) for size in mesh.sizes))
    return [dict(zip(mesh.names, place, strict=True)) for place in places]


def part_of(sharding: Sharding, shape: Shape, mesh: Mesh, at: Coordinates) -> tuple[slice, ...]:
    """The part of a tensor that a device holds."""
    found: list[slice] = []
    for size, axes in zip(shape, sharding.dims, strict=True):
        index = 0
        for axis in axes:
            index = index * mesh.size(axis) + at[axis]
        local = size // mesh.product(axes)
        found.append(slice(index * local, (index + 1) * local))
    return tuple(found)


def cut(x: Any, part: tuple[slice, ...]) -> Any:
    """A part of an array, by NumPy: JAX would compile a program for every place."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x[part]
    return jax.device_put(np.asarray(x)[part])


def simulate(call: Call, mesh: Mesh, axes: dict[str, tuple[str, ...]]) -> tuple[Any, ...]:
    """Results of the op when each logical device works on its shards."""
    spec = call.spec
    ins, outs = shardings_of(spec, axes, mesh)
    devices = devices_of(mesh)
    parts: list[tuple[Any, ...]] = []
    for at in devices:
        operands = [
            cut(x, part_of(s, t.shape, mesh, at))
            for x, s, t in zip(call.operands, ins, call.operand_types, strict=True)
        ]
        shard = Shard(call, mesh, axes, at, operands, outs)
        parts.append(_OFFSET.get(call.node.op, _run)(shard))
    return tuple(
        _combine([local[i] for local in parts], s, type_.shape, mesh, devices)
        for i, (s, type_) in enumerate(zip(outs, call.node.outputs, strict=True))
    )


@dataclass(frozen=True)
class Shard:
    """What one device knows when it runs an op."""

    call: Call
    mesh: Mesh
    axes: dict[str, tuple[str, ...]]
    at: Coordinates
    operands: list[Any]
    outs: tuple[Sharding, ...]

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes that the record adapts to the shard."""
        record, node = self.call.record, self.call.node
        if record.local is None:
            return {}
        ins = tuple(
            TensorType(tuple(x.shape), t.dtype)
            for x, t in zip(self.operands, self.call.operand_types, strict=True)
        )
        outs = tuple(
            TensorType(s.local_shape(t.shape, self.mesh), t.dtype)
            for s, t in zip(self.outs, node.outputs, strict=True)
        )
        return record.local(ins, outs, dict(node.attrs))

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the first result's part begins, dimension by dimension."""
        shape = self.call.node.outputs[0].shape
        return tuple(s.start for s in part_of(self.outs[0], shape, self.mesh, self.at))

    def index(self, factor: str) -> int:
        """Which piece of a factor the device has."""
        index = 0
        for axis in self.axes.get(factor, ()):
            index = index * self.mesh.size(axis) + self.at[axis]
        return index

    def ways(self, factor: str) -> int:
        return self.mesh.product(self.axes.get(factor, ()))


def _run(shard: Shard) -> tuple[Any, ...]:
    return shard.call.run(shard.operands, shard.attributes)


def _run_iota(shard: Shard) -> tuple[Any, ...]:
    (local,) = _run(shard)
    return (local + shard.starts[shard.call.binding.params["dimension"]],)


def _run_bits(shard: Shard) -> tuple[Any, ...]:
    (keys,) = shard.operands
    (bits,) = shard.call.run([keys], {})
    sizes = shard.attributes["shape"]
    starts = shard.starts[keys.ndim :]
    drawn = (slice(s, s + n) for s, n in zip(starts, sizes, strict=True))
    return (cut(bits, (slice(None),) * keys.ndim + tuple(drawn)),)


def _global_indices(shard: Shard, size: int) -> Any:
    raw = shard.operands[1]
    clips = shard.call.node.attr("mode") != "FILL_OR_DROP"
    return jnp.clip(raw, 0, size - 1) if clips else raw


def _run_gather(shard: Shard) -> tuple[Any, ...]:
    """As `ir.ops.gather` describes it."""
    if shard.ways("v") == 1:
        return _run(shard)
    params = shard.call.binding.params
    (dim,) = params["dimension_numbers"].start_index_map
    size, local = shard.call.operand_types[0].shape[dim], shard.operands[0].shape[dim]
    raw = _global_indices(shard, size)
    here = raw - shard.index("v") * local
    clip = {"mode": jax.lax.GatherScatterMode.CLIP}
    (rows,) = shard.call.run([shard.operands[0], here], {**shard.attributes, **clip})
    offsets = params["dimension_numbers"].offset_dims
    spread = [slice(None) if i not in offsets else None for i in range(rows.ndim)]
    mine = ((here >= 0) & (here < local))[..., 0][tuple(spread)]
    found = jnp.where(mine, rows, jnp.zeros((), rows.dtype))
    if shard.call.node.attr("mode") == "FILL_OR_DROP" and shard.index("v") == 0:
        filled = shard.call.run([shard.operands[0], jnp.full_like(raw, -1)], shard.attributes)[0]
        outside = ((raw < 0) | (raw >= size))[..., 0][tuple(spread)]
        found = jnp.where(outside, filled, found)
    return (found,)


def _run_attention(shard: Shard) -> tuple[Any, ...]:
    """Of some queries."""
    return _run(shard) if shard.ways("t") == 1 else _run_placed(shard)


def _run_placed(shard: Shard) -> tuple[Any, ...]:
    """On operands that are zero elsewhere, of which the results' parts count."""
    call, mesh, at = shard.call, shard.mesh, shard.at
    ins, outs = shardings_of(call.spec, shard.axes, mesh)
    placed: list[Any] = []
    for x, s, t in zip(shard.operands, ins, call.operand_types, strict=True):
        whole = np.zeros(t.shape, x.dtype)
        whole[part_of(s, t.shape, mesh, at)] = x
        placed.append(jax.device_put(whole))
    results = call.run(placed, {})
    return tuple(cut(x, part_of(s, x.shape, mesh, at)) for x, s in zip(results, outs, strict=True))


def _run_scatter(shard: Shard) -> tuple[Any, ...]:
    """As `ir.ops.scatter` describes it."""
    operand, _, updates = shard.operands
    changed: dict[str, Any] = {}
    here = shard.operands[1]
    if shard.ways("v") > 1:
        numbers = shard.call.binding.params["dimension_numbers"]
        (dim,) = numbers.scatter_dims_to_operand_dims
        size, local = shard.call.operand_types[0].shape[dim], operand.shape[dim]
        here = _global_indices(shard, size) - shard.index("v") * local
        here = jnp.where(here < 0, local, here)
        changed = {"mode": jax.lax.GatherScatterMode.FILL_OR_DROP}
    sums = [name for name in shard.axes if shard.call.spec.kind(name) == "sum"]
    if any(shard.index(name) for name in sums):
        operand = jnp.zeros_like(operand)
    return shard.call.run([operand, here, updates], changed)


_OFFSET: Mapping[str, Callable[[Shard], tuple[Any, ...]]] = {
    **dict.fromkeys(ATTENTION, _run_attention),
    "gather": _run_gather,
    "iota": _run_iota,
    "ragged_dot_general": _run_placed,
    "random_bits": _run_bits,
    **{f"scatter-{kind}": _run_scatter for kind in ("add", "max", "min", "mul", "sub")},
    "scatter": _run_scatter,
}


# --- combining and comparing -------------------------------------------------------------------

_REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def plain_array(x: Any) -> np.ndarray:
    """An array that NumPy understands; of keys, their words."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(x))
    return np.asarray(x)


def _combine(
    locals_: list[Any], sharding: Sharding, shape: Shape, mesh: Mesh, devices: list[Coordinates]
) -> np.ndarray:
    arrays = [plain_array(x) for x in locals_]
    extra = arrays[0].shape[len(shape) :]  # the words of keys
    terms: dict[tuple[Any, ...], dict[tuple[int, ...], np.ndarray]] = {}
    for at, local in zip(devices, arrays, strict=True):
        part = part_of(sharding, shape, mesh, at)
        assert local.shape[: len(shape)] == tuple(s.stop - s.start for s in part)
        term = tuple(at[axis] for axis, _ in sharding.partial)
        place = tuple((s.start, s.stop) for s in part)
        seen = terms.setdefault(place, {}).setdefault(term, local)
        np.testing.assert_array_equal(seen, local, "devices differ where they should not")
    whole = np.zeros((*shape, *extra), arrays[0].dtype)
    kinds = {kind for _, kind in sharding.partial}
    assert len(kinds) <= 1, "these tests reduce in one way at a time"
    for place, found in terms.items():
        part = tuple(slice(*edge) for edge in place)
        reduce = _REDUCE[next(iter(kinds))] if kinds else None
        values = list(found.values())
        total = values[0]
        for value in values[1:]:
            assert reduce is not None
            total = reduce(total, value)
        whole[part] = total
    return whole


def assert_same(found: Any, expected: Any, what: str, rtol: float = 2e-5) -> None:
    """Equal types and shapes, and equal values up to rounding where they are not whole."""
    actual, wanted = plain_array(found), plain_array(expected)
    assert actual.shape == wanted.shape, what
    assert actual.dtype == wanted.dtype, what
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, wanted, what)
        return
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    short = wanted.dtype.kind not in "fc" or wanted.dtype.itemsize < 4
    np.testing.assert_allclose(
        actual.astype(wide), wanted.astype(wide), 1e-2 if short else rtol, 1e-5, err_msg=what
    )

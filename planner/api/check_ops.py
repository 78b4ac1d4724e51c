# pyright: basic
"""`check_ops`: registered operations run whole and in parts, to see whether their factors hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ir import REGISTERED, Mesh, Node, Sharding, TensorType, lookup, strategies
from ir.analysis import Place
from ir.evaluate import AsTraced, Hooks, Scope, bind_global, unchanged
from ir.trace import Binding, trace

from ..common.errors import PlanError
from ..common.surface import public, public_methods
from ..emit.local_op import LocalOp
from ..emit.registered import registered

Array = Any

_AXIS = "part"
_COMBINED: Mapping[str, Callable[[Array, Array], Array]] = {
    "max": jnp.maximum, "min": jnp.minimum, "sum": jnp.add,
}  # fmt: skip


@public_methods
@dataclass(frozen=True, slots=True)
class OpCheck:
    """How far a registered operation in parts was from the whole one.

    op: its name.
    factor: the factor that was split.
    ways: number of parts.
    difference: largest difference of an element, as a share of the result's largest element.
    """

    op: str
    factor: str
    ways: int
    difference: float


@dataclass
class _Found:
    """Largest differences, by op, factor and number of parts."""

    tolerance: float | None
    differences: dict[tuple[str, str, int], float] = field(default_factory=dict)
    allowed: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def add(self, key: tuple[str, str, int], allowed: float, difference: Array) -> None:
        self.differences[key] = max(self.differences.get(key, 0.0), float(difference))
        self.allowed[key] = max(self.allowed.get(key, 0.0), allowed)


@public
def check_ops(
    fn: Callable[..., Any], *args: Any, tolerance: float | None = None
) -> tuple[OpCheck, ...]:
    """Runs a function on one device, and each registered operation in it in parts as well.

    Each factor that a plan may split is split alone, into the smallest number of equal parts; the
    parts' results, put together as the factors say, must be those of the whole operation.

    Args:
        fn: a function that `plan` takes, with operations of `planner.register_op`.
        args: its arguments, arrays with the values to compare on.
        tolerance: largest difference allowed, as a share of a result's largest element; by default
            what rounding in the type of the result explains.

    Returns:
        One record for each operation and factor.

    Raises:
        PlanError: if a difference is larger, or the function has no registered operation that can
            be split.
        NotTracedError: if the function cannot be traced.
    """
    traced, found = trace(fn, *args), _Found(tolerance)
    hooks = Hooks(unchanged, unchanged, functools.partial(_run, found))
    scope = Scope(traced.program, (), hooks, AsTraced())
    arrays = map(jnp.asarray, jax.tree.leaves(args))
    jax.block_until_ready(scope.run([*traced.program.consts, *arrays]))
    jax.effects_barrier()
    if not found.differences:
        raise PlanError(
            "has no registered operation with a factor that can be split", kind="bad-op",
            where=f"function '{getattr(fn, '__name__', type(fn).__name__)}'",
            remedy="call operations that planner.register_op returned, with sizes above one",
        )  # fmt: skip
    for (op, factor, ways), difference in found.differences.items():
        allowed = found.allowed[op, factor, ways]
        if not difference <= allowed:
            raise PlanError(
                f"factor '{factor}' in {ways} parts gives results that differ by {difference:.2g} "
                f"of their largest element, where {allowed:.2g} is allowed",
                kind="bad-op", where=f"op '{op}'",
                remedy=f"mark it {factor}! if the operation needs the whole dimension, "
                f"{factor}+ {factor}> {factor}< if its parts are to be added or compared, or give "
                "a larger tolerance=",
            )  # fmt: skip
    return tuple(OpCheck(*key, value) for key, value in sorted(found.differences.items()))


def _run(
    found: _Found, place: Place, node: Node, binding: Binding, types: Sequence[TensorType],
    operands: Sequence[Array],
) -> list[Array]:  # fmt: skip
    """The whole op; a registered one also in parts, whose differences are noted."""
    del place
    whole = bind_global(node, binding, operands)
    for op in _in_parts(node, binding, types) if node.op == REGISTERED else ():
        key = str(node.attr("name")), op.strategy.roles[0], op.mesh.num_devices
        allowed = found.tolerance
        if allowed is None:
            allowed = max(_rounding(type_) for type_ in node.outputs)
        note = functools.partial(found.add, key, allowed)
        jax.debug.callback(note, _difference(op, operands, whole))
    return whole


def _in_parts(node: Node, binding: Binding, types: Sequence[TensorType]) -> Iterator[LocalOp]:
    """The op with each factor that can be split in its smallest number of equal parts."""
    spec = lookup(node.op).factors(tuple(types), node.outputs, dict(node.attrs))
    for factor, size in spec.sizes:
        if ways := next((n for n in range(2, size + 1) if size % n == 0), 0):
            mesh = Mesh(((_AXIS, ways),))
            for strategy in strategies(spec, mesh):
                if strategy.roles == (factor,):
                    yield LocalOp(node, binding, tuple(types), strategy, mesh)


def _rounding(type_: TensorType) -> float:
    """What differences in the order of sums explain, as a share of the largest element."""
    dtype = jnp.dtype(type_.dtype)
    return float(np.sqrt(jnp.finfo(dtype).eps)) / 4 if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def _difference(op: LocalOp, operands: Sequence[Array], whole: Sequence[Array]) -> Array:
    """Largest difference between an op in parts and the whole one."""
    states = op.strategy.operands
    parts = [
        registered(op, [_part(x, s, n, op) for x, s in zip(operands, states, strict=True)])
        for n in range(op.mesh.num_devices)
    ]
    found = jnp.zeros(())
    for k, expected in enumerate(whole):
        for mine in _joined([part[k] for part in parts], op.strategy.results[k]):
            found = jnp.maximum(found, _largest_share(mine, expected))
    return found


def _part(x: Array, state: Sharding, number: int, op: LocalOp) -> Array:
    for dim, axes in enumerate(state.dims):
        if axes:
            size = x.shape[dim] // op.mesh.num_devices
            x = jax.lax.slice_in_dim(x, number * size, (number + 1) * size, axis=dim)
    return x


def _joined(parts: Sequence[Array], state: Sharding) -> list[Array]:
    """The results that the parts stand for: one, or each part where all are to be equal."""
    if state.partial:
        return [functools.reduce(_COMBINED[state.partial[0][1]], parts)]
    dim = next((k for k, axes in enumerate(state.dims) if axes), None)
    return [jnp.concatenate(parts, dim)] if dim is not None else [*parts]


def _largest_share(mine: Array, expected: Array) -> Array:
    """Largest difference as a share of the largest element; infinite where only one is a number."""
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        return jnp.where(jnp.array_equal(mine, expected), 0.0, jnp.inf)
    wide = jnp.promote_types(expected.dtype, jnp.float32)
    mine, expected = mine.astype(wide), expected.astype(wide)
    same = (mine == expected) | (jnp.isnan(mine) & jnp.isnan(expected))
    finite = jnp.isfinite(mine) & jnp.isfinite(expected)
    scale = jnp.max(jnp.where(jnp.isfinite(expected), jnp.abs(expected), 0), initial=0)
    off = jnp.where(finite, jnp.abs(mine - expected), jnp.inf)
    share = jnp.where(same, 0, off / jnp.where(scale > 0, scale, 1))
    return jnp.max(share, initial=0).astype(jnp.float32)

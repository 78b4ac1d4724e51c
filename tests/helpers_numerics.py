# pyright: basic
"""Runs a plan beside the unsharded program and reports the differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ir import LoweredPlan
from ir.evaluate import plain_program
from ir.trace import Program, Traced
from planner.emit import compile_plan

RTOL = 1e-4
_ALONE: dict[int, tuple[Program, Any]] = {}


@dataclass(frozen=True, slots=True)
class OutputError:
    """Differences of one output.

    max_abs: largest difference between two elements; `inf` where only one of them is finite.
    max_rel: `max_abs` over the largest finite magnitude of the unsharded output, which is the
        scale to which rounding errors of sums are relative; `max_abs` itself for a zero output.
    epsilon: of the output's type; sums of short floats in another order differ by some of it.
    exact: integers, booleans and keys have to be equal.
    """

    name: str
    max_abs: float
    max_rel: float
    epsilon: float
    exact: bool

    def ok(self, rtol: float) -> bool:
        return self.max_abs == 0 if self.exact else self.max_rel <= max(rtol, 4 * self.epsilon)


@dataclass(frozen=True, slots=True)
class NumericsReport:
    """Differences of every output, in the order of the flat results."""

    outputs: tuple[OutputError, ...]
    rtol: float

    @property
    def ok(self) -> bool:
        return all(output.ok(self.rtol) for output in self.outputs)

    @property
    def max_rel(self) -> float:
        return max((output.max_rel for output in self.outputs), default=0.0)

    @property
    def worst(self) -> OutputError | None:
        """The output with the largest relative error."""
        return max(self.outputs, key=lambda output: output.max_rel, default=None)

    def __str__(self) -> str:
        wrong = [o for o in self.outputs if not o.ok(self.rtol)]
        head = f"{len(self.outputs)} outputs, {len(wrong)} beyond a relative error of {self.rtol:g}"
        lines = [f"  {o.name}: {o.max_abs:.3g} absolute, {o.max_rel:.3g} relative" for o in wrong]
        return "\n".join([f"{head}; the largest is {self.max_rel:.3g}", *lines])


def check_numerics(
    traced: Traced,
    plan: LoweredPlan,
    args: Sequence[Any],
    devices: Sequence[Any] | None = None,
    rtol: float = RTOL,
    *,
    emission: str = "shard_map",
) -> NumericsReport:
    """Compares the compiled plan with the traced program on one device.

    Args:
        traced: the function.
        plan: what each device runs.
        args: arguments of the function; they are copied, so that donation does not eat them.
        devices: for the plan; all there are if None.
        rtol: largest error, relative to the output's magnitude, that counts as rounding.
        emission: as in `compile_plan`.
    """
    leaves = jax.tree.leaves(tuple(args))
    expected = _alone(traced.program)(*traced.program.consts, *leaves)
    planned = compile_plan(traced, plan, devices=devices, emission=emission)
    copies = jax.tree.map(_copy, tuple(args))
    found = jax.tree.leaves(planned(*copies))
    return NumericsReport(
        tuple(
            _compare(name, x, y)
            for name, x, y in zip(traced.out_names, found, expected, strict=True)
        ),
        rtol,
    )


def _alone(program: Program) -> Any:
    """The unsharded program, compiled once for all of its plans."""
    if id(program) not in _ALONE:
        _ALONE[id(program)] = program, jax.jit(plain_program(program))
    return _ALONE[id(program)][1]


def _copy(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


def _compare(name: str, found: Any, expected: Any) -> OutputError:
    exact = not jnp.issubdtype(expected.dtype, jnp.inexact)
    epsilon = 0.0 if exact else float(jnp.finfo(expected.dtype).eps)
    found, expected = _numbers(found), _numbers(expected)
    wide = np.complex128 if np.issubdtype(expected.dtype, np.complexfloating) else np.float64
    x, y = found.astype(wide), expected.astype(wide)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(x - y))
    max_abs = float(np.where(np.isnan(gap), np.inf, gap).max(initial=0.0))
    size = np.abs(y)
    scale = float(np.where(np.isfinite(size), size, 0.0).max(initial=0.0))
    return OutputError(name, max_abs, max_abs / scale if scale else max_abs, epsilon, exact)


def _numbers(x: Any) -> np.ndarray[Any, Any]:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return np.asarray(x).astype(np.float64)
    return np.asarray(x)

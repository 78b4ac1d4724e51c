# pyright: basic
"""Kernels and their bytes, beside those of XLA's GPU compiler.

Expected bytes are those of the kernels that JAX 0.10.2 compiles ahead of time for an H100; where a
case says less than one percent, small arrays (statistics of rows, partial sums) make the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from costmodel import ComputeModel, parse_cluster
from costmodel.compiler import analyse, bounded
from costmodel.opcost import VIEWS
from ir.analysis import flatten, operand_types
from ir.trace import trace

MB = 1e6
ROWS = jax.ShapeDtypeStruct((8, 2048, 4096), jnp.bfloat16)
SCALE = jax.ShapeDtypeStruct((4096,), jnp.bfloat16)
SCORES = jax.ShapeDtypeStruct((4, 16, 1024, 1024), jnp.bfloat16)
WEIGHTS = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)


def rms(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-5)
    return wide.astype(x.dtype) * scale


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide - jnp.mean(wide, -1, keepdims=True)
    wide = wide * lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-5)
    return wide.astype(x.dtype) * scale + shift


def softmax(x: Any) -> Any:
    causal = jnp.tril(jnp.ones(x.shape[-2:], bool))
    wide = jnp.where(causal, x.astype(jnp.float32), -jnp.inf)
    return jax.nn.softmax(wide, -1).astype(x.dtype)


def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def backward(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda slope, *args: jax.vjp(fn, *args)[1](slope)


def added(x: Any, residual: Any, scale: Any) -> Any:
    x = x + residual
    return x, rms(x, scale)


def summed(a: Any, b: Any, c: Any, x: Any, scale: Any) -> Any:
    return jax.vjp(rms, x, scale)[1](a + b + c)


def kernels(fn: Callable[..., Any], *args: Any) -> tuple[float, int]:
    """Bytes that the kernels of a function move, and their number."""
    flat = flatten(trace(fn, *args).graph)
    found, total = analyse(flat), 0
    for i, op in enumerate(flat.ops):
        types = operand_types(flat, op)
        if op.node.op not in VIEWS:
            total += sum(types[k].nbytes for k in found.reads[i])
            total += sum(op.node.outputs[k].nbytes for k in found.writes[i])
    return total, sum(found.launches)


@pytest.mark.parametrize(
    ("fn", "args", "compiled_mb", "within"),
    [
        (rms, (ROWS, SCALE), 268.4, 0.01),
        (backward(rms), (ROWS, ROWS, SCALE), 673.7, 0.01),
        (layer_norm, (ROWS, SCALE, SCALE), 268.5, 0.01),
        (backward(layer_norm), (ROWS, ROWS, SCALE, SCALE), 1078.0, 0.13),
        (added, (ROWS, ROWS, SCALE), 671.1, 0.01),
        (softmax, (SCORES,), 268.4, 0.01),
        (backward(softmax), (SCORES, SCORES), 402.7, 0.01),
        (adam, (WEIGHTS,) * 4, 469.8, 0.01),
        (backward(lambda u, g: u * jax.nn.silu(g)), (ROWS,) * 3, 671.1, 0.01),
        (backward(jax.nn.gelu), (ROWS,) * 2, 402.7, 0.01),
        (lambda x: (x * 2, x + 1), (ROWS,), 402.7, 0.01),
        (lambda x, y: (jnp.sum(y, (0, 1)), y * x), (ROWS, ROWS), 406.9, 0.02),
        (summed, (ROWS, ROWS, ROWS, ROWS, SCALE), 1076.4, 0.01),
        (lambda a, b, x, s: backward(rms)(a + b, x, s), (ROWS, ROWS, ROWS, SCALE), 942.2, 0.01),
    ],
)  # fmt: skip
def test_bytes_are_those_of_the_compiler(
    fn: Any, args: Any, compiled_mb: float, within: float
) -> None:
    assert kernels(fn, *args)[0] / MB == pytest.approx(compiled_mb, rel=within)


@pytest.mark.parametrize(("row", "passes"), [(16384, 2), (32000, 4)])
def test_rows_are_held_up_to_a_length(row: int, passes: int) -> None:
    """A long row is read for its maximum, for its sum and for its result."""
    found, _ = kernels(
        lambda x: jax.nn.softmax(x, -1), jax.ShapeDtypeStruct((256, row), jnp.float32)
    )
    assert found == pytest.approx(passes * 256 * row * 4, rel=0.01)


def test_a_norm_whose_statistics_are_kept_takes_two_passes() -> None:
    def fn(x: Any) -> Any:
        mean = jnp.mean(x, -1, keepdims=True)
        return x - mean, mean

    wide = jax.ShapeDtypeStruct((256, 4096), jnp.float32)
    assert kernels(fn, wide)[0] == pytest.approx(3 * 256 * 4096 * 4, rel=0.01)


def test_what_waits_for_a_product_shares_no_kernel_with_what_it_reads() -> None:
    """The sum reads the product of what the first kernel makes."""
    x = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    assert kernels(lambda x: (jnp.sin(x) @ x) + x * 2, x)[1] == 3


def test_a_turned_array_is_copied_into_a_loop() -> None:
    def fn(x: Any) -> Any:
        return lax.scan(lambda c, row: (c + row, None), jnp.zeros(64), jnp.transpose(x))[0]

    flat = flatten(trace(fn, jax.ShapeDtypeStruct((64, 32), jnp.float32)).graph)
    found = analyse(flat)
    turns = [i for i, op in enumerate(flat.ops) if op.node.op == "transpose"]
    assert [(found.reads[i], found.writes[i]) for i in turns] == [((0,), (0,))]


@pytest.mark.parametrize(("times", "arithmetic"), [(1, False), (200, True)])
def test_a_fusion_is_charged_for_what_bounds_it(times: int, arithmetic: bool) -> None:
    """Few operations hide behind memory, many hide it."""

    def fn(x: Any) -> Any:
        for _ in range(times):
            x = x * 0.5 + 0.25
        return x

    compute = ComputeModel(parse_cluster("1xh100"))
    flat = flatten(trace(fn, jax.ShapeDtypeStruct((1024, 1024), jnp.float32)).graph)
    found = bounded(flat, analyse(flat), compute)
    assert found.computed is not None
    assert all(count == int(arithmetic) for count in found.computed)
    assert sum(map(len, found.reads)) == (0 if arithmetic else 1)


def test_layers_that_are_written_out_copy_nothing() -> None:
    """`loop_copies=False` prices a loop without what it copies."""

    def fn(x: Any) -> Any:
        return lax.scan(lambda x, _: (jnp.tanh(x @ x), x @ x), x, None, length=4)

    cluster = parse_cluster("1xh100")
    flat = flatten(trace(fn, jax.ShapeDtypeStruct((256, 256), jnp.float32)).graph)
    found = analyse(flat)
    assert bounded(flat, found, ComputeModel(cluster)).moved
    without = ComputeModel(replace(cluster, loop_copies=False))
    assert not bounded(flat, found, without).moved

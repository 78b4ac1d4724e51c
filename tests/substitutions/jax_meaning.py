# pyright: basic
"""Both sides of a rule in JAX, for counterexamples: a meaning apart from the package's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from substitutions import Op, Ref, Rule

PADS = {0: "SAME", 1: "VALID"}


def outputs(
    rule: Rule, inputs: Mapping[str, Any], degrees: Mapping[str, Sequence[int]],
    constants: Mapping[str, Mapping[str, Sequence[int]]],
    cuts: Mapping[str, Sequence[Sequence[int]]],
) -> list[list[Any]]:  # fmt: skip
    """Values of the mapped outputs of the source and of the target, in doubles.

    A value is (array, degrees, where its dimensions were joined); degrees are empty for plain
    rules.
    """
    with jax.enable_x64(True):
        first = 0 if rule.parallel else 1
        given = {}
        for name, x in inputs.items():
            joins = {axis - first: at for axis, at in cuts.get(name, ())}
            given[name] = (jnp.asarray(x, dtype="float64"), tuple(degrees.get(name, ())), joins)
        sides = []
        for name, ops, pick in (("source", rule.source, 0), ("target", rule.target, 1)):
            made: list[Any] = []
            for i, op in enumerate(ops):
                args = [_read(ref, given, made) for ref in op.inputs]
                made.append(_apply(op, args, rule.parallel, constants.get(name, {}).get(str(i))))
            sides.append([_read(pair[pick], given, made) for pair in rule.outputs])
        return sides


def _read(ref: Ref, given: Mapping[str, Any], made: Sequence[Any]) -> Any:
    return given[ref.name] if ref.op < 0 else made[ref.op][ref.output]


def _activated(op: Op, x: Any) -> Any:
    return jax.nn.relu(x) if op.get("activation", 0) == 2 else x


def _apply(op: Op, args: Sequence[Any], parallel: bool, shape: Any) -> tuple[Any, ...]:
    if op.kind in ("ones", "identity-matrix", "identity-kernel", "mean-kernel"):
        return ((_constant(op, tuple(shape)), (), {}),)
    x, held, joins = args[0]
    if op.kind == "concat":
        axis = op["axis"]
        sizes = [a[0].shape[axis] for a in args]
        whole = jnp.concatenate([a[0] for a in args], axis=axis)
        return ((whole, held, {**joins, axis: sizes[0]}),)
    if op.kind == "split":
        axis = op["axis"]
        parts = jnp.split(x, [joins[axis]], axis=axis)
        rest = {a: at for a, at in joins.items() if a != axis}
        return tuple((part, held, rest) for part in parts)
    if op.kind in ("partition", "combine", "replicate", "reduce"):
        return (_parallel(op, x, held, joins),)
    if op.kind == "transpose":
        return ((x.T, held, {1 - axis: at for axis, at in joins.items()}),)
    if op.kind == "linear":
        return (_linear(op, args),)
    others = [a[0] for a in args[1:]]
    joined = dict(joins)
    if op.kind == "matmul":
        joined = {a: joins[a] for a in (0,) if a in joins}
        joined |= {a: args[1][2][a] for a in (1,) if a in args[1][2]}
    if op.kind == "conv":
        joined = {a: joins[a] for a in (0,) if a in joins}
        joined |= {1: args[1][2][0]} if 0 in args[1][2] else {}
    return ((_plain(op, x, others), held, joined),)


def _plain(op: Op, x: Any, others: Sequence[Any]) -> Any:
    if op.kind == "add":
        assert x.shape == others[0].shape
        return x + others[0]
    if op.kind == "mul":
        assert x.shape == others[0].shape
        return x * others[0]
    if op.kind == "scale":
        return x * others[0]
    if op.kind == "relu":
        return jax.nn.relu(x)
    if op.kind == "matmul":
        return _activated(op, x @ others[0])
    if op.kind == "conv":
        w = others[0]
        found = lax.conv_general_dilated(
            x, w, (op["stride_h"], op["stride_w"]), PADS[op["padding"]],
            feature_group_count=x.shape[1] // w.shape[1],
        )  # fmt: skip
        return _activated(op, found)
    window = (1, 1, op["kernel_h"], op["kernel_w"])
    if op.kind == "enlarge":
        extra = [op[f"kernel_{a}"] - n for a, n in zip("hw", x.shape[2:], strict=True)]
        return jnp.pad(x, ((0, 0), (0, 0), *((e // 2, e - e // 2) for e in extra)))
    strides = (1, 1, op["stride_h"], op["stride_w"])
    if op.kind == "avgpool":
        total = lax.reduce_window(x, 0.0, lax.add, window, strides, PADS[op["padding"]])
        return total / (op["kernel_h"] * op["kernel_w"])
    assert op.kind == "maxpool"
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, PADS[op["padding"]])


def _constant(op: Op, shape: tuple[int, ...]) -> Any:
    if op.kind == "ones":
        return jnp.ones(shape)
    if op.kind == "identity-matrix":
        return jnp.eye(shape[0], shape[1])
    outs, ins = shape[:2]
    channel = (jnp.arange(outs)[:, None] % ins == jnp.arange(ins)[None]).astype("float64")
    if op.kind == "mean-kernel":
        taps = jnp.ones(shape[2:]) / (op["kernel_h"] * op["kernel_w"])
    else:
        taps = jnp.zeros(shape[2:]).at[op["kernel_h"] // 2, op["kernel_w"] // 2].set(1)
    return channel[:, :, None, None] * taps


def _parallel(op: Op, x: Any, held: tuple[int, ...], joins: Any) -> Any:
    k, dim = op["degree"], op["dim"]
    changed = list(held)
    changed[dim] = held[dim] * k if op.kind in ("partition", "replicate") else held[dim] // k
    if op.kind == "replicate":
        x = jnp.repeat(x, k, axis=0)
    if op.kind == "reduce":
        x = x.reshape(-1, k, *x.shape[1:]).sum(axis=1)
    return x, tuple(changed), joins


def _linear(op: Op, args: Sequence[Any]) -> Any:
    """Chunks made explicit: x[o, n, m, c, d] * w[n, o, p, c, d], summed over d."""
    (x, (xr, xn, xc), xj), (w, (wr, wo, wc), wj) = args
    assert (xr, xn, xc) == (wo, wr, wc)
    rows, channels = x.shape[1:]
    outs = w.shape[1]
    x = x.reshape(xr, xn, rows // xn, xc, channels // xc)
    w = w.reshape(wr, wo, outs // wo, wc, channels // wc)
    found = jnp.einsum("onmcd,nopcd->cnmop", x, w).reshape(xc, rows, outs)
    joins = {**({1: xj[1]} if 1 in xj else {}), **({2: wj[1]} if 1 in wj else {})}
    return _activated(op, found), (xc, xn, xr), joins


def reproduces(rule: Rule, example: Mapping[str, Any]) -> bool:
    """Whether JAX sees the sides of a rule differ as a counterexample says."""
    written = dict(zip(_degrees(rule), example.get("written_degrees", ()), strict=False))
    more = [example.get(key, {}) for key in ("degrees", "constants", "cuts")]
    source, target = outputs(_with_degrees(rule, written), example["inputs"], *more)
    a, b = source[example["output"]], target[example["output"]]
    if "at" not in example:
        return a[0].shape != b[0].shape or a[1] != b[1]
    at = tuple(example["at"])
    same = np.isclose([a[0][at], b[0][at]], [example["source"], example["target"]]).all()
    return bool(same and not np.isclose(a[0][at], b[0][at]))


def _degrees(rule: Rule) -> list[int]:
    return sorted({op["degree"] for op in (*rule.source, *rule.target) if op.get("degree", 0)})


def _with_degrees(rule: Rule, written: Mapping[int, int]) -> Rule:
    def side(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        changed = []
        for op in ops:
            params = {k: written.get(v, v) if k == "degree" else v for k, v in op.params}
            changed.append(Op(op.kind, op.inputs, tuple(params.items())))
        return tuple(changed)

    return Rule(
        rule.name, side(rule.source), side(rule.target), rule.outputs, rule.ranks, rule.parallel
    )

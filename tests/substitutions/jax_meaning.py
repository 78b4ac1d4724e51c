# pyright: basic
"""Rules on explicit logical devices: a meaning apart from the package's own.

A tensor is a table of local arrays by device. Devices are numbered by replica and by chunk of each
dimension. Ops run device by device on what each device holds, and are refused where the devices of
their operands are not the same ones. JAX computes, or NumPy where that is asked for; NumPy moves
arrays between devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from substitutions import Op, Ref, Rule
from tests.substitutions.computes import JAX, Compute
from tests.substitutions.logical_devices import Device, Join, Placed, RefusedError, need, placed


@dataclass(frozen=True)
class Run:
    """What ops need beside their operands.

    groups: for each convolution that ran, how many groups it had, and outputs per group.
    """

    parallel: bool
    compute: Compute
    groups: list[tuple[int, int]] = field(default_factory=list)


def outputs(
    rule: Rule, inputs: Mapping[str, Placed],
    constants: Mapping[str, Mapping[str, Sequence[int]]], compute: Compute = JAX,
) -> tuple[list[Placed], list[Placed]]:  # fmt: skip
    """Values of the mapped outputs of the source and of the target, in doubles.

    Raises:
        RefusedError: if an op does not take its operands.
    """
    return watched(rule, inputs, constants, Run(rule.parallel, compute))


def watched(
    rule: Rule, inputs: Mapping[str, Placed],
    constants: Mapping[str, Mapping[str, Sequence[int]]], run: Run,
) -> tuple[list[Placed], list[Placed]]:  # fmt: skip
    """The same, with a run that keeps what convolutions there were."""
    with jax.enable_x64(True), np.errstate(all="ignore"):
        source, target = (
            _side(rule, side, i, inputs, constants.get(name, {}), run)
            for i, (name, side) in enumerate((("source", rule.source), ("target", rule.target)))
        )
        return source, target


def _side(
    rule: Rule, side: Sequence[Op], pick: int, inputs: Mapping[str, Placed],
    constants: Mapping[str, Sequence[int]], run: Run,
) -> list[Placed]:  # fmt: skip
    made: list[tuple[Placed, ...]] = []

    def value(ref: Ref) -> Placed:
        return inputs[ref.name] if ref.op < 0 else made[ref.op][ref.output]

    for i, op in enumerate(side):
        if op.kind in ("ones", "identity-matrix", "identity-kernel", "mean-kernel"):
            data = _constant(op, tuple(constants[str(i)]))
            made.append((Placed({(0,) * (data.ndim + 1): data}, (None,) * data.ndim),))
        else:
            made.append(OPS[op.kind](op, [value(ref) for ref in op.inputs], run))
    return [value(pair[pick]) for pair in rule.outputs]


def _axis(op: Op, x: Placed, run: Run) -> int:
    """The data dimension, from 0."""
    axis = op["axis"] - run.parallel
    need(0 <= axis < len(x.joins), f"{op.kind} on axis {op['axis']}")
    return axis


def _activated(op: Op, x: Any, run: Run) -> Any:
    return run.compute.functions["relu"](x) if op.get("activation", 0) == 2 else x


def _each(op: Op, args: Sequence[Placed], run: Run) -> tuple[Placed, ...]:
    """Elementwise, on devices that hold the same chunks of all operands."""
    x = args[0]
    for other in args[1:]:
        need(other.parts.keys() == x.parts.keys(), f"{op.kind} of tensors on other devices")
        need(other.local == x.local, f"{op.kind} of {x.local} and {other.local}")
    function = run.compute.functions[op.kind]
    parts = {d: np.asarray(function(*(a.parts[d] for a in args))) for d in x.parts}
    alike = op.kind not in ("sub", "div")
    joins = (js[0] if alike and all(j == js[0] for j in js) else None
             for js in zip(*(a.joins for a in args), strict=True))  # fmt: skip
    return (Placed(parts, tuple(joins)),)


def _scale(op: Op, args: Sequence[Placed], run: Run) -> tuple[Placed, ...]:
    """The factor has a replica for every device, in the order of their numbers."""
    x, s = args
    need(not s.joins, "the factor is no scalar")
    devices = sorted(x.parts)
    need(len(s.parts) == len(devices), "the factor is on fewer or more devices")
    return (Placed({d: x.parts[d] * s.parts[i,] for i, d in enumerate(devices)}, x.joins),)


def _transpose(op: Op, args: Sequence[Placed], run: Run) -> tuple[Placed, ...]:
    (x,) = args
    need(len(x.joins) == 2, "transpose of no matrix")
    return (Placed({(r, j, i): a.T for (r, i, j), a in x.parts.items()}, x.joins[::-1]),)


def _contraction(op: Op, args: Sequence[Placed], run: Run) -> tuple[Placed, ...]:
    """Each device of the first operand meets one of the second; the result has its own number."""
    x, y = args
    ranks, partner, compute, joins = _CONTRACTIONS[op.kind]
    need((len(x.joins), len(y.joins)) == ranks, f"{op.kind} of other ranks")
    pairs = {device: partner(*device) for device in x.parts}
    met = [other for other, _ in pairs.values()]
    need(len({*met}) == len(met) and {*met} == {*y.parts}, f"{op.kind} on different devices")
    parts = {
        result: np.asarray(_activated(op, compute(op, x.parts[device], y.parts[other], run), run))
        for device, (other, result) in pairs.items()
    }
    return (Placed(parts, joins(x.joins, y.joins)),)


def _matrices(op: Op, x: Any, y: Any, run: Run) -> Any:
    need(x.shape[-1] == y.shape[-2] and x.shape[:-2] == y.shape[:-2], f"{x.shape} by {y.shape}")
    return run.compute.product(x, y)


def _turned(op: Op, x: Any, w: Any, run: Run) -> Any:
    return _matrices(op, x, w.T, run)


def _image(op: Op, x: Any, w: Any, run: Run) -> Any:
    channels, outs, ins = x.shape[1], w.shape[0], w.shape[1]
    need(channels % ins == 0 and outs % (channels // ins) == 0, "groups do not divide channels")
    fits = all(k <= n for k, n in zip(w.shape[2:], x.shape[2:], strict=True))
    need(fits or op["padding"] == 0, "a window larger than the image")
    groups = channels // ins
    run.groups.append((groups, outs // groups))
    return run.compute.image(x, w, (op["stride_h"], op["stride_w"]), op["padding"], groups)


def _looked_up(op: Op, table: Any, rows: Any, run: Run) -> Any:
    return table[rows.astype("int64") % table.shape[0]]


# op -> (ranks, devices of the second operand and of the result, the local op, histories)
_CONTRACTIONS: Mapping[str, Any] = {
    "matmul": (
        (2, 2), lambda r, n, c: ((n, c, r), (c, n, r)), _matrices,
        lambda x, y: (x[0], y[1]),
    ),
    "linear": (
        (2, 2), lambda r, n, c: ((n, r, c), (c, n, r)), _turned,
        lambda x, w: (x[0], w[0]),
    ),
    "batch-matmul": (
        (3, 3), lambda r, b, n, c: ((n, b, c, r), (c, b, n, r)), _matrices,
        lambda x, y: (x[0], x[1], y[2]),
    ),
    "conv": (
        (4, 4), lambda r, n, c, _h, _w: ((n, r, c, 0, 0), (c, n, r, 0, 0)), _image,
        lambda x, w: (x[0], w[0], None, None),
    ),
    "gather": (
        (2, 1), lambda r, _n, c: ((c, r), (0, r, c)), _looked_up,
        lambda table, rows: (rows[0], table[1]),
    ),
}  # fmt: skip


def _windowed(op: Op, args: Sequence[Placed], run: Run) -> tuple[Placed, ...]:
    (x,) = args
    need(len(x.joins) == 4, f"{op.kind} of no image")
    need(not any(h or w for *_, h, w in x.parts), f"{op.kind} of a window that is divided")
    size = (op["kernel_h"], op["kernel_w"])
    if op.kind == "enlarge" or op["padding"] == 1:
        fits = [k - n for k, n in zip(size, x.local[2:], strict=True)]
        need(min(fits) >= 0 if op.kind == "enlarge" else max(fits) <= 0, "windows do not fit")
    parts = {device: np.asarray(_window(op, part, size, run)) for device, part in x.parts.items()}
    return (Placed(parts, (*x.joins[:2], None, None)),)


def _window(op: Op, x: Any, size: tuple[int, int], run: Run) -> Any:
    if op.kind == "enlarge":
        extra = [k - n for k, n in zip(size, x.shape[2:], strict=True)]
        return np.pad(x, ((0, 0), (0, 0), *((e // 2, e - e // 2) for e in extra)))
    computed = run.compute.average if op.kind == "avgpool" else run.compute.largest
    return computed(x, size, (op["stride_h"], op["stride_w"]), op["padding"])


def _concat(op: Op, args: Sequence[Placed], run: Run) -> tuple[Placed, ...]:
    x = args[0]
    axis = _axis(op, x, run)
    need(not any(device[1 + axis] for device in x.parts), "concat along chunks")
    joins, total = list(x.joins), x.local[axis]
    for other in args[1:]:
        need(other.parts.keys() == x.parts.keys(), "concat of tensors on other devices")
        for i, (n, m) in enumerate(zip(x.local, other.local, strict=True)):
            need(i == axis or n == m, f"concat of {x.local} and {other.local}")
            joins[i] = joins[i] if joins[i] == other.joins[i] or i == axis else None
        joins[axis] = Join(total, joins[axis], other.joins[axis])
        total += other.local[axis]
    parts = {d: np.concatenate([a.parts[d] for a in args], axis=axis) for d in x.parts}
    return (Placed(parts, tuple(joins)),)


def _split(op: Op, args: Sequence[Placed], run: Run) -> tuple[Placed, ...]:
    (x,) = args
    axis = _axis(op, x, run)
    need(not any(device[1 + axis] for device in x.parts), "split along chunks")
    join = x.joins[axis]
    if join is None:
        raise RefusedError("split of what was not joined")
    halves = {d: np.split(part, [join.at], axis=axis) for d, part in x.parts.items()}
    return tuple(
        Placed({d: both[i] for d, both in halves.items()},
               (*x.joins[:axis], history, *x.joins[axis + 1 :]))
        for i, history in enumerate((join.left, join.right))
    )  # fmt: skip


def _moved(device: Device, dim: int, number: int) -> Device:
    return (*device[:dim], number, *device[dim + 1 :])


def _communication(op: Op, args: Sequence[Placed], run: Run) -> tuple[Placed, ...]:
    """Partition, combine, replicate and reduce: the only ops that send anything."""
    (x,) = args
    k, dim = op["degree"], op["dim"]
    need(run.parallel and dim <= len(x.joins), f"{op.kind} on {dim}")
    need((dim == 0) == (op.kind in ("replicate", "reduce")), f"{op.kind} on {dim}")
    if op.kind in ("combine", "reduce"):
        need(x.degrees[dim] % k == 0, f"{op.kind} of {x.degrees[dim]} by {k}")
        groups: dict[Device, list[Any]] = {}
        for device in sorted(x.parts):
            home = _moved(device, dim, device[dim] // k)
            groups.setdefault(home, []).append(x.parts[device])
        join = sum if op.kind == "reduce" else lambda ps: np.concatenate(ps, axis=dim - 1)
        return (Placed({home: join(parts) for home, parts in groups.items()}, x.joins),)
    sent: dict[Device, Any] = {}
    for device, part in x.parts.items():
        if op.kind == "partition":
            need(part.shape[dim - 1] % k == 0, f"{k} chunks of {part.shape[dim - 1]}")
        pieces = np.split(part, k, axis=dim - 1) if op.kind == "partition" else [part] * k
        for j, piece in enumerate(pieces):
            sent[_moved(device, dim, device[dim] * k + j)] = piece
    return (Placed(sent, x.joins),)


def _reduction(op: Op, args: Sequence[Placed], run: Run) -> tuple[Placed, ...]:
    """Devices along the axis become replicas, each with the sum of what it holds."""
    (x,) = args
    axis = _axis(op, x, run)
    degree = x.degrees[1 + axis]
    need(op.kind == "sum" or degree == 1, "the largest along chunks")
    function = np.sum if op.kind == "sum" else np.max
    parts = {
        (d[0] * degree + d[1 + axis], *d[1 : 1 + axis], *d[2 + axis :]): function(part, axis=axis)
        for d, part in x.parts.items()
    }
    return (Placed(parts, (*x.joins[:axis], *x.joins[axis + 1 :])),)


def _expand(op: Op, args: Sequence[Placed], run: Run) -> tuple[Placed, ...]:
    x, like = args
    axis = _axis(op, like, run)
    degree, size = like.degrees[1 + axis], like.local[axis]
    homes = {d: (d[0] * degree + d[1 + axis], *d[1 : 1 + axis], *d[2 + axis :]) for d in like.parts}
    need({*homes.values()} == {*x.parts}, "expand on other devices")
    need((*like.local[:axis], *like.local[axis + 1 :]) == x.local, "expand to another shape")
    parts = {d: np.stack([x.parts[home]] * size, axis=axis) for d, home in homes.items()}
    return (Placed(parts, like.joins),)


def _along(op: Op, args: Sequence[Placed], run: Run) -> tuple[Placed, ...]:
    vector, like = args
    axis = _axis(op, like, run)
    need(not run.parallel and len(vector.joins) == 1, "along takes a vector, on one device")
    need(vector.local[0] == like.local[axis], "along another size")
    shape = [-1 if i == axis else 1 for i in range(len(like.local))]
    parts = {
        d: np.broadcast_to(vector.parts[(*d[:1], 0)].reshape(shape), like.local) for d in like.parts
    }
    return (Placed(parts, like.joins),)


def _constant(op: Op, shape: tuple[int, ...]) -> Any:
    if op.kind == "ones":
        return np.ones(shape)
    if op.kind == "identity-matrix":
        return np.eye(shape[0], shape[1])
    outs, ins = shape[:2]
    channel = (np.arange(outs)[:, None] % ins == np.arange(ins)[None]).astype("float64")
    if op.kind == "mean-kernel":
        taps = np.ones(shape[2:]) / (op["kernel_h"] * op["kernel_w"])
    else:
        taps = np.zeros(shape[2:])
        taps[op["kernel_h"] // 2, op["kernel_w"] // 2] = 1
    return channel[:, :, None, None] * taps


OPS: Mapping[str, Callable[[Op, Sequence[Placed], Run], tuple[Placed, ...]]] = {
    **dict.fromkeys(JAX.functions, _each),
    **dict.fromkeys(_CONTRACTIONS, _contraction),
    **dict.fromkeys(("enlarge", "avgpool", "maxpool"), _windowed),
    **dict.fromkeys(("partition", "combine", "replicate", "reduce"), _communication),
    **dict.fromkeys(("sum", "max"), _reduction),
    "scale": _scale, "transpose": _transpose, "concat": _concat, "split": _split,
    "expand": _expand, "along": _along,
}  # fmt: skip


def reproduces(rule: Rule, example: Mapping[str, Any]) -> bool:
    """Whether JAX sees the sides of a rule differ as a counterexample says."""
    written = dict(zip(_degrees(rule), example.get("written_degrees", ()), strict=False))
    first = 0 if rule.parallel else 1
    inputs: dict[str, Placed] = {}
    for name, values in example["inputs"].items():
        whole = np.asarray(values, dtype="float64")[(None,) * first]
        degrees = example.get("degrees", {}).get(name, [1] * whole.ndim)
        cuts = {axis - 1: at for axis, at in example.get("cuts", {}).get(name, ())}
        inputs[name] = placed(whole, degrees, cuts)
    rule = with_degrees(rule, written)
    source, target = outputs(rule, inputs, example.get("constants", {}))
    a, b = source[example["output"]], target[example["output"]]
    if "at" not in example:
        return a.parts.keys() != b.parts.keys() or a.local != b.local
    at = ((0,) * first) + tuple(example["at"])
    left, right = a.whole()[at], b.whole()[at]
    same = np.isclose([left, right], [example["source"], example["target"]]).all()
    return bool(same and not np.isclose(left, right))


def _degrees(rule: Rule) -> list[int]:
    return sorted({op["degree"] for op in (*rule.source, *rule.target) if op.get("degree", 0)})


def with_degrees(rule: Rule, written: Mapping[int, int]) -> Rule:
    """The rule with other degrees."""

    def side(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        changed = []
        for op in ops:
            params = {k: written.get(v, v) if k == "degree" else v for k, v in op.params}
            changed.append(Op(op.kind, op.inputs, tuple(params.items())))
        return tuple(changed)

    return Rule(
        rule.name, side(rule.source), side(rule.target), rule.outputs, rule.ranks, rule.parallel
    )

"""Ops that move data between devices, and change nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..graph import Op, Ref
from ..numeric.arrays import Array, need
from ..numeric.devices import Run, Tensor
from ..symbolic.expr import Expr
from ..symbolic.meaning import Indices, Meaning
from ..symbolic.types import IllFormedError, Type, Typing, computed
from ..symbolic.values import Value, divided, summed
from .record import Compute, RuleOp

# --- types -------------------------------------------------------------------------------------


def _chunks_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    k, dim = _degree(typing, op), op["dim"]
    if not 1 <= dim <= len(x.dims):
        what = "the replica dimension" if dim == 0 else f"dimension {dim}, which does not exist"
        raise IllFormedError(f"{op.kind} on {what}; it changes a data dimension")
    old = x.dims[dim - 1]
    if op.kind == "partition":
        typing.solver.divides(old.degree * k, old.size)
        degree = old.degree * k
    else:
        degree = typing.solver.multiple(old.degree, k)
    dims = list(x.dims)
    dims[dim - 1] = replace(old, degree=degree)
    return (computed(x.replica, dims),)


def _replicas_type(typing: Typing, op: Op, args: Sequence[Type], _: str) -> tuple[Type, ...]:
    (x,) = args
    k, dim = _degree(typing, op), op["dim"]
    if dim:
        text = f"{op.kind} on data dimension {dim}; it changes the replica dimension"
        raise IllFormedError(text)
    if op.kind == "replicate":
        return (computed(x.replica * k, x.dims),)
    return (computed(typing.solver.multiple(x.replica, k), x.dims),)


def _degree(typing: Typing, op: Op) -> Expr:
    if not typing.parallel:
        raise IllFormedError(f"{op.kind} of a tensor without degrees")
    return typing.degree(op)


# --- elements ----------------------------------------------------------------------------------


def _same(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """Partition and combine change where elements are, not what they are."""
    return m.at(op.inputs[0], replica, index)


def _replicated(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    k = m.parts.typing.degree(op)
    return m.at(op.inputs[0], divided(replica, k, m.labels.sizes), index)


def _reduced(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    k = m.parts.typing.degree(op)
    name, label = m.labels.make(k)
    return summed(m.at(op.inputs[0], replica * k + label, index), ((name, k),))


# --- numbers -----------------------------------------------------------------------------------


def _partition(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """Each chunk cut into k, which are neighbours."""
    x, k, dim = _operand(op, args, run)
    local = x.local[dim - 1]
    need(local % k == 0, f"{k} parts of {local} elements")
    place = x.rank + dim
    shape = x.data.shape
    cut = x.data.reshape(*shape[:place], k, local // k, *shape[place + 1 :])
    near = np.moveaxis(cut, place, dim + 1)
    data = near.reshape(*shape[:dim], shape[dim] * k, *near.shape[dim + 2 :])
    return _with_degree(x, dim, data)


def _combine(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """Neighbouring chunks joined, k on each device."""
    x, k, dim = _operand(op, args, run)
    need(x.degrees[dim] % k == 0, f"combine by {k} of degree {x.degrees[dim]}")
    shape, place = x.data.shape, x.rank + dim
    groups = x.data.reshape(*shape[:dim], shape[dim] // k, k, *shape[dim + 1 :])
    near = np.moveaxis(groups, dim + 1, place)
    data = near.reshape(*near.shape[:place], k * shape[place], *near.shape[place + 2 :])
    return _with_degree(x, dim, data)


def _replicate(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """Copies of each replica, k of them as neighbours."""
    x, k, dim = _operand(op, args, run)
    return _with_degree(x, dim, np.repeat(x.data, k, axis=0))


def _reduce(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    """The sum of k neighbouring replicas."""
    x, k, dim = _operand(op, args, run)
    need(x.degrees[dim] % k == 0, f"reduce by {k} of degree {x.degrees[dim]}")
    groups = x.data.reshape(x.degrees[0] // k, k, *x.data.shape[1:])
    return _with_degree(x, dim, run.numbers.total(groups, (1,)))


def _operand(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, int, int]:
    """The operand, the degree, and the dimension among [replica, dims...]."""
    (x,) = args
    dim = op["dim"]
    need(run.parallel and dim <= x.rank, f"{op.kind} on {dim}")
    need((op.kind in ("replicate", "reduce")) == (dim == 0), f"{op.kind} on {dim}")
    return x, op["degree"], dim


def _with_degree(x: Tensor, dim: int, data: Array) -> tuple[Tensor, ...]:
    degrees = (*x.degrees[:dim], data.shape[dim], *x.degrees[dim + 1 :])
    return (Tensor(data, degrees, x.cuts),)


# --- records -----------------------------------------------------------------------------------


def _chunks(name: str, compute: Compute) -> RuleOp:
    return RuleOp(
        name=name, operands=(1, 1), params=("dim", "degree"), moves=True, type=_chunks_type,
        value=_same, compute=compute,
    )  # fmt: skip


PARALLEL = (
    _chunks("partition", _partition),
    _chunks("combine", _combine),
    RuleOp(
        name="replicate", operands=(1, 1), params=("degree",), unwritten=("dim",), moves=True,
        type=_replicas_type, value=_replicated, compute=_replicate,
    ),
    RuleOp(
        name="reduce", operands=(1, 1), params=("degree",), unwritten=("dim",), sums=True,
        type=_replicas_type, value=_reduced, compute=_reduce,
    ),
)  # fmt: skip

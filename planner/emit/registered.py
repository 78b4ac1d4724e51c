# pyright: basic
"""Ops that users registered on local shards: functions as they are, calls of libraries resized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ir import IRError, TensorType
from ir.evaluate import bind

from .local_op import LocalOp

Array = Any


def registered(op: LocalOp, operands: Sequence[Array]) -> list[Array]:
    """Runs a registered op on local shards.

    Raises:
        IRError: if its results there do not have the shapes that its factors say.
    """
    params, expected = dict(op.binding.params), op.local_results
    if "result_avals" in params:  # of a call of a library, which does not know its results' shapes
        known = zip(params["result_avals"], expected, strict=True)
        params["result_avals"] = tuple(aval.update(shape=type_.shape) for aval, type_ in known)
    results = bind(op.binding, operands, params)
    for k, (x, type_) in enumerate(zip(results, expected, strict=True)):
        if tuple(x.shape) != type_.shape:
            raise IRError(
                f"on shards {_list(op.local_operands)} its result {k} has the shape {x.shape}, "
                f"its factors '{op.node.attr('factors')}' say {type_.shape}",
                where=f"op '{op.node.attr('name')}'",
                remedy="take sizes from the operands inside the function, or mark the factor with "
                "! if it cannot be split",
            )  # fmt: skip
    return results


def _list(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))

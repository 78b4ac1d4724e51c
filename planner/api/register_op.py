"""`register_op`: what the planner cannot see of a kernel, in one line by the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, overload

from ir import RegisteredOp, register
from ir.registered_calls import as_op

from ..common.errors import PlanError
from ..common.surface import public

P = ParamSpec("P")
R = TypeVar("R")
Amount = float | Callable[..., float] | None


@overload
def register_op(
    op: str, *, factors: str, flops: Amount = None, bytes: Amount = None, seconds: Amount = None,
) -> None: ...  # fmt: skip
@overload
def register_op(
    op: Callable[P, R], *, factors: str, flops: Amount = None, bytes: Amount = None,
    seconds: Amount = None, name: str = "",
) -> Callable[P, R]: ...  # fmt: skip
@public
def register_op(
    op: str | Callable[P, R], *, factors: str, flops: Amount = None,
    bytes: Amount = None, seconds: Amount = None, name: str = "",  # noqa: A002
) -> Callable[P, R] | None:  # fmt: skip
    """Tells the planner how an operation can be split and what it costs.

    Plans run the operation on shards of its operands, as `factors` allows: a Pallas or Triton
    kernel, a call of a library, or any function whose parts are to stay together.

    Each dimension of each operand and result, in order, is named by a factor; dimensions with one
    name are split together. `m k+, k+ n -> m n` is a matrix product. After a name, `+` says that
    parts of a split factor are added up, `>` and `<` that their maximum or minimum is taken, and
    `!` that it cannot be split. Nor can a factor without a mark that is in no operand, or not in
    every result. `(a b)` is one dimension of two factors, a the major one, and `1` a
    dimension of size one.

    Args:
        op: a function of arrays, which are positional arguments, and of settings, which are keyword
            arguments; or the name of a JAX primitive or of the target of `jax.ffi.ffi_call`.
        factors: operands and results, for example `"b s! h d!, b t! h d!, b t! h d! -> b s! h d!"`.
        flops: floating-point operations of one run: a number for the whole operation, or a function
            of factors' sizes on a device, such as `lambda b, s, t, h, d: 4 * b * s * t * h * d`; by
            default one for each combination of factors, and two if factors are summed.
        bytes: read and written in memory by one run, likewise; by default those of operands and
            results.
        seconds: of one run on one device, likewise; by default the longer of the times of `flops`
            and `bytes`, and the start of a kernel.
        name: in plans and messages; by default that of the function.

    Returns:
        For a function the same function, each of whose calls is one operation for the planner; it
        is differentiated and batched as before. Call it in place of the old one. For a name None.

    Raises:
        PlanError: if factors or costs are malformed, or another function has the name.
    """
    if isinstance(op, str):
        register(RegisteredOp(op, "", factors, flops, bytes, seconds))
        return None
    if not callable(op):
        raise PlanError(
            f"is a {type(op).__name__}", kind="bad-op", where="op of register_op",
            remedy="pass a function, or the name of a primitive or of an FFI target",
        )  # fmt: skip
    module, own = getattr(op, "__module__", "") or "", getattr(op, "__qualname__", "")
    shown = name or own.rpartition(".")[2]
    if not name and (not shown or shown == "<lambda>" or module.partition(".")[0] == "jax"):
        raise PlanError(
            f"has no name of its own, but '{shown}'", kind="bad-op", where="op of register_op",
            remedy="pass name=",
        )  # fmt: skip
    made = RegisteredOp(shown, f"{module}.{own}" if own else shown, factors, flops, bytes, seconds)
    register(made)
    return as_op(op, made)

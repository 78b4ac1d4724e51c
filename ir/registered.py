"""Ops that users register: their factor specs, and what they cost, by name."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .errors import IRError
from .factors import KINDS, FactorSpec, factor_spec
from .graph import Attr, Attrs
from .types import TensorType

REGISTERED = "registered_op"
AMOUNTS = ("flops", "bytes", "seconds")

Amount = float | Callable[..., float] | None
Types = Sequence[TensorType]

_WORD = re.compile(r"\(|\)|[A-Za-z_]\w*[+><!]?|1(?!\w)")


@dataclass(frozen=True, slots=True)
class RegisteredOp:
    """An op that a user registered.

    owner: module and qualified name of the function; empty for a primitive or a call of a library.
    factors: factor spec, in the notation of `ir.factors`.
    flops, bytes, seconds: of one run: a number for the whole op, a function of the factors' sizes,
        or None where they follow from the shapes.
    """

    name: str
    owner: str
    factors: str
    flops: Amount = None
    bytes: Amount = None
    seconds: Amount = None

    def amount(self, kind: str) -> Amount:
        """One of `AMOUNTS`."""
        return {"flops": self.flops, "bytes": self.bytes, "seconds": self.seconds}[kind]


_OPS: dict[str, RegisteredOp] = {}


def register(op: RegisteredOp) -> None:
    """Makes an op known by its name.

    Raises:
        IRError: if its factors or costs are malformed, or the name is that of another function.
    """
    names = _factor_names(op)
    for kind in AMOUNTS:
        _check_amount(op, kind, names)
    known = _OPS.get(op.name)
    if known is not None and known.owner != op.owner:
        raise IRError(
            f"is registered already, for {known.owner or 'a primitive'}",
            where=f"op '{op.name}'", remedy="give this one another name=",
        )  # fmt: skip
    _OPS[op.name] = op


def _factor_names(op: RegisteredOp) -> frozenset[str]:
    where = f"factors of op '{op.name}'"
    left, arrow, right = op.factors.partition("->")
    if not arrow or "->" in right:
        raise IRError(
            f"'{op.factors}' has not one '->'", where=where,
            remedy="write operands -> results, for instance 'm k+, k+ n -> m n'",
        )  # fmt: skip
    found: set[str] = set()
    for tensor in (*left.split(","), *right.split(",")):
        if rest := _WORD.sub("", tensor).strip():
            raise IRError(
                f"'{tensor.strip()}' holds '{rest}'", where=where,
                remedy="write names of factors, 1 for a dimension of size one, ( ) around the "
                "factors of one dimension, and after a name + > < (a sum, maximum or minimum is "
                "left where it is split) or ! (cannot be split)",
            )  # fmt: skip
        words = [word.rstrip("".join(KINDS)) for word in _WORD.findall(tensor)]
        own = [word for word in words if word not in ("(", ")", "1")]
        if twice := sorted({name for name in own if own.count(name) > 1}):
            raise IRError(
                f"'{tensor.strip()}' has the factor '{twice[0]}' twice", where=where,
                remedy="give each dimension factors of its own",
            )  # fmt: skip
        found |= {*own}
    return frozenset(found)


def _check_amount(op: RegisteredOp, kind: str, names: frozenset[str]) -> None:
    amount, where = op.amount(kind), f"{kind} of op '{op.name}'"
    if amount is None:
        return
    if not callable(amount):
        _number(amount, where)
        return
    parameters = inspect.signature(amount).parameters.values()
    if unknown := sorted({p.name for p in parameters if p.kind != p.VAR_KEYWORD} - names):
        raise IRError(
            f"its argument '{unknown[0]}' is no factor of '{op.factors}'", where=where,
            remedy=f"take some of {', '.join(sorted(names))}",
        )  # fmt: skip


def _number(value: object, where: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and number >= 0:
            return number
    raise IRError(
        f"is {value!r}", where=where,
        remedy="give a number of at least 0, or a function of the factors' sizes",
    )  # fmt: skip


# --- one call ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisteredCall:
    """A call of a registered op.

    factors: its factor spec, with those of `batches`.
    batches: factors that `jax.vmap` added, which multiply what one run costs.
    body: digest of what it computes.
    """

    op: RegisteredOp
    factors: str
    batches: tuple[str, ...] = ()
    body: str = ""

    def batched(self, operands: Sequence[bool], results: int) -> RegisteredCall:
        """The call under `jax.vmap`: a new first dimension of all results and some operands.

        Args:
            operands: whether each has the dimension.
            results: number of results.
        """
        name = f"vmap{len(self.batches)}"
        left, _, right = self.factors.partition("->")
        ins = left.split(",") if operands else []
        before = [f"{name} {t}" if has else t for t, has in zip(ins, operands, strict=True)]
        after = [f"{name} {t}" for t in right.split(",")[:results]]
        text = f"{', '.join(before)} -> {', '.join(after)}"
        return replace(self, factors=text, batches=(*self.batches, name))


def call_of(primitive: str, params: Mapping[str, object]) -> RegisteredCall | None:
    """The registered call that an equation is, or None.

    Args:
        primitive: name of its primitive.
        params: its parameters; the target of a call of a library is among them.
    """
    if primitive == REGISTERED:
        call = params["call"]
        assert isinstance(call, RegisteredCall)
        return call
    names = (primitive, params.get("target_name"))
    found = (_OPS.get(name) for name in names if isinstance(name, str))
    op = next((op for op in found if op is not None and not op.owner), None)
    return None if op is None else RegisteredCall(op, op.factors)


def attributes(call: RegisteredCall, operands: Types, results: Types) -> Attrs:
    """What a graph says of a call: all that its plan depends on.

    Raises:
        IRError: if factors and shapes disagree, or a cost is no number.
    """
    spec = spec_of(call.op.name, call.factors, operands, results)
    sizes = {name: float(size) for name, size in spec.sizes}
    found: dict[str, Attr] = {
        "batches": call.batches, "body": call.body, "factors": call.factors, "name": call.op.name,
    }  # fmt: skip
    by_size: list[str] = []
    for kind in AMOUNTS:
        amount = call.op.amount(kind)
        if amount is not None:
            times = math.prod(sizes.get(name, 1.0) for name in call.batches)
            found[kind] = times * _evaluated(call.op, kind, sizes)
            by_size += [kind] if callable(amount) else []
    found["by_size"] = tuple(by_size)
    return tuple(sorted(found.items()))


def spec_of(name: str, factors: str, operands: Types, results: Types) -> FactorSpec:
    """The factor spec of a call; what is in no operand, or not in every result, is whole.

    Raises:
        IRError: if factors and shapes disagree.
    """
    try:
        spec = factor_spec(factors, [t.shape for t in operands], [t.shape for t in results])
    except IRError as error:
        raise IRError(
            str(error), where=f"op '{name}'",
            remedy="register it with the factors of all its operands and results, in order",
        ) from None  # fmt: skip
    before, *after = (
        {name for dims in side for name in dims} for side in (sum(spec.operands, ()), *spec.results)
    )
    everywhere = before.intersection(*after)
    alone = [name for name in spec.names if name not in everywhere]
    kinds = {**dict.fromkeys(alone, "whole"), **dict(spec.kinds)}
    return replace(spec, kinds=tuple(sorted(kinds.items())))


def _evaluated(op: RegisteredOp, kind: str, sizes: Mapping[str, float]) -> float:
    amount, where = op.amount(kind), f"{kind} of op '{op.name}'"
    if not callable(amount):
        return _number(amount, where)
    parameters = inspect.signature(amount).parameters.values()
    whole = {name: round(size) for name, size in sizes.items()}
    if not any(p.kind == p.VAR_KEYWORD for p in parameters):
        whole = {p.name: whole.get(p.name, 1) for p in parameters}
    return _number(amount(**whole), where)


def amount_on_shard(
    attrs: Mapping[str, Attr], kind: str, whole: Mapping[str, int], local: Mapping[str, float]
) -> float | None:
    """What one run costs on one device; None if it follows from the shapes.

    A function is evaluated for the sizes on the device; a number is shared among the parts.

    Args:
        attrs: of the call's node.
        kind: one of `AMOUNTS`.
        whole: sizes of the factors.
        local: their sizes on one device.

    Raises:
        IRError: if it is a function that this process does not know.
    """
    if kind not in attrs:
        return None
    by_size, name, batches = attrs["by_size"], str(attrs["name"]), attrs["batches"]
    assert isinstance(by_size, tuple)
    assert isinstance(batches, tuple)
    if kind not in by_size:
        value = attrs[kind]
        assert isinstance(value, float)
        return value * math.prod(local[factor] / size for factor, size in whole.items())
    op = _OPS.get(name)
    if op is None or not callable(op.amount(kind)):
        raise IRError(
            f"its {kind} are a function that is not registered here", where=f"op '{name}'",
            remedy="run the code that registers it with planner.register_op first",
        )  # fmt: skip
    times = math.prod(local.get(str(factor), 1.0) for factor in batches)
    return times * _evaluated(op, kind, local)

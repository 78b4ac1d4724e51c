# pyright: basic
"""Functions of `jax.experimental.custom_partitioning` that carry a sharding rule, as ops.

The rule's factors are those of `ir.factors`, in a notation of their own; what the function needs
whole, reduces or permutes is whole. On shards a plan runs what the function's `partition` returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax.experimental import custom_partitioning as jax_custom_partitioning
from jax.sharding import AbstractMesh

from .errors import IRError
from .factors import KINDS
from .jax_compilers import compiler_types
from .registered import RegisteredCall, RegisteredOp, spec_of
from .types import TensorType

CUSTOM_PARTITIONING = "custom_partitioning"
_WHOLE = next(mark for mark, kind in KINDS.items() if kind == "whole")

Rule = Any  # jax.experimental.custom_partitioning.SdyShardingRule


def partitioned_call(
    params: Mapping[str, Any], operands: Sequence[TensorType], results: Sequence[TensorType],
    body: str,
) -> RegisteredCall | None:  # fmt: skip
    """The call that an equation stands for; None without a rule that fits its shapes.

    Args:
        params: parameters of the equation.
        operands: types of its operands.
        results: types of its results.
        body: digest of what it computes.
    """
    rule = _rule(params)
    if rule is None:
        return None
    # "name at file:line" where the function has a name
    info = getattr(params["call"].jaxpr.debug_info, "func_src_info", None) or CUSTOM_PARTITIONING
    name = str(info).partition(" ")[0]
    try:
        factors = _factors(rule, operands, results)
        spec_of(name, factors, operands, results)
    except IRError:
        return None
    return RegisteredCall(RegisteredOp(name, "", factors), factors, body=body)


def _rule(params: Mapping[str, Any]) -> Rule | None:
    """The rule of an equation, evaluated where it is a function of the types."""
    rule = params["sharding_rule"]
    if not callable(rule):
        return rule
    mesh, call = AbstractMesh((), ()), params["call"]
    with compiler_types(call.in_avals, call.out_avals) as (operands, results):
        rule = rule(*params["static_args"], mesh, operands, results)
    special: Mapping[str, Any] = {}
    if isinstance(rule, (list, tuple)):
        rule, special = rule
    if not isinstance(rule, str):
        return rule
    parsed = jax_custom_partitioning.custom_partitioning(len)
    parsed.def_partition(lambda *_: None, sharding_rule=rule, **special)
    return parsed.sharding_rule


def _factors(rule: Rule, operands: Sequence[TensorType], results: Sequence[TensorType]) -> str:
    """The rule in the notation of `ir.factors`.

    Raises:
        IRError: if it is a rule for other numbers of operands, results or dimensions.
    """
    whole = {*rule.reduction_factors, *rule.need_replication_factors, *rule.permutation_factors}
    sides = (rule.operand_mappings, operands), (rule.result_mappings, results)
    texts: list[str] = []
    for mappings, types in sides:
        if len(mappings) != len(types):
            raise IRError(f"the rule {rule} is not one of {len(types)} tensors")
        tensors = [
            " ".join(_dims(mapping, type_.rank, whole))
            for mapping, type_ in zip(mappings, types, strict=True)
        ]
        texts.append(", ".join(tensors))
    return " -> ".join(texts)


def _dims(mapping: Sequence[Any], rank: int, whole: set[str]) -> Iterator[str]:
    """Each dimension of one tensor; the first entry may stand for several or none."""
    for number, dim in enumerate(mapping):
        if not isinstance(dim, str):
            yield f"({' '.join(_name(factor, whole) for factor in dim)})"
        elif number == 0 and dim.startswith(jax_custom_partitioning.BATCHING):
            group = dim.removeprefix(jax_custom_partitioning.BATCHING)
            for n in range(rank - len(mapping) + 1):
                yield _name(f"batch{group}_{n}", whole)
        else:
            yield _name(dim, whole)


def _name(factor: str, whole: set[str]) -> str:
    return f"{factor}{_WHOLE if factor in whole else ''}"

"""Ops that users register: factors and floating-point operations are attributes of each call."""

from __future__ import annotations

from ..factors import FactorSpec
from ..opdef import Attributes, OpDef, Types
from ..registered import REGISTERED, spec_of


def _factors(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    return spec_of(str(attrs["name"]), str(attrs["factors"]), operands, results)


def _flops(operands: Types, results: Types, attrs: Attributes) -> int:
    """As registered; else one for each point of the loops, and two where they add up products."""
    known = attrs.get("flops")
    if isinstance(known, float):
        return round(known)
    spec = _factors(operands, results, attrs)
    after = {name for dims in spec.results for dim in dims for name in dim}
    return spec.points * (1 if after.issuperset(spec.names) else 2)


RECORDS = (OpDef(REGISTERED, _factors, "contraction", _flops),)

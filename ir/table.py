"""All records of operations, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .opdef import OpDef
from .ops import (
    attention,
    contraction,
    control,
    convolution,
    cumulative,
    elementwise,
    gather,
    grouped,
    layout,
    linalg,
    mapped,
    parts,
    random,
    reduction,
    registered,
    scaled,
    scatter,
    shift,
    window,
)
from .ops.build import opaque

_FAMILIES = (
    attention,
    contraction,
    control,
    convolution,
    cumulative,
    elementwise,
    gather,
    grouped,
    layout,
    linalg,
    mapped,
    parts,
    random,
    reduction,
    registered,
    scaled,
    scatter,
    shift,
    window,
)

_RECORDS = [record for family in _FAMILIES for record in family.RECORDS]

OPS: Mapping[str, OpDef] = MappingProxyType(
    {record.name: record for record in sorted(_RECORDS, key=lambda record: record.name)}
)


def lookup(name: str) -> OpDef:
    """The record of an op; one that leaves everything whole if the op is not known."""
    return OPS.get(name) or OpDef(name, opaque, "opaque")

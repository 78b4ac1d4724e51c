"""Element types of random programs, and the sorts that kinds of steps ask for."""

from __future__ import annotations

from collections.abc import Mapping

FLOATS = ("float32", "bfloat16", "float16", "float64")
SHORT_FLOATS = ("float8_e4m3fn", "float8_e5m2")
SIGNED = ("int32", "int8", "int16", "int64")
UNSIGNED = ("uint32", "uint8", "uint16", "uint64")
SHORT_INTS = ("int4", "uint4")
COMPLEX = ("complex64", "complex128")
KEYS = ("key<fry>", "key<rbg>", "key<urbg>")
WIDE = ("float64", "int64", "uint64", "complex128")  # only where JAX has 64 bits

_REAL = frozenset((*FLOATS, *SIGNED, *UNSIGNED))
SORTS: Mapping[str, frozenset[str]] = {
    "float": frozenset(FLOATS),
    "f32": frozenset(("float32", "float64")),
    "int": frozenset((*SIGNED, *UNSIGNED)),
    "unsigned": frozenset(UNSIGNED),
    "signed": frozenset((*SIGNED, *FLOATS)),
    "bool": frozenset(("bool",)),
    "logic": frozenset(("bool", *SIGNED, *UNSIGNED)),
    "complex": frozenset(COMPLEX),
    "real": _REAL,
    "inexact": frozenset((*FLOATS, *COMPLEX)),
    "number": _REAL | {*COMPLEX},
    "plain": _REAL | {"bool"},
    "any": _REAL | {"bool", *COMPLEX},
    "data": _REAL | {"bool", *COMPLEX, *SHORT_FLOATS, *SHORT_INTS},
    "movable": _REAL | {"bool", *COMPLEX, *KEYS, *SHORT_FLOATS},
    "key": frozenset(KEYS),
}


def is_sort(dtype: str, sort: str) -> bool:
    """Whether an element type is of a sort, or is the one of that name."""
    return dtype in SORTS[sort] if sort in SORTS else dtype == sort

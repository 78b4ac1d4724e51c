"""Element types and tensor types."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import IRError

Shape = tuple[int, ...]

# name -> (bytes per element, kind, short name); sub-byte types count the byte they are stored in.
DTYPES: Mapping[str, tuple[int, str, str]] = {
    "bool": (1, "bool", "pred"),
    "int2": (1, "int", "i2"),
    "int4": (1, "int", "i4"),
    "int8": (1, "int", "i8"),
    "int16": (2, "int", "i16"),
    "int32": (4, "int", "i32"),
    "int64": (8, "int", "i64"),
    "uint2": (1, "int", "u2"),
    "uint4": (1, "int", "u4"),
    "uint8": (1, "int", "u8"),
    "uint16": (2, "int", "u16"),
    "uint32": (4, "int", "u32"),
    "uint64": (8, "int", "u64"),
    "float4_e2m1fn": (1, "float", "f4e2m1"),
    "float8_e3m4": (1, "float", "f8e3m4"),
    "float8_e4m3": (1, "float", "f8e4m3"),
    "float8_e4m3b11fnuz": (1, "float", "f8e4m3b11"),
    "float8_e4m3fn": (1, "float", "f8e4m3fn"),
    "float8_e4m3fnuz": (1, "float", "f8e4m3fnuz"),
    "float8_e5m2": (1, "float", "f8e5m2"),
    "float8_e5m2fnuz": (1, "float", "f8e5m2fnuz"),
    "float8_e8m0fnu": (1, "float", "f8e8m0"),
    "bfloat16": (2, "float", "bf16"),
    "float16": (2, "float", "f16"),
    "float32": (4, "float", "f32"),
    "float64": (8, "float", "f64"),
    "complex64": (8, "complex", "c64"),
    "complex128": (16, "complex", "c128"),
    "float0": (0, "float0", "f0"),
    "token": (0, "token", "token"),
    "key<fry>": (8, "key", "key"),
    "key<rbg>": (16, "key", "rbgkey"),
    "key<urbg>": (16, "key", "urbgkey"),
}
HALVES = ("bfloat16", "float16")  # floats of 16 bits
_SHORT = {short: name for name, (_, _, short) in DTYPES.items()}
_FORM = re.compile(r"([a-z]\w*)\[((?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)\]", re.ASCII)


def dtype_bytes(dtype: str) -> int:
    """Bytes that one element occupies.

    Raises:
        IRError: for a name that is not in `DTYPES`.
    """
    if dtype not in DTYPES:
        raise IRError(f"unknown element type '{dtype}'; known: {', '.join(DTYPES)}")
    return DTYPES[dtype][0]


def dtype_kind(dtype: str) -> str:
    """One of bool, int, float, complex, key, float0, token."""
    dtype_bytes(dtype)
    return DTYPES[dtype][1]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value."""

    shape: Shape
    dtype: str

    def __post_init__(self) -> None:
        dtype_bytes(self.dtype)
        if any(size < 0 for size in self.shape):
            raise IRError(f"a shape has a negative size: {self.shape}")

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * dtype_bytes(self.dtype)

    def __str__(self) -> str:
        return f"{DTYPES[self.dtype][2]}[{','.join(map(str, self.shape))}]"


def parse_type(text: str) -> TensorType:
    """Reads what `str(TensorType)` writes, such as `f32[8,16]`.

    Raises:
        IRError: if the text has another form.
    """
    match = _FORM.fullmatch(text)
    if match is None or match[1] not in _SHORT:
        raise IRError(f"'{text}' is not a tensor type; expected something like 'f32[8,16]'")
    shape = tuple(map(int, match[2].split(","))) if match[2] else ()
    return TensorType(shape, _SHORT[match[1]])

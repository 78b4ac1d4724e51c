"""Reads AMP's arrays: forward seconds per layer, device kind and tensor-parallel degree.

Files are called `MODEL_KIND_DEGREE.npy`; all files of one model and kind in a folder are read
together. `MODEL.json` beside them gives what the arrays lack:

    {"hidden": 1024, "sequence": 1024, "vocabulary": 52256, "parameter_bytes": 4,
     "layers": ["embed", "none", "transformer", ..., "head", "none"]}

Backward is twice forward. Source: Li et al., "AMP", NeurIPS 2022, sections 3.2 and 4, and its
released arrays.
"""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from ..graph import Edge, Layer, LayerGraph, Variant, bad_profile, ordered
from .strict import mapping, read_json, sequence, whole
from .text import STATE_OVER_WEIGHTS

_NAME = re.compile(r"(.+)_([A-Za-z][A-Za-z0-9]*)_(\d+)\.npy")
KEYS = ("hidden", "sequence", "vocabulary", "parameter_bytes", "layers")
KINDS = ("embed", "none", "transformer", "head")
LARGEST_BYTES = 1 << 20
# What NumPy raises on a damaged file: its header is read as an expression of Python.
NOT_AN_ARRAY = (ArithmeticError, EOFError, MemoryError, OSError, RecursionError, SyntaxError,
                TypeError, ValueError, tokenize.TokenError)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """What the model's file says of its layers."""

    hidden: int
    sequence: int
    vocabulary: int
    parameter_bytes: int
    layers: tuple[str, ...]


def kinds_beside(path: Path) -> dict[str, dict[int, Path]]:
    """Files of the model that `path` belongs to, by device kind and degree.

    Raises:
        PlanError: if the name is not of the form.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise bad_profile(path.name, "is not called MODEL_KIND_DEGREE.npy", "rename it")
    found: dict[str, dict[int, Path]] = {}
    for file in sorted(path.parent.glob(f"{match[1]}_*.npy")):
        other = _NAME.fullmatch(file.name)
        if other is not None and other[1] == match[1]:
            found.setdefault(other[2], {})[int(other[3])] = file
    return found


def read(path: Path) -> dict[str, LayerGraph]:
    """A graph per device kind, all with the degrees that every kind has.

    Raises:
        PlanError: on arrays of unequal length, negative or non-finite seconds, or a bad file of
            shapes.
    """
    files = kinds_beside(path)
    match = _NAME.fullmatch(path.name)
    assert match is not None
    shape = _shape(path.with_name(f"{match[1]}.json"))
    times = {kind: {t: _array(file) for t, file in by.items()} for kind, by in files.items()}
    lengths = {len(array) for by in times.values() for array in by.values()}
    if len(lengths) != 1:
        raise bad_profile(path.name, f"arrays beside it have different lengths: {sorted(lengths)}")
    if shape is not None and len(shape.layers) != next(iter(lengths)):
        raise bad_profile(path.name, f"has {next(iter(lengths))} layers, its file of shapes "
                          f"{len(shape.layers)}")  # fmt: skip
    return {kind: _graph(match[1], kind, by, shape) for kind, by in sorted(times.items())}


def _graph(
    model: str, kind: str, times: dict[int, npt.NDArray[np.float64]], shape: Shape | None
) -> LayerGraph:
    count = len(next(iter(times.values())))
    layers: dict[str, Layer] = {}
    edges: dict[tuple[str, str], Edge] = {}
    sent = 0.0
    for i in range(count):
        weights, sent = _sizes(shape, i, sent)
        variants = tuple(
            (t, (Variant("none", float(s[i]), 2 * float(s[i]), weights / t, sent,
                         STATE_OVER_WEIGHTS * weights / t),))
            for t, s in sorted(times.items())
        )  # fmt: skip
        layers[f"{i}"] = Layer(f"{i} {shape.layers[i] if shape else 'layer'}", variants)
        if i + 1 < count:
            edges[f"{i}", f"{i + 1}"] = Edge(0, 0, sent)
    name = f"{model}_{kind}"
    return LayerGraph(name, "amp", 1, *ordered(name, layers, edges))


def _sizes(shape: Shape | None, i: int, sent: float) -> tuple[float, float]:
    """Bytes of weights and of the output of layer i; an empty layer passes its input on."""
    if shape is None:
        return 0.0, 0.0
    each, hidden = float(shape.parameter_bytes), float(shape.hidden)
    kind = shape.layers[i]
    if kind == "none":
        return 0.0, sent
    if kind == "head":
        return each * hidden * shape.vocabulary, each * shape.sequence * shape.vocabulary
    weights = hidden * (shape.vocabulary if kind == "embed" else 12 * hidden)
    return each * weights, each * shape.sequence * hidden


def _shape(path: Path) -> Shape | None:
    if not path.exists():
        return None
    found = mapping(path.name, read_json(path), required=KEYS)
    layers = tuple(str(item) for item in sequence(path.name, found["layers"]))
    if unknown := sorted(set(layers) - set(KINDS)):
        raise bad_profile(path.name, f"layer kind '{unknown[0]}' is unknown; expected {KINDS}")
    hidden, length, words, each = (whole(path.name, key, found[key], least=1) for key in KEYS[:4])
    return Shape(hidden, length, words, each, layers)


def _array(path: Path) -> npt.NDArray[np.float64]:
    try:
        data = path.read_bytes()
        if len(data) > LARGEST_BYTES:
            raise ValueError(f"it has {len(data)} bytes, expected at most {LARGEST_BYTES}")
        loaded: object = np.load(io.BytesIO(data), allow_pickle=False)
    except NOT_AN_ARRAY as error:
        raise bad_profile(path.name, f"is not a plain array: {error}") from error
    if not isinstance(loaded, np.ndarray):
        raise bad_profile(path.name, "is not a plain array")
    array = cast("npt.NDArray[np.float64]", loaded)
    if array.ndim != 1 or array.dtype.kind != "f":
        raise bad_profile(path.name, "is not one row of floating-point seconds")
    if not len(array) or not np.isfinite(array).all() or (array < 0).any():
        raise bad_profile(path.name, "holds no seconds, or negative or non-finite ones")
    return array.astype(np.float64)

"""Cumulative ops: running sums, products, extremes, and logarithms of sums of exponentials.

    result[i] = f(x[0], ..., x[i])        from the other end if `reverse`

Split along the dimension, each device runs the op on its shard, whose last element is the total of
the shard. The devices exchange totals, and each combines its results with the totals before it. The
joint factor `running` says so.

Source: Blelloch, Prefix Sums and Their Applications, CMU-CS-90-190, 1990, section 1.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..factors import FactorSpec
from ..opdef import Attributes, OpDef, Types
from .build import linear_in, whole_number
from .reduction import along

CUMULATIVE: Final = ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")
RUNNING: Final = "running"
_ALONG: Final = ("oaxis", "raxis")


def _factors(operands: Types, results: Types, attrs: Attributes) -> FactorSpec:
    spec = along("axis")(operands, results, attrs)
    if not {*_ALONG} <= {*spec.names}:
        return spec  # a dimension of one element
    size = spec.size(_ALONG[0])
    return replace(spec, sizes=(*spec.sizes, (RUNNING, size)), joint=((RUNNING, _ALONG),))


def _cumulative(function: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(attrs: Attributes, x: Any) -> Any:
        axis = whole_number(attrs["axis"])
        if not attrs["reverse"]:
            return function(x, axis=axis)
        return np.flip(function(np.flip(x, axis), axis=axis), axis)

    return meaning


def _cumulate(name: str, function: Callable[..., Any]) -> OpDef:
    linear = linear_in((0,)) if name == "cumsum" else None
    meaning = _cumulative(function)
    return OpDef(name, _factors, "reduction", linear=linear, meaning=meaning)


RECORDS = (
    _cumulate("cumlogsumexp", np.logaddexp.accumulate),
    _cumulate("cummax", np.maximum.accumulate),
    _cumulate("cummin", np.minimum.accumulate),
    _cumulate("cumprod", np.multiply.accumulate),
    _cumulate("cumsum", np.add.accumulate),
)

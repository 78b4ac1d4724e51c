"""Whether a value is what an annotation says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin

NUMBERS: dict[Any, Any] = {float: Real, int: Integral}


def fits(value: object, wanted: Any) -> bool:
    """Whether a value is what an annotation says, elements included.

    Numbers of NumPy count as numbers, and any ordered collection as a `Sequence`.

    Args:
        value: anything.
        wanted: a class, or a union, mapping, sequence, tuple or function of such, resolved.
    """
    parts: tuple[Any, ...] = get_args(wanted)
    origin: Any = get_origin(wanted) or wanted
    if origin is Any:
        return True
    if origin is None:
        return isinstance(value, NoneType)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Mapping or origin is dict:
        return isinstance(value, Mapping) and _fit_pairs(cast("Mapping[Any, object]", value), parts)
    if origin is Callable:
        return callable(value)
    if origin is Sequence or origin is tuple:
        return _is_row(value) and _fit_items(value, parts)
    return isinstance(value, NUMBERS.get(origin, origin))


def _is_row(value: object) -> bool:
    unordered = isinstance(value, str | bytes | Mapping | Set)
    return isinstance(value, Collection) and not unordered


def _fit_pairs(value: Mapping[Any, object], parts: tuple[Any, ...]) -> bool:
    key, item = parts or (Any, Any)
    return all(fits(k, key) and fits(v, item) for k, v in value.items())


def _fit_items(value: Any, parts: tuple[Any, ...]) -> bool:
    if len(parts) > 1 and parts[1] is not Ellipsis:
        return len(value) == len(parts) and all(map(fits, value, parts))
    return all(fits(item, parts[0]) for item in value) if parts else True

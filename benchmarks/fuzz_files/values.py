# pyright: basic
"""Changes of plain data: the file stays readable and says something else."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 10**6, 10**9, 2**31, 2**63, 2**64, 10**30, -(2**63), 0.5,
    -0.5, -0.0, 1e-320, 1e300, float("nan"), float("inf"), float("-inf"), "", " ", "x", "0", "1",
    "-1", "NaN", "None", "null", "x\0y", "\ud800", "\u202e", "é" * 300, "a" * 100_000, "../../etc",
    "__class__", "[x,x]", "[-]", "[x*y,-]+sum(z)", "@9", "%0", "return", "\x1b[31m\n", [], [[]],
    [0], [None], {}, {"": 0}, {"a": {"b": []}}, [[0, 0]] * 3, list(range(50)),
)  # fmt: skip


WAYS = ("value", "value", "near", "near", "near", "other", "other", "drop", "add", "twice",
        "rename")  # fmt: skip


def places(value: Any, most: int = 4_000) -> list[tuple[Any, ...]]:
    """Paths to the parts of some plain data."""
    found: list[tuple[Any, ...]] = []
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while waiting and len(found) < most:
        path, item = waiting.pop()
        found.append(path)
        if isinstance(item, dict):
            waiting += [((*path, key), part) for key, part in item.items()]
        elif isinstance(item, list):
            waiting += [((*path, i), part) for i, part in enumerate(item)]
    return found


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def changed(rng: Random, value: Any) -> tuple[str, Any]:
    """Some plain data with one or a few parts changed, and how."""
    names: list[str] = []
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        every = places(value)
        path = rng.choice(every)
        if not path:
            path = rng.choice(every)
        name, value = _changed(rng, value, path, every)
        names.append(name)
    return "+".join(names), value


def _changed(rng: Random, value: Any, path: tuple[Any, ...], every: list[Any]) -> tuple[str, Any]:
    if not path:
        return "top", copy.deepcopy(rng.choice(NASTY))
    parent, key = at(value, path[:-1]), path[-1]
    way = rng.choice(WAYS)
    if way == "value":
        parent[key] = copy.deepcopy(rng.choice(NASTY))
    elif way == "near":
        parent[key] = near(rng, parent[key])
    elif way == "drop":
        del parent[key]
    elif way == "add":
        new = copy.deepcopy(rng.choice(NASTY))
        if isinstance(parent, dict):
            parent[rng.choice(("__class__", "extra", "", "0", "file"))] = new
        else:
            parent.insert(rng.randrange(len(parent) + 1), new)
    elif way == "other":  # a part of the same data, from elsewhere
        parent[key] = copy.deepcopy(at(value, rng.choice(every)))
    elif way == "twice" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    elif way == "rename" and isinstance(parent, dict):
        parent[f"{key}x"] = parent.pop(key)
    else:
        parent[key] = [parent[key]]
    return way, value


def near(rng: Random, value: Any) -> Any:
    """Something of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, value * 2, value * 1000, 0, float(value)))
    if isinstance(value, float):
        return rng.choice((value * 2, value / 2, -value, value * 1e6, value * 1e-9, 0.0))
    if isinstance(value, str):
        cut = rng.randrange(len(value) + 1)
        return rng.choice((value[:cut], value + value, value.upper(), value[::-1], f"{value} "))
    if isinstance(value, list):
        return value[::-1] if rng.random() < 0.5 else value + value
    return value


def as_json(rng: Random, value: Any) -> bytes:
    """Text of some data; now and then with a key given twice or odd spaces."""
    text = json.dumps(value, indent=rng.choice((None, 0, 1)), ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.05 and isinstance(value, dict) and value:
        key = rng.choice(list(value))
        text = text[:-1] + f", {json.dumps(key)}: {json.dumps(rng.choice(NASTY))}}}"
    return text.encode("utf-8", "surrogatepass")

"""FlexFlow's substitutions in JSON: tagged records, enums as strings.

Dimension 0 of a tensor is the replica dimension, 1 the sample or row (of a weight: the output),
2 the channel (of a weight: the input).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from ..errors import RuleError
from ..rule import Rule, Unread
from .graph import RawOp, RawRule, kept, rule_of
from .limits import MOST_DEPTH, MOST_RULES
from .names import FLEXFLOW_OPS, FLEXFLOW_PARAMETERS

_RANKS = dict.fromkeys(range(1, 7), 2)
_LARGEST = 2**31
_LONGEST_NAME = 200


def read_flexflow(data: bytes, where: str) -> tuple[Rule | Unread, ...]:
    """Rules of FlexFlow's JSON file, those with errors as such.

    Raises:
        RuleError: if the text is not JSON, or is not a collection of rules.
    """
    _bound_depth(data, where)
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        text = f"not readable as JSON: {error}"
        raise RuleError(text, where=where, remedy="is the file cut short?") from None
    rules = _list(_record(found, "RuleCollection", where), "rule", where)
    if len(rules) > MOST_RULES:
        raise RuleError(f"{len(rules)} rules; at most {MOST_RULES} are read", where=where)
    return tuple(
        kept(partial(_rule, item), f"flexflow-{i}", f"{where}: rule {i}")
        for i, item in enumerate(rules)
    )


def _bound_depth(data: bytes, where: str) -> None:
    """Refuses nesting that is too deep for a recursive parser; braces in strings count too."""
    depth = 0
    for byte in data:
        if byte in b"[{":
            depth += 1
            if depth > MOST_DEPTH:
                raise RuleError(f"nested deeper than {MOST_DEPTH} levels", where=where)
        elif byte in b"]}":
            depth -= 1


def _rule(item: Any, where: str) -> Rule:
    record = _record(item, "Rule", where)
    name = record.get("name")
    if not isinstance(name, str) or not name.isprintable() or len(name) > _LONGEST_NAME:
        text = f"a rule's name is printable text of at most {_LONGEST_NAME} characters"
        raise RuleError(text, where=where)
    sides = [
        tuple(_op(op, f"{where}, {key} {i}") for i, op in enumerate(_list(record, key, where)))
        for key in ("srcOp", "dstOp")
    ]
    mapped = tuple(_mapped(item, where) for item in _list(record, "mappedOutput", where))
    try:
        return rule_of(RawRule(name, sides[0], sides[1], mapped), _RANKS, parallel=True)
    except RuleError as error:
        raise RuleError(error.message, where=f"{where} ({name})") from None


def _mapped(item: Any, where: str) -> tuple[int, int, int, int]:
    record = _record(item, "MapOutput", where)
    a, i, b, j = (_int(record, k, where) for k in ("srcOpId", "srcTsId", "dstOpId", "dstTsId"))
    if min(a, b) < 0:
        raise RuleError("a mapped output is a graph input", where=where)
    return a, i, b, j


def _op(item: Any, where: str) -> RawOp:
    record = _record(item, "Operator", where)
    kind = record.get("type")
    if not isinstance(kind, str) or kind not in FLEXFLOW_OPS:
        known = ", ".join(FLEXFLOW_OPS)
        raise RuleError(f"unknown op {kind!r}; known: {known}", where=where)
    inputs: list[tuple[int, int]] = []
    for tensor in _list(record, "input", where):
        fields = _record(tensor, "Tensor", where)
        inputs.append((_int(fields, "opId", where), _int(fields, "tsId", where)))
    params: dict[str, int] = {}
    for parameter in _list(record, "para", where):
        fields = _record(parameter, "Parameter", where)
        key = fields.get("key")
        if not isinstance(key, str) or key not in FLEXFLOW_PARAMETERS:
            known = ", ".join(FLEXFLOW_PARAMETERS)
            raise RuleError(f"unknown parameter {key!r}; known: {known}", where=where)
        params[FLEXFLOW_PARAMETERS[key]] = _int(fields, "value", where)
    return RawOp(FLEXFLOW_OPS[kind], tuple(inputs), params)


def _record(item: Any, tag: str, where: str) -> Mapping[str, Any]:
    if not isinstance(item, dict) or cast("dict[str, Any]", item).get("_t") != tag:
        raise RuleError(f"expected a record tagged {tag}", where=where)
    return cast("dict[str, Any]", item)


def _list(record: Mapping[str, Any], key: str, where: str) -> list[Any]:
    found = record.get(key)
    if not isinstance(found, list):
        raise RuleError(f"'{key}' is missing or not a list", where=where)
    return cast("list[Any]", found)


def _int(record: Mapping[str, Any], key: str, where: str) -> int:
    found = record.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or abs(found) >= _LARGEST:
        raise RuleError(f"'{key}' is missing or not a 32-bit integer", where=where)
    return found

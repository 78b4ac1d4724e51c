# pyright: basic
"""Wrong calls of every public function: one clear error with its kind, place and remedy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import planner
from planner import (
    ArgumentError,
    Plan,
    PlanError,
    by_hand,
    load,
    moves,
    restore,
    structs,
    verify,
)
from tests.hostile.test_input import infer, planned
from tests.planner.programs import PARAMS, X, array, filled


@functools.cache
def made() -> Plan:
    return planned()


def ones(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.full(x.shape, "1"), tree)


# Calls that type checkers would refuse.
untyped: Any = planner
CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "plan": ("plan", lambda p: untyped.plan()),
    "plan no cluster": ("plan", lambda p: untyped.plan(infer, PARAMS, X)),
    "plan roles": ("roles", lambda p: planned(roles=3)),
    "plan donate_argnums": ("donate_argnums", lambda p: planned(donate_argnums=None)),
    "plan progress": ("progress", lambda p: planned(progress=3)),
    "Options position": ("Options", lambda p: untyped.Options(5)),
    "Options name": ("Options", lambda p: untyped.Options(foo=5)),
    "Options schedules": ("schedules", lambda p: untyped.Options(schedules=3)),
    "Stage": ("Stage", lambda p: untyped.Stage()),
    "load number": ("path", lambda p: untyped.load(3)),
    "load bytes": ("path", lambda p: untyped.load(b"x")),
    "verify": ("plan", lambda p: untyped.verify(None)),
    "compare": ("b", lambda p: untyped.compare(p, 3)),
    "by_hand plan": ("plan", lambda p: untyped.by_hand(3, {}, mesh={"x": 8})),
    "by_hand mesh": ("mesh", lambda p: untyped.by_hand(p, {}, mesh=(8,))),
    "by_hand shardings": ("shardings", lambda p: untyped.by_hand(p, None, mesh={"x": 8})),
    "moves plan": ("after", lambda p: untyped.moves(p, 3)),
    "moves lost": ("lost_devices", lambda p: untyped.moves(p, p, lost_devices=("a",))),
    "structs plan": ("plan", lambda p: untyped.structs(3, PARAMS)),
    "structs argnum": ("argnum", lambda p: untyped.structs(p, PARAMS, argnum="x")),
    "explain": ("what", lambda p: p.explain(3)),
    "explain alternatives": ("alternatives", lambda p: p.explain("x", alternatives="x")),
    "what_if": ("devices", lambda p: p.what_if(devices="8")),
    "what_if bandwidth": ("bandwidth", lambda p: p.what_if(bandwidth="x")),
    "save": ("path", lambda p: p.save(3)),
    "report": ("path", lambda p: p.report(3)),
    "trace": ("path", lambda p: p.trace(3)),
    "export": ("to", lambda p: p.export([], "x")),
    "bind": ("Plan.bind", lambda p: p.bind()),
    "compile": ("devices", lambda p: p.compile(devices=3)),
    "shard": ("argnum", lambda p: p.shard(filled(PARAMS), argnum="x")),
    "init": ("init_fn", lambda p: p.init(3)),
    "verdict": ("names", lambda p: untyped.compare(p, p).verdict(("a",))),
    "run by name": ("CompiledPlan.__call__", lambda p: p.compile()(filled(PARAMS), x=3)),
    "run other": ("the planned function", lambda p: p.compile()(3)),
    "run text": ("the planned function", lambda p: p.compile()(filled(PARAMS), "x")),
    "run shape": ("the planned function", lambda p: p.compile()(filled(PARAMS), array(3, 4))),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_call(name: str) -> None:
    where, call = CALLS[name]
    with pytest.raises(ArgumentError) as found:
        call(made())
    assert isinstance(found.value, TypeError)
    assert (found.value.kind, found.value.where) == ("bad-argument", where)
    assert found.value.remedy
    assert len(str(found.value)) < 1000


REFUSED: dict[str, tuple[str, Callable[[Any, Path], Any]]] = {
    "load": ("plan-file", lambda p, d: load(d / "x")),
    "save": ("plan-file", lambda p, d: p.save(d)),
    "report": ("output", lambda p, d: p.report(d)),
    "trace": ("output", lambda p, d: p.trace(d)),
    "export": ("bad-option", lambda p, d: p.export("x", d / "x")),
    "verify": ("bad-option", lambda p, d: verify(p, compiler="x")),
    "by_hand": ("shardings", lambda p, d: by_hand(p, {"x": ([[]],)}, mesh={"x": 8})),
    "moves": ("bad-option", lambda p, d: moves(p, p, lost_devices=(9,))),
    "explain": ("unknown-name", lambda p, d: p.explain("zz")),
    "what_if": ("bad-option", lambda p, d: p.what_if(devices=0)),
    "bind": ("trace", lambda p, d: p.bind(3)),
    "bind other": ("differs", lambda p, d: p.bind(lambda x: x, X)),
    "bind settings": ("bad-option", lambda p, d: p.bind(infer, PARAMS, X, foo=3)),
    "compile": ("too-few-devices", lambda p, d: p.compile(devices=jax.devices()[:2])),
    "structs": ("trace", lambda p, d: structs(p, ones(PARAMS))),
    "shard": ("differs", lambda p, d: p.shard("x")),
    "shard text": ("trace", lambda p, d: p.shard(ones(PARAMS))),
    "shard shapes": ("bad-argument", lambda p, d: p.shard(PARAMS)),
    "init": ("differs", lambda p, d: p.init(lambda: 3)),
    "in_shardings": ("not-bound", lambda p, d: Plan(p.file).in_shardings),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_plan_cannot_do(name: str, tmp_path: Path) -> None:
    kind, call = REFUSED[name]
    with pytest.raises(PlanError) as found:
        call(made(), tmp_path)
    assert found.value.kind == kind
    assert found.value.where
    assert found.value.remedy


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    with pytest.raises(PlanError, match="is no folder"):
        restore(made(), tmp_path / "x", PARAMS)


def test_exceptions_of_the_users_own_functions_stay_their_own() -> None:
    def say(text: str) -> None:
        raise LookupError(text)

    with pytest.raises(LookupError, match="trace"):
        planned(progress=say)
    with pytest.raises(ZeroDivisionError):
        made().init(lambda: 1 / 0)

# pyright: basic
"""Errors at the border of the public surface."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from ir import IRError, TraceError
from planner.common.errors import (
    ArgumentError,
    BadProfileError,
    BadRuleError,
    NotAProgramError,
    NotTracedError,
    PlanError,
)
from planner.common.surface import public, public_methods
from profiles import ProfileError
from substitutions import RuleError


@public
def given(number: int, act: Callable[[], Any] | None = None, *rest: Any, limit: float = 1.0) -> Any:
    """A function of the surface."""
    del rest, limit
    return number + 1 if act is None else act()


untyped: Any = given  # for calls that type checkers would refuse


def raises(error: Exception) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


def test_a_call_that_works_is_as_before() -> None:
    assert given(1) == 2
    assert given.__doc__ == "A function of the surface."
    assert [*inspect.signature(given).parameters] == ["number", "act", "rest", "limit"]


@pytest.mark.parametrize(
    ("lower", "ours", "kind"),
    [
        (TraceError, NotTracedError, "trace"),
        (IRError, NotAProgramError, "program"),
        (ProfileError, BadProfileError, "profile"),
        (RuleError, BadRuleError, "rules"),
    ],
)
def test_errors_of_lower_packages_are_of_both_classes(lower: Any, ours: Any, kind: str) -> None:
    whole = lower("is wrong", where="x", remedy="correct it")
    whole.add_note("while testing")
    whole.__cause__ = KeyError("why")
    with pytest.raises(lower) as found:
        given(1, raises(whole))
    error: Any = found.value
    assert type(error) is ours
    assert isinstance(error, PlanError)
    assert (error.message, error.kind) == ("is wrong", kind)
    assert (error.where, error.remedy) == ("x", "correct it")
    assert str(error) == str(whole) == "x: is wrong; correct it"
    assert error.__cause__ is whole.__cause__
    assert error.__notes__ == ["while testing"]
    assert found.traceback[-1].name == "act"
    with pytest.raises(lower) as bare:
        given(1, raises(lower("is wrong")))
    error = bare.value
    assert error.where == "given"
    assert error.remedy


@pytest.mark.parametrize(
    "error", [TypeError("x"), KeyError("x"), OSError("x"), PlanError("x", kind="y")]
)
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as found:
        given(1, raises(error))
    assert found.value is error


@pytest.mark.parametrize(
    ("call", "where", "words"),
    [
        (
            lambda: untyped(),
            "given",
            "missing a required argument: 'number'; it takes (number, act=",
        ),
        (lambda: untyped(1, no=2), "given", "unexpected keyword argument 'no'"),
        (lambda: untyped("1"), "number", "expected int, got '1' of type str"),
        (lambda: untyped([0] * 99), "number", "got a value of type list"),
        (lambda: untyped(1, 2), "act", "expected Callable[[], Any] | None, got 2"),
    ],
)
def test_arguments_that_do_not_fit_are_named(call: Any, where: str, words: str) -> None:
    with pytest.raises(TypeError) as found:
        call()
    assert isinstance(found.value, ArgumentError)
    assert found.value.where == where
    assert words in str(found.value)


def test_what_works_is_not_looked_at() -> None:
    assert untyped(1.5) == 2.5


@public_methods
class Thing:
    def __init__(self, size: int) -> None:
        self.size = size

    def half(self, of: int = 2) -> float:
        return self.size / of

    @property
    def bad(self) -> int:
        """A property."""
        raise IRError("is bad")

    @cached_property
    def kept(self) -> list[int]:
        return [self.size]

    def _hidden(self) -> None:
        raise IRError("is hidden")


def test_methods_and_properties_of_a_class() -> None:
    kind: Any = Thing
    thing = kind(4)
    assert thing.half() == 2
    assert thing.kept is thing.kept
    assert Thing.bad.__doc__ == "A property."
    with pytest.raises(NotAProgramError, match=r"Thing\.bad: is bad"):
        _ = thing.bad
    with pytest.raises(ArgumentError, match=r"Thing: missing a required argument: 'size'"):
        kind()
    with pytest.raises(ArgumentError, match="of: expected int"):
        thing.half("a")
    with pytest.raises(IRError) as found:
        thing._hidden()
    assert type(found.value) is IRError

# pyright: basic
"""Whatever the public surface raises because of what it was given is a `PlanError`."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any

import pytest

import meshwright
import planner
from planner import ArgumentError, PlanError

PUBLIC = {name: getattr(planner, name) for name in dir(planner) if name != "VERSION"}
ERRORS = [v for v in PUBLIC.values() if inspect.isclass(v) and issubclass(v, BaseException)]
RECORDS = [v for v in PUBLIC.values() if hasattr(v, "__dataclass_fields__")]
CALLS: dict[str, Any] = {
    **{name: value for name, value in PUBLIC.items() if inspect.isfunction(value)},
    **{
        f"{record.__name__}.{name}": member
        for record in RECORDS
        for name, member in inspect.getmembers(record)
        if inspect.isfunction(member) and not name.startswith("_")
    },
}
PROPERTIES = [
    (record, name)
    for public in RECORDS
    for record in public.__mro__
    for name, member in vars(record).items()
    if isinstance(member, (property, cached_property)) and not name.startswith("_")
]


def test_both_packages_show_the_same_names() -> None:
    assert {name: getattr(meshwright, name) for name in dir(meshwright)} == {
        name: getattr(planner, name) for name in dir(planner)
    }


def test_the_surface_is_what_this_file_takes_it_for() -> None:
    kinds = {*ERRORS, *RECORDS, planner.Stop, *(v for v in PUBLIC.values() if callable(v))}
    assert set(PUBLIC.values()) == kinds
    assert {"plan", "load", "Plan.bind", "Plan.compile"} <= CALLS.keys()


def test_an_interrupt_is_no_error() -> None:  # `except Exception` lets Ctrl-C through
    assert issubclass(planner.Interrupted, KeyboardInterrupt)


NO_ERRORS = (KeyboardInterrupt, Warning)


@pytest.mark.parametrize("error", [error for error in ERRORS if not issubclass(error, NO_ERRORS)])
def test_exported_errors_have_one_base(error: type[Exception]) -> None:
    assert issubclass(error, PlanError)
    assert issubclass(error, ValueError)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_without_arguments_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError) as found:
        CALLS[name]()
    assert found.value.kind == "bad-argument"
    assert found.value.where == name
    assert found.value.remedy.startswith("it takes (")


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_of_unknown_fields_is_refused(record: Any) -> None:
    with pytest.raises(ArgumentError) as found:
        record(no_such_field=1)
    assert found.value.where == record.__name__


@pytest.mark.parametrize(("record", "name"), PROPERTIES)
def test_properties_are_part_of_the_surface(record: Any, name: str) -> None:
    member: Any = vars(record)[name]
    get: Any = member.fget if isinstance(member, property) else member.func
    assert get.__wrapped__
    assert member.__doc__ == get.__doc__

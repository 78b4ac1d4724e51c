"""Settings and wishes: what is accepted, and one clear error for what is not."""

from __future__ import annotations

from typing import Any

import pytest

from ir import Mesh, parse_sharding
from planner import Options, PlanError
from planner.common.pins import Pin, is_called
from planner.common.resolved_pins import Wishes, wishes

MESH = Mesh((("x", 2), ("y", 4)))
NAMES = {0: "params/a/w", 1: "params/b/w", 2: "params/b/scale", 3: "x"}
RANKS = {0: 2, 1: 2, 2: 1, 3: 3}

WRONG: dict[str, dict[str, Any]] = {
    "time_limit_s": {"zero": 0, "negative": -1.0, "nan": float("nan"), "text": "60", "none": None,
                     "bool": True},
    "memory_bytes": {"zero": 0, "negative": -1, "nan": float("nan"), "inf": float("inf"),
                     "text": "70GB"},
    "microbatches": {"zero": 0, "negative": -4, "float": 2.0, "bool": True, "text": "2"},
    "mesh": {"empty": (), "zero": (0, 8), "negative": (-2, -4), "text": "2x4", "number": 8,
             "floats": (2.0, 4.0), "letters": ("a",), "bools": (True, True)},
    "pins": {"text": "x=[8,-]", "no spec": (("x",),), "map": {"x": 8}, "number": 3,
             "dims": (("x", ("x", None)),), "three": (("x", "[8]", "[8]"),)},
    "forbidden": {"text": "x=1", "word": (("x", "1"),), "bool": (("x", True),), "bare": ("x", 1)},
    "loss_reduction": {"word": "max", "none": None},
    "emission": {"word": "pmap", "none": None},
    "baselines": {"word": "yes", "number": 1, "none": None},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [pytest.param(n, v, id=f"{n}-{k}") for n, cases in WRONG.items() for k, v in cases.items()],
)
def test_wrong_setting_is_one_clear_error(name: str, value: Any) -> None:
    with pytest.raises(PlanError) as found:
        Options(**{name: value})
    assert found.value.kind == "bad-option"
    assert found.value.where == f"Options.{name}"
    assert found.value.remedy.startswith("write ")
    assert repr(value) in found.value.message


def test_right_settings_are_kept_as_tuples() -> None:
    lists: Any = Options(mesh=[2, 4], pins=[["x", "[8,-]"]], forbidden=[["x", -1]])  # type: ignore[arg-type]
    assert lists.mesh == (2, 4)
    assert lists.pins == (("x", "[8,-]"),)
    assert lists.forbidden == (("x", -1),)
    assert hash(lists) == hash(Options(mesh=(2, 4), pins=(("x", "[8,-]"),), forbidden=(("x", -1),)))


@pytest.mark.parametrize(
    "spec",
    ["", "8", "[8", "8]", "[8,]", "[,]", "[q*]", "[*x]", "[x**y]", "[-1]", "[0]", "[08]", "[x y]",
     "[[8]]", "[8;-]", "[__import__('os')]", "[_x]", "[é]", "[٣]", "[1e3]", "[8.0]"],
)  # fmt: skip
def test_malformed_pin(spec: str) -> None:
    with pytest.raises(PlanError) as found:
        Options(pins=(("params/*", spec),))
    assert found.value.kind == "bad-pin"
    assert found.value.where == "pin 'params/*'"
    assert f"'{spec}'" in found.value.message
    assert "'[-,8]'" in found.value.remedy


@pytest.mark.parametrize(
    ("spec", "allowed", "refused"),
    [
        ("[-,*]", ("[-,-]", "[-,x]", "[-,y*x]"), ("[x,-]",)),
        ("[8,*]", ("[x*y,-]", "[y*x,-]"), ("[x,-]", "[-,x*y]", "[-,-]")),
        ("[1,4]", ("[-,y]",), ("[x,y]", "[-,x]")),
        ("[x*y,-]", ("[x*y,-]",), ("[y*x,-]", "[x,y]")),
        (" [ x , y ] ", ("[x,y]",), ("[y,x]",)),
        ("[*]", ("[x]",), ("[x,-]",)),
        ("[]", ("[]",), ("[-]",)),
    ],
)
def test_pin_allows(spec: str, allowed: tuple[str, ...], refused: tuple[str, ...]) -> None:
    pin = Pin.parse("w", spec)
    assert all(pin.allows(parse_sharding(text), MESH) for text in allowed)
    assert not any(pin.allows(parse_sharding(text), MESH) for text in refused)


@pytest.mark.parametrize(
    ("name", "pattern", "called"),
    [
        ("params/w", "params/w", True),
        ("params/a/w", "params/*/w", True),
        ("params/a/b/w", "params/*", True),
        ("Params/w", "params/w", False),
        ("params/w[0]", "params/w[0]", True),
        ("params/w0", "params/w[01]", True),
        ("params/w", "", False),
    ],
)
def test_names_match_themselves_or_a_shell_pattern(name: str, pattern: str, called: bool) -> None:
    assert is_called(name, pattern) is called


def resolved(**settings: Any) -> Wishes:
    return wishes(Options(**settings), NAMES, RANKS)


def test_pins_and_forbidden_dimensions_hold_for_whom_they_name() -> None:
    found = resolved(pins=(("params/*/w", "[*,4]"),), forbidden=(("params/*", 0), ("x", -1)))
    assert found.allows(0, parse_sharding("[-,y]"), MESH)
    assert not found.allows(0, parse_sharding("[-,x]"), MESH)
    assert not found.allows(0, parse_sharding("[x,y]"), MESH)
    assert not found.allows(2, parse_sharding("[x]"), MESH)
    assert found.allows(3, parse_sharding("[x,y,-]"), MESH)
    assert not found.allows(3, parse_sharding("[-,-,y]"), MESH)
    assert found.allows(99, parse_sharding("[x]"), MESH)
    assert [found.speaks_of(v) for v in (0, 1, 2, 3, 99)] == [True, True, True, True, False]
    assert [str(pin.dims) for pin in found.of_argument("x")] == ["('dimension -1 whole',)"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pins": (("weights", "[8,-]"),)}, ("'weights'", "params/a/w")),
        ({"forbidden": (("weights", 0),)}, ("'weights'", "params/a/w")),
        ({"pins": (("params/*", "[8,-]"),)}, ("2 dimensions", "'params/b/scale' has 1")),
        ({"pins": (("x", "[8]"),)}, ("1 dimensions", "'x' has 3")),
        ({"pins": (("x", "[q,-,-]"),)}, ("mesh axis 'q'", "x, y, z, w")),
        ({"forbidden": (("x", 3),)}, ("dimension 3", "have 3")),
        ({"forbidden": (("x", -4),)}, ("dimension -4",)),
    ],
)
def test_wish_that_names_nothing_there(settings: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(PlanError) as found:
        resolved(**settings)
    assert found.value.kind == "bad-pin"
    assert found.value.where
    assert found.value.remedy
    for word in words:
        assert word in str(found.value)


def test_forbidden_dimension_may_be_out_of_range_for_some() -> None:
    found = resolved(forbidden=(("params/*", 1),))
    assert found.allows(2, parse_sharding("[x]"), MESH)
    assert not found.allows(0, parse_sharding("[-,x]"), MESH)


@pytest.mark.parametrize("rank", range(4))
def test_a_pin_may_leave_dimensions_out(rank: int) -> None:
    pin = Pin.parse("w", "[x*y,-,...]")
    whole = pin.of_rank(rank)
    assert whole == ("x*y", "-", "-")[: max(rank, 2)]
    assert pin.axes == ("x", "y")
    assert Pin.parse("w", "[...]").of_rank(rank) == ("-",) * rank
    assert str(pin) == "[x*y,-,...]"
    assert str(pin.without({"x"})) == "[y,-,...]"
    assert str(pin.without({"x", "y"})) == "[-,-,...]"


@pytest.mark.parametrize("spec", ["[...,-]", "[-,....]", "[..., ...]", "..."])
def test_the_rest_is_at_the_end(spec: str) -> None:
    with pytest.raises(PlanError, match="is not a sharding"):
        Pin.parse("w", spec)

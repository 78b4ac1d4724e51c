"""Tables fit the terminal or turn into blocks; nothing is cut."""

from __future__ import annotations

from planner.cli.table import table

HEAD = ("", "left", "right")
ROWS = [("step", "1.5 ms", "12 ms"), ("cluster", "8xh100", "a name that takes much room")]


def test_columns_where_they_fit() -> None:
    lines = table(HEAD, ROWS, None).plain.splitlines()
    assert lines[1] == "step     1.5 ms  12 ms"
    assert len(lines) == 3


def test_numbers_align_right() -> None:
    lines = table(("n",), [("1",), ("100",)], 80).plain.splitlines()
    assert lines[1:] == ["  1", "100"]


def test_blocks_where_they_do_not() -> None:
    text = table(HEAD, ROWS, 30).plain
    assert "cluster\n  left: 8xh100\n  right: a name that takes much room" in text


def test_wide_characters_keep_columns_straight() -> None:
    lines = table(("a", "b"), [("層", "x"), ("yy", "x")], None).plain.splitlines()
    assert lines[1:] == ["層  x", "yy  x"]

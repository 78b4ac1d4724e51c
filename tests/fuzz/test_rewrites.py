# pyright: basic
"""Rows of the catalogue at random places: none is wrong, and a wrong one is found."""

from __future__ import annotations

import pytest

from benchmarks.fuzz.rewrites import DEVICES, ROWS, check_rewrites, parallel, rewrites
from substitutions.rewrite import policy
from substitutions.worth import BOUNDED, EXACT, Worth

LOOKUPS = tuple(row for row in ROWS if "gather" in row.left)


def test_no_row_is_wrong() -> None:
    found = rewrites(1, jax_every=64)
    assert found.wrong == []
    assert not +found.refused
    assert sum(found.places.values()) > len(ROWS)
    assert found.by_jax


def test_no_row_of_devices_is_wrong() -> None:
    found = parallel(1)
    assert found.wrong == []
    assert sum(found.places.values()) > len(DEVICES) / 2


@pytest.mark.exhaustive
def test_no_row_is_wrong_in_many_programs() -> None:
    assert [text for seed in range(100, 200) for text in check_rewrites(seed)] == []


def found_in(count: int, rows=ROWS) -> list[str]:
    return [text for seed in range(count) for text in rewrites(seed, rows, jax_every=0).wrong]


def test_lookups_that_lose_what_is_filled_in_are_found(monkeypatch) -> None:
    monkeypatch.setattr("substitutions.ops.lookups.fills_alike", lambda *_, **__: True)
    assert any("lookup" in text for text in found_in(8, LOOKUPS))


def test_a_row_that_claims_too_much_is_found(monkeypatch) -> None:
    worth = policy.worth_of_row

    def claimed(name: str) -> Worth:
        found = worth(name)
        return Worth(EXACT, EXACT, keeps=True) if found.floats == BOUNDED else found

    monkeypatch.setattr("benchmarks.fuzz.rewrites.worth_of_row", claimed)
    rows = tuple(row for row in ROWS if row.name.startswith("reassociate"))
    assert any("reassociate" in text for text in found_in(2, rows))

# pyright: basic
"""Changed files of every kind: errors of ours, or what they say makes sense.

`python -m benchmarks fuzz-files` is the same at length.
"""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.fuzz_files.damage import WAYS, damaged
from benchmarks.fuzz_files.every import FAMILIES, every
from benchmarks.fuzz_files.kind import EQUAL
from benchmarks.fuzz_files.run import REFUSED, Tally, run

MUTANTS = 600


@pytest.fixture(name="tally", scope="module")
def _tally(tmp_path_factory: pytest.TempPathFactory) -> Tally:
    *_, tally = run(every(quick=True), MUTANTS, seed=1)
    return tally


def test_no_outcome_is_wrong(tally: Tally) -> None:
    assert tally.count == MUTANTS
    shown = [f"{f.kind}, {f.how}: {f.error.splitlines()[-1]}" for f in tally.failures]
    assert not shown


def test_every_kind_was_refused_and_some_mutants_were_read(tally: Tally) -> None:
    assert tally.outcomes.keys() == {kind.name for kind in every(quick=True)}
    for name, outcomes in tally.outcomes.items():
        assert outcomes[REFUSED], name
        if name not in ("e-graph", "journal", "aceso archive", "schedule", "shardings"):
            assert outcomes.total() > outcomes[REFUSED], name


# By families, as kinds are made: that of plans plans.
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.split(".")[-1])
def test_what_was_not_changed_is_read(family, tmp_path) -> None:
    for kind in family.kinds(quick=True):
        for number, seed in enumerate(kind.seeds):
            folder = tmp_path / f"{kind.name}-{number}"
            folder.mkdir()
            for name, data in seed.items():
                (folder / name).write_bytes(data)
            found = kind.use(folder, seed, Random(0))
            assert found == EQUAL or kind.name in UNSURE, kind.name


UNSURE = ("contest instance", "e-graph", "schedule", "aceso archive")  # not held against the seed


def test_damage_is_the_same_for_the_same_seed() -> None:
    data = bytes(range(256)) * 3
    for name, way in WAYS.items():
        assert way(Random(name), data) == way(Random(name), data)
    assert damaged(Random(3), data) == damaged(Random(3), data)
    assert len({damaged(Random(n), data)[1] for n in range(100)}) > 80

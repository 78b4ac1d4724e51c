# pyright: basic
"""Plans in the plan store: the same bytes for the same question, never an answer to another."""

from __future__ import annotations

import copy
import sqlite3
import zlib
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import pytest
from msgspec import structs

import planner.common.store.keys
import planner.sharding.search.stored_plans
from planner import Options, Plan, plan
from planner.common.store.database import Store, store_path
from planner.common.store.keys import Memory, code_digest
from planner.common.store.warning import StoreWarning
from planner.files.plan_file import encoded
from planner.solver.cached import solved
from planner.solver.solve import SolveOptions, solve
from profiles import CollectiveRow, CollectiveTable
from tests.planner.emit.pipelines import CLIPPED, arguments, everything
from tests.planner.programs import BATCH, PARAMS, mean_loss, mlp, slow_machine, struct, sum_loss
from tests.planner.solver.problems import instance

MACHINE = slow_machine(4)


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def planned(fn: Any = mean_loss, *args: Any, **settings: Any) -> Plan:
    given = {"cluster": MACHINE, "cache": True, "baselines": False}
    return plan(fn, *(args or (PARAMS, BATCH)), **(given | settings))


def table(seconds: float) -> CollectiveTable:
    rows = tuple(
        CollectiveRow("all-reduce", 2, 1, size, seconds * size) for size in (1000, 10_000_000)
    )
    return CollectiveTable(
        name="measured", source="this test", date="2026-01-01", licence="-", rows=rows
    )


def test_a_hit_has_the_bytes_of_a_search() -> None:
    fresh = planned(cache=False)
    assert not store_path().exists()
    first, second = planned(), planned()
    assert (fresh.cached, first.cached, second.cached) == (False, False, True)
    assert encoded(fresh.file) == encoded(first.file) == encoded(second.file)
    assert second.summary()["cached"] is True
    spent = second.summary()["seconds"]
    assert spent["solve"] == spent["build"] == 0.0
    assert 0.0 < spent["trace"] <= spent["total"]
    assert "taken from the plan store" in str(second)
    assert "plan store" not in str(first)


def test_a_hit_runs() -> None:
    planned(optimizer=optax.sgd(0.1))
    found = planned(optimizer=optax.sgd(0.1))
    assert found.cached
    params = {name: jnp.ones(p.shape) for name, p in PARAMS.items()}
    batch = {name: jnp.ones(x.shape) for name, x in BATCH.items()}
    state = optax.sgd(0.1).init(params)
    loss = float(mean_loss(params, batch))  # before params are donated
    _, _, got = found.compile()(params, state, batch)
    assert float(got) == pytest.approx(loss, rel=1e-5)


def shifted(params: Any, batch: Any) -> Any:
    return jnp.mean((mlp(params, batch["x"]) - batch["y"]) ** 2) + 1.0


WIDE = {name: struct(*(2 * n for n in p.shape)) for name, p in PARAMS.items()}
WIDE_BATCH = {name: struct(8, 32) for name in BATCH}
HALF = {name: struct(*p.shape, dtype=jnp.bfloat16) for name, p in PARAMS.items()}

# What a plan was kept for, and what must not be answered with it.
OTHERS: dict[str, dict[str, Any]] = {
    "function": {"fn": sum_loss},
    "constant in the function": {"fn": shifted},
    "shapes": {"args": (WIDE, WIDE_BATCH)},
    "element type": {"args": (HALF, BATCH)},
    "argument tree": {"args": ({**PARAMS, "unused": struct(3)}, BATCH)},
    "roles": {"roles": ("batch", "parameter")},
    "donation": {"donate_argnums": 0},
    "optimizer": {"optimizer": optax.sgd(0.1)},
    "devices": {"cluster": slow_machine(8)},
    "bandwidth": {"cluster": replace(MACHINE, network=structs.replace(
        MACHINE.network, bandwidth_bytes_per_s=1e11))},
    "device": {"cluster": replace(MACHINE, device=structs.replace(
        MACHINE.device, memory_bytes=10**9))},
    "name of the cluster": {"cluster": replace(MACHINE, name="other")},
    "table": {"cluster": replace(MACHINE, collectives=table(1e-9))},
    "memory": {"memory_bytes": 10**8},
    "pins": {"pins": (("*/w1", "[-,4]"),)},
    "forbidden": {"forbidden": (("*/w1", 0),)},
    "mesh": {"mesh": (2, 2)},
    "baselines": {"baselines": True},
    "emission": {"emission": "constraints"},
    "time limit": {"time_limit_s": 61.0},
}  # fmt: skip


def asked(other: dict[str, Any]) -> Plan:
    given = dict(other)
    fn, args = given.pop("fn", mean_loss), given.pop("args", ())
    return planned(fn, *args, **given)


@pytest.mark.parametrize("other", OTHERS.values(), ids=list(OTHERS))
def test_another_question_gets_its_own_answer(other: dict[str, Any]) -> None:
    planned()
    found = asked(other)
    assert not found.cached
    assert encoded(found.file) == encoded(asked(other | {"cache": False}).file)
    assert asked(other).cached
    assert planned().cached


def test_another_measurement_in_a_table_gets_its_own_answer() -> None:
    assert not planned(cluster=replace(MACHINE, collectives=table(1e-9))).cached
    assert not planned(cluster=replace(MACHINE, collectives=table(2e-9))).cached


def test_another_version_gets_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    planned()
    monkeypatch.setattr(planner.common.store.keys, "code_digest", lambda: "another")
    assert not planned().cached


def test_the_version_is_that_of_every_source_and_library(monkeypatch: Any, tmp_path: Path) -> None:
    here = code_digest.__wrapped__()
    assert here == code_digest()
    versions = planner.common.store.keys.importlib.metadata.version
    for library in planner.common.store.keys.LIBRARIES:
        monkeypatch.setattr(
            "importlib.metadata.version",
            lambda name, library=library: versions(name) + ".1" * (name == library),
        )
        assert code_digest.__wrapped__() != here
        monkeypatch.undo()
    for package in planner.common.store.keys.PACKAGES:
        copied = tmp_path / package
        copied.mkdir()
        (copied / "a.py").write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(
        planner.common.store.keys, "__file__", str(tmp_path / "planner/common/store/keys.py")
    )
    before = code_digest.__wrapped__()
    for package in planner.common.store.keys.PACKAGES:
        (tmp_path / package / "a.py").write_text("x = 2\n", encoding="utf-8")
        after = code_digest.__wrapped__()
        assert after != before
        before = after


def test_every_option_is_part_of_the_name() -> None:
    names: Any = planner.common.store.keys._plain(Options())
    assert set(names) == set(Options.__dataclass_fields__) - {"cache"}


def test_what_time_cut_short_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    late = structs.replace(planned(cache=False).program, stop="TIME_LIMIT")
    planner.sharding.search.stored_plans.store_plan(Memory(Store(store_path())), "key", late)
    assert not store_path().exists()


def overwrite(kind: str, record: Any) -> None:
    """Puts a record in place of every entry of a kind, as one could who knows the form."""
    data = zlib.compress(msgspec.msgpack.encode(record))
    with closing(sqlite3.connect(store_path())) as connection:
        connection.execute(
            "UPDATE entries SET data = ?, digest = ?, bytes = ? WHERE kind = ?",
            (data, blake2b(data, digest_size=16).hexdigest(), len(data), kind),
        )
        connection.commit()


WRONG: dict[str, Any] = {
    "other record": {"format": "meshwright-plan"},
    "other graph": lambda file: structs.replace(file, graph=file.graph + "\n"),
    "unknown sharding": lambda file: structs.replace(file, inputs=("[q]",) * len(file.inputs)),
    "missing decision": lambda file: structs.replace(file, ops=file.ops[1:]),
    "text": "a plan",
    "nothing": None,
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_a_plan_that_is_not_sound_is_not_believed(wrong: Any) -> None:
    right = planned()
    overwrite("plan", wrong(right.program) if callable(wrong) else wrong)
    found = planned()
    assert not found.cached
    assert encoded(found.file) == encoded(right.file)
    assert planned().cached


def test_a_store_that_cannot_be_used_is_said_once_and_planning_goes_on() -> None:
    right = planned(cache=False)
    store_path().parent.mkdir(parents=True)
    store_path().write_bytes(b"no database " * 100)
    with pytest.warns(StoreWarning) as said:
        found = planned()
    assert len(said) == 1
    assert str(store_path()) in str(said[0].message)
    assert "\n" not in str(said[0].message)
    assert encoded(found.file) == encoded(right.file)


@pytest.mark.exhaustive
def test_a_pipeline_takes_its_stages_from_the_store() -> None:
    params, batch = arguments()

    def pipeline(**more: Any) -> Any:
        given = {"cluster": slow_machine(4), "microbatches": 4, "pipeline": 2, "cache": True,
                 "baselines": False, "schedules": ("1f1b",)}  # fmt: skip
        return plan(everything, params, batch, optimizer=CLIPPED, has_aux=True, **given | more)

    fresh, first, second = pipeline(cache=False), pipeline(), pipeline()
    assert (fresh.cached, first.cached, second.cached) == (False, False, True)
    files = [msgspec.json.encode(p.file, order="deterministic") for p in (fresh, first, second)]
    assert files[0] == files[1] == files[2]
    assert second.summary()["cached"] is True
    assert not pipeline(microbatches=2).cached
    second.compile(devices=None)


# --- solved problems ----------------------------------------------------------------------------

OPTIONS = SolveOptions(time_limit_s=20.0)


def of_problem(problem: Any, memory: Memory, limit_s: float = 20.0) -> tuple[Any, bool]:
    """The solution, and whether it was solved now."""
    asked = list[int]()

    def now() -> Any:
        asked.append(1)
        return solve(problem, OPTIONS)

    return solved(memory, problem, OPTIONS, limit_s, now), bool(asked)


def test_solutions_are_kept_for_equal_problems_only(tmp_path: Path) -> None:
    memory = Memory(Store(tmp_path / "s.sqlite3"))
    for seed in range(15):
        problem = instance(seed)
        found, fresh = of_problem(problem, memory)
        again, anew = of_problem(copy.deepcopy(problem), memory)
        assert fresh
        assert not anew
        assert again == found
        assert of_problem(problem, memory, 21.0)[1]
        for other in neighbours(problem):
            assert of_problem(other, memory)[1]


def neighbours(problem: Any) -> list[Any]:
    """Problems that differ in one number."""
    changed = problem.node_cost[0].copy()
    changed[-1] = 123.456
    longer = tuple((a, b + 1) for a, b in problem.intervals)
    return [
        replace(problem, node_cost=(changed, *problem.node_cost[1:])),
        replace(problem, usage=(problem.usage[0] + 1e-3, *problem.usage[1:])),
        replace(problem, intervals=longer),
        replace(problem, limit=problem.limit + 1.0 if np.isfinite(problem.limit) else 1e6),
    ]


def test_a_solution_that_does_not_solve_the_problem_is_not_believed(tmp_path: Path) -> None:
    seeds = [seed for seed in range(12) if solve(instance(seed), OPTIONS).choice]
    for seed in seeds:
        memory, problem = Memory(Store(store_path())), instance(seed)
        right, _ = of_problem(problem, memory)
        row = {"choice": right.choice, "cost": right.cost, "bound": right.bound, "stop": "OPTIMAL"}
        for wrong in (
            row | {"choice": [k + 1 for k in right.choice[:-1]] + [10**6]},
            row | {"choice": right.choice[:-1] if len(right.choice) > 1 else (0, 0)},
            row | {"cost": right.cost * 1.5 + 1.0},
            row | {"bound": right.cost + 1.0},
            row | {"stop": "SURELY"},
            row | {"choice": "01"},
        ):
            overwrite("solution", wrong)
            found, anew = of_problem(problem, memory)
            assert anew
            assert found == right
        Store(store_path()).clear()


def test_a_search_takes_solved_problems_from_the_store() -> None:
    """Plans differ by name, which no solution depends on."""

    def other(params: Any, batch: Any) -> Any:
        return mean_loss(params, batch)

    planned()
    before = Store(store_path()).info().entries
    assert before["solution"] > 0
    assert not planned(other).cached
    after = Store(store_path()).info().entries
    assert after == before | {"plan": before["plan"] + 1}

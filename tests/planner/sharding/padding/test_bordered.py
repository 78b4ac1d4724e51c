# pyright: basic
"""Sizes that differ by borders: padded together, equal, split with borders where that is faster."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir import SHIFT, check, interpret, replicated
from ir.evaluate import plain_program
from ir.interpret import without_meaning
from ir.trace import Program, trace
from planner import load, plan
from planner.sharding.padding.bordered import Borders
from planner.sharding.padding.classified import Classified
from planner.sharding.padding.edit import padded
from tests.helpers_numerics import check_numerics
from tests.planner.emit.plans import LINE, decisions_by, lowered
from tests.planner.sharding.padding.sliding_programs import drawn

NHWC = ("NHWC", "HWIO", "NHWC")


def normal(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), "float32")


def with_gradients(fn: Any) -> Any:
    def run(*args: Any) -> Any:
        out, pull = jax.vjp(fn, *args)
        return out, pull(jnp.cos(out))

    return run


def layers(x: Any, first: Any, second: Any) -> Any:
    for w, step in ((first, 2), (second, 1)):
        x = lax.conv_general_dilated(x, w, (step, step), "VALID", dimension_numbers=NHWC)
        x = jax.nn.relu(x)
    return x


def heat(u: Any) -> Any:
    """Explicit steps with fixed boundaries, and one that is copied."""
    inner = u[1:-1, 1:-1]
    for _ in range(2):
        near = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u = u.at[1:-1, 1:-1].set(inner + 0.1 * (near - 4 * inner))
    return u.at[0].set(u[1])


def recurrence(a: Any, b: Any) -> Any:
    """h[i] = a[i] h[i - 1] + b[i], as linear recurrent layers have it."""
    return lax.associative_scan(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (a, b))[1]


CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "convolutions": (with_gradients(layers), (normal(1, 64, 64, 2), normal(3, 3, 2, 2),
                                              normal(5, 5, 2, 2))),
    "pool": (with_gradients(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 1), (1, 1, 1), "VALID")
    ), (normal(1, 64, 2),)),
    "largest": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 1), (1, 2, 1), "VALID"),
        (normal(1, 64, 2),),
    ),
    "gradient of the largest": (with_gradients(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 1), (1, 2, 1), "VALID")
    ), (normal(1, 64, 2),)),
    "differences": (with_gradients(lambda x: jnp.diff(x, axis=0) ** 2), (normal(64, 3),)),
    "heat": (heat, (normal(64, 32),)),
    "recurrence": (with_gradients(recurrence), (normal(64, 3) / 4, normal(64, 3))),
    "odd": (lambda x: lax.associative_scan(jnp.add, x), (normal(50, 2),)),
    "moving mean": (lambda x: jnp.cumsum(x)[5:] - jnp.cumsum(x)[:-5], (normal(128),)),
    "around": (with_gradients(lambda x: jnp.roll(x, 1, 0) * jnp.roll(x, -3, 0)), (normal(61, 9),)),
    "far around": (lambda x: jnp.roll(x, 20, 0) * jnp.roll(x, -9, 0), (normal(50, 9),)),
    "around twice": (lambda x: jnp.roll(x, (1, -2), (0, 1)), (normal(61, 27),)),
    "totals": (
        with_gradients(lambda x: jnp.cumsum(jnp.sin(x), 0) * jnp.roll(x, 2, 0)), (normal(61, 9),)
    ),
    "largest so far": (lambda x: lax.cummax(x, 0, reverse=True) - x, (normal(61, 9),)),
    "copied edge": (
        lambda x: jnp.convolve(jnp.pad(x, 2, mode="edge"), jnp.ones(5), mode="valid"),
        (normal(128),),
    ),
}  # fmt: skip


def edited(program: Program, devices: int) -> list[Program]:
    """The program with each of its groups padded."""
    found = []
    for group in Borders(Classified(program.graph)).groups(devices):
        padding = group.one.padding(group.size, group.parts)
        found.append(padded(program, padding))
        check(found[-1].graph, after="padding")
    return found


def check_equal(program: Program, variant: Program, args: Any) -> None:
    constants = [np.asarray(x) for x in program.consts]
    if without_meaning(program.graph):
        each = [[np.asarray(x) for x in plain_program(p)(*args)] for p in (program, variant)]
    else:
        each = [interpret(p.graph, [*constants, *args]) for p in (program, variant)]
    for x, y in zip(*each, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * np.abs(x).max(initial=0.0))


@pytest.mark.parametrize("name", CASES)
def test_groups_are_padded_without_a_change_of_results(name: str) -> None:
    run, args = CASES[name]
    program = trace(run, *args).program
    variants = edited(program, 4 if "largest" in name else 8)
    assert variants
    for variant in variants:
        check_equal(program, variant, [np.asarray(x) for x in args])
        seen = Counter(node.op for node in variant.graph.nodes)
        assert (
            seen["conv_general_dilated"]
            == Counter(n.op for n in program.graph.nodes)["conv_general_dilated"]
        )  # each once


def check_drawn(seeds: Any) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        run, args = drawn(seed)
        program = trace(run, *args).program
        for k in range(2):  # groups one after the other
            variants = edited(program, random.Random(seed).choice((2, 4, 8)))
            if not variants:
                break
            variant = variants[k % len(variants)]
            check_equal(program, variant, args)
            seen.update({node.op for node in variant.graph.nodes})
            program = variant
        seen["programs"] += k > 0
    assert seen["programs"] > len(seeds) // 3, seen
    assert seen[SHIFT] > len(seeds) // 3, seen


def test_random_programs_stay_equal() -> None:
    check_drawn((*range(11), 1353))  # the last cuts a pad of another number than zero


@pytest.mark.exhaustive
def test_many_random_programs_stay_equal() -> None:
    check_drawn(range(1000, 2000))


def check_on_devices(run: Any, args: Any, rng: random.Random) -> Counter[str]:
    """The padded program on eight devices, with ops split along the dimension if they can be."""
    traced, seen = trace(run, *args), Counter[str]()
    for variant in edited(traced.program, 8):
        both = replace(traced, program=variant)

        def choose(_types: Any, op: Any, menu: Any) -> Any:
            sliding = [s for s in menu if any(role.startswith("halo") for role in s.roles)]
            found = rng.choice(sliding or list(menu))
            seen["halo"] += bool(sliding)
            return found

        graph, mesh = variant.graph, LINE
        inputs = [replicated(item.type.rank) for item in graph.inputs]
        outputs = [replicated(graph.type_of(o).rank) for o in graph.outputs]
        chosen = decisions_by(graph, mesh, inputs, outputs, choose, lambda raw: raw)
        report = check_numerics(both, lowered(both, chosen), args)
        assert report.ok, report
        seen["plans"] += 1
    return seen


@pytest.mark.parametrize("name", ["differences", "heat", "around", "far around"])
def test_borders_are_exchanged(name: str) -> None:
    assert check_on_devices(*CASES[name], random.Random(0))["halo"] > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_every_case_runs_on_eight_devices(name: str) -> None:
    seen = check_on_devices(*CASES[name], random.Random(1))
    assert seen["plans"] > 0


@pytest.mark.exhaustive
def test_random_programs_run_on_eight_devices() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        seen += check_on_devices(*drawn(seed), random.Random(seed))
    assert seen["halo"] > 40


def step(state: Any) -> Any:
    return {"u": lax.fori_loop(0, 10, lambda _, u: heat(u), state["u"])}


def test_a_stencil_with_fixed_boundaries_exchanges_borders_only() -> None:
    large = {"u": jax.ShapeDtypeStruct((8192, 8192), "float32")}
    found, without = (
        plan(step, large, padding=on, cluster="8xh100", baselines=False, donate_argnums=(0,))
        for on in (True, False)
    )
    kinds = {row.kind for row in found.collectives}
    assert "collective-permute" in kinds
    assert kinds <= {"collective-permute", "all-reduce"}  # of the row that is copied
    assert sum(row.bytes for row in found.collectives) < 0.05 * 8192 * 8192 * 4
    assert found.step_s < 0.3 * without.step_s


def waves(state: Any) -> Any:
    """Steps of a periodic field."""

    def one(u: Any, _: Any) -> Any:
        near = sum(jnp.roll(u, by, axis) for by in (1, -1) for axis in (0, 1))
        return 0.9 * u + 0.025 * near, None

    return {"u": lax.scan(one, state["u"], None, length=20)[0]}


def test_a_periodic_field_whose_size_does_not_divide_is_split() -> None:
    found, without = (
        plan(
            waves, {"u": jax.ShapeDtypeStruct((8001, 8001), "float32")}, padding=on,
            cluster="8xh100", baselines=False,
        )
        for on in (True, False)
    )  # fmt: skip
    assert "padded" in str(found)
    permutes = [row for row in found.collectives if row.kind == "collective-permute"]
    assert sum(row.bytes for row in permutes) == 2 * 20 * 8008 * 4  # a row either way
    assert found.step_s < 0.6 * without.step_s


def test_a_plan_with_a_group_is_saved_loaded_and_run(tmp_path: Path) -> None:
    state = {"u": normal(64, 32)}
    pins = (("state/u", "[8,-]"),)
    found = plan(step, state, cluster="8xh100", baselines=False, pins=pins)
    assert "sizes that differ by borders: to" in str(found)
    found.save(tmp_path / "plan.json")
    run = load(tmp_path / "plan.json").bind(step, state).compile()
    np.testing.assert_allclose(run(state)["u"], jax.jit(step)(state)["u"], rtol=1e-5, atol=1e-6)


def test_short_slices_and_sizes_without_borders_are_no_group() -> None:
    def run(x: Any) -> Any:
        return x[:16] * 2.0, jnp.tanh(x)

    assert edited(trace(run, normal(4096)).program, 8) == []

# pyright: basic
"""Effects happen once, in the order of the program, and their results are everywhere the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.experimental import io_callback

from planner import PlanError, plan, verify
from tests.helpers_exhaustive import usual
from tests.helpers_internals import forget_effects

SCALAR = jax.ShapeDtypeStruct((), np.float32)
X = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
W = np.eye(16, dtype=np.float32) / 2
LOG: list[tuple[str, Any]] = []


def tell(name: str, *values: Any) -> np.float32:
    """Notes a call; returns how many there were, so that results depend on their order."""
    LOG.append((name, [np.asarray(v).round(3).tolist() for v in values]))
    return np.float32(len(LOG))


def note(name: str, *values: Any) -> None:
    """A call without a result."""
    tell(name, *values)


def ask(name: str, *values: Any, ordered: bool = True) -> Any:
    return io_callback(lambda *xs: tell(name, *xs), SCALAR, *values, ordered=ordered)


def without_operands(w: Any, x: Any) -> Any:
    return ((x + ask("only", ordered=False)) @ w).sum()


def in_a_scan(w: Any, x: Any) -> Any:
    def body(carry: Any, _: Any) -> Any:
        number = ask("scan", carry.sum())
        jax.debug.callback(lambda v: note("debug", v), carry.max(), ordered=True)
        return jnp.tanh(carry @ w) + number, number

    last, numbers = lax.scan(body, x, None, length=3)
    ask("end", last.max())
    return last, numbers


def in_a_while(w: Any, x: Any) -> Any:
    def test(carry: Any) -> Any:
        return ask("test", carry[0]) * 0 + carry[0] < 3

    def body(carry: Any) -> Any:
        return carry[0] + 1, jnp.tanh(carry[1] @ w) + ask("body", carry[0])

    return lax.while_loop(test, body, (0, x))


def in_the_body_of_a_while(w: Any, x: Any) -> Any:
    def body(carry: Any) -> Any:
        return carry[0] + 1, jnp.tanh(carry[1] @ w) + ask("body", carry[0])

    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))


def in_a_branch(w: Any, x: Any) -> Any:
    def yes(x: Any) -> Any:
        jax.debug.callback(lambda v: note("yes", v), x.sum(), ordered=True)
        return x @ w

    def no(x: Any) -> Any:
        return x + ask("no", x.sum())

    after = lax.cond(x[0, 0] > 0, yes, no, x)
    return lax.cond(x[0, 0] > 9, yes, no, after)


def recomputed(w: Any, x: Any) -> Any:
    @jax.checkpoint
    def part(x: Any) -> Any:
        jax.debug.callback(lambda v: note("part", v), x.sum())
        return jnp.tanh(x @ w)

    return jax.grad(lambda x: part(x).sum())(x)


def of_keys_and_types(w: Any, x: Any) -> Any:
    def many(_: Any) -> Any:
        tell("many")
        return np.array([True, False]), np.array([0, np.nan, np.inf, -3], np.float16)

    structs = jax.ShapeDtypeStruct((2,), bool), jax.ShapeDtypeStruct((4,), np.float16)
    flags, halves = io_callback(many, structs, x.sum())
    jax.debug.callback(lambda k: note("key", jax.random.key_data(k)), jax.random.key(3))
    return x @ w * flags[0], flags, halves


PROGRAMS = (
    without_operands, in_a_scan, in_a_while, in_the_body_of_a_while, in_a_branch, recomputed,
    of_keys_and_types,
)  # fmt: skip
WAYS = ({"mesh": (2, 4)}, {"emission": "constraints"}, {"mesh": (8,), "pins": (("w", "[-,8]"),)})


def observed(fn: Callable[..., Any]) -> tuple[list[Any], list[tuple[str, Any]]]:
    LOG.clear()
    results = [np.asarray(x) for x in jax.tree.leaves(fn(W, X))]
    jax.effects_barrier()
    return results, list(LOG)


@pytest.mark.parametrize("settings", usual(WAYS, WAYS[1:]), ids=("mesh", "constraints", "split"))
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_on_one_device(program: Any, settings: dict[str, Any]) -> None:
    with jax.disable_jit():  # under jit, effects of two kinds have no order
        expected, told = observed(program)
    planned = plan(program, W, X, cluster="host", baselines=False, **settings)
    assert planned.mesh.num_devices == 8
    found, again = observed(planned.compile())
    assert [name for name, _ in again] == [name for name, _ in told]
    for (_, mine), (_, theirs) in zip(again, told, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=2e-3)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("emission", ["shard_map", "constraints"])
def test_what_a_callback_raises_is_raised_and_later_effects_do_not_happen(emission: str) -> None:
    def broken(_: Any) -> Any:
        raise KeyError("no such file")

    def fn(w: Any, x: Any) -> Any:
        y = x @ w + io_callback(broken, SCALAR, x.sum())
        ask("never", y.sum())
        return y.sum()

    step = plan(fn, W, X, cluster="host", baselines=False, emission=emission).compile()
    LOG.clear()
    for _ in range(2):
        with pytest.raises(Exception, match="no such file"):
            jax.block_until_ready(step(W, X))
    forget_effects()
    assert LOG == []


def test_results_of_other_shapes_are_one_clear_error() -> None:
    fn = lambda w, x: x @ w + io_callback(lambda: np.zeros(3), SCALAR)  # noqa: E731
    step = plan(fn, W, X, cluster="host", baselines=False).compile()
    with pytest.raises(Exception, match=r"returned .*\(3,\).*expected"):
        jax.block_until_ready(step(W, X))
    forget_effects()


def test_a_result_that_is_sent_to_the_others_is_among_the_collectives() -> None:
    fn = lambda w, x: x @ w + io_callback(lambda: np.zeros((16, 16), "f4"), X)  # noqa: E731
    planned = plan(fn, W, X, cluster="host", baselines=False, mesh=(8,))
    ring = 7 / 8 * X.nbytes
    sent = {c.kind: c.bytes for c in planned.collectives}
    assert sent.get("all-reduce") == 2 * ring or sent.get("reduce-scatter") == ring, sent
    assert verify(planned).ok


def loss(w: Any, x: Any) -> Any:
    value = jnp.mean((jnp.tanh(x @ w) - 1) ** 2)
    jax.debug.callback(lambda v: note("loss", v), value)
    return value


def test_effects_of_a_loss_are_refused_in_micro_batches_and_stages() -> None:
    wanted = {"cluster": "host", "optimizer": optax.sgd(0.1), "baselines": False}
    with pytest.raises(PlanError, match="in each of 4 micro-batches"):
        plan(loss, W, X, microbatches=4, **wanted)
    with pytest.raises(PlanError, match="has effects"):
        plan(loss, W, X, pipeline=2, **wanted)
    planned = plan(loss, W, X, **wanted)
    LOG.clear()
    planned.compile()(W + 0, optax.sgd(0.1).init(W), X)
    jax.effects_barrier()
    assert [name for name, _ in LOG] == ["loss"]

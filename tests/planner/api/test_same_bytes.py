# pyright: basic
"""Plans do not depend on the load of the machine: equal inputs, equal files, byte for byte."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from planner import Plan, plan

WIDTH, LAYERS, ROWS = 256, 1, 512
THREADS = 2


def step(params, x):
    def loss(params):
        y = x
        for w in params:
            y = jax.nn.relu(jax.nn.softmax(y @ w) @ w.T + y)
        return jnp.mean(y**2)

    value, slopes = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, slopes), value


def planned() -> Plan:
    weight = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    rows = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    return plan(step, [weight] * LAYERS, rows, cluster="8xh100")


@contextmanager
def busy_threads() -> Generator[list[int]]:
    """Threads that compute all the while; how often each went round."""
    ended, rounds = threading.Event(), [0] * THREADS

    def work(n: int) -> None:
        array = np.ones((256, 256))
        while not ended.is_set():
            array = np.tanh(array @ array)
            rounds[n] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield rounds
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_plan_made_beside_busy_threads_is_the_same_file(tmp_path: Path) -> None:
    alone = planned()
    with busy_threads() as rounds:
        beside = planned()
    assert min(rounds) > 0
    alone.save(tmp_path / "alone.json")
    beside.save(tmp_path / "beside.json")
    assert (tmp_path / "alone.json").read_bytes() == (tmp_path / "beside.json").read_bytes()

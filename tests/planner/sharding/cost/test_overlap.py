# pyright: basic
"""A step with collectives beside compute: within its bounds, hidden where there is room for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from planner import Options, plan
from planner.sharding.cost.overlap import hidden
from tests.planner.programs import BATCH, CASES, PARAMS, mean_loss, struct
from tests.planner.spaces import space


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_step_lies_between_its_longer_part_and_both(name: str) -> None:
    found, rng = space(CASES[name].fn, *CASES[name].args), np.random.default_rng(0)
    for _ in range(4):
        choice = found.draw(rng)
        if not np.isfinite(found.built.problem.cost(choice)):
            continue
        sums, played = found.account(choice), hidden(found.decided(choice))
        assert played.compute_s == pytest.approx(sums.compute_s, rel=1e-9)
        assert played.communication_s == pytest.approx(sums.communication_s, rel=1e-9)
        low = max(played.compute_s, played.communication_s)
        assert low * (1 - 1e-9) <= played.step_s <= sums.step_s * (1 + 1e-9)


def products(count: int, *, looped: bool):
    """A chain of large products; each weight's gradient is summed over the devices."""

    def loss(ws, x):
        if looped:
            return jnp.sum(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0])
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    one = struct(2048, 2048)
    ws = struct(count, 2048, 2048) if looped else [one] * count
    return jax.grad(loss), (ws, struct(1 << 16, 2048))


@pytest.mark.parametrize("looped", [False, True])
def test_gradients_are_summed_behind_the_backward_pass(looped: bool) -> None:
    fn, args = products(6, looped=looped)
    settings = {"cluster": "8xh100", "mesh": (8,), "baseline": "data-parallel",
                "roles": ("parameter", "batch"), "donate_argnums": ()}  # fmt: skip
    p = plan(fn, *args, **settings)
    file = p.program
    assert file.communication_s > 0
    exposed = file.overlapped_s - file.compute_s
    # what is made last has nothing after it to hide behind, in a loop in each round
    assert exposed < (0.9 if looped else 0.6) * file.communication_s
    assert "run beside compute" in str(p)
    assert p.summary()["overlapped_s"] == file.overlapped_s


def test_what_is_read_at_once_is_not_hidden() -> None:
    def chained(x, a, b):
        return (x @ a) @ b

    big = struct(4096, 4096)
    p = plan(chained, big, big, big, cluster="8xh100", mesh=(8,), baselines=False,
             pins=(("x", "[-,x]"), ("a", "[x,-]"), ("b", "[-,-]")))  # fmt: skip
    assert p.program.communication_s > 0
    assert p.program.overlapped_s == pytest.approx(p.step_s)


def test_it_can_be_left_out_and_the_host_has_none() -> None:
    settings = {"optimizer": optax.sgd(0.1), "mesh": (8,), "baselines": False}
    off = plan(mean_loss, PARAMS, BATCH, cluster="8xh100", overlap=False, **settings)
    on = plan(mean_loss, PARAMS, BATCH, cluster="8xh100", **settings)
    host = plan(mean_loss, PARAMS, BATCH, cluster="8xhost", **settings)
    assert off.program.overlapped_s == host.program.overlapped_s == 0.0
    assert 0.0 < on.program.overlapped_s <= on.step_s * (1 + 1e-9)
    assert on.step_s == off.step_s
    assert "beside compute" not in str(off)
    with pytest.raises(ValueError, match="overlap"):
        Options(overlap=1)  # pyright: ignore[reportArgumentType]

# pyright: basic
"""What the forward pass leaves to the backward pass."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from planner import plan
from planner.inspect.kept_values import AGAIN, HOST, KEPT, left_to_backward
from tests.planner.programs import struct

LAYERS, ROWS, WIDTH = 4, 64, 32
STACK = LAYERS * ROWS * WIDTH * 4  # bytes of one value of all layers
OFFLOADING = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["hidden"],
    offload_src="device", offload_dst="pinned_host",
)  # fmt: skip


def step(policy):
    def layer(h, w):
        return jnp.tanh(checkpoint_name(h @ w, "hidden")) @ w, None

    def run(ws, x):
        def loss(ws):
            body = layer if policy is None else jax.checkpoint(layer, policy=policy)
            return jnp.mean(jax.lax.scan(body, x, ws)[0] ** 2)

        found, grads = jax.value_and_grad(loss)(ws)
        return ws - 0.1 * grads, found

    return run


def found(recompute: str, policy=None):
    """A plan, and (state, operation) -> bytes and seconds of what it leaves."""
    p = plan(
        step(policy), struct(LAYERS, WIDTH, WIDTH), struct(ROWS, WIDTH), cluster="1xh100",
        recompute=recompute, donate_argnums=0, baselines=False,
        substitutions=False, padding=False,
    )  # fmt: skip
    rows: dict[tuple[str, str], list[float]] = {}
    for one in left_to_backward(p.analysed):
        row = rows.setdefault((one.state, one.op), [0.0, 0.0])
        row[:] = row[0] + one.nbytes, row[1] + one.seconds
    return p, rows


def test_what_is_kept_is_what_loops_stack_up() -> None:
    _, rows = found("none")
    kept = sum(size for (state, _), (size, _) in rows.items() if state == KEPT)
    # the input of each layer and the result of tanh, and the last layer's result
    assert 2 * STACK <= kept <= 2 * STACK + 2 * STACK / LAYERS
    assert not [key for key in rows if key[0] != KEPT]


def test_what_is_computed_again_is_not_kept() -> None:
    p, rows = found("full")
    kept = sum(size for (state, _), (size, _) in rows.items() if state == KEPT)
    assert STACK <= kept <= STACK + 2 * STACK / LAYERS
    size, seconds = rows[AGAIN, "dot_general"]
    assert size == STACK  # of one of the two products of each layer
    assert 0 < seconds < p.step_s


def test_what_is_on_the_host_is_neither(tmp_path: Path) -> None:
    p, rows = found("written", OFFLOADING)
    kept = sum(size for (state, _), (size, _) in rows.items() if state == KEPT)
    assert STACK <= kept <= STACK + 2 * STACK / LAYERS
    size, seconds = rows[HOST, "copies"]
    assert size == STACK == p.program.host_bytes
    assert seconds > 0
    p.report(tmp_path / "plan.html")
    assert "Left to the backward pass" in (tmp_path / "plan.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("fn", [lambda x: x @ x, lambda x: jnp.sum(jnp.sin(x))])
def test_a_program_without_a_backward_pass_leaves_nothing(fn, tmp_path: Path) -> None:
    p = plan(fn, struct(WIDTH, WIDTH), cluster="2xh100", baselines=False)
    assert left_to_backward(p.analysed) == ()
    p.report(tmp_path / "plan.html")
    assert "Left to the backward" not in (tmp_path / "plan.html").read_text(encoding="utf-8")

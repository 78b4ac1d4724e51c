# pyright: basic
"""Losses whose reduction is read off their graph, and losses that are refused with a reason."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from planner.common.errors import PlanError
from planner.training.loss_parts import decide
from planner.training.microbatch import parts_of
from tests.helpers_exhaustive import usual

BATCH, TIME, WIDTH, CLASSES = 8, 3, 4, 5


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(BATCH, TIME, WIDTH)).astype(np.float32)
    return {
        "x": jnp.asarray(x),
        "y": jnp.asarray(rng.integers(0, CLASSES, BATCH), jnp.int32),
        "mask": jnp.asarray(rng.integers(0, 2, (BATCH, TIME)), jnp.float32),
    }


PARAMS = {
    "w": jnp.linspace(-1, 1, WIDTH * CLASSES).reshape(WIDTH, CLASSES),
    "layers": jnp.linspace(-0.5, 0.5, 2 * WIDTH * WIDTH).reshape(2, WIDTH, WIDTH),
}


def logits(p, b):
    return b["x"].mean(axis=1) @ p["w"]


def cross_entropy(p, b):
    return optax.softmax_cross_entropy_with_integer_labels(logits(p, b), b["y"])


def picked(p, b):
    return jax.nn.log_softmax(logits(p, b))[jnp.arange(b["y"].shape[0]), b["y"]]


def scanned(p, b):
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), b["x"], p["layers"])
    return jnp.mean(x**2)


def over_time(p, b):
    def step(state, x):
        return jnp.tanh(state + x @ p["layers"][0]), (state**2).sum()

    start = jnp.zeros(b["x"].shape[::2])
    state, losses = jax.lax.scan(step, start, jnp.moveaxis(b["x"], 1, 0))
    return losses.sum() + state.sum()


def accumulated_in_a_loop(p, b):
    def add(total, w):
        return total + jnp.mean((b["x"] @ w) ** 2), None

    return jax.lax.scan(add, 0.0, p["layers"])[0]


def chosen_branch(p, b):
    small = jnp.sum(p["w"] ** 2) < 1e6
    each = jax.lax.cond(small, lambda e: e, lambda e: 2 * e, cross_entropy(p, b))
    return jax.checkpoint(lambda e: jnp.tanh(e).mean())(each)


def counted_loop(p, b):
    def body(state):
        return state[0] + 1, jnp.sin(state[1] @ p["layers"][0])

    return jax.lax.while_loop(lambda s: s[0] < 3, body, (0, b["x"]))[1].mean()


def flattened(p, b):
    tokens = b["x"].reshape(-1, WIDTH)
    return jnp.mean(tokens @ p["w"]) + jnp.sum(tokens.reshape(b["x"].shape) ** 2) / tokens.shape[0]


MEANS = {
    "cross entropy": lambda p, b: cross_entropy(p, b).mean(),
    "mean then penalty": lambda p, b: cross_entropy(p, b).mean() + 0.1 * jnp.sum(p["w"] ** 2),
    "no examples": lambda p, b: jnp.sum(p["w"] ** 2),
    "divided before": lambda p, b: (cross_entropy(p, b) / b["y"].shape[0]).sum(),
    "by product": lambda p, b: jnp.vdot(b["mask"][:, 0], cross_entropy(p, b)) / len(b["y"]),
    "picked": lambda p, b: -picked(p, b).mean(),
    "by example": lambda p, b: jax.vmap(lambda x, y: (x @ p["w"])[..., y].sum())(
        b["x"], b["y"]
    ).mean(),
    "scanned layers": scanned,
    "accumulated": accumulated_in_a_loop,
    "branch, remat": chosen_branch,
    "counted loop": counted_loop,
    "flattened": flattened,
    "half precision": lambda p, b: cross_entropy(p, b).astype(jnp.bfloat16).mean(),
    "variance in an example": lambda p, b: (b["x"] @ p["w"]).var(axis=(1, 2)).mean(),
    "deviation in an example": lambda p, b: (b["x"] @ p["w"]).std(axis=1, ddof=1).mean(),
    "counted examples": lambda p, b: jnp.mean(logits(p, b).argmax(-1) == b["y"]) * p["w"].sum(),
}  # fmt: skip

SUMS = {
    "cross entropy": lambda p, b: cross_entropy(p, b).sum(),
    "squares": lambda p, b: 0.5 * jnp.sum((b["x"] @ p["w"]) ** 2),
    "masked": lambda p, b: (jnp.where(b["mask"] > 0, b["x"] @ p["w"][:, 0], 0)).sum(),
    "scaled penalty": lambda p, b: cross_entropy(p, b).sum() + len(b["y"]) * jnp.sum(p["w"] ** 2),
    "from zero": lambda p, b: sum((b["x"][:, i] @ p["w"]).sum() for i in range(TIME)),
    "over time": over_time,
    "per class, then all": lambda p, b: jnp.sum(logits(p, b).sum(axis=0) * p["w"][0]),
}

# Neither means nor sums, but computed from sums over examples: see test_loss_parts.py.
OTHERS = {
    "masked mean": lambda p, b: (b["x"][..., 0] * b["mask"] * p["w"][0, 0]).sum()
    / b["mask"].sum(),
    "sum and penalty": lambda p, b: cross_entropy(p, b).sum() + jnp.sum(p["w"] ** 2),
    "root": lambda p, b: jnp.sqrt(jnp.mean(logits(p, b) ** 2)),
    "position": lambda p, b: jnp.sum(jnp.arange(len(b["y"])) * cross_entropy(p, b)),
    "standard error": lambda p, b: cross_entropy(p, b).sum() / len(b["y"]) ** 2,
}  # fmt: skip

REFUSED = {
    "batch norm": (
        lambda p, b: jnp.mean((logits(p, b) - logits(p, b).mean(axis=0)) ** 2),
        "combines single examples with a statistic over all of them",
    ),
    "maximum": (lambda p, b: cross_entropy(p, b).max(), "takes a maximum over the examples"),
    "pairs": (
        lambda p, b: jnp.mean(jnp.tanh(logits(p, b) @ logits(p, b).T)),
        "combines different examples",
    ),
    "sorted": (lambda p, b: jnp.sort(cross_entropy(p, b))[0], "works across the examples"),
    "first example": (lambda p, b: cross_entropy(p, b)[0], "examples"),
    "one by one": (
        lambda p, b: jax.lax.scan(lambda c, x: (c * 0.9 + x.sum(), None), 0.0, b["x"] @ p["w"])[0],
        "other settings at another batch size|one by one",
    ),
    "as long as needed": (
        lambda p, b: jax.lax.while_loop(
            lambda s: s.sum() < 10, lambda s: s + 1.0, cross_entropy(p, b)
        ).mean(),
        "runs as long as the examples want",
    ),
    "python branch": (
        lambda p, b: (jnp.sin if len(b["y"]) > 4 else jnp.cos)(cross_entropy(p, b)).mean(),
        "other operations",
    ),
}


def decision(loss, count=2, asked="auto"):
    params, batch = jax.eval_shape(lambda *trees: trees, PARAMS, data())
    return decide(loss, params, batch, parts_of(batch, count, 0), asked)


def assert_adds_up(loss, reduction, count):
    """The definition itself, on numbers."""
    batch = data(3)
    parts = [jax.tree.map(lambda a, i=i: a[i::count], batch) for i in range(count)]
    total = np.sum([np.float32(loss(PARAMS, part)) for part in parts])
    expected = np.float32(loss(PARAMS, batch))
    found = total / count if reduction == "mean" else total
    np.testing.assert_allclose(
        found, expected, rtol=2e-2 if loss is MEANS["half precision"] else 1e-5
    )


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("count", usual([2, 8], [8]))
def test_means(name: str, count: int) -> None:
    assert decision(MEANS[name], count).reduction == "mean"
    assert_adds_up(MEANS[name], "mean", count)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("count", usual([2, 8], [2]))
def test_sums(name: str, count: int) -> None:
    assert decision(SUMS[name], count).reduction == "sum"
    assert_adds_up(SUMS[name], "sum", count)


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_neither(name: str) -> None:
    found = decision(OTHERS[name])
    assert found.reduction == "auto"
    assert found.sliced is not None
    assert decision(OTHERS[name], asked="mean").sliced is None


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name: str) -> None:
    loss, reason = REFUSED[name]
    with pytest.raises(PlanError, match=reason) as caught:
        decision(loss)
    assert caught.value.kind == "loss-reduction"
    assert "loss_reduction=" in caught.value.remedy


def test_asked_for_regardless_it_warns() -> None:
    found = decision(REFUSED["batch norm"][0], asked="mean")
    assert found.reduction == "mean"
    assert "statistic over all of them" in found.warnings[0]
    assert "the loss is a sum" in decision(SUMS["squares"], asked="mean").warnings[0]
    assert decision(SUMS["squares"], asked="sum").warnings == ()

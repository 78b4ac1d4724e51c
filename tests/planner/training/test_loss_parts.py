# pyright: basic
"""Losses on parts of a batch: equal to the step on the whole batch, or refused with a reason."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from planner.common.errors import IndivisibleError, PlanError
from planner.training.step import build_step
from tests.helpers_exhaustive import usual

BATCH, TIME, WIDTH, CLASSES = 8, 3, 4, 5
OPTIMIZER = optax.sgd(0.1)


@pytest.fixture(autouse=True)
def compiled_in_haste():
    """What is tested here is what the programs compute, not how fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def arguments(kind: str = "threefry2x32") -> tuple[Any, Any]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    params = {"w": normal(WIDTH, CLASSES), "layers": normal(2, WIDTH, WIDTH), "t": jnp.float32(1.3)}
    batch = {
        "x": normal(BATCH, TIME, WIDTH), "y": jnp.asarray(rng.integers(0, CLASSES, (BATCH, TIME))),
        "mask": jnp.asarray(rng.integers(0, 2, (BATCH, TIME)), jnp.float32),
        "weight": jnp.asarray(rng.uniform(0.1, 2.0, BATCH), jnp.float32),
        "key": jax.random.key(3, impl=kind), "rate": jnp.float32(0.75),
    }  # fmt: skip
    return params, batch


def hidden(p: Any, b: Any) -> Any:
    h = b["x"]
    for w in p["layers"]:
        h = jnp.tanh(h @ w)
    return h


def logits(p: Any, b: Any) -> Any:
    return hidden(p, b) @ p["w"]


def entropy(p: Any, b: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits(p, b), b["y"])


def valid_mean(e: Any, b: Any) -> Any:
    return (e * b["mask"]).sum() / b["mask"].sum()


# --- ratios and other functions of sums ---------------------------------------------------------


def learned_weights(p: Any, b: Any) -> Any:
    weight = jax.nn.sigmoid(p["t"] * logits(p, b)[..., 0])
    return (entropy(p, b) * weight).sum() / weight.sum()


def computed_again(p: Any, b: Any) -> Any:
    """Both sums, and the ratio, in a part that is computed again."""
    return jax.checkpoint(lambda e, m: jnp.sum(e * m) / jnp.maximum(jnp.sum(m), 1))(
        entropy(p, b), b["mask"]
    )


def root_again(p: Any, b: Any) -> Any:
    return jax.checkpoint(lambda e: jnp.sqrt(jnp.mean(e**2)))(entropy(p, b))


def penalty_in_a_loop(p: Any, b: Any) -> Any:
    """A carry to which each layer adds a sum over examples and a term without examples."""

    def layer(carry: Any, w: Any) -> Any:
        h, total = carry
        h = jnp.tanh(h @ w)
        return (h, total + 0.1 * (h**2).sum() + jnp.sum(w**2)), None

    (h, total), _ = lax.scan(layer, (b["x"], p["t"] * 2), p["layers"])
    return total + h.sum()


def one_branch(p: Any, b: Any) -> Any:
    e = entropy(p, b)
    return lax.cond(p["t"] > 0, lambda e: e.sum(), lambda e: jnp.sum(p["w"]), e)


def by_class(p: Any, b: Any) -> Any:
    each = jax.nn.one_hot(b["y"], CLASSES)
    sums = (entropy(p, b)[..., None] * each).sum((0, 1))
    return jnp.sum(sums / jnp.maximum(each.sum((0, 1)), 1))


def whitened(p: Any, b: Any) -> Any:
    """Statistics of the batch alone are the same for all parts."""
    x = (b["x"] - b["x"].mean((0, 1))) / (b["x"].std((0, 1)) + 1e-3)
    rank = jnp.argsort(jnp.argsort(b["weight"]))
    return jnp.mean(entropy(p, {**b, "x": x}) * rank[:, None] / b["weight"].max())


def captured(p: Any, b: Any) -> Any:
    """An array that the loss makes of the batch size itself."""
    size = b["x"].shape[0]
    return jnp.sum(entropy(p, b).sum(1) * np.linspace(0, 1, size, dtype=np.float32))


LOSSES = {
    "valid": lambda p, b: valid_mean(entropy(p, b), b),
    "valid or one": lambda p, b: (entropy(p, b) * b["mask"]).sum()
    / jnp.maximum(b["mask"].sum(), 1),
    "where": lambda p, b: jnp.mean(entropy(p, b), where=b["mask"] > 0),
    "average": lambda p, b: jnp.average(entropy(p, b).mean(1), weights=b["weight"]),
    "shares": lambda p, b: jnp.sum(b["weight"] / b["weight"].sum() * entropy(p, b).sum(1)),
    "counted": lambda p, b: entropy(p, b).sum() / jnp.ones_like(b["mask"]).sum(),
    "size written out": lambda p, b: entropy(p, b).sum() / (BATCH * TIME),
    "sum and penalty": lambda p, b: entropy(p, b).sum() + jnp.sum(p["w"] ** 2),
    "terms": lambda p, b: valid_mean(entropy(p, b), b)
    + 1e-2 * (jax.nn.logsumexp(logits(p, b), -1) ** 2).mean() + 0.1 * jnp.sum(p["w"] ** 2),
    "root": lambda p, b: jnp.sqrt(jnp.mean(entropy(p, b) ** 2)),
    "tempered": lambda p, b: valid_mean(entropy(p, b), b) * jnp.exp(-p["t"]) + p["t"],
    "positions": lambda p, b: jnp.sum(jnp.arange(len(b["x"])) * entropy(p, b).sum(1)),
    "stacked positions": lambda p, b: jnp.sum(
        jnp.stack([jnp.arange(len(b["x"])), b["y"][:, 0]], 1).sum(1) * entropy(p, b).sum(1)
    ),
    "standard error": lambda p, b: entropy(p, b).sum() / len(b["x"]) ** 2,
    "learned weights": learned_weights, "again": computed_again, "root again": root_again,
    "penalty in a loop": penalty_in_a_loop, "one branch": one_branch, "by class": by_class,
    "whitened": whitened, "captured": captured,
}  # fmt: skip
TWICE = {"root", "learned weights", "root again"}


# --- random numbers -----------------------------------------------------------------------------


def noisy(h: Any, key: Any, b: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, b["rate"], h.shape), h / b["rate"], 0)


def scanned(p: Any, b: Any, layer: Any = noisy) -> Any:
    def step(h: Any, x: Any) -> Any:
        w, key = x
        return layer(jnp.tanh(h @ w), key, b), None

    keys = jax.random.split(b["key"], 2)
    return jnp.sum(lax.scan(step, b["x"], (p["layers"], keys))[0] @ p["w"], -1)


def with_noise(noise: Any) -> Any:
    return lambda p, b: valid_mean(jnp.sum(noise(hidden(p, b), b["key"], b) @ p["w"], -1) ** 2, b)


def flattened(h: Any, key: Any, b: Any) -> Any:
    rows = h.reshape(-1, WIDTH)
    return noisy(rows, key, b).reshape(h.shape)


def time_first(h: Any, key: Any, b: Any) -> Any:
    """Rows of all examples for the first moment, then of all for the second."""
    rows = jnp.moveaxis(h, 1, 0).reshape(-1, WIDTH)
    return jnp.moveaxis(noisy(rows, key, b).reshape(TIME, -1, WIDTH), 0, 1)


def key_each(h: Any, key: Any, b: Any) -> Any:
    keys = jax.random.split(key, len(h))
    return jax.vmap(lambda x, k: noisy(x, k, b))(h, keys)


def folded_each(h: Any, key: Any, b: Any) -> Any:
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(h)))
    return jax.vmap(lambda x, k: noisy(x, k, b))(h, keys)


def drawn_weights(p: Any, b: Any) -> Any:
    kept = jax.random.bernoulli(b["key"], 0.6, b["mask"].shape)
    return jnp.sum(entropy(p, b) * kept) / jnp.maximum(kept.sum(), 1)


@jax.custom_vjp
def drawn_twice(h: Any, key: Any) -> Any:
    """A mask that is not kept: the backward pass draws it again."""
    return jnp.where(jax.random.bernoulli(key, 0.7, h.shape), h, 0)


drawn_twice.defvjp(
    lambda h, key: (drawn_twice(h, key), key),
    lambda key, g: (jnp.where(jax.random.bernoulli(key, 0.7, g.shape), g, 0), None),
)


@jax.custom_jvp
def rescaled(h: Any, key: Any) -> Any:
    return h * jax.random.uniform(key, h.shape)


@rescaled.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return rescaled(*primals), tangents[0] * jax.random.uniform(primals[1], primals[0].shape)


@jax.custom_vjp
def averaged(e: Any) -> Any:
    """A mean whose derivative is not quite its own, and tells the batch size itself."""
    return jnp.mean(e)


averaged.defvjp(lambda e: (averaged(e), e), lambda e, g: (jnp.ones_like(e) * g * e / e.size,))


@jax.custom_vjp
def damped(h: Any) -> Any:
    """The batch size is in the derivative alone."""
    return h


damped.defvjp(lambda h: (h, ()), lambda _, g: (g / g.shape[0],))


NOISE = {
    "masks": with_noise(noisy), "flattened": with_noise(flattened),
    "time first": with_noise(time_first), "key each": with_noise(key_each),
    "folded each": with_noise(folded_each), "drawn weights": drawn_weights,
    "a mask of features": with_noise(
        lambda h, key, b: h * jax.random.bernoulli(key, 0.5, (WIDTH,))
    ),
    "normal, 16 bits": with_noise(
        lambda h, key, b: h + jax.random.normal(key, h.shape, jnp.bfloat16).astype(h.dtype)
    ),
    "categories": with_noise(lambda h, key, b: h + jax.random.categorical(key, h)[..., None]),
    "a key of the parameters' own": with_noise(lambda h, key, b: noisy(h, jax.random.key(5), b)),
    "mean": lambda p, b: scanned(p, b).mean(),
    "drawn twice": lambda p, b: scanned(p, b, lambda h, key, b: drawn_twice(h, key)).sum(),
    "a tangent's own": with_noise(lambda h, key, b: rescaled(h, key)),
    "averaged": lambda p, b: averaged(entropy(p, b)) + drawn_weights(p, b),
    "damped": lambda p, b: jnp.mean(damped(hidden(p, b)) ** 2),
    "scanned": lambda p, b: (scanned(p, b) ** 2).sum(),
    "scanned again": lambda p, b: jax.checkpoint(scanned)(p, b).mean(),
    "layers again": lambda p, b: scanned(
        p, b, lambda h, key, b: jax.checkpoint(noisy)(h, key, b)
    ).mean(),
}  # fmt: skip


def whole_step(loss: Any, params: Any, batch: Any, has_aux: bool = False) -> Any:
    state = OPTIMIZER.init(params)
    found, grads = jax.value_and_grad(loss, has_aux=has_aux)(params, batch)
    updates, _ = OPTIMIZER.update(grads, state, params)
    return optax.apply_updates(params, updates), found


def assert_equal(loss: Any, batch: Any, params: Any, count: int, has_aux: bool = False) -> Any:
    """The step in parts is the step on the whole batch."""
    built = build_step(loss, params, batch, OPTIMIZER, microbatches=count, has_aux=has_aux)
    assert built.warnings == ()

    @jax.jit  # one program is compiled sooner than two
    def both(params: Any, state: Any, batch: Any) -> Any:
        return built.fn(params, state, batch), whole_step(loss, params, batch, has_aux)

    (new, _, found), expected = both(params, built.init(params), batch)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-6), (new, found), expected)
    return built


# Other writings of what the rest shows.
ALIKE = {
    "valid or one", "counted", "standard error", "stacked positions", "tempered", "shares",
    "folded each", "drawn weights", "flattened",
}  # fmt: skip


@pytest.mark.parametrize("name", usual(LOSSES, {*LOSSES} - ALIKE))
def test_functions_of_sums_over_examples(name: str) -> None:
    params, batch = arguments()
    built = assert_equal(LOSSES[name], batch, params, 4 if name in TWICE else 2)
    assert name == "size written out" or built.inside is not None
    assert bool(built.inside and built.inside.twice) == (name in TWICE)


@pytest.mark.parametrize("name", usual(NOISE, {*NOISE} - ALIKE))
def test_random_numbers_are_those_of_the_whole_batch(name: str) -> None:
    params, batch = arguments()
    assert_equal(NOISE[name], batch, params, 4)


def test_parts_of_one_example() -> None:
    params, batch = arguments()
    assert_equal(NOISE["masks"], batch, params, BATCH)
    with pytest.raises(IndivisibleError, match="parts of one example"):
        assert_equal(LOSSES["valid"], batch, params, BATCH)
    for name in ("contrast", "batch norm"):  # which larger parts do not give either
        with pytest.raises(IndivisibleError, match=f"{REFUSED[name][1]}.*loss_reduction="):
            assert_equal(REFUSED[name][0], batch, params, BATCH)


def test_other_generators_draw_the_whole_and_take_their_part() -> None:
    params, batch = arguments("rbg")
    assert_equal(NOISE["masks"], batch, params, 4)
    with jax.threefry_partitionable(False):
        params, batch = arguments()
        assert_equal(NOISE["key each"], batch, params, 4)


def test_aux_that_is_computed_from_sums() -> None:
    def loss(p: Any, b: Any) -> Any:
        e = entropy(p, b)
        value = valid_mean(e, b)
        right = (logits(p, b).argmax(-1) == b["y"]) * b["mask"]
        aux = {
            "accuracy": right.sum() / b["mask"].sum(), "perplexity": jnp.exp(value),
            "tokens": b["mask"].sum(), "each": e, "scaled": value * p["t"], "norm": p["t"] ** 2,
            "right": right.sum(dtype=jnp.int32), "share": right.sum() / jnp.sum(e > 1),
        }  # fmt: skip
        return value, aux

    params, batch = arguments()
    assert_equal(loss, batch, params, 4, has_aux=True)


def test_aux_of_a_loss_that_goes_through_the_parts_twice() -> None:
    def loss(p: Any, b: Any) -> Any:
        e = entropy(p, b)
        return jnp.sqrt((e**2).mean()), {"each": e, "log": jnp.log(e.sum()), "sum": e.sum()}

    params, batch = arguments()
    assert_equal(loss, batch, params, 4, has_aux=True)


# --- what cannot be ----------------------------------------------------------------------------


def all_at_once(p: Any, b: Any) -> Any:
    noise = jax.random.normal(b["key"], (len(b["x"]), len(b["x"])))
    return jnp.mean((noise @ entropy(p, b)) ** 2)


def ratio_in_a_loop(p: Any, b: Any) -> Any:
    def layer(h: Any, w: Any) -> Any:
        h = jnp.tanh(h @ w)
        return h, jnp.sqrt((h**2).mean())

    return lax.scan(layer, b["x"], p["layers"])[1].sum()


REFUSED = {
    "all at once": (all_at_once, r"random_bits \(.*:\d+\) draws random numbers for all"),
    "batch norm": (
        lambda p, b: jnp.mean((logits(p, b) - logits(p, b).mean((0, 1))) ** 2),
        r"sub \(.*test_loss_parts.py:\d+\) combines single examples with a statistic",
    ),
    "contrast": (
        lambda p, b: jnp.mean(jnp.tanh(entropy(p, b) @ entropy(p, b).T)),
        r"dot_general \(.*test_loss_parts.py:\d+\) combines different examples",
    ),
    "maximum": (lambda p, b: entropy(p, b).max(), r"reduce_max \(.*:\d+\) takes a maximum"),
    "median": (lambda p, b: jnp.median(entropy(p, b)), r"reduce_or \(.*:\d+\) works across"),
    "ratio in a loop": (ratio_in_a_loop, r"sqrt \(.*:\d+\) is not linear .* in a loop"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_operation_and_its_line(name: str) -> None:
    loss, reason = REFUSED[name]
    params, batch = arguments()
    with pytest.raises(PlanError, match=reason) as caught:
        build_step(loss, params, batch, OPTIMIZER, microbatches=2)
    assert caught.value.kind == "loss-reduction"


def test_asked_for_regardless_parts_draw_numbers_of_their_own() -> None:
    params, batch = arguments()
    built = build_step(all_at_once, params, batch, OPTIMIZER, microbatches=2, loss_reduction="mean")
    assert "change the meaning of the loss" in built.warnings[0]
    assert "draws random numbers of its own: random_bits" in built.warnings[1]
    built = build_step(
        NOISE["mean"], params, batch, OPTIMIZER, microbatches=2, loss_reduction="mean"
    )
    assert built.warnings == ()

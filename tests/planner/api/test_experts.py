# pyright: basic
"""Mixtures of experts on eight devices, in every way to split them, however tokens choose."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.experts_model import FORMS, Experts, small
from planner import plan
from tests.helpers_exhaustive import usual

BOTH = ("x", "y")
SEQUENCES = 8
LOADS = ("balanced", "skewed", "all to one")
# Shardings of values of the experts, and the collective without which they cannot be reached.
SENT = {"tokens": P(BOTH), "packed": P(BOTH), "rows": P(None, BOTH)}
MODES = {
    "slots: tokens to experts": ("slots", SENT, "all-to-all"),
    "slots: tokens to experts split inside": (
        "slots", SENT | {"rows": P(None, "x"), "up": P(None, "x", None, "y")}, "all-to-all"
    ),
    "slots: tokens stay": ("slots", {"tokens": P(BOTH), "rows": P(BOTH), "up": P(BOTH)}, ""),
    "onehot: tokens to experts": ("onehot", SENT, "all-to-all"),
    "onehot: to experts of a part": (
        "onehot", SENT | {"rows": P("x", "y"), "up": P("x", "y")}, "all-to-all"
    ),
    "ragged: rows": ("ragged", {"sorted": P(BOTH), "inner": P(BOTH)}, ""),
    "ragged: features": ("ragged", {"inner": P(None, BOTH)}, ""),
}  # fmt: skip


# Each form once, and tokens that stay where they are.
OFTEN = ("slots: tokens to experts", "slots: tokens stay", "onehot: to experts of a part",
         "ragged: rows")  # fmt: skip


@dataclass(frozen=True)
class Held(Experts):
    """A model that asks for shardings of some of its values."""

    specs: Any = None

    def held(self, name: str, x: Any) -> Any:
        return x if name not in self.specs else jax.lax.with_sharding_constraint(
            x, NamedSharding(MESH, self.specs[name])
        )  # fmt: skip


MESH = jax.make_mesh((2, 4), BOTH, axis_types=(jax.sharding.AxisType.Auto,) * 2)


NAMES = ("router", "up", "gate", "down")


def arguments(model: Experts, load: str) -> tuple[Any, Any]:
    """Weights of a layer and tokens; equal tokens choose the same experts."""
    rng = np.random.default_rng(3)
    shapes = model.parameters()["layers"]
    p = {n: jnp.asarray(rng.normal(size=shapes[n].shape[1:]) / 2, jnp.float32) for n in NAMES}
    y = rng.normal(size=(SEQUENCES, model.dense.seq, model.dense.hidden))
    y[:, : {"balanced": 0, "skewed": 11, "all to one": 16}[load]] = y[0, 0]
    return p, jnp.asarray(y, jnp.float32)


def loss(model: Experts, p: Any, y: Any) -> Any:
    """Of a layer of experts alone."""
    weights, chosen, uneven = model.route(y, p["router"])
    found = getattr(model, f"by_{model.form}")(y, weights, chosen, p)
    return jnp.sum(jnp.sin(found)) + uneven


def with_gradients(model: Experts) -> Any:
    return jax.value_and_grad(partial(loss, model), argnums=(0, 1))


def close(found: Any, expected: Any, what: str) -> None:
    """Gradients are sums of terms as large as the largest of them, which may cancel."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = max(1.0, float(np.abs(np.asarray(b)).max()))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), 2e-4, 2e-4 * scale, err_msg=what)


@pytest.mark.parametrize("mode", usual(MODES, OFTEN))
def test_losses_and_gradients(mode: str) -> None:
    form, specs, kind = MODES[mode]
    plain = small(form)
    model = Held(**{field.name: getattr(plain, field.name) for field in fields(plain)}, specs=specs)
    p = plan(
        with_gradients(model), *arguments(model, "balanced"), cluster="host", shardings="pin",
        substitutions=False, baselines=False,
    )  # fmt: skip
    assert not kind or kind in {row.kind for row in p.collectives}
    run, alone = p.compile(), jax.jit(with_gradients(plain))
    for load in LOADS:
        args = arguments(plain, load)
        close(run(*args), alone(*args), f"{mode}, {load}")


def test_the_forms_are_one_function() -> None:
    """With as many slots as there are tokens nothing is dropped."""
    models = [small(form) for form in FORMS]
    models += [replace(small(form), gathers=True) for form in ("slots", "ragged")]
    steps = [jax.jit(with_gradients(model)) for model in models]
    for load in LOADS:
        args = arguments(small("slots"), load)
        first, *others = (step(*args) for step in steps)
        for other in others:
            close(other, first, load)


def test_loads_are_what_they_are_called() -> None:
    model, shares = small("slots"), {}
    for load in LOADS:
        p, y = arguments(model, load)
        chosen = model.route(y, p["router"])[1][..., 0]
        shares[load] = np.bincount(np.ravel(chosen), minlength=8).max() / chosen.size
    assert shares["balanced"] < 0.4 < shares["skewed"] < 1.0 == shares["all to one"]

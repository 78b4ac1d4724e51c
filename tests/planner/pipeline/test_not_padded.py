# pyright: basic
"""Sizes that stages leave as they are are named, and only those."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from planner import plan
from tests.planner.pipeline.unproved import without_proof


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def loss(params: Any, batch: Any) -> Any:
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch["x"], params["layers"])
    return jnp.mean(jax.nn.logsumexp(x @ params["last"], axis=-1))


def said(features: int, **settings: Any) -> list[str]:
    params = {"layers": struct(4, features, features), "last": struct(features, 32_000)}
    with without_proof():
        p = plan(
            loss, params, {"x": struct(8, features)}, optimizer=optax.sgd(1e-3), cluster="8xh100",
            pipeline=2, microbatches=4, substitutions=False, baselines=False, **settings,
        )  # fmt: skip
    assert len(p.stages) == 2
    return [text for text in p.file.whole.warnings if "padded" in text]


def test_a_size_that_does_not_divide_is_named() -> None:
    (text,) = said(509)
    assert "(509)" in text


@pytest.mark.exhaustive
@pytest.mark.parametrize(("features", "settings"), [(512, {}), (509, {"padding": False})])
def test_nothing_is_said_of_others(features: int, settings: Any) -> None:
    assert not said(features, **settings)

# pyright: basic
"""Alpa's families have the sizes that it names them by."""

from __future__ import annotations

import math
from typing import Any

import jax
import pytest

from benchmarks.alpa import gpt, gpt_flops, mixture, resnet

BILLIONS = {  # of parameters, for 8, 16, 32 and 64 devices
    gpt: (2.6, 6.7, 15, 39), mixture: (2.4, 10, 27, 70), resnet: (2, 4, 6.8, 13),
}  # fmt: skip


def parameters(model: Any) -> int:
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("family", BILLIONS)
@pytest.mark.parametrize("at", range(4))
def test_models_are_as_large_as_their_names_say(family: Any, at: int) -> None:
    model = family(8 << at)
    assert parameters(model) == pytest.approx(BILLIONS[family][at] * 1e9, rel=0.1)
    assert model.batch == (1536 if family is resnet else 1024)


def test_operations_are_those_of_every_product_four_times() -> None:
    """2 in the forward pass, 2 computed again and 4 in the backward pass, for each weight."""
    model = gpt(8)
    weights = parameters(model) - model.vocab * model.hidden - model.seq * model.hidden
    tokens = model.batch * model.seq
    products = 8 * tokens * weights + 6 * tokens * model.hidden * model.vocab
    scores = 16 * tokens * model.seq * model.hidden * model.layers
    assert gpt_flops(8) == pytest.approx(products + scores, rel=1e-2)

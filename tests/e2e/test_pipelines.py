# pyright: basic
"""Example models as pipelines: three steps equal those of the unsharded program."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.encoder_decoder import T5
from examples.gpt import GPT
from examples.llama import Llama
from examples.moe import MoE
from examples.unet import UNet
from examples.wide_resnet import WideResNet
from tests.planner.emit.pipelines import assert_equal_steps, unsharded_steps


class AnyBatchUNet(UNet):
    """A U-Net that takes the batch size from its batch, so that micro-batches can be cut."""

    def loss(self, params: Any, batch: Any) -> Any:
        return UNet.loss(self._replace(batch=batch["images"].shape[0]), params, batch)


MODELS = {
    "gpt": GPT(64, 8, 32, 4, 4, 8, "float32", False),
    "gpt scanned": GPT(64, 8, 32, 4, 5, 8, "float32", True),
    "llama": Llama(64, 8, 32, 4, 2, 64, 4, 8, "float32"),
    "moe": MoE(64, 8, 32, 4, 4, 64, 8, 4, 8, "float32"),
    "encoder-decoder": T5(64, 8, 8, 32, 4, 64, 2, 8, "float32"),
    "unet": AnyBatchUNet(8, 16, (1, 2), 1, 4, 8, "float32"),
    "wide-resnet": WideResNet(16, (1, 1), 8, 2, 16, 8, "float32"),
}
SIZES = {"two": (4, 4), "two unequal": (6, 2), "four": (2, 2, 2, 2), "four unequal": (1, 4, 2, 1)}


def values(model: Any) -> tuple[Any, Any]:
    """Parameters and a batch, without compiling the model's own initialisation."""
    rng = np.random.default_rng(0)

    def value(path: Any, x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        if jnp.issubdtype(x.dtype, jnp.integer):
            return jnp.asarray(rng.integers(0, 16, x.shape), x.dtype)
        found = 0.1 * rng.standard_normal(x.shape)
        is_scale = x.ndim <= 1 or "norm" in jax.tree_util.keystr(path)
        return jnp.asarray(found + is_scale, x.dtype)

    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree_util.tree_map_with_path(value, shapes)


@functools.cache
def unsharded(name: str) -> Any:
    """What all pipelines of a model have to compute."""
    return unsharded_steps(MODELS[name].loss, *values(MODELS[name]), loss_reduction="mean")


PLANNED = (
    ("moe", "1f1b", (2, 2)), ("encoder-decoder", "zb-h1", (4,)), ("llama", "gpipe", (2, 2)),
    ("unet", "1f1b", (4,)), ("wide-resnet", "1f1b", (4,)), ("gpt scanned", "zb-h1", (2, 2)),
)  # fmt: skip


@pytest.fixture(autouse=True)
def compiled_in_haste():
    """What is tested here is what the programs compute, not how fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "schedule", "mesh"), PLANNED)
def test_stages_split_by_the_planner(name: str, schedule: str, mesh: tuple[int, ...]):
    model = MODELS[name]
    assert_equal_steps(
        model.loss, *values(model), schedule=schedule, sizes=(4, 4), mesh=mesh,
        loss_reduction="mean", expected=unsharded(name),
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "1f1b-eager", "zb-h1"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", MODELS)
def test_three_steps_are_those_of_the_unsharded_program(name: str, sizes: str, schedule: str):
    model = MODELS[name]
    assert_equal_steps(
        model.loss, *values(model), schedule=schedule, sizes=SIZES[sizes],
        loss_reduction="mean",  # batch statistics make a Wide-ResNet's loss neither
        expected=unsharded(name),
    )  # fmt: skip

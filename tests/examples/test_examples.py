# pyright: basic
"""The examples train on a CPU, and their published sizes trace with the parameters they state.

That the small size of each model trains is asserted where it runs anyway, in `tests/e2e`.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers_exhaustive import usual

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODELS = (
    "encoder_decoder",
    "gpt",
    "llama",
    "lstm",
    "moe",
    "recommender",
    "unet",
    "vit",
    "wide_resnet",
)
SMALL = ("gpt:block", "gpt:small_scanned")

# As stated in examples/README.md.
PARAMETERS = {
    "encoder_decoder:t5_base": 222_904_344,
    "gpt:gpt_1_3b": 1_315_063_808,
    "gpt:gpt_1_3b_scanned": 1_315_063_808,
    "llama:llama3_70b": 70_553_706_496,
    "llama:llama3_8b": 8_030_261_248,
    "lstm:gnmt_like": 99_106_816,
    "moe:moe_10b": 10_166_255_616,
    "recommender:dlrm": 3_330_368_897,
    "unet:ddpm_cifar": 36_804_992,
    "vit:vit_l_16": 304_201_728,
    "wide_resnet:wrn_50_2": 254_122_080,
}

QUICK = ("gpt:gpt_1_3b_scanned", "llama:llama3_8b", "recommender:dlrm")


def build(target: str) -> tuple[Any, Any, Any]:
    """What the target `model:name` returns, loaded by path as the command line does."""
    model, name = target.split(":")
    spec = importlib.util.spec_from_file_location(model, EXAMPLES / f"{model}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)()


def avals(tree: Any) -> list[tuple[Any, Any, Any]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(path, leaf.shape, leaf.dtype) for path, leaf in leaves]


@pytest.mark.parametrize("target", usual(SMALL, ["gpt:block"]))
def test_two_steps_lower_the_loss_and_move_every_parameter(target: str) -> None:
    train_step, (params, opt_state, batch), options = build(target)
    before = jax.tree.map(np.array, params)  # copies: the step donates its parameters
    step = jax.jit(train_step, **options)
    params, opt_state, first = step(params, opt_state, batch)
    params, opt_state, second = step(params, opt_state, batch)
    assert math.isfinite(first)
    assert math.isfinite(second)
    assert second < first
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(params), strict=True
    ):
        assert np.any(old != np.asarray(new)), jax.tree_util.keystr(path)


@pytest.mark.parametrize(
    "target",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in sorted(PARAMETERS)
    ],
)
def test_published_size_traces_and_has_the_stated_parameters(target: str) -> None:
    train_step, args, options = build(target)
    assert options == {"donate_argnums": (0, 1)}
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(args[0])) == PARAMETERS[target]
    _, out = jax.make_jaxpr(train_step, return_shape=True)(*args)
    assert avals(out[:2]) == avals(args[:2])  # the state of one step is the input of the next
    assert out[2].shape == ()


@pytest.mark.parametrize("target", sorted(PARAMETERS))
def test_readme_states_the_parameters(target: str) -> None:
    model, name = target.split(":")
    rows = (EXAMPLES / "README.md").read_text(encoding="utf-8").splitlines()
    row = next(row for row in rows if row.startswith(f"| [{model}.py]"))
    assert f"`{name}`" in row
    assert f"{PARAMETERS[target]:,}" in row


def test_llama_keeps_bfloat16_parameters_and_float32_moments() -> None:
    _, (params, opt_state, _), _ = build("llama:llama3_8b")
    moments = [leaf for leaf in jax.tree.leaves(opt_state) if leaf.ndim]
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    assert {leaf.dtype for leaf in moments} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("model", MODELS)
def test_an_example_fits_on_a_page(model: str) -> None:
    assert len((EXAMPLES / f"{model}.py").read_text(encoding="utf-8").splitlines()) <= 80

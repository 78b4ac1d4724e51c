# pyright: basic
"""Dimensions that do not divide: when they are padded, and what the padded program computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ir import TensorType
from ir.evaluate import plain_program
from ir.trace import trace
from planner import PlanError, load, plan
from planner.sharding.padding import choose
from planner.sharding.padding.bordered import Borders
from planner.sharding.padding.candidates import MOST_WASTE, classes_of, padded_size, products
from planner.sharding.padding.choose import _saved_by
from planner.sharding.padding.classified import Classified
from planner.sharding.padding.edit import padded
from planner.sharding.recompute.rough_plans import RoughPlans

ROWS, WORDS, WIDTH = 1000, 30011, 256


def head(params: Any, batch: Any) -> Any:
    """A step of the last layer of a language model, with a prime vocabulary."""

    def loss(weights: Any) -> Any:
        logits = batch["x"] @ weights.T
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    value, slope = jax.value_and_grad(loss)(params["w"])
    return {"w": params["w"] - 0.1 * slope}, value


def given() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, WORDS, ROWS).astype("int32")
    labels[0] = WORDS - 1  # the last row before the padding
    x = 0.1 * draw.normal(size=(ROWS, WIDTH)).astype("float32")
    return {"w": draw.normal(size=(WORDS, WIDTH)).astype("float32")}, {"x": x, "labels": labels}


def planned(**options: Any) -> Any:
    return plan(head, *given(), cluster="8xh100", baselines=False, **options)


def test_a_padded_vocabulary_is_split_where_that_is_faster(tmp_path: Path) -> None:
    padded_plan, plain = planned(), planned(padding=False)
    (program,) = padded_plan.file.programs
    assert [(row.was, row.size) for row in program.padded] == [(30011, 30016)]
    assert padded_plan.step_s < 0.9 * plain.step_s
    assert "padded       inside the program" in str(padded_plan)
    assert plain.file.programs[0].padded == ()
    path = tmp_path / "plan.json"
    padded_plan.save(path)
    compiled = load(path).bind(head, *given()).compile()
    expected, found = jax.jit(head)(*given()), compiled(*given())
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)
    lowered = compiled.jitted.lower(*jax.tree.leaves(given())).as_text()
    assert f"tensor<{30016 // 8}x{WIDTH}xf32>" in lowered  # a shard of the product


def test_a_plan_pads_what_the_program_has(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    planned().save(path)
    file = json.loads(path.read_text())
    (row,) = file["programs"][0]["padded"]
    row[3] = 30010
    path.write_text(json.dumps(file))
    with pytest.raises(PlanError):
        load(path).bind(head, *given())


@pytest.mark.parametrize(
    ("size", "devices", "found"),
    [(50257, 8, 50264), (50257, 512, 50688), (12, 8, 16), (60, 8, 64), (126, 8, 128), (5, 8, 6),
     (3, 7, None), (16, 8, None), (12, 6, None)],
)  # fmt: skip
def test_sizes_are_padded_as_far_as_they_waste_little(
    size: int, devices: int, found: int | None
) -> None:
    assert padded_size(size, devices) == found
    assert found is None or found - size <= MOST_WASTE * found


def rows_of(program: Any, name: str) -> list[tuple[TensorType, ...]]:
    """Types of the results of the ops of a name."""
    return [node.outputs for node in program.graph.nodes if node.op == name]


def test_only_what_gains_by_it_is_padded() -> None:
    """The product is; the update reads the slope without its padding, and the weights as given."""
    program = trace(head, *given(), roles=("parameter", "batch")).program
    known = Classified(program.graph)
    (words,) = [one for one in classes_of(known) if one.size == WORDS]
    found = padded(program, words.padding(30016), known)
    assert [t.type for t in found.graph.inputs] == [t.type for t in program.graph.inputs]
    shapes = [out.shape for (out,) in rows_of(found, "dot_general")]
    assert shapes == [(ROWS, 30016), (30016, WIDTH)]
    assert len(rows_of(found, "pad")) == 1
    assert [out.shape for (out,) in rows_of(found, "slice")] == [(WORDS, WIDTH)]
    assert [out.shape for (out,) in rows_of(found, "sub")][-1] == (WORDS, WIDTH)


def test_windows_of_convolutions_cannot_gain() -> None:
    images, kernel = jnp.ones((2, 9, 9, 5)), jnp.ones((3, 3, 5, 7))
    numbers = ("NHWC", "HWIO", "NHWC")
    program = trace(
        lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers),
        images, kernel,
    ).program  # fmt: skip
    known = Classified(program.graph)
    ((_, names),) = products(known)
    sizes = {one.size: one.number in names for one in classes_of(known)}
    assert not sizes[3]
    assert sizes[5]
    assert sizes[7]


def convolved(kernels: Any, x: Any, stride: int) -> Any:
    for kernel in kernels:
        x = jax.nn.relu(jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ))  # fmt: skip
    return x


def trained(kernels: Any, x: Any, stride: int) -> Any:
    """A step of convolutions."""
    grads = jax.grad(lambda kernels: (convolved(kernels, x, stride) ** 2).mean())(kernels)
    return jax.tree.map(lambda w, g: w - 0.1 * g, kernels, grads)


def test_images_whose_batch_is_split_over_all_devices_are_not_padded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def images(kernels: Any, x: Any) -> Any:
        return trained(kernels, x, 1)

    tried: list[Any] = []
    monkeypatch.setattr(RoughPlans, "step_s", lambda *args: tried.append(args) or float("inf"))
    kernels = [jax.ShapeDtypeStruct((1, 1, 512, 512), jnp.float32)] * 2
    x = jax.ShapeDtypeStruct((64, 15, 15, 512), jnp.float32)
    found = plan(images, kernels, x, cluster="8xh100", baselines=False, recompute="written")
    assert found.program.exposed_s > 0.1 * found.step_s  # of gradients of kernels
    assert not tried


def halved(kernels: Any, x: Any) -> Any:
    """A step of convolutions that halve images."""
    return trained(kernels, x, 2)


HALVED = [jax.ShapeDtypeStruct((3, 3, 512, 512), jnp.float32)] * 2


@pytest.mark.parametrize("images", [2, 8])
def test_images_that_are_not_split_over_all_devices_are_tried(
    monkeypatch: pytest.MonkeyPatch, images: int
) -> None:
    """Images over all devices would only be larger."""
    tried: list[Any] = []
    gains: list[float] = []

    def saved_by(*args: Any) -> list[float]:
        gains.extend(_saved_by(*args))
        return gains

    monkeypatch.setattr(RoughPlans, "step_s", lambda *args: tried.append(args) or float("inf"))
    monkeypatch.setattr(choose, "_saved_by", saved_by)
    x = jax.ShapeDtypeStruct((images, 28, 28, 512), jnp.float32)
    plan(halved, HALVED, x, cluster="8xh100", baselines=False, recompute="written")
    height, width = gains
    assert height == pytest.approx(width)
    assert (height > 0.0) == (images < 8)
    assert len(tried) == (2 if height > 0.0 else 0)


def test_width_is_padded_where_height_cannot_be() -> None:
    """Both may gain as much; a maximum over height has it whole."""

    def highest(kernels: Any, x: Any) -> Any:
        return convolved(kernels, x, 2).max(1)

    x = jax.ShapeDtypeStruct((1, 61, 61, 512), jnp.float32)
    given: Any = {"cluster": "8xv100-pcie", "baselines": False, "substitutions": False}
    found = plan(highest, HALVED, x, **given)
    assert [row.was for row in found.file.programs[0].padded] == [61]
    assert found.step_s < 0.9 * plan(highest, HALVED, x, padding=False, **given).step_s


def test_windows_of_kernels_are_no_group() -> None:
    x = jax.ShapeDtypeStruct((1, 28, 28, 512), jnp.float32)
    known = Classified(trace(halved, HALVED, x, roles=("parameter", "batch")).graph)
    assert sorted(group.one.size for group in Borders(known).groups(8)) == [28, 28]


def test_images_that_windows_make_smaller_are_padded() -> None:
    def images(kernels: Any, x: Any) -> Any:
        for kernel in kernels:
            x = jax.nn.relu(jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            ))  # fmt: skip
        return (x.astype(jnp.float32) ** 2).mean()

    shapes = (3, 3, 3, 60), (3, 3, 60, 60), (2, 1022, 1022, 3)
    *kernels, x = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    given: Any = {"cluster": "8xh100", "baselines": False, "substitutions": False}
    found = plan(images, kernels, x, **given)
    assert [row.was for row in found.file.programs[0].padded] == [1022]
    assert found.step_s < 0.5 * plan(images, kernels, x, padding=False, **given).step_s


def lookups(table: Any, at: Any) -> Any:
    rows = [table.at[at].get(mode=mode, fill_value=7.0) for mode in ("clip", "fill")]
    return sum(jnp.tanh(r @ table.T) for r in rows), table.at[at].add(1.0, mode="drop") @ table.T


def test_indices_beyond_the_elements_mean_what_they_did() -> None:
    table = np.random.default_rng(1).normal(size=(5, 3)).astype("float32")
    at = np.array([-9, -5, -1, 0, 4, 5, 6, 7, 8, 100], "int32")
    program = trace(lookups, table, at, roles=("parameter", "batch")).program
    known = Classified(program.graph)
    (one,) = [one for one in classes_of(known) if one.size == 5]
    expected = plain_program(program)(table, at)
    found = plain_program(padded(program, one.padding(8), known))(table, at)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)

# pyright: basic
"""Every step of a reshard on a cube of eight devices, against NumPy."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ir import Mesh, ReshardStep, Sharding
from planner.emit.jit import build_mesh
from planner.emit.steps import mask, reorder, run_step, take
from tests.planner.emit.plans import CUBE, model_of

SHAPE = (8, 16)
REDUCE = {"sum": np.sum, "max": np.max, "min": np.min}
STEPS = {kind: tuple(model_of(CUBE).steps(SHAPE, kind)) for kind in REDUCE}


def block_of(state: Sharding, dim: int, device: dict[str, int], mesh: Mesh) -> int:
    """Row-major number of the block that a device holds of one dimension."""
    number = 0
    for axis in state.dims[dim]:
        number = number * mesh.size(axis) + device[axis]
    return number


def shards_of(terms: np.ndarray, state: Sharding, mesh: Mesh) -> np.ndarray:
    """Shards, one per device, of a value given as terms: one per device along partial axes."""
    found = []
    for place in itertools.product(*(range(n) for n in mesh.sizes)):
        device = dict(zip(mesh.names, place, strict=True))
        index = tuple(device[a] if a in dict(state.partial) else 0 for a in mesh.names)
        x = terms[index]
        for d in range(len(state.dims)):
            ways = mesh.product(state.dims[d])
            x = np.split(x, ways, axis=d)[block_of(state, d, device, mesh)]
        found.append(x)
    return np.stack(found).reshape(*mesh.sizes, *found[0].shape)


def value_of(shards: np.ndarray, state: Sharding, mesh: Mesh) -> np.ndarray:
    """The value that shards stand for; devices that should agree have to."""
    rank = len(state.dims)
    local = shards.shape[len(mesh.names) :]
    whole = np.zeros([n * mesh.product(a) for n, a in zip(local, state.dims, strict=True)])
    for k, axis in enumerate(mesh.names):
        if axis in dict(state.partial):
            shards = REDUCE[dict(state.partial)[axis]](shards, axis=k, keepdims=True)
        elif axis not in state.axes:
            first = np.take(shards, [0], axis=k)
            np.testing.assert_array_equal(shards, np.broadcast_to(first, shards.shape))
            shards = first
    for place in itertools.product(*(range(n) for n in shards.shape[: len(mesh.names)])):
        device = dict(zip(mesh.names, place, strict=True))
        part = []
        for d in range(rank):
            start = block_of(state, d, device, mesh) * local[d]
            part.append(slice(start, start + local[d]))
        whole[tuple(part)] = shards[place]
    return whole


def on_devices(function, shards: list[np.ndarray]) -> list[np.ndarray]:
    """Runs a function of local shards, given and returned with the device axes in front."""
    mesh = build_mesh(CUBE)
    spec = PartitionSpec(*CUBE.names)

    def local(*stacked):
        return [x[None, None, None] for x in function([x[0, 0, 0] for x in stacked])]

    mapped = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return [np.asarray(x) for x in jax.jit(mapped)(*shards)]


def run_all(steps: list[ReshardStep], make) -> list[tuple[ReshardStep, np.ndarray, np.ndarray]]:
    """(step, shards before, shards after) for each step, in one program."""
    rng = np.random.default_rng(0)
    terms = [make(rng, (*CUBE.sizes, *SHAPE)) for _ in steps]
    before = [shards_of(t, s.before, CUBE) for t, s in zip(terms, steps, strict=True)]
    after = on_devices(
        lambda xs: [run_step(x, s, CUBE) for x, s in zip(xs, steps, strict=True)], before
    )
    return list(zip(steps, before, after, strict=True))


def small_floats(rng: np.random.Generator, shape) -> np.ndarray:
    return rng.integers(-50, 50, shape).astype(np.float32)  # sums of these are exact


def chosen(kind: str, reduction: str) -> list[ReshardStep]:
    """At most 60 steps of a kind, spread over all of them."""
    found = [step for _, _, step in STEPS[reduction] if step.kind == kind]
    return found[:: max(1, len(found) // 60)]


@pytest.mark.parametrize(
    ("kind", "reduction"),
    [
        ("all-gather", "sum"),
        ("all-reduce", "max"),
        pytest.param("all-reduce", "min", marks=pytest.mark.exhaustive),
        ("all-reduce", "sum"),
        ("all-to-all", "sum"),
        ("mask", "sum"),
        ("collective-permute", "sum"),
        ("reduce-scatter", "sum"),
        ("slice", "sum"),
    ],
)
def test_step_keeps_the_value(kind: str, reduction: str) -> None:
    steps = chosen(kind, reduction)
    assert steps
    if kind not in ("mask", "slice"):
        assert max(len(step.axes) for step in steps) == 3
    for step, before, after in run_all(steps, small_floats):
        expected = value_of(before, step.before, CUBE)
        np.testing.assert_array_equal(value_of(after, step.after, CUBE), expected, str(step))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "bfloat16", "float8_e4m3fn"])
def test_moves_keep_every_element_type(dtype: str) -> None:
    kinds = ("all-gather", "all-to-all", "collective-permute", "slice")
    steps = [step for kind in kinds for step in chosen(kind, "sum")[::20]]
    steps = [step for step in steps if not step.before.partial]

    def make(rng, shape):
        return np.asarray(jnp.asarray(rng.integers(0, 2, shape)).astype(dtype))

    for step, before, after in run_all(steps, make):
        assert after.dtype == before.dtype
        expected = value_of(before.astype(np.float32), step.before, CUBE)
        found = value_of(after.astype(np.float32), step.after, CUBE)
        np.testing.assert_array_equal(found, expected, str(step))


def test_moves_of_keys() -> None:
    shape, state = (8, 4), Sharding((("b", "c"), ()))
    step = ReshardStep("all-gather", ("c",), 0, -1, "", state, Sharding((("b",), ())))
    keys = jax.random.split(jax.random.key(3), shape)
    mesh = build_mesh(CUBE)
    moved = jax.jit(
        jax.shard_map(
            lambda x: run_step(x, step, CUBE),
            mesh=mesh,
            in_specs=PartitionSpec(("b", "c")),
            out_specs=PartitionSpec("b"),
            check_vma=False,
        )
    )(keys)
    np.testing.assert_array_equal(jax.random.key_data(moved), jax.random.key_data(keys))


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e5m2"])
def test_extremes_keep_nan(dtype: str, kind: str) -> None:
    """Devices that compare two numbers at a time drop a NaN, each at its own place."""
    rng = np.random.default_rng(0)
    values = np.array([np.nan, np.inf, -np.inf, 0.0, *range(-9, 10)], np.float32)
    x = np.asarray(jnp.asarray(rng.choice(values, (*CUBE.sizes, 8, 8))).astype(dtype))
    whole = Sharding(((), ()))
    waiting = Sharding(whole.dims, tuple((axis, kind) for axis in CUBE.names))
    step = ReshardStep("all-reduce", CUBE.names, -1, -1, kind, waiting, whole)
    (found,) = on_devices(lambda xs: [run_step(xs[0], step, CUBE)], [x])
    assert found.dtype == x.dtype
    wide = x.astype(np.float32)
    expected = getattr(np, f"a{kind}")(wide, axis=(0, 1, 2), keepdims=True)
    assert np.isnan(expected).any()
    assert not np.isnan(expected).all()
    np.testing.assert_array_equal(found.astype(np.float32), np.broadcast_to(expected, wide.shape))


def test_booleans_reduce_as_logic() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (*CUBE.sizes, 4, 4)).astype(bool)
    whole = Sharding(((), ()))
    steps = [
        ReshardStep("all-reduce", ("a",), -1, -1, kind, Sharding(whole.dims, (("a", kind),)), whole)
        for kind in ("max", "min")
    ]
    either, both = on_devices(lambda xs: [run_step(xs[0], s, CUBE) for s in steps], [x])
    np.testing.assert_array_equal(either, np.broadcast_to(x.any(0), x.shape))
    np.testing.assert_array_equal(both, np.broadcast_to(x.all(0), x.shape))


@pytest.mark.parametrize(
    "state",
    [
        Sharding((("a",), ("c", "b"))),
        Sharding((("c", "a", "b"), ())),
        Sharding(((), ("b",)), (("a", "sum"), ("c", "sum"))),
        Sharding((("b",), ()), (("a", "max"),)),
    ],
    ids=str,
)
def test_take_cuts_a_whole_value(state: Sharding) -> None:
    x = small_floats(np.random.default_rng(1), SHAPE)
    stacked = np.broadcast_to(x, (*CUBE.sizes, *SHAPE))
    (shards,) = on_devices(lambda xs: [take(xs[0], state, CUBE)], [stacked])
    np.testing.assert_array_equal(value_of(shards, state, CUBE), x)


def test_mask_keeps_the_first_device_only() -> None:
    ones = np.ones((*CUBE.sizes, 3), np.float32)
    (found,) = on_devices(lambda xs: [mask(xs[0], ("a", "c"))], [ones])
    assert found.sum() == 2 * 3
    assert found[0, :, 0].all()


def test_reorder_is_a_permutation() -> None:
    pairs = reorder(("a", "b", "c"), ("c", "a", "b"), CUBE)
    assert sorted(to for _, to in pairs) == list(range(8))
    assert (1, 2) in pairs  # over (c, a, b) block 1 belongs to the device with b=1, number 2

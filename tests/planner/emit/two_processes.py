# pyright: basic
"""One of several processes that run pipelines on groups of the sizes given, under some schedules.

With "hosted", each stage computes some values again, and sends others to the host, at random.

They have joined before this is imported, since imports here compute. Each compares what lies on its
own devices with the unsharded step, which it runs alone.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir.analysis import offloads
from planner.pipeline.schedule import build
from tests.planner.emit.pipelines import pipeline_of, three_steps
from tests.planner.pipeline.hosted import random_choices


def loss_fn(params: Any, batch: Any) -> Any:
    """A scanned stack between an embedding and its transpose, which are tied.

    The root of a mean over some tokens has to be known before the first gradient is.
    """
    x = params["tok"][batch["ids"]]
    x, _ = lax.scan(lambda x, p: (x + jnp.tanh(x @ p["w"]), None), x, params["layers"])
    logits = x @ params["tok"].T
    picked = jnp.take_along_axis(logits, batch["ids"][..., None], axis=-1)[..., 0]
    valid = batch["ids"] % 3 > 0
    each = jnp.where(valid, jax.nn.logsumexp(logits, axis=-1) - picked, 0)
    return jnp.sqrt(jnp.sum(each) / jnp.sum(valid))


def main(sizes: tuple[int, ...], schedules: tuple[str, ...], *, hosted: bool) -> None:
    jax.config.update("jax_disable_most_optimizations", True)  # as the other tests of pipelines
    for schedule in schedules:
        compare(sizes, schedule, hosted=hosted)
    jax.distributed.shutdown()


def compare(sizes: tuple[int, ...], schedule: str, *, hosted: bool) -> None:
    """Three steps of a pipeline, each stage split as planned, with the unsharded ones."""
    layers = max(4, build(schedule, len(sizes), 4).placement.stages)
    rng = np.random.default_rng(0)
    params = {
        "tok": np.float32(rng.standard_normal((16, 8)) * 0.3),
        "layers": {"w": np.float32(rng.standard_normal((layers, 8, 8)) * 0.3)},
    }
    batch = {"ids": rng.integers(0, 16, (8, 4)).astype(np.int32)}
    mesh = (sizes[0],) if len(set(sizes)) == 1 else None
    loss, pipeline = pipeline_of(
        loss_fn, params, batch, schedule=schedule, sizes=sizes, mesh=mesh, planned=True,
        edited=random_choices(0) if hosted else None,
    )  # fmt: skip
    assert hosted == any(map(offloads, (c.program.program.graph for c in pipeline.chunks)))
    with jax.default_device(jax.local_devices()[0]):
        alone = jax.tree.map(jnp.asarray, params)
        expected = three_steps(jax.jit(loss.built.fn), alone, loss.built.init(alone), batch)
    placed = pipeline.place(params, 0)
    state = pipeline.init(loss.built.init, (placed,), 1)
    found = pipeline.init(lambda times: jax.tree.map(lambda x: times * x, params), (1.0,), 0), state
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(placed), strict=True):
        for own, other in zip(getattr(a, "parts", (a,)), getattr(b, "parts", (b,)), strict=True):
            assert own.sharding.is_equivalent_to(other.sharding, own.ndim)
    value: Any = None
    for _ in range(3):
        held, state, value = pipeline(*found, batch)
        found = held, state
    checked = 0
    pairs = zip(
        jax.tree.leaves((*found, value)), jax.tree.leaves((*expected[:2], expected[2][-1])),
        strict=True,
    )  # fmt: skip
    for got, wanted in pairs:
        pieces = getattr(got, "parts", (got,))
        low = 0
        for piece in pieces:
            whole = np.asarray(wanted)
            part = whole[low : low + piece.shape[0]] if len(pieces) > 1 else whole
            low += piece.shape[0] if len(pieces) > 1 else 0
            for shard in piece.addressable_shards:
                np.testing.assert_allclose(shard.data, part[shard.index], rtol=2e-4, atol=2e-5)
                checked += 1
    assert checked
    equal = f"{checked} shards equal the unsharded step"
    print(f"process {jax.process_index()}: {schedule}: {equal}", flush=True)


if __name__ == "__main__":
    main(
        tuple(map(int, sys.argv[1].split(","))), tuple(sys.argv[2].split(",")),
        hosted="hosted" in sys.argv[3:],
    )  # fmt: skip

# pyright: basic
"""One of four processes that run a pipeline of four stages as one program, each with one stage.

They have joined before this is imported, since imports here compute. Each compares what lies on its
own devices with the unsharded step, which it runs alone.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.planner.emit.pipelines import arguments, everything, pipeline_of, three_steps


def main() -> None:
    params, batch = arguments()
    params = jax.tree.map(np.asarray, params)
    loss, pipeline = pipeline_of(
        everything, params, batch, schedule="1f1b-eager", scanned=True, sizes=(2,) * 4, mesh=(2,),
        cuts=(0, 2, 3, 4, 32), has_aux=True,
    )  # fmt: skip
    with jax.default_device(jax.local_devices()[0]):
        alone = jax.tree.map(jnp.asarray, params)
        expected = three_steps(jax.jit(loss.built.fn), alone, loss.built.init(alone), batch)
    state = jax.tree.map(np.asarray, loss.built.init(params))
    found = pipeline.place(params, 0), pipeline.place(state, 1)
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
        for shard in got.addressable_shards:
            part = np.asarray(wanted)[shard.index]
            np.testing.assert_allclose(shard.data, part, rtol=2e-4, atol=2e-5)
            checked += 1
    print(f"process {jax.process_index()}: {checked} shards equal the unsharded step")
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()

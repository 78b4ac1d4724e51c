# pyright: basic
"""One of two processes of four CPU devices: runs a plan and compares its part of the result."""

from __future__ import annotations

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

from ir.evaluate import plain_program
from ir.trace import trace
from planner.emit import compile_plan
from tests.planner.emit.plans import CUBE, lowered, random_decisions

SEED = 7


def train_step(params, tokens):
    """A step with a lookup, so that every kind of collective has a reason to appear."""

    def loss(params):
        hidden = jnp.tanh(params["table"][tokens] @ params["w"])
        return jnp.mean(jax.nn.logsumexp(hidden @ params["table"].T, axis=-1))

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


def arguments():
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=(16, 16)).astype(np.float32) for name in ("table", "w")}
    return params, rng.integers(0, 16, (8, 4)).astype(np.int32)


def spread(x, sharding):
    """An array over all processes, of which each makes its own shards."""
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def main(process: int, port: int) -> None:
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
    args = arguments()
    traced = trace(train_step, *args)
    decisions = random_decisions(traced.graph, CUBE, SEED)
    planned = compile_plan(traced, lowered(traced, decisions))
    found = jax.tree.leaves(planned(*jax.tree.map(spread, args, planned.in_shardings)))
    leaves = jax.tree.leaves(args)
    expected = jax.jit(plain_program(traced.program))(*traced.program.consts, *leaves)
    for x, y in zip(found, expected, strict=True):
        y = np.asarray(y)
        for shard in x.addressable_shards:
            np.testing.assert_allclose(shard.data, y[shard.index], rtol=2e-5, atol=2e-5)
    devices = [device.process_index for device in planned.mesh.devices.ravel()]
    assert devices == [0, 0, 0, 0, 1, 1, 1, 1], devices
    print(f"process {process} agrees")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

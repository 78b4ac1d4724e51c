# pyright: basic
"""Plans a small GPT for eight CPU devices, trains three steps, and compares with one device.

Run it with `python -m examples.demo`. The exit status is 1 if the planned step differs from the
plain one by more than rounding.
"""

from __future__ import annotations

import os
import sys

import jax
import numpy as np

from examples.gpt import small
from planner import plan

STEPS = 3
# Sums in another order differ in the last bits of float32. Adam divides by the size of the
# gradient, so that where a gradient is nearly zero the bits show up as a fraction of the rate.
TOLERANCE = 1e-4


def differences(planned, plain):
    """Largest differences: of floating-point leaves, and of all others (which must be equal)."""
    floating, exact = 0.0, 0.0
    for left, right in zip(jax.tree.leaves(planned), jax.tree.leaves(plain), strict=True):
        if jax.numpy.issubdtype(left.dtype, jax.dtypes.prng_key):
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        gap = np.abs(np.asarray(left, np.float64) - np.asarray(right, np.float64)).max(initial=0)
        if np.issubdtype(left.dtype, np.integer) or left.dtype == bool:
            exact = max(exact, gap)
        else:
            floating = max(floating, gap)
    return floating, exact


def main() -> int:
    flag = "--xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    jax.config.update("jax_platforms", "cpu")

    train_step, (params, opt_state, batch), options = small()
    donated = options["donate_argnums"]
    p = plan(train_step, params, opt_state, batch, cluster="host", donate_argnums=donated)
    print(p)

    step, plain_step = p.compile(), jax.jit(train_step)
    # The planned step donates its state, so each side gets its own.
    state, plain_state = jax.tree.map(lambda x: x.copy(), ((params, opt_state),) * 2)
    agree = True
    print(f"\n{len(jax.devices())} devices against one, largest difference after each step:")
    for number in range(1, STEPS + 1):
        *state, loss = step(*state, batch)
        *plain_state, plain_loss = plain_step(*plain_state, batch)
        floating, exact = differences((state, loss), (plain_state, plain_loss))
        print(f"step {number}: loss {loss:.6f} (one device {plain_loss:.6f}), ", end="")
        print(f"floats {floating:.1e}, integers {exact:g}")
        agree &= bool(floating <= TOLERANCE and exact == 0)
    print(f"{'equal' if agree else 'DIFFERENT'} at a tolerance of {TOLERANCE:g}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())

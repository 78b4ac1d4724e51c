"""Options with which a plan is compiled for GPUs, so that its collectives run beside compute.

A plan counts on a compiler that starts collectives early, and sums the gradients of a round of a
loop beside the round after it. What XLA's own defaults are changes with its versions, and is no
matter of the user's environment.

Gathers of the next round beside this one (`xla_gpu_enable_pipelined_all_gather`) are left out: for
GPT 1.3B in a loop, fully sharded over 8 H100, they expose as much (2.73 ms, jaxlib 0.10.2), as
gathers are hidden within their round, and take 1.0 GB more. Thresholds below which collectives are
combined are XLA's own, which depend on the memory that is free: with none combined the same
program exposes 3.27 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Source: XLA, xla/debug_options_flags.cc.
OVERLAPPING: Mapping[str, bool] = MappingProxyType({
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_enable_pipelined_all_reduce": True,
    "xla_gpu_enable_pipelined_reduce_scatter": True,
})  # fmt: skip
GPU_PLATFORMS = ("gpu", "cuda")


def options_on(platform: str, options: Mapping[str, bool]) -> dict[str, bool] | None:
    """The `compiler_options` of `jax.jit` for devices of a platform: None but for GPUs."""
    return dict(options) if options and platform in GPU_PLATFORMS else None


def compiler_options(*, overlap: bool) -> dict[str, bool]:
    """Options of XLA's GPU compiler for a plan.

    Args:
        overlap: collectives of the plan run beside compute.
    """
    return dict(OVERLAPPING) if overlap else {}

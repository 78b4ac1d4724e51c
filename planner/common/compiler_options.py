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

from collections.abc import Mapping, Sequence
from types import MappingProxyType

# Source: XLA, xla/debug_options_flags.cc.
OVERLAPPING: Mapping[str, bool] = MappingProxyType({
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_enable_pipelined_all_reduce": True,
    "xla_gpu_enable_pipelined_reduce_scatter": True,
})  # fmt: skip
# Permutes within a host by copy engines instead of kernels of NCCL: 100 instead of 445 us for 25 MB
# (openxla/xla, pull request 11182). Only where one process has all devices of the host.
LOCAL_COPIES = "xla_gpu_use_memcpy_local_p2p"
GPU_PLATFORMS = ("gpu", "cuda")


def options_on(platform: str, options: Mapping[str, bool]) -> dict[str, bool] | None:
    """The `compiler_options` of `jax.jit` for devices of a platform: None but for GPUs."""
    return dict(options) if options and platform in GPU_PLATFORMS else None


def compiler_options(*, overlap: bool, in_parts: bool = False) -> dict[str, bool]:
    """Options of XLA's GPU compiler for a plan.

    Args:
        overlap: collectives of the plan run beside compute.
        in_parts: products of the plan run in parts beside permutes.
    """
    return (dict(OVERLAPPING) if overlap else {}) | ({LOCAL_COPIES: True} if in_parts else {})


def options_of_all(programs: Sequence[Mapping[str, bool]]) -> dict[str, bool]:
    """Options for all programs of a plan: those that all have, and copies where one has them."""
    first, *others = programs
    found = dict(item for item in first.items() if all(item in o.items() for o in others))
    return found | ({LOCAL_COPIES: True} if any(LOCAL_COPIES in o for o in programs) else {})

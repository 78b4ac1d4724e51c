"""Options with which a plan is compiled for GPUs, so that its collectives run beside compute.

A plan counts on a compiler that starts collectives early, and sums the gradients of a round of a
loop beside the round after it. What XLA's own defaults are changes with its versions, and is no
matter of the user's environment.

Gathers of the next round beside this one (`xla_gpu_enable_pipelined_all_gather`) are left out: for
GPT 1.3B in a loop, fully sharded over 8 H100, they expose as much (2.73 ms, jaxlib 0.10.2), as
gathers are hidden within their round, and take 1.0 GB more. Thresholds below which collectives are
combined are XLA's own, which depend on the memory that is free: with none combined the same
program exposes 3.27 ms.

Copies to and from the host run beside nothing where XLA captures them in a CUDA graph, whose
commands run one after the other: 14 GB of copies of `llama-1b offload` add all their 256 ms to a
step on an H100 (`python -m benchmarks one-gpu`, JAX 0.11.2; openxla/xla, pull request 48900). Plans
with such copies are compiled without graphs: that step takes 467 instead of 514 ms there
(`one-gpu-plans`).
"""

from __future__ import annotations

import importlib.metadata
import re
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
# Permutes of a round in one, whatever they send (XLA's own threshold is 30 MiB): one at a time is
# on its way beside compute, so that the second of two would wait until the block after it.
TOGETHER: Mapping[str, int] = MappingProxyType({
    "xla_gpu_collective_permute_combine_threshold_bytes": 1_000_000_000_000,
})  # fmt: skip
# The fewest commands that become a graph: more than any program has.
WITHOUT_GRAPHS: Mapping[str, int] = MappingProxyType({"xla_gpu_graph_min_graph_size": 1_000_000})
GPU_PLATFORMS = ("gpu", "cuda")
_INSTALLED = importlib.metadata.version("jaxlib")  # the version, without loading it
# Options that have other names and values since jaxlib 0.11.1: a mode, of which 2 pipelines all
# collectives that can be and 0 leaves them to XLA (openxla/xla, pull request 45836).
RENAMED_SINCE = (0, 11, 1)
RENAMED: Mapping[str, str] = MappingProxyType({
    "xla_gpu_enable_pipelined_all_gather": "xla_gpu_pipeline_all_gather",
    "xla_gpu_enable_pipelined_all_reduce": "xla_gpu_pipeline_all_reduce",
    "xla_gpu_enable_pipelined_reduce_scatter": "xla_gpu_pipeline_reduce_scatter",
})  # fmt: skip

Options = Mapping[str, bool | int]


def options_here(options: Options, version: str = _INSTALLED) -> dict[str, bool | int]:
    """Options of a plan file, in the names that the compiler of a version of jaxlib has for them.

    Plan files have the names of jaxlib 0.10, whatever wrote them.
    """
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < RENAMED_SINCE:
        return dict(options)
    return {RENAMED.get(n, n): 2 * v if n in RENAMED else v for n, v in options.items()}


def options_on(platform: str, options: Options) -> dict[str, bool | int] | None:
    """The `compiler_options` of `jax.jit` for devices of a platform: None but for GPUs."""
    return options_here(options) if options and platform in GPU_PLATFORMS else None


def compiler_options(
    *, overlap: bool, copies: bool = False, rings: bool = False, on_host: bool = False
) -> dict[str, bool | int]:
    """Options of XLA's GPU compiler for a plan.

    Args:
        overlap: collectives of the plan run beside compute.
        copies: products of the plan run in parts beside permutes, or its ops send permutes of their
            own within a host: blocks of attention, borders.
        rings: ops of the plan send permutes of several arrays.
        on_host: the plan keeps values in the memory of the host.
    """
    found: dict[str, bool | int] = dict(OVERLAPPING) if overlap else {}
    if copies:
        found[LOCAL_COPIES] = True
    if rings:
        found |= TOGETHER
    return found | (dict(WITHOUT_GRAPHS) if overlap and on_host else {})


def options_of_all(programs: Sequence[Options]) -> dict[str, bool | int]:
    """Options for all programs of a plan: those that all have, and those that one needs."""
    first, *others = programs
    found = dict(item for item in first.items() if all(item in o.items() for o in others))
    needed = {LOCAL_COPIES, *TOGETHER, *WITHOUT_GRAPHS}
    return found | {name: value for o in programs for name, value in o.items() if name in needed}

"""GPUs as XLA's compiler describes them to itself, for compiling without one.

Source: XLA, xla/backends/gpu/target_config/specs (Apache-2.0), read in November 2026; the rates of
the arithmetic units, which only the compiler's own timing model reads, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """What the compiler wants to know of a GPU."""

    description: str
    capability: tuple[int, int]
    accelerated: bool  # features of this very generation: sm_90a, sm_100a
    cores: int
    fpus_per_core: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int
    memory_bytes: int
    memory_bytes_per_s: int
    cache_bytes: int
    clock_ghz: float

    def text(self) -> str:
        """The text form of XLA's `GpuTargetConfigProto`."""
        major, minor = self.capability
        extension = "ACCELERATED_FEATURES" if self.accelerated else "NONE"
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  shared_memory_per_block: 49152 shared_memory_per_core: {self.shared_bytes_per_core}
  shared_memory_per_block_optin: {self.shared_bytes_per_block}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  core_count: {self.cores} fpus_per_core: {self.fpus_per_core} clock_rate_ghz: {self.clock_ghz}
  memory_bandwidth: {self.memory_bytes_per_s} device_memory_size: {self.memory_bytes}
  l2_cache_size: {self.cache_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 9 patch: 0 }} device_description_str: "{self.description}"
"""


# Names are those of the profiles of clusters.
GPU_TARGETS: Mapping[str, GpuTarget] = {
    "a100": GpuTarget(
        "NVIDIA A100-SXM4-80GB", (8, 0), False, 108, 64, 167936, 166912, 85100068864,
        2039040000000, 41943040, 1.41,
    ),
    "b200": GpuTarget(
        "NVIDIA B200", (10, 0), True, 148, 128, 233472, 232448, 191514411008,
        7672320000000, 132644864, 1.965,
    ),
    "h100": GpuTarget(
        "NVIDIA H100 80GB HBM3", (9, 0), True, 132, 128, 233472, 232448, 84942979072,
        3352320000000, 52428800, 1.98,
    ),
    "h200": GpuTarget(
        "NVIDIA H200 141GB HBM3e", (9, 0), True, 132, 128, 233472, 232448, 151397597184,
        4800000000000, 52428800, 1.98,
    ),
}  # fmt: skip

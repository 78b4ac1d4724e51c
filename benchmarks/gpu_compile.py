# pyright: basic
"""Predicted beside compiled: the plan's program through XLA's GPU compiler, without a GPU.

    pip install --no-deps jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2
    python -m benchmarks gpu-compile [--quick]

Bytes are what each device sends (ring convention), memory is arguments + results + temporaries
less aliased buffers, per device. XLA combines collectives, so that counts are lower.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

from jax._src import xla_bridge
from jax.experimental import topologies

from costmodel import wire_fraction
from planner import Plan, plan
from planner.cli.target import load_target
from planner.emit.hlo import count_collectives

# (target, cluster, devices, mesh)
ROWS = (
    ("examples/gpt.py:gpt_1_3b_scanned", "8xh100", 8, (8,)),
    ("examples/gpt.py:gpt_1_3b_scanned", "8xh100", 8, (2, 4)),
    ("examples/llama.py:llama3_8b", "64xh100", 64, (8, 8)),
    ("examples/vit.py:vit_l_16", "8xh100", 8, (8,)),
)

# XLA's description of an H100 SXM, in the text form of its GpuTargetConfigProto.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 0 }
runtime_version { major: 12 minor: 9 patch: 0 } device_description_str: "NVIDIA H100 80GB HBM3"
"""


def name_the_platform() -> None:
    """Without a GPU client JAX does not know the platform name "gpu" while it lowers."""
    known = xla_bridge.canonicalize_platform

    def answer(platform: str) -> str:
        try:
            return known(platform)
        except RuntimeError:
            return "cuda"

    xla_bridge.canonicalize_platform = answer


def devices_of(count: int) -> list[Any]:
    """Devices of a described machine: hosts of eight."""
    hosts = max(1, count // 8)
    description = topologies.get_topology_desc(
        platform="cuda", target_config=H100, topology=f"1x{hosts}x{min(count, 8)}"
    )
    return description.devices


def compare(target: str, cluster: str, count: int, shape: tuple[int, ...]) -> dict[str, object]:
    """One row: a plan and what the compiler makes of it."""
    loaded = load_target(target)
    p = plan(loaded.fn, *loaded.args, cluster=cluster, mesh=shape, baselines=False,
             **loaded.settings)  # fmt: skip
    compiled = p.compile(devices=devices_of(count)).lower(*loaded.args).compile()
    sent: defaultdict[str, float] = defaultdict(float)
    for c in count_collectives(compiled.as_text(), devices=count):
        sent[c.kind] += c.count * c.bytes * wire_fraction(c.kind, c.group_size)  # type: ignore[arg-type]
    m = compiled.memory_analysis()
    total = m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes
    return {
        "target": target, "cluster": cluster, "mesh": str(p.mesh),
        "predicted_bytes": predicted(p), "compiled_bytes": dict(sent),
        "predicted_peak_bytes": p.peak_bytes,
        "compiled_peak_bytes": total - m.alias_size_in_bytes,
    }  # fmt: skip


def predicted(p: Plan) -> dict[str, float]:
    """Bytes on the wire per kind, as the plan says."""
    sent: defaultdict[str, float] = defaultdict(float)
    for c in p.collectives:
        sent[c.kind] += c.bytes
    return dict(sent)


def main(quick: bool) -> list[dict[str, object]]:
    """Prints the table."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    name_the_platform()
    print("| target | mesh | kind | predicted GB | compiled GB |\n|---|---|---|---|---|")
    rows: list[dict[str, object]] = []
    for target, cluster, count, shape in ROWS[: 1 if quick else None]:
        row = compare(target, cluster, count, shape)
        rows.append(row)
        said, found = row["predicted_bytes"], row["compiled_bytes"]
        assert isinstance(said, dict)
        assert isinstance(found, dict)
        label = f"| {target.rpartition(':')[2]} | {row['mesh']} "
        for kind in sorted({*said, *found}):
            a, b = said.get(kind, 0.0) / 1e9, found.get(kind, 0.0) / 1e9
            print(f"{label}| {kind} | {a:.4f} | {b:.4f} |", flush=True)
        peak = float(row["predicted_peak_bytes"]) / 1e9  # type: ignore[arg-type]
        real = float(row["compiled_peak_bytes"]) / 1e9  # type: ignore[arg-type]
        print(f"{label}| memory | {peak:.2f} | {real:.2f} |", flush=True)
    return rows

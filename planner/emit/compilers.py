# pyright: basic
"""Compiles a planned function for devices that need not be there, and reads what comes out."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies

from ir import IRError
from ir.jax_compilers import cpu_devices, platform_named, put_arguments

from .gpu_targets import GPU_TARGETS
from .jit import HOST_MEMORY, CompiledPlan

COMPILERS = ("host", "gpu-aot", "gpu")
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
# Some tall products have no tiling that XLA's Triton products accept; the GPU library takes them.
_NO_TILING = "Couldn't find output tile sizes"
_WITHOUT_TRITON = {"xla_gpu_enable_triton_gemm": False}


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler made of a program: its text and its memory per device [byte].

    notes: what had to be done to get it compiled.
    host_bytes: memory of the host, which is none of the others.
    """

    text: str
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    alias_bytes: int
    notes: tuple[str, ...] = ()
    host_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """All that is allocated: arguments, results that reuse none of them, temporaries."""
        results = self.output_bytes - self.alias_bytes
        return self.argument_bytes + results + self.temporary_bytes


def has_plugin() -> bool:
    """Whether XLA's GPU compiler is installed."""
    return any(importlib.util.find_spec(name) is not None for name in PLUGINS)


def gpus_present() -> int:
    """GPUs that JAX can use in this process."""
    return len(jax.devices()) if jax.default_backend() == "gpu" else 0


def devices_for(compiler: str, count: int, per_host: int, profile: str) -> Sequence[Any]:
    """Devices to compile for, in row-major order of hosts.

    Args:
        compiler: one of `COMPILERS`.
        count: how many.
        per_host: devices of one host, for descriptions of machines.
        profile: which GPU to describe, a key of `GPU_TARGETS`.

    Raises:
        IRError: if the compiler is not here, does not know the GPU, or has too few devices.
    """
    if compiler == "host":
        return cpu_devices(count)
    if compiler == "gpu":
        if gpus_present() < count:
            raise IRError(f"needs {count} GPUs, JAX has {gpus_present()}")
        return jax.devices()[:count]
    if profile not in GPU_TARGETS:
        known = ", ".join(sorted(GPU_TARGETS))
        raise IRError(f"XLA's description of '{profile or 'this device'}' is not known, only of "
                      f"{known}")  # fmt: skip
    if not has_plugin():
        raise IRError("XLA's GPU compiler is not installed")
    hosts = -(-count // per_host)
    try:
        described = topologies.get_topology_desc(
            platform="cuda", target_config=GPU_TARGETS[profile].text(),
            topology=f"1x{hosts}x{min(count, per_host)}",
        )  # fmt: skip
    except Exception as error:  # the plugin's own, of any kind
        raise IRError(f"XLA's GPU compiler is installed but does not start: {_short(error)}"
                      ) from error  # fmt: skip
    return described.devices[:count]


def _short(error: Exception) -> str:
    """The first line of what a compiler says."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


def compile_for_mesh(program: CompiledPlan) -> Compiled:
    """Compiles a planned function for the devices of its mesh; nothing is allocated or run.

    Raises:
        IRError: if the compiler gives up.
    """
    notes: tuple[str, ...] = ()
    with platform_named("cuda"):
        lowered = program.lower_as_planned()
        if program.host_arguments and not program.mesh.devices.flat[0].addressable_memories():
            put_arguments(lowered, program.host_arguments, HOST_MEMORY, program.overwritten)
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if _NO_TILING not in str(error):
                raise IRError(f"the compiler gives up: {_short(error)}") from error
            compiled = lowered.compile(compiler_options=_WITHOUT_TRITON)
            notes = ("compiled with the GPU library's products, as XLA has no tiling for one",)
    memory = compiled.memory_analysis()
    return Compiled(
        compiled.as_text(), memory.argument_size_in_bytes, memory.output_size_in_bytes,
        memory.temp_size_in_bytes, memory.alias_size_in_bytes, notes,
        memory.host_argument_size_in_bytes + memory.host_temp_size_in_bytes
        + memory.host_output_size_in_bytes - memory.host_alias_size_in_bytes,
    )  # fmt: skip

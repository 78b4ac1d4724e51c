"""All export formats."""

from __future__ import annotations

from collections.abc import Mapping

from .deepspeed import deepspeed
from .flexflow import flexflow
from .jax_module import jax_module
from .maxtext import maxtext
from .megatron import megatron
from .megatron_bridge import megatron_bridge
from .nnx import nnx_metadata
from .record import Format
from .scaling import scaling
from .schedule import schedule
from .shardings import shardings
from .stablehlo import stablehlo
from .torch_plan import torch_plan
from .torchtitan import torchtitan
from .traffic import traffic

_ALL = (
    Format("deepspeed", "DeepSpeed's ds_config.json", False, deepspeed),
    Format("flexflow", "FlexFlow's strategy file", False, flexflow),
    Format("jax", "a Python module to keep, which needs JAX alone", False, jax_module),
    Format("maxtext", "MaxText's settings (YAML)", False, maxtext),
    Format("megatron", "Megatron-LM's arguments (JSON)", False, megatron),
    Format("megatron-bridge", "overrides of Megatron-Bridge's recipes (YAML)", False,
           megatron_bridge),
    Format("nnx", "metadata of Flax NNX's variables (a Python module)", False, nnx_metadata),
    Format("scaling", "best step for each number of devices (JSON)", False, scaling),
    Format("schedule", "tasks of every device in order (JSON)", False, schedule),
    Format("shardings", "PartitionSpecs by path (JSON and a Python module)", False, shardings),
    Format("stablehlo", "StableHLO with Shardy, and jax.export's bytes", True, stablehlo),
    Format("torch", "DeviceMesh and DTensor placements (JSON and a loader)", False, torch_plan),
    Format("torchtitan", "torchtitan's settings (TOML)", False, torchtitan),
    Format("traffic", "bytes by link and phase (JSON)", False, traffic),
)  # fmt: skip

FORMATS: Mapping[str, Format] = {format_.name: format_ for format_ in _ALL}

"""Eight CPU devices for every test, set before anything imports JAX."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from importlib.metadata import version

import pytest
from hypothesis import settings

# Processes that tests interrupt must hear of it, also where the tests run in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
DEVICES_FLAG = "--xla_force_host_platform_device_count=8"
# LLVM would work for seconds on programs that then run for milliseconds.
QUICK_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
# Later versions know no other emitters.
OLDER_FLAG = " --xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else ""

# Processes that tests start read modules that are compiled already.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["JAX_ENABLE_X64"] = "0"
# What `meshwright profile` measured on this machine must not decide a test.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="meshwright-tests-")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Frames of Python in what XLA compiles: a fifth of the time that lowering takes, and no test reads
# them. Lines of the user's program, which plans do have, are kept when it is traced.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# What JAX and ten thousand tests keep is large and lives until the end: it is not searched again
# for garbage at each turn.
gc.set_threshold(20_000, 20, 20)
if "--xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    flags = os.environ.get("XLA_FLAGS", ""), DEVICES_FLAG, QUICK_FLAGS + OLDER_FLAG
    os.environ["XLA_FLAGS"] = " ".join(flags).strip()

# Compilation makes the first example slow, hence no deadline; the same examples in every run.
settings.register_profile("meshwright", deadline=None, derandomize=True)
settings.load_profile("meshwright")


def pytest_collection_finish() -> None:
    """Leaves what was imported and collected out of every search for garbage."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked `gpu` where JAX was not told to use one."""
    if os.environ["JAX_PLATFORMS"] != "cpu":
        return
    skip = pytest.mark.skip(reason="needs a GPU; run with JAX_PLATFORMS=cuda,cpu")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)

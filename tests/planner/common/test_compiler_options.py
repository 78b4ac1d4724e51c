"""Options of XLA's GPU compiler, in the names of every version of jaxlib."""

from __future__ import annotations

import pytest

from planner.common.compiler_options import RENAMED, compiler_options, options_here
from planner.inspect.export.loaders import jax_module

PLANNED = compiler_options(overlap=True, copies=True, rings=True, on_host=True)


def test_options_that_were_renamed_have_their_names_of_the_version() -> None:
    assert options_here(PLANNED, "0.10.2") == options_here(PLANNED, "0.11.0") == PLANNED
    for version in ("0.11.1", "0.12.0.1", "1.0.0rc1"):
        found = options_here(PLANNED, version)
        assert found["xla_gpu_pipeline_all_reduce"] == 2
        assert not RENAMED.keys() & found.keys()
        assert len(found) == len(PLANNED)
        assert options_here(found, version) == found
    off = options_here({"xla_gpu_enable_pipelined_all_gather": False}, "0.12.0")
    assert off == {"xla_gpu_pipeline_all_gather": 0}


def test_an_exported_module_names_them_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_module, "GPU_OPTIONS", PLANNED)
    for version in ("0.10.2", "0.11.0", "0.11.1", "0.12.0.1"):
        assert jax_module.gpu_options(version) == options_here(PLANNED, version)

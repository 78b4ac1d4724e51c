"""Reads a folder of Galvatron's profiles: one transformer layer, the rest of the model, the links.

Names are those of its profiler: `computation_profiling_*_all.json` (ms per sample by batch),
`memory_profiling_*_all.json` (MB), `allreduce_bandwidth_*.json` and `p2p_bandwidth_*.json` (MB/ms),
`sp_time_*.json` (ms by MB), `overlap_coefficient.json`, and the model's YAML.

Source: Miao et al., "Galvatron", VLDB 2023, and its released profiles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..graph import bad_profile, check_number
from .strict import load_json, mapping, whole

Line = tuple[float, float]
BySize = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Collective:
    """Milliseconds by MB, measured points and the line through them."""

    points: Mapping[float, float]
    line: Line

    def ms(self, megabytes: float) -> float:
        """Milliseconds of a message."""
        slope, start = self.line
        return self.points.get(megabytes, slope * megabytes + start)


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """A model of equal layers; its units are the profiler's: ms and MB.

    layer_ms, other_ms: forward of one layer and of everything else, a line over samples.
    parameter_mb: float32 weights of a layer.
    activation_mb: of a layer and sample by tensor- or sequence-parallel degree.
    checkpoint_mb: of a layer and sample that is recomputed.
    other_state_mb, other_activation_mb: of everything else by degree, for `off` (no pipeline),
        `first` and `last` stage.
    link_ms_per_mb: all-reduce by (devices, whether they are neighbours).
    p2p_ms_per_mb: by number of stages.
    gather, exchange: all-gather and all-to-all by devices.
    overlap: how much slower compute and communication are together.
    """

    name: str
    layers: int
    hidden: int
    sequence: int
    devices: int
    layer_ms: Line
    other_ms: Line
    parameter_mb: float
    activation_mb: BySize
    checkpoint_mb: float
    other_state_mb: Mapping[str, BySize]
    other_activation_mb: Mapping[str, BySize]
    link_ms_per_mb: Mapping[tuple[int, bool], float]
    p2p_ms_per_mb: BySize
    gather: Mapping[int, Collective]
    exchange: Mapping[int, Collective]
    overlap: float


def is_folder(path: Path) -> bool:
    """Whether a path is a folder with this profiler's files."""
    return path.is_dir() and any(path.glob("computation_profiling_*_all.json"))


def read(path: Path) -> LayerProfile:
    """The profile in a folder.

    Raises:
        PlanError: on a missing file or key, or a bad number.
    """
    model = _yaml(_only(path, "*.yaml"))
    times = _json(_only(path, "computation_profiling_*_all.json"))
    memory = _json(_only(path, "memory_profiling_*_all.json"))
    reduce_file = _only(path, "allreduce_bandwidth_*.json")
    sizes = {key: whole(path.name, key, model.get(key), least=1)
             for key in ("hidden_size", "num_layers")}  # fmt: skip
    links = _numbers(reduce_file.name, _json(reduce_file))
    devices = max(int(key.split("_")[2]) for key in links)
    layer = mapping(path.name, memory.get("layertype_0_sp"))
    sequence = max(int(key) for key in layer)
    cell = mapping(path.name, layer[str(sequence)],
                   required=("parameter_size", "tp_activation_per_bsz_dict"))  # fmt: skip
    kept = _numbers(path.name, mapping(path.name, cell["tp_activation_per_bsz_dict"],
                                       required=("1", "checkpoint")))  # fmt: skip
    others = {
        key: mapping(path.name, mapping(path.name, memory.get(f"other_memory_pp_{name}_sp"),
                                        required=(str(sequence),))[str(sequence)],
                     required=("model_states", "activation"))
        for key, name in (("off", "off"), ("first", "on_first"), ("last", "on_last"))
    }  # fmt: skip
    exchange = _json(_only(path, "sp_time_*.json"))
    overlap = mapping(path.name, _json(_only(path, "overlap_coefficient.json")),
                      required=("overlap_coe",))  # fmt: skip
    return LayerProfile(
        path.name, sizes["num_layers"], sizes["hidden_size"], sequence, devices,
        _line(path.name, times, "layertype_0", sequence),
        _line(path.name, times, "layertype_other", sequence),
        check_number(path.name, "parameter_size", cell["parameter_size"]),
        {int(k): v for k, v in kept.items() if k != "checkpoint"}, kept["checkpoint"],
        {key: _by_degree(path.name, found["model_states"]) for key, found in others.items()},
        {key: _by_degree(path.name, found["activation"]) for key, found in others.items()},
        _links(reduce_file.name, links, devices),
        {int(k.rsplit("_", 1)[1]): 1 / v for k, v in
         _numbers(path.name, _json(_only(path, "p2p_bandwidth_*.json"))).items()},
        _collectives(path.name, exchange, "allreduce", 0.5),
        _collectives(path.name, exchange, "all2all", 1.0),
        check_number(path.name, "overlap_coe", overlap["overlap_coe"]),
    )  # fmt: skip


def _only(path: Path, pattern: str) -> Path:
    found = sorted(path.glob(pattern))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise bad_profile(path.name, f"expected one file {pattern}, found {names}")
    return found[0]


def _json(path: Path) -> Mapping[str, Any]:
    return mapping(path.name, load_json(path.name, path.read_text("utf-8")))


def _yaml(path: Path) -> Mapping[str, Any]:
    try:
        return mapping(path.name, yaml.safe_load(path.read_text("utf-8")))
    except yaml.YAMLError as error:
        raise bad_profile(path.name, f"is not YAML: {error}") from error


def _numbers(where: str, found: Mapping[str, Any]) -> dict[str, float]:
    return {key: check_number(where, key, value) for key, value in found.items()}


def _by_degree(where: str, found: object) -> dict[int, float]:
    return {int(key): value for key, value in _numbers(where, mapping(where, found)).items()}


def fitted(points: Mapping[float, float]) -> Line:
    """Least-squares slope and start of a line."""
    slope, start = np.polyfit(list(points), list(points.values()), 1)
    return float(slope), float(start)


def _line(where: str, times: Mapping[str, Any], prefix: str, sequence: int) -> Line:
    form = re.compile(rf"{prefix}_bsz(\d+)_seq{sequence}")
    found = {
        float(m[1]): float(m[1]) * check_number(where, key, value)
        for key, value in times.items()
        if (m := form.fullmatch(key))
    }
    if len(found) < 2:
        raise bad_profile(where, f"has {len(found)} entries {prefix}_bsz*, expected at least 2")
    return fitted(found)


def _links(where: str, found: Mapping[str, float], devices: int) -> dict[tuple[int, bool], float]:
    form = re.compile(r"allreduce_size_(\d+)_consec_([01])")
    links = {(1, True): 0.0, (1, False): 0.0}
    for key, rate in found.items():
        match = form.fullmatch(key)
        if match is None or not rate:
            raise bad_profile(where, f"'{key}': {rate} is no rate of an all-reduce")
        links[int(match[1]), match[2] == "1"] = 1 / rate
    links.setdefault((devices, False), links[devices, True])
    return links


def _collectives(
    where: str, times: Mapping[str, Any], name: str, factor: float
) -> dict[int, Collective]:
    form = re.compile(rf"{name}_size_(\d+)_(\d+)MB_time")
    points: dict[int, dict[float, float]] = {}
    for key, value in times.items():
        if match := form.fullmatch(key):
            found = points.setdefault(int(match[1]), {})
            found[float(match[2])] = factor * check_number(where, key, value)
    return {size: Collective(found, fitted(found)) for size, found in points.items()}

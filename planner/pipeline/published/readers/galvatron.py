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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from costmodel import load_yaml

from ..graph import Edge, Layer, LayerGraph, Variant, bad_profile, check_number
from .strict import mapping, number_of, read_json, read_utf8, whole

MS, MIB = 1e-3, float(1 << 20)
BACKWARD_OVER_FORWARD = 2
# Float32 weights, gradients and two moments; gradients are exchanged as bfloat16.
STATE_OVER_WEIGHTS, SENT_OVER_WEIGHTS = 4, 0.5
# Gathers and scatters of a tensor-parallel layer, forward or backward.
EXCHANGES = 3
MOST_LAYERS = 512
_REDUCE = re.compile(r"allreduce_size_(\d{1,9})_consec_([01])")
Key = TypeVar("Key")
Value = TypeVar("Value")
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

    def link(self, devices: int, *, neighbours: bool) -> float:
        """Milliseconds of an all-reduce by MB."""
        return self.of(self.link_ms_per_mb, (devices, neighbours), "devices that are neighbours")

    def message_mb(self, samples: float) -> float:
        """Activations between two layers, in bfloat16."""
        return samples * self.sequence * self.hidden * 2 / 1024 / 1024

    def of(self, table: Mapping[Key, Value], key: Key, what: str) -> Value:
        """What was measured for a size.

        Raises:
            PlanError: if nothing was.
        """
        if key not in table:
            raise bad_profile(self.name, f"lacks what was measured for {what}: {key}")
        return table[key]


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
    if not links:
        raise bad_profile(reduce_file.name, "has no rates")
    devices = max(size for size, _ in map(partial(_group, reduce_file.name), links))
    layer = mapping(path.name, memory.get("layertype_0_sp"))
    sequence = max(_whole_keys(path.name, layer, "sequence length"))
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
        {number_of(path.name, k, "degree"): v for k, v in kept.items() if k != "checkpoint"},
        kept["checkpoint"],
        {key: _by_degree(path.name, found["model_states"]) for key, found in others.items()},
        {key: _by_degree(path.name, found["activation"]) for key, found in others.items()},
        _links(reduce_file.name, links, devices),
        _stages(_only(path, "p2p_bandwidth_*.json")),
        _collectives(path.name, exchange, "allreduce", 0.5),
        _collectives(path.name, exchange, "all2all", 1.0),
        _overlap(path.name, overlap["overlap_coe"]),
    )  # fmt: skip


def _overlap(where: str, value: object) -> float:
    found = check_number(where, "overlap_coe", value)
    if not found:
        raise bad_profile(where, "overlap_coe is 0, expected how much slower both are together")
    return found


def _only(path: Path, pattern: str) -> Path:
    found = sorted(path.glob(pattern))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise bad_profile(path.name, f"expected one file {pattern}, found {names}")
    return found[0]


def _json(path: Path) -> Mapping[str, Any]:
    return mapping(path.name, read_json(path))


def _yaml(path: Path) -> Mapping[str, Any]:
    text = read_utf8(path)
    try:
        found: object = load_yaml(text)
    except ValueError as error:
        raise bad_profile(path.name, f"is not YAML: {error}") from error
    return mapping(path.name, found)


def _whole_keys(where: str, found: Mapping[str, Any], what: str) -> list[int]:
    if not found:
        raise bad_profile(where, f"has no {what}")
    return [number_of(where, key, what) for key in found]


def _stages(path: Path) -> dict[int, float]:
    """Milliseconds by MB between stages, by their number."""
    found = _numbers(path.name, _json(path))
    if not all(found.values()):
        raise bad_profile(path.name, "has a rate of 0")
    return {
        number_of(path.name, key.rpartition("_")[2], "number of stages"): 1 / rate
        for key, rate in found.items()
    }


def _numbers(where: str, found: Mapping[str, Any]) -> dict[str, float]:
    return {key: check_number(where, key, value) for key, value in found.items()}


def _by_degree(where: str, found: object) -> dict[int, float]:
    numbers = _numbers(where, mapping(where, found))
    return {number_of(where, key, "degree"): value for key, value in numbers.items()}


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
    links = {(1, True): 0.0, (1, False): 0.0}
    for key, rate in found.items():
        if not rate:
            raise bad_profile(where, f"'{key}': {rate} is no rate of an all-reduce")
        links[_group(where, key)] = 1 / rate
    if (devices, True) not in links:
        raise bad_profile(where, f"has no rate of {devices} neighbours")
    links.setdefault((devices, False), links[devices, True])
    return links


def _group(where: str, key: str) -> tuple[int, bool]:
    """Devices of an all-reduce, and whether they are neighbours."""
    match = _REDUCE.fullmatch(key)
    if match is None:
        raise bad_profile(where, f"'{key}' is no all-reduce")
    return int(match[1]), match[2] == "1"


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


def layer_graph(profile: LayerProfile, *, microbatch: int) -> LayerGraph:
    """The model as a chain of equal layers between an embedding and a head.

    Args:
        profile: of a model.
        microbatch: samples on one replica.

    Raises:
        PlanError: if a tensor-parallel degree lacks its memory or its collectives, or the chain is
            longer than `MOST_LAYERS`.
    """
    if profile.layers > MOST_LAYERS:
        raise bad_profile(profile.name, f"has {profile.layers} layers, expected at most "
                          f"{MOST_LAYERS}")  # fmt: skip
    degrees = sorted(profile.activation_mb)
    if degrees[0] < 1:
        raise bad_profile(profile.name, f"has the tensor-parallel degree {degrees[0]}, below 1")
    layer = tuple((t, _layer_variants(profile, microbatch, t)) for t in degrees)
    ends = [
        Layer(name, tuple((t, (_end(profile, microbatch, t, key),)) for t in degrees))
        for name, key in (("embedding", "first"), ("head", "last"))
    ]
    body = [Layer(f"layer {v}", layer) for v in range(profile.layers)]
    sent = profile.message_mb(microbatch) * MIB
    edges = tuple(Edge(v, v + 1, sent) for v in range(profile.layers + 1))
    return LayerGraph(profile.name, "galvatron", microbatch, (ends[0], *body, ends[1]), edges)


def _layer_variants(profile: LayerProfile, samples: int, degree: int) -> tuple[Variant, Variant]:
    slope, start = profile.layer_ms
    compute = max(slope * samples / degree + start, 0.0) * MS
    exchange = _gather_s(profile, samples, degree) * EXCHANGES
    forward, backward = compute + exchange, compute * BACKWARD_OVER_FORWARD + exchange
    weights = profile.parameter_mb * MIB / degree
    sent, state = weights * SENT_OVER_WEIGHTS, weights * STATE_OVER_WEIGHTS
    kept = profile.activation_mb[degree] * samples * MIB
    less = min(profile.checkpoint_mb * samples * MIB / degree, kept)
    return (
        Variant("none", forward, backward, sent, kept, state),
        Variant("full", forward, forward + backward, sent, less, state + kept - less),
    )


def _end(profile: LayerProfile, samples: int, degree: int, key: str) -> Variant:
    """Half of everything that is not a layer."""
    slope, start = profile.other_ms
    compute = max(slope * samples / degree + start, 0.0) * MS / 2
    exchange = _gather_s(profile, samples, degree) / 2
    state = profile.of(profile.other_state_mb[key], degree, "a degree") * MIB
    kept = profile.of(profile.other_activation_mb[key], degree, "a degree") * samples * MIB
    sent = state / STATE_OVER_WEIGHTS * SENT_OVER_WEIGHTS
    backward = compute * BACKWARD_OVER_FORWARD + exchange
    return Variant("none", compute + exchange, backward, sent, kept, state)


def _gather_s(profile: LayerProfile, samples: int, degree: int) -> float:
    if degree == 1:
        return 0.0
    table = profile.of(profile.gather, degree, "devices")
    return max(table.ms(profile.message_mb(samples)), 0.0) * MS

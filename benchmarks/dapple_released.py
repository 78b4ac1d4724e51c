"""DAPPLE's table 4 under what its released planner computes, which is not its paper's formula.

The program (AlibabaPAI/DAPPLE, `src/parallelism`, `src/orchestration`) differs from section 4:

* Bandwidths are those of libraries and not of wires: an all-reduce between hosts has 3.0 GB/s, a
  transfer 1.0 GB/s of one TCP stream (25 Gb/s Ethernet); NVLink has 25 GB/s for a transfer and
  half as many times that as there are devices for an all-reduce. 10 Gb/s scales the first to 1.2.
* Plain data parallelism overlaps each layer's all-reduce with the backward pass of a micro-batch
  as large as a device's whole share; stages of pipelines only with the fill of those before them.
* A pipeline takes  (M - 1) b + T / M + sum of transfers + max over stages i of (AR_i - i b),  with
  b its slowest stage or round trip and T / M a micro-batch on a single device.

Two stages are tried with every cut and every share of the devices, and one device for each stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.pipeline.published import LayerGraph

NVLINK, TCP = 25e9, 1e9


@dataclass(frozen=True)
class Network:
    """Devices in hosts; bytes per second of an all-reduce between them."""

    devices: int
    per_host: int
    ring_bytes_per_s: float

    def reduce_s(self, ids: range, size: float) -> float:
        """Of an all-reduce."""
        n = len(ids)
        if n == 1:
            return 0.0
        inside = ids[0] // self.per_host == ids[-1] // self.per_host
        rate = NVLINK * (n // 2) if inside else self.ring_bytes_per_s
        return 2 * (n - 1) / n * size / rate

    def transfer_s(self, a: range, b: range, size: float) -> float:
        """From the devices of a stage to those of the next."""
        homes, target = [i // self.per_host for i in a], {i // self.per_host for i in b}
        if len(target) > 1:
            return size / (NVLINK if {*homes} | target == {homes[0]} else self.ring_bytes_per_s)
        far = sum(home not in target for home in homes)
        return size * far / len(homes) / TCP if far else size / NVLINK


@dataclass(frozen=True)
class Chain:
    """Layers in order: seconds and bytes of a micro-batch, bytes of weights, bytes over cuts."""

    seconds: Sequence[float]
    weights: Sequence[float]
    across: Sequence[float]


def chain_of(graph: LayerGraph) -> Chain:
    """The layers of a profile in a row."""
    layers = [layer.at(1)[0] for layer in graph.layers]
    across: list[float] = []
    for cut in range(1, len(layers)):
        sent: dict[int, float] = {}
        for edge in graph.edges:
            if edge.source < cut <= edge.target:
                sent[edge.source] = max(sent.get(edge.source, 0.0), edge.size_bytes)
        across.append(sum(sent.values()))
    return Chain([v.seconds for v in layers], [v.parameter_bytes for v in layers], across)


def data_parallel_s(chain: Chain, network: Network, microbatches: int) -> float:
    """One stage on all devices, each layer's all-reduce beside the backward pass."""
    every, clock, busy = range(network.devices), 0.0, 0.0
    share = microbatches / network.devices
    for seconds, weights in zip(reversed(chain.seconds), reversed(chain.weights), strict=True):
        clock += seconds * share / 2
        busy = max(busy, clock) + network.reduce_s(every, weights)
    return sum(chain.seconds) * share + max(busy - clock, 0.0)


def pipeline_s(
    chain: Chain, network: Network, microbatches: int, stages: Sequence[tuple[int, int, range]]
) -> float:
    """Stages of layers [a, b) on devices."""
    pace = max(sum(chain.seconds[a:b]) / len(ids) for a, b, ids in stages)
    moved = [
        network.transfer_s(one[2], two[2], chain.across[one[1] - 1])
        for one, two in pairwise(stages)
    ]
    pace = max([pace, *(2 * m for m in moved)])
    late = [
        network.reduce_s(ids, sum(chain.weights[a:b])) - i * pace
        for i, (a, b, ids) in enumerate(stages)
    ]
    return (microbatches - 1) * pace + sum(chain.seconds) + sum(moved) + max(0.0, *late)


def best(graph: LayerGraph, network: Network, batch: int) -> dict[str, float]:
    """Seconds of a step of data parallelism, of the best two stages, and of one device each."""
    chain, count, devices = chain_of(graph), batch // graph.batch, network.devices
    found = {"DP": data_parallel_s(chain, network, count)}
    layers = len(chain.seconds)
    for cut in range(1, layers):
        for first in range(1, devices):
            stages = [(0, cut, range(first)), (cut, layers, range(first, devices))]
            seconds, name = pipeline_s(chain, network, count, stages), f"{first}:{devices - first}"
            found[name] = min(found.get(name, seconds), seconds)
    if layers >= devices:
        found["straight"] = pipeline_s(chain, network, count, _straight(chain, network))
    return found


def _straight(chain: Chain, network: Network) -> list[tuple[int, int, range]]:
    """One device for each stage, the slowest of stages and round trips as fast as can be."""
    layers, inf = len(chain.seconds), float("inf")
    before = [sum(chain.seconds[:i]) for i in range(layers + 1)]
    pace, cut = [[0.0] + [inf] * layers], list[list[int]]()
    for k in range(network.devices):
        rows, at = [inf] * (layers + 1), [0] * (layers + 1)
        for j in range(k + 1, layers + 1):
            for i in range(k, j):
                trip = 0.0
                if i:
                    trip = 2 * network.transfer_s(
                        range(k - 1, k), range(k, k + 1), chain.across[i - 1]
                    )
                slowest = max(pace[-1][i], before[j] - before[i], trip)
                if slowest < rows[j]:
                    rows[j], at[j] = slowest, i
        pace.append(rows)
        cut.append(at)
    stages: list[tuple[int, int, range]] = []
    j = layers
    for k in reversed(range(network.devices)):
        stages.insert(0, (cut[k][j], j, range(k, k + 1)))
        j = cut[k][j]
    return stages

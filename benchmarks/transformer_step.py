"""Seconds and bytes of a transformer's training step from hand-written degrees of parallelism.

A formula-level estimate by the cost model alone; nothing of the planner runs here. Products are
priced by `ComputeModel`, collectives by `CollectiveModel`, overlap by `overlapped`; (interleaved)
1F1B is run by the schedule simulator. To choose between many degrees its closed form is enough:

    step = M * t_last + (sum of the other stages' t) / v + exposed gradient sums + optimizer

with M micro-batches, v chunks per stage and t the seconds of one micro-batch, forward and backward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from benchmarks.pipeline_run import cut, run_s
from benchmarks.two_streams import Transfer, overlapped
from costmodel import (
    Cluster,
    CollectiveModel,
    ComputeModel,
    Group,
    group_for,
)
from profiles import CollectiveKind

# Bytes of 16-bit traffic per token and hidden element of a layer's forward pass, from the list of
# its kernels: two norms (4 each), two residual sums (6 each); an activation reads and writes its
# width besides. Backward moves twice as much.
NORMS_AND_SUMS_BYTES: Final = 2 * 4 + 2 * 6
# Unfused attention: scores written, softmax read and written, dropout read and written with its
# mask, read by the second product.
SCORES_BYTES: Final = 2 + 4 + 5 + 2
# Flash attention's share of the peak, forward and backward together: FlashAttention-2 (Dao 2023)
# reports 335 of 989 TFLOP/s on H100 and about 200 of 312 on A100, and to be twice as fast as the
# first one.
FLASH_SHARE: Final = {"h100": 0.34, "a100": 0.64}
FIRST_FLASH: Final = 0.5
# Adam: 32-bit gradient read, parameter and two moments read and written, 16-bit copy written.
ADAM_BYTES: Final = 4 + 2 * 12 + 2
# 16-bit weight and gradient, 32-bit master weight and two moments.
STATE_BYTES: Final = (2, 2, 12)


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    gated: bool
    vocab: int
    seq: int

    @property
    def layer_parameters(self) -> float:
        """Weights of one layer."""
        attention = 2 * self.hidden**2 * (1 + self.kv_heads / self.heads)
        return attention + (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def parameters(self) -> float:
        """Weights, with a tied embedding."""
        return self.layers * self.layer_parameters + self.vocab * self.hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How a step is spread over devices.

    shard: what the data-parallel devices split: nothing, or as ZeRO 1, 2 or 3 names it.
    overlap: collectives of data parallelism run beside compute.
    chunks: of a pipeline stage (interleaving).
    async_tensor: tensor-parallel collectives run in pieces beside their products.
    recompute: nothing, the attention's scores, every second product, or the layer.
    flash: generation of flash attention; 0 for scores that reach memory.
    reduced: bytes of an element of a gradient on the wire.
    flat: gradients of a layer are joined into one buffer first, as PyTorch's FSDP does.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    chunks: int = 1
    micro_batch: int = 1
    shard: Literal["none", "zero1", "zero2", "zero3"] = "none"
    sequence: bool = False
    recompute: Literal["none", "selective", "alternate", "full"] = "none"
    dtype: str = "bfloat16"
    flash: int = 2
    overlap: bool = True
    async_tensor: bool = False
    reduced: int = 2
    flat: bool = False

    @property
    def devices(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a step takes: seconds, and bytes on the fullest device."""

    step_s: float
    peak_bytes: float


class Machine:
    """Prices of a cluster and the groups of the four degrees on it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.compute, self.collectives = ComputeModel(cluster), CollectiveModel(cluster)

    def group(self, d: Degrees, *names: str) -> Group:
        """Devices of a degree: the pipeline outermost, then data, context, tensor innermost."""
        sizes = (d.pipeline, d.data, d.context, d.tensor)
        order = ("pipeline", "data", "context", "tensor")
        return group_for(self.cluster, sizes, tuple(order.index(name) for name in names))

    def seconds(self, kind: CollectiveKind, group: Group, full_bytes: float) -> float:
        return self.collectives.seconds(kind, group, full_bytes)

    def gemm_s(self, m: float, n: float, k: float, dtype: str, batch: float = 1.0) -> float:
        return float(self.compute.gemm_s(batch, m, n, k, dtype))

    def memory_s(self, moved_bytes: float, kernels: int) -> float:
        return float(self.compute.memory_s(moved_bytes)) + kernels * self.compute.launch_s


@dataclass(frozen=True, slots=True)
class _Pass:
    """Seconds of one layer, or of the head: products and the rest, and tensor collectives."""

    compute_s: float
    tensor_s: float


def estimate(
    model: Model, d: Degrees, batch: int, cluster: Cluster, *, simulated: bool = False
) -> Estimate:
    """Seconds and bytes of one step.

    Args:
        model: of equal layers, which the pipeline divides.
        d: degrees whose product is the cluster's devices.
        batch: sequences of a step, over all devices.
        cluster: the machine.
        simulated: pipelines run by the simulator instead of the closed form.

    Raises:
        ValueError: if the degrees do not fit the cluster, the batch or the layers.
    """
    micro = batch / (d.data * d.micro_batch)
    cuts = d.pipeline * d.chunks
    if d.devices != cluster.num_devices or micro < 1 or 2 * model.layers < cuts:
        raise ValueError(f"{d} does not divide {cluster.num_devices} devices, {batch}, {model}")
    machine = Machine(cluster)
    forward, backward = _layer(model, d, machine)
    head = 3.0 * _head_s(model, d, machine)
    # Where the pipeline does not divide the layers they are cut between attention and perceptron,
    # and the longest stage sets the pace.
    halves = 1 if model.layers % cuts == 0 else 2
    per_stage = d.chunks * math.ceil(halves * model.layers / cuts) / halves
    layer_s = forward + backward
    if d.shard == "zero3" and d.data > 1:
        one = _sharded_pass(model, d, machine, per_stage, forward, backward)
    else:
        one = per_stage * layer_s
    sends = _send_s(model, d, machine)
    stage = one + sends
    last = stage + head
    pipeline_s = micro * last + (d.pipeline - 1) * stage / d.chunks
    if simulated and d.pipeline > 1 and (d.chunks == 1 or micro % d.pipeline == 0):
        shares = cut(halves * model.layers, cuts, halves * per_stage)
        send = sends / (2.0 * d.chunks)
        pipeline_s = run_s(
            d.pipeline, d.chunks, int(micro), shares, one, forward / layer_s, head, send
        )
    tail = _gradients_s(model, d, machine, per_stage, backward) + _optimizer_s(model, d, machine)
    return Estimate(pipeline_s + tail, memory_bytes(model, d, batch))


def _tokens(model: Model, d: Degrees) -> float:
    return d.micro_batch * model.seq / d.context


def _layer(model: Model, d: Degrees, machine: Machine) -> tuple[float, float]:
    """Seconds of forward and backward of one layer on one micro-batch, recomputation included."""
    t, tokens, h = d.tensor, _tokens(model, d), model.hidden
    qkv = h * (1 + 2 * model.kv_heads / model.heads) / t
    up = (2 if model.gated else 1) * model.ffn / t
    linear = sum(
        machine.gemm_s(tokens, n, k, d.dtype)
        for n, k in ((qkv, h), (h, h / t), (up, h), (h, model.ffn / t))
    )
    attention, attention_back = _attention_s(model, d, machine)
    own = NORMS_AND_SUMS_BYTES / (t if d.sequence else 1)
    moved = tokens * (own * h + 2 * (up + model.ffn / t))
    moved += tokens * 4 * 2 * (h + h + model.ffn) / t if "float8" in d.dtype else 0.0
    pointwise = machine.memory_s(moved, 6)
    # gradients of biases are sums over the tokens of what each product's backward reads
    biases = 0.0 if model.gated else machine.memory_s(2 * tokens * (qkv + h + up + h), 4)
    tensor = _tensor_s(model, d, machine)
    hidden = linear * (1 - 1 / t) if d.async_tensor and t > 1 else 0.0
    exposed = max(tensor - hidden, tensor / t if t > 1 else 0.0)
    forward = linear + attention + pointwise + exposed
    backward = (
        2.0 * (linear + pointwise) + biases + attention_back + max(tensor - 2 * hidden, tensor / t)
    )
    again = {
        "none": 0.0,
        "selective": 0.0 if d.flash else attention,
        "alternate": linear / 2.0 + pointwise,
        "full": forward,
    }
    return forward, backward + again[d.recompute]


def _attention_s(model: Model, d: Degrees, machine: Machine) -> tuple[float, float]:
    t, s = d.tensor, model.seq
    heads, size = model.heads / t, model.hidden / model.heads
    rows = s / d.context
    if d.flash:
        flops = 4.0 * d.micro_batch * heads * rows * s * size / 2.0
        share = FLASH_SHARE.get(machine.cluster.profile.partition("-")[0], FLASH_SHARE["a100"])
        share *= FIRST_FLASH if d.flash == 1 else 1.0
        forward = flops / (share * machine.compute.peak_flops("bfloat16", tensor=True))
        return forward, 2.5 * forward
    half = "bfloat16" if "float8" in d.dtype else d.dtype
    batch = d.micro_batch * heads
    products = machine.gemm_s(rows, s, size, half, batch) + machine.gemm_s(
        rows, size, s, half, batch
    )
    forward = products + machine.memory_s(batch * rows * s * SCORES_BYTES, 3)
    return forward, 2.0 * forward


def _tensor_s(model: Model, d: Degrees, machine: Machine) -> float:
    """Two all-reduces of the activations, or as many pairs of reduce-scatter and all-gather."""
    if d.tensor == 1:
        return 0.0
    group, size = machine.group(d, "tensor"), 2.0 * _tokens(model, d) * model.hidden
    if d.sequence:
        pair = machine.seconds("reduce-scatter", group, size) + machine.seconds(
            "all-gather", group, size
        )
        return 2.0 * pair
    return 2.0 * machine.seconds("all-reduce", group, size)


def _head_s(model: Model, d: Degrees, machine: Machine) -> float:
    """Logits and their loss, one pass; backward is two more."""
    tokens, words = _tokens(model, d), model.vocab / d.tensor
    half = "bfloat16" if "float8" in d.dtype else d.dtype
    return machine.gemm_s(tokens, words, model.hidden, half) + machine.memory_s(
        tokens * words * 8, 4
    )


def _sharded_pass(
    model: Model, d: Degrees, machine: Machine, count: float, forward: float, backward: float
) -> float:
    """A micro-batch of ZeRO-3: weights gathered before each layer, twice, gradients scattered."""
    group, size = machine.group(d, "data"), 2.0 * model.layer_parameters / d.tensor
    gather = machine.seconds("all-gather", group, size)
    scatter = machine.seconds("reduce-scatter", group, size * d.reduced / 2)
    layers = math.ceil(count)
    if d.flat:  # read and written by the join, and again by a widening
        backward += machine.memory_s(size * (2 + (1 + d.reduced / 2 if d.reduced > 2 else 0)), 2)
    works = [forward] * layers + [backward] * layers
    moves = [Transfer(gather, -1, i, early=1) for i in range(2 * layers)]
    moves += [Transfer(scatter, i, 2 * layers) for i in range(layers, 2 * layers)]
    return overlapped(works, moves, enabled=d.overlap).step_s


def _send_s(model: Model, d: Degrees, machine: Machine) -> float:
    """Activations to the next stage and gradients back, for each chunk; the last part waits."""
    if d.pipeline == 1:
        return 0.0
    size = 2.0 * _tokens(model, d) * model.hidden / (d.tensor if d.tensor > 1 else 1)
    return (
        2.0 * d.chunks * machine.seconds("collective-permute", machine.group(d, "pipeline"), size)
    )


def _gradients_s(
    model: Model, d: Degrees, machine: Machine, count: float, backward: float
) -> float:
    """What the gradients of data parallelism add after the last micro-batch."""
    if d.data * d.context == 1:
        return 0.0
    group = machine.group(d, "data", "context") if d.context > 1 else machine.group(d, "data")
    size = 2.0 * model.layer_parameters / d.tensor
    rest = 2.0 * model.vocab * model.hidden / d.tensor
    if d.shard == "zero3":
        one, last = 0.0, 2.0 * machine.seconds("all-gather", group, rest)
    elif d.shard == "none":
        one = machine.seconds("all-reduce", group, size)
        last = machine.seconds("all-reduce", group, rest)
    else:
        both = ("reduce-scatter", "all-gather")
        one = sum(machine.seconds(kind, group, size) for kind in both)
        last = sum(machine.seconds(kind, group, rest) for kind in both)
    layers = math.ceil(count)
    moves = [Transfer(one, i, layers) for i in range(layers)]
    found = overlapped([backward] * layers, moves, enabled=d.overlap)
    return found.exposed_s + last


def _optimizer_s(model: Model, d: Degrees, machine: Machine) -> float:
    own = model.parameters / (d.tensor * d.pipeline)
    split = d.data if d.shard != "none" else 1
    return machine.memory_s(own / split * ADAM_BYTES, 10)


def memory_bytes(model: Model, d: Degrees, batch: int) -> float:
    """Bytes on the fullest device: states as ZeRO splits them, and activations.

    Source: Rajbhandari et al., SC'20, section 5; Korthikanti et al., MLSys'23, section 4.
    """
    stage = model.layers / d.pipeline * model.layer_parameters + model.vocab * model.hidden
    if model.layers % d.pipeline:  # cut by weight, not by layers
        stage = max(model.parameters / d.pipeline, model.vocab * model.hidden)
    own = stage / d.tensor
    weight, gradient, rest = STATE_BYTES
    split = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}[d.shard]
    states = own * (
        weight / (d.data if split >= 3 else 1)
        + gradient / (d.data if split >= 3 else 1)
        + rest / (d.data if split >= 1 else 1)
    )
    micro = batch / (d.data * d.micro_batch)
    in_flight = min(d.pipeline, micro) * (1 + (d.pipeline - 1) / (d.pipeline * d.chunks)
                                          if d.chunks > 1 else 1.0)  # fmt: skip
    layers = model.layers / d.pipeline * in_flight
    # 16-bit logits and their 32-bit softmax
    logits = 6.0 * _tokens(model, d) * model.vocab / d.tensor
    one = activation_bytes(model, d)
    extra = activation_bytes(model, _with(d, recompute="none")) if d.recompute == "full" else 0.0
    return states + layers * one + extra + logits


def _with(d: Degrees, **changes: Any) -> Degrees:
    return Degrees(**{name: getattr(d, name) for name in Degrees.__slots__} | changes)


def activation_bytes(model: Model, d: Degrees) -> float:
    """Bytes that one layer keeps of one micro-batch until its backward.

    Whole: the inputs of both norms, of the query and of the first perceptron product, and two
    dropout masks. Split by t: queries, keys, values, the attention's result, and what the second
    perceptron product and its activation read. With f = 4h and without grouped keys this is
    s b h (10 + 24 / t + 5 a s / (h t)); sequence parallelism splits the whole part too, selective
    recomputation or flash attention drop the scores, full keeps the input. Models of the time of
    flash attention train without dropout.

    Source: Korthikanti et al., MLSys'23, section 4 and Table 2.
    """
    h, t, tokens = model.hidden, d.tensor, _tokens(model, d)
    whole = (8.0 + (0.0 if d.flash else 2.0)) * h
    if d.recompute == "full":
        return tokens * 2.0 * h / (t if d.sequence else 1)
    split = 2.0 * h * (2.0 + 2.0 * model.kv_heads / model.heads)
    split += (6.0 if model.gated else 4.0) * model.ffn
    if d.recompute == "alternate":
        whole, split = whole / 2.0, split / 2.0
    scores = 0.0 if d.flash or d.recompute == "selective" else 5.0 * model.heads * model.seq
    return tokens * (whole / (t if d.sequence else 1) + (split + scores) / t)

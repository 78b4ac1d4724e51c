"""Seconds, exchanged bytes and memory of an attention kernel, also split along the sequence.

A device of n has L queries. Under a causal mask the last one has the most to do, its diagonal
block and n - 1 whole ones, B_0 + (n - 1) B, which is (2 n - 1) / n of an even share; in the order
of zigzag every device has n times half a block. Chunks go into that order and results back for each
kernel, but where the program keeps the order from layer to layer (`ordered_parts`). Permutes are
beside the block of the round before,

    forward   B_0 | h, then n - 2 times  B | h, then B
    backward  B_0 | h, then n - 2 times  B | (h + g), then B | g, then g

where x | y is compute x with permutes y beside it, h passes keys and values on, and g their
gradients in float32, which go once all the way round. Keys and values are arrays of their own in
the program, but one permute for XLA, as all that goes in a round (`TOGETHER` in
`planner/common/compiler_options.py`). Blocks of keys whose outputs are merged (`merge`) take two
all-reduces, of the logarithms and of the outputs in float32. Columns of a bias are copied for each
block. Under a window of w keys there is one kernel of L + w - 1 queries and keys on each device,
after a permute of w - 1 keys, and backward one before the permute of their gradients.

Emission: `planner.emit.attention`.

Source: Liu et al., Ring Attention, arXiv:2310.01889, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from ir import (
    ATTENTION,
    HALO,
    MERGE,
    RING,
    ZIGZAG,
    FactorSpec,
    Node,
    Strategy,
    TensorType,
    attention_sizes,
    halo,
    has_bias_gradient,
    is_causal,
    ordered_parts,
)
from profiles import CollectiveKind

from .collectives import INTERFERENCE, CollectiveModel, wire_fraction
from .compute import ComputeModel, item_bytes
from .group import Group
from .reshard import ReshardModel

Floats = NDArray[np.float64]
_SUM: Final = 4.0  # bytes of an element of a sum over blocks
# Times that a kernel passes over its bias, of each example, without the bias's gradient and with
# it, when it writes that of each example and sums them: medians of 0.8 to 1.2 and of 5.1 to 8.0 on
# an H200, of biases that examples share (`attention_bias` in
# benchmarks/data/one_gpu_h200_kernels.csv). Others are priced by these too.
_BIAS_PASSES: Final = (1.0, 5.7)


@final
@dataclass(frozen=True, slots=True)
class Hops:
    """Prices of permutes between the devices of joint factors, one group per strategy.

    overlap: whether they run beside compute.
    each: groups along each joint factor alone.
    """

    model: CollectiveModel
    groups: tuple[Group | None, ...]
    overlap: bool
    each: tuple[tuple[str, tuple[Group | None, ...]], ...] = ()

    def along(self, factor: str) -> Hops:
        """The hops along one joint factor."""
        return Hops(self.model, dict(self.each)[factor], self.overlap)

    def seconds(
        self, nbytes: Floats, kinds: Sequence[CollectiveKind] = ("collective-permute",)
    ) -> Floats:
        """Seconds of an exchange of `nbytes` per device, by the dearest of some kinds.

        Permutes within a host run on copy engines, as the plan is compiled for.
        """
        found = np.zeros(len(self.groups))
        for group in {*self.groups} - {None}:
            assert group is not None
            at = np.array([g == group for g in self.groups])
            for kind in kinds:
                if kind == "collective-permute":
                    each = self.model.permute_s(group, nbytes[at])
                else:
                    each = self.model.seconds(kind, group, nbytes[at])
                found[at] = np.maximum(found[at], each)
        return found

    def exposed(self, hop_s: Floats, block_s: Floats) -> Floats:
        """Seconds that a block takes longer for the collectives beside it."""
        if not self.overlap:
            return hop_s
        return hop_s - np.minimum(hop_s, INTERFERENCE * block_s) / INTERFERENCE


def hops_of(
    spec: FactorSpec, menu: Sequence[Strategy], reshard: ReshardModel, *, overlap: bool
) -> Hops | None:
    """The hops of an op's strategies; None if it has no joint factors."""
    if not spec.joint:
        return None
    names, known = reshard.mesh.names, dict[tuple[str, ...], Group | None]()

    def groups(*factors: str) -> tuple[Group | None, ...]:
        found: list[Group | None] = []
        for strategy in menu:
            axes = joint_axes(spec, strategy, names, factors)
            if axes not in known:
                known[axes] = reshard.group(axes) if axes else None
            found.append(known[axes])
        return tuple(found)

    joint = tuple(name for name, _ in spec.joint)
    each = tuple((name, groups(name)) for name in joint)
    return Hops(reshard.collectives, groups(*joint), overlap, each)


def joint_axes(
    spec: FactorSpec, strategy: Strategy, names: Sequence[str], factors: Sequence[str] = ()
) -> tuple[str, ...]:
    """Mesh axes that split joint factors: all, or some of them."""
    joint = factors or tuple(name for name, _ in spec.joint)
    return tuple(a for a, role in zip(names, strategy.roles, strict=True) if role in joint)


@final
@dataclass(frozen=True, slots=True)
class Exchange:
    """Collectives of one kind in one run of an op, permutes mostly, one entry per strategy.

    sent_bytes: of a device, all of them together; seconds: of these.
    exposed_s: the part of `seconds` in which no block is computed, or one is slowed down.
    """

    count: Floats
    sent_bytes: Floats
    seconds: Floats
    exposed_s: Floats


def all_reduced(nbytes: Floats, does: NDArray[np.bool_], hops: Hops) -> Exchange:
    """An all-reduce inside an op of `nbytes` on each device, under the strategies that do it."""
    ways = [1 if group is None else group.size for group in hops.groups]
    share = np.array([wire_fraction("all-reduce", n) for n in ways])
    seconds = hops.seconds(nbytes, ("all-reduce",))
    return Exchange(does.astype(np.float64), nbytes * share, seconds, seconds)


@final
class AttentionWork:
    """An attention kernel on one device under each of some strategies.

    Args:
        node: the kernel, forward or backward.
        operands: types of its whole operands.
        ways: for every factor the number of parts, one entry per strategy.
    """

    def __init__(
        self, node: Node, operands: tuple[TensorType, ...], ways: Mapping[str, Floats]
    ) -> None:
        whole, attrs = attention_sizes(operands, dict(node.attrs)), dict(node.attrs)
        batch, groups, shared, t, ring, zigzag, window, merge, s = (
            np.asarray(ways.get(name, 1.0), dtype=np.float64)
            for name in ("b", "g", "r", "t", RING, ZIGZAG, HALO, MERGE, "s")
        )
        self.backward, self.causal = node.op == ATTENTION[1], is_causal(attrs)
        self.dtype, self.features = operands[0].dtype, whole.features
        self.item = float(item_bytes(self.dtype))
        self.of_query, self.of_value = operands[0].shape[-1], operands[2].shape[-1]
        self.key_heads = whole.batch * whole.key_heads / (batch * groups)
        self.heads = self.key_heads * whole.shared / shared
        self.n = t * ring * zigzag * window
        self.queries = whole.queries / self.n
        self.keys = whole.keys / self.n  # of a block
        self.merged, apart = merge > 1.0, merge * s
        self.unsplit_pairs, self.all_keys = whole.pairs / (self.n * apart), whole.keys / apart
        self.bias = np.zeros(())  # bytes of a device's rows
        self.bias_of_all = np.zeros(())  # once for each example, which may share it
        self.bias_gradient = self.backward and has_bias_gradient(attrs)
        if operands[3].rank == 4:
            heads = operands[3].shape[1] > 1
            parts = self.n * (batch if operands[3].shape[0] > 1 else 1.0)
            self.bias = operands[3].nbytes / (parts * (groups * shared if heads else 1.0))
            shares = operands[3].shape[0] == 1
            self.bias_of_all = self.bias * (whole.batch / batch if shares else 1.0)
        self.rings, self.zigzag = ring * zigzag > 1.0, zigzag > 1.0
        order = ordered_parts(attrs)
        self.turns = self.zigzag & (not order)  # chunks go to other devices and back
        self.mixed = zigzag < order  # several parts of the order are on a device
        self.blocked = self.rings | ((t > 1.0) & self.causal)
        self.windowed, self.before = window > 1.0, max(halo(attrs), 0)
        self.triangle = self.causal and not attrs.get("sliding_window_length")
        self.sizes = np.broadcast(batch, groups, shared, self.n, apart).shape

    def seconds(self, compute: ComputeModel) -> Floats:
        """Seconds of compute in one run."""
        alone = self._kernel_s(
            compute, self.unsplit_pairs, self.all_keys, triangle=self.triangle
        ) + self._mixing_s(compute)
        biased = compute.memory_s(_BIAS_PASSES[self.bias_gradient] * self.bias_of_all)
        if self.windowed.any():
            alone = np.where(self.windowed, self._window_s(compute), alone)
        if self.merged.any():
            moved = 4.0 * self.heads * self.queries * (self.of_value + 1.0) * _SUM
            adding = compute.memory_s(moved) + 2.0 * compute.launch_s
            alone = alone + np.where(self.merged, adding, 0.0)
        if not self.blocked.any():
            return alone + biased
        first, later = self.blocks_s(compute)
        columns = compute.memory_s(2.0 * self.bias) if np.any(self.bias) else 0.0
        each = first + (self.n - 1.0) * later + columns + self._mixing_s(compute)
        return np.where(self.blocked, each, alone) + biased

    def _mixing_s(self, compute: ComputeModel) -> Floats:
        """Seconds of putting a device's own sequences into the order of the kernel, and back."""
        if not self.mixed.any():
            return np.zeros(())
        copied = compute.memory_s(2.0 * sum(self._turned())) + 2.0 * compute.launch_s
        return np.where(self.mixed, copied, 0.0)

    def exchanges(
        self, compute: ComputeModel, hops: Hops
    ) -> tuple[tuple[CollectiveKind, Exchange], ...]:
        """Collectives of one run, by kind."""
        found: list[tuple[CollectiveKind, Exchange]] = []
        if (self.rings | self.windowed).any():
            found.append(("collective-permute", self.exchange(compute, hops)))
        if self.merged.any():
            found.extend(("all-reduce", each) for each in self._merging(hops))
        return tuple(found)

    def exposed_s(self, compute: ComputeModel, hops: Hops) -> Floats:
        """The part of all collectives of one run that waits."""
        each = (found.exposed_s for _, found in self.exchanges(compute, hops))
        return sum(each, np.zeros(self.sizes))

    def _merging(self, hops: Hops) -> tuple[Exchange, ...]:
        """All-reduces of logarithms, and of outputs with what they are divided by."""
        logarithms = self.heads * self.queries * _SUM
        return tuple(
            all_reduced(np.where(self.merged, nbytes, 0.0), self.merged, hops)
            for nbytes in (logarithms, logarithms * (self.of_value + 1.0))
        )

    def exchange(self, compute: ComputeModel, hops: Hops) -> Exchange:
        """Permutes of one run."""
        if self.windowed.any():
            return self._window_exchange(hops)
        first, later = self.blocks_s(compute)
        pair = self.key_heads * self.keys * (self.of_query + self.of_value)
        h_bytes, g_bytes = pair * self.item, pair * _SUM
        h, between = hops.seconds(h_bytes), np.maximum(self.n - 2.0, 0.0)
        count, sent, total = 2.0 * (self.n - 1.0), (self.n - 1.0) * h_bytes, (self.n - 1.0) * h
        exposed = hops.exposed(h, first)
        if self.backward:
            g = hops.seconds(g_bytes)
            exposed = exposed + between * hops.exposed(h + g, later) + hops.exposed(g, later) + g
            count, sent = count + 2.0 * self.n, sent + self.n * g_bytes
            total = total + self.n * g
        else:
            exposed = exposed + between * hops.exposed(h, later)
        turned, ends = self._turned(), self.turning_s(hops)
        count = count + np.where(self.turns, 2.0 * len(turned), 0.0)
        sent = sent + np.where(self.turns, sum(turned), 0.0)
        found = (count, sent, total + ends, exposed + ends)
        return Exchange(*(np.where(self.rings, x, 0.0) for x in found))

    def turning_s(self, hops: Hops) -> Floats:
        """Seconds of bringing chunks into the order of zigzag, and results back."""
        # chunks of a host go to many others
        kinds: tuple[CollectiveKind, ...] = ("collective-permute", "all-to-all")
        each = [hops.seconds(nbytes / 2.0, kinds) * 2.0 for nbytes in self._turned()]
        return np.where(self.turns, sum(each), 0.0)

    def scratch_bytes(self) -> Floats:
        """Bytes held beside operands and results: sums, blocks on their way, a bias's gradients."""
        q = self.heads * self.queries
        pair = self.key_heads * self.keys * (self.of_query + self.of_value)
        width = self.of_query if self.backward else self.of_value
        total = q * width * (_SUM + self.item) + np.where(self.rings, 2.0, 1.0) * pair * self.item
        if self.backward:
            total = total + pair * (self.item + np.where(self.rings, 2.0, 1.0) * _SUM)
        total = total + np.where(self.turns | self.mixed, sum(self._turned()), 0.0)
        length = self.queries + self.before
        padded = (
            (3.0 * width + self.of_value) * self.heads
            if self.backward
            else 2.0 * self.heads * width
        )
        keys = (2.0 if self.backward else 1.0) * self.key_heads * (self.of_query + self.of_value)
        window = length * (padded + keys) * self.item
        total = total + self.bias / self.n  # columns of a block
        merging = 4.0 * self.heads * self.queries * (self.of_value + 1.0) * _SUM
        alone = np.where(self.merged, merging, np.where(self.mixed, sum(self._turned()), 0.0))
        total = np.where(self.windowed, window, np.where(self.blocked, total, alone))
        if self.bias_gradient:  # of each example, before their sum
            total = total + self.bias_of_all
        return np.broadcast_to(total, self.sizes)

    def _window_s(self, compute: ComputeModel) -> Floats:
        """Seconds of the kernel that has the keys before a block too, and of what pads it."""
        length, width = self.queries + self.before, self.before + 1.0
        pairs = length * width - 0.5 * width * self.before
        queries = self.heads * length * self.of_query * (3.0 if self.backward else 1.0)
        copied = queries + self.key_heads * length * (self.of_query + self.of_value)
        padding = compute.memory_s(2.0 * copied * self.item) + compute.launch_s
        return self._kernel_s(compute, pairs, length) + padding

    def _window_exchange(self, hops: Hops) -> Exchange:
        sides = 2.0 if self.backward else 1.0
        pair = self.key_heads * self.before * (self.of_query + self.of_value) * self.item
        sent = np.where(self.windowed, pair, 0.0)
        seconds = sides * hops.seconds(sent)
        count = np.where(self.windowed, 2.0 * sides, 0.0)  # keys and values
        return Exchange(count, sides * sent, seconds, seconds)

    def _turned(self) -> list[Floats]:
        """Bytes of what goes into the order of zigzag and back."""
        q, k = self.heads * self.queries, self.key_heads * self.keys
        queries, values = q * self.of_query * self.item, q * self.of_value * self.item
        keys = [k * self.of_query * self.item, k * self.of_value * self.item]
        logarithms, bias = q * _SUM, [self.bias] if np.any(self.bias) else []
        if self.backward:
            return [queries, logarithms, values, values, *keys, queries, *keys, *bias]
        return [queries, *keys, values, logarithms, *bias]

    def blocks_s(self, compute: ComputeModel) -> tuple[Floats, Floats]:
        """Seconds of a device's own block, and of each other, with what it adds to the sums."""
        each = self.queries * self.keys
        half = 0.5 * (each + self.queries)  # on the diagonal, itself included
        own = half if self.causal else each
        rest = np.where(self.zigzag, 0.5 * each, each)
        moved = self.heads * self.queries * (self.of_query if self.backward else self.of_value)
        if self.backward:
            moved = moved + self.key_heads * self.keys * (self.of_query + self.of_value)
        # sums are read and written
        adding = compute.memory_s(moved * (2.0 * _SUM + self.item)) + compute.launch_s
        return (
            self._kernel_s(compute, own, self.keys, triangle=self.triangle),
            self._kernel_s(compute, rest, self.keys) + adding,
        )

    def _kernel_s(
        self, compute: ComputeModel, pairs: Floats, keys: Floats | int, *, triangle: bool = False
    ) -> Floats:
        """Seconds of a kernel, `triangle` where its queries see one key more each."""
        unequal: Floats | float = 0.0
        if triangle:  # query t sees keys up to t: the last of few queries does not see all
            last = np.minimum(self.queries * self.n, keys)
            unequal = np.maximum(last - pairs / np.maximum(self.queries, 1.0), 0.0)
        return compute.attention_s(
            self.heads, self.key_heads, pairs, keys, self.features, self.dtype,
            unequal=unequal, backward=self.backward,
        )  # fmt: skip

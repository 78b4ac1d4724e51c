"""Step times and memory of the schedules in closed form, for a shortlist before any simulation.

f, b, w: forward, input gradient and weight gradient of each stage (chunk) for one micro-batch;
t = f + b + w; c: transfer across each boundary, one way; p devices, M micro-batches. All estimates
take arrays whose last axis is the stage, so that many candidates are done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner import PlanError

Floats = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True)
class Pipe:
    """What a formula knows; arrays of shape [..., stages], transfers [..., stages - 1].

    overlap: transfers run beside compute.
    chunks: on each device, chunk c on device c mod p, or in a V for `zb-v`.
    pairs: of opposite pipelines.
    in_flight: most micro-batches on a device, None for what the schedule asks for.
    """

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats
    transfer_s: Floats
    microbatches: int
    overlap: bool = True
    chunks: int = 1
    pairs: int = 1
    in_flight: int | None = None

    @property
    def stages(self) -> int:
        """Entries of the last axis."""
        return self.forward_s.shape[-1]

    @property
    def devices(self) -> int:
        """How many hold them."""
        return self.stages // self.chunks


def pipe(
    forward_s: ArrayLike,
    input_gradient_s: ArrayLike,
    weight_gradient_s: ArrayLike = 0.0,
    *,
    microbatches: int,
    transfer_s: ArrayLike = 0.0,
    overlap: bool = True,
    chunks: int = 1,
    pairs: int = 1,
    in_flight: int | None = None,
) -> Pipe:
    """A `Pipe` from anything that broadcasts.

    Args:
        forward_s: [..., stages], in model order.
        input_gradient_s: the same; with `weight_gradient_s` left out, the whole backward.
        weight_gradient_s: the same.
        microbatches: in a step.
        transfer_s: of each boundary, one way.
        overlap: as in `Links`.
        chunks: see `Pipe`.
        pairs: see `Pipe`.
        in_flight: see `Pipe`.
    """
    f, b, w = np.broadcast_arrays(*(np.asarray(x, float) for x in
                                    (forward_s, input_gradient_s, weight_gradient_s)))  # fmt: skip
    c = np.broadcast_to(np.asarray(transfer_s, float), (*f.shape[:-1], f.shape[-1] - 1))
    return Pipe(f, b, w, c, microbatches, overlap, chunks, pairs, in_flight)


def estimate_s(name: str, given: Pipe) -> Floats:
    """Estimated step time [s], shape [...].

    Exact for stages of equal times without transfers, where the schedule's closed form holds; see
    each formula for what it leaves out.

    Raises:
        PlanError: for a schedule without a formula.
    """
    return _formula(name).step_s(given)


def in_flight(name: str, given: Pipe) -> Floats:
    """Activations held by each device, in micro-batches of all its chunks, shape [devices].

    Raises:
        PlanError: for a schedule without a formula.
    """
    held = _formula(name).held(given)
    return np.minimum(held, given.microbatches * np.ones(given.devices))


def formulas() -> tuple[str, ...]:
    """Schedules that have a formula."""
    return tuple(_FORMULAS)


def _one_way(x: Pipe) -> tuple[Floats, Floats, Floats]:
    """Forward and backward times of each stage, its own sends included if they hold it up."""
    f, b = x.forward_s, x.input_gradient_s + x.weight_gradient_s
    c = x.transfer_s
    if x.overlap:
        return f, b, c
    none = np.zeros((*c.shape[:-1], 1))
    return f + np.concatenate((c, none), -1), b + np.concatenate((none, c), -1), np.zeros_like(c)


def _most(values: Floats) -> Floats:
    return values.max(axis=-1, initial=0.0)


def _gpipe(x: Pipe) -> Floats:
    """Two flow shops: sum f + (M - 1) max(f, c) + sum b + (M - 1) max(b, c) + 2 sum c; exact.

    Source: Huang et al., GPipe, NeurIPS 2019; Johnson, flow shops of equal jobs.
    """
    f, b, c = _one_way(x)
    more = x.microbatches - 1
    slow = np.maximum(_most(f), _most(c)) + np.maximum(_most(b), _most(c))
    return f.sum(-1) + b.sum(-1) + 2 * c.sum(-1) + more * slow


def _warm_up(x: Pipe, ahead: int = 1) -> Floats:
    depth = ahead * np.arange(x.stages - 1, -1, -1.0) + 1
    return depth if x.in_flight is None else np.minimum(depth, x.in_flight)


def _one_f_one_b(x: Pipe, ahead: int = 1) -> Floats:
    """The round trip of one micro-batch + (M - 1) P, P the period of the steady state.

    Stage i starts with K_i forwards. A forward chain down from stage i to j and the backward chain
    up again takes sum of t from i to j + 2 sum of c between, and the order of the stages lets it
    begin once for each K_i - K_j + 1 micro-batches:

        P = max over i <= j of (sum of t from i to j + 2 sum of c) / (K_i - K_j + 1), and max c.

    Without transfers P = max t, as in Alpa; equal stages hide c up to (a - 1) t / 2 with
    K_i = a (p - 1 - i) + 1: up to 0 with policy A, up to t / 2 with policy B. P is exact for policy
    A; the whole is mostly a little above the simulated time (of 13,460 random unequal pipelines 31
    took up to 5.6 % longer).

    Source: Zheng et al., Alpa, OSDI 2022, section 5.1; Fan et al., DAPPLE, for the warm-up. The
        circuits are those of the max-plus theory of such orders (Baccelli et al., 1992).
    """
    f, b, c = _one_way(x)
    warm_up = _warm_up(x, ahead)
    trip = (f + b).sum(-1) + 2 * c.sum(-1)
    return trip + (x.microbatches - 1) * _period(f + b, c, warm_up)


def _period(t: Floats, c: Floats, warm_up: Floats) -> Floats:
    """P of the formula above."""
    stages = t.shape[-1]
    ahead = np.concatenate((np.zeros((*t.shape[:-1], 1)), np.cumsum(t, -1)), -1)
    sent = np.concatenate((np.zeros((*t.shape[:-1], 1)), 2 * np.cumsum(c, -1)), -1)
    period = _most(c)
    for i in range(stages):
        trips = ahead[..., i + 1 :] - ahead[..., i, None] + sent[..., i:] - sent[..., i, None]
        period = np.maximum(period, _most(trips / (warm_up[i] - warm_up[i:] + 1)))
    return period


def _interleaved(x: Pipe) -> Floats:
    """M P + sum over the other devices of their mean chunk and of 2c; P the period.

    P is the busiest device's chunks T, or the round trip of a micro-batch through all chunks over
    the p + (p - 1) / v that are under way. Equal chunks: M T + (p - 1) T / v, the bubble of 1F1B
    over v.

    Source: Narayanan et al., SC 2021, section 2.2.2.
    """
    f, b, c = _one_way(x)
    t = (f + b).reshape(*f.shape[:-1], x.chunks, x.devices)
    mean, whole = t.mean(-2), t.sum(-2)
    busiest = np.take_along_axis(mean, whole.argmax(-1)[..., None], -1)[..., 0]
    fill = mean.sum(-1) - busiest + 2 * c[..., : x.devices - 1].sum(-1)
    trip = (f + b).sum(-1) + 2 * c.sum(-1)
    held = x.devices + (x.devices - 1) / x.chunks
    return x.microbatches * np.maximum(_most(whole), trip / held) + fill


def _split(x: Pipe, late: int) -> Floats:
    """Idle time of the busiest stage s of a zero-bubble chain.

    sum over the other stages of f + b - late * w, not below what must be before and after.
    """
    f, w = x.forward_s, x.weight_gradient_s
    b = x.input_gradient_s
    at = (f + b + w).argmax(-1)[..., None]

    def others(values: Floats) -> Floats:
        return values.sum(-1) - np.take_along_axis(values, at, -1)[..., 0]

    return np.maximum(others(f + b - late * w) + 2 * x.transfer_s.sum(-1), others(f))


def _zero_bubble(x: Pipe, *, late: int) -> Floats:
    """M P + sum over other stages of (f + b - w), for ZB-H2 of (f + b - 2w).

    P is the slowest stage's t, or that of 1F1B for f, b and c if that is longer. Not below M P +
    sum of the others' f: the fill before and the drain after the busiest. For w <= b.

    Source: Qi et al., Zero bubble pipeline parallelism, ICLR 2024, section 2.
    """
    two = x.forward_s + x.input_gradient_s
    circuits = _period(two, x.transfer_s, _warm_up(x, late))
    period = np.maximum(_most(two + x.weight_gradient_s), circuits)
    return x.microbatches * period + _split(x, late)


def _zero_bubble_v(x: Pipe) -> Floats:
    """M T + (p - 2) max(b, w, 2(b - w), 2f - b) + max(f, b, 2(b - w), 2f - b - w) + 2 sum c.

    T is the busiest device's two chunks; f, b, w are means over chunks. For equal times the idle
    part is the fill, (p - 1) f, which the next step can use.

    Source: Qi et al., Zero bubble pipeline parallelism, ICLR 2024, section 6, for equal times; the
        rest was read off the simulator and is held against it in the tests.
    """
    f, b, w = x.forward_s, x.input_gradient_s, x.weight_gradient_s
    t = f + b + w
    whole = t[..., : x.devices] + t[..., : x.devices - 1 : -1]
    f, b, w = f.mean(-1), b.mean(-1), w.mean(-1)
    twice = 2 * (b - w)
    inner = np.maximum.reduce([b, w, twice, 2 * f - b])
    outer = np.maximum.reduce([f, b, twice, 2 * f - b - w])
    idle = max(x.devices - 2, 0) * inner + min(x.devices - 1, 1) * outer
    return x.microbatches * _most(whole) + idle + 2 * x.transfer_s.sum(-1)


def _chimera(x: Pipe) -> Floats:
    """N P + (D/q - 2) B + (N/D - 1)(D/q - 2)(B - F) + 2 sum c / q, for B >= F.

    F and B are mean forward and whole backward of a stage, N micro-batches, D devices, q pairs. P
    is half of what a device does for both directions, or the round trip over the D under way.

    Source: Li and Hoefler, Chimera, SC 2021, section 3 (equal times; N = D); the last term, the
        middle bubbles of each further unit of D micro-batches, was found on the simulator.
    """
    f, b, _ = _one_way(x)
    d, n = x.stages, x.microbatches
    gap = max(d / x.pairs - 2, 0)
    t = f + b
    busy = _most(t + t[..., ::-1]) / 2
    mean_f, mean_b = f.mean(-1), np.maximum(b.mean(-1), f.mean(-1))
    idle = gap * mean_b + max(n / d - 1, 0) * gap * (mean_b - mean_f)
    period = np.maximum(busy, (t.sum(-1) + 2 * x.transfer_s.sum(-1)) / d)
    return n * period + idle + 2 * x.transfer_s.sum(-1) / x.pairs


def _held_interleaved(x: Pipe) -> Floats:
    """Warm-up of each device, plus the one at work, in chunks."""
    p, v = x.devices, x.chunks
    ahead = 2 * (p - 1 - np.arange(p, dtype=float)) + (v - 1) * p + 1
    return ahead / v


def _held_chimera(x: Pipe) -> Floats:
    """Between D/2 + 1 on the outer devices and D on the middle ones."""
    d = np.arange(x.stages, dtype=float)
    return np.minimum(x.stages / 2 + 1 + np.minimum(d, x.stages - 1 - d), float(x.stages))


@final
@dataclass(frozen=True, slots=True)
class _Formula:
    step_s: Callable[[Pipe], Floats]
    held: Callable[[Pipe], Floats]


_FORMULAS: Mapping[str, _Formula] = MappingProxyType(
    {
        "1f1b": _Formula(_one_f_one_b, _warm_up),
        "1f1b-deep": _Formula(partial(_one_f_one_b, ahead=4), partial(_warm_up, ahead=4)),
        "1f1b-eager": _Formula(partial(_one_f_one_b, ahead=2), partial(_warm_up, ahead=2)),
        "1f1b-stashed": _Formula(_one_f_one_b, _warm_up),
        "chimera": _Formula(_chimera, _held_chimera),
        "gpipe": _Formula(_gpipe, lambda x: np.full(x.stages, float(x.microbatches))),
        "interleaved": _Formula(_interleaved, _held_interleaved),
        "zb-h1": _Formula(
            lambda x: _zero_bubble(x, late=1), lambda x: np.full(x.stages, float(x.stages))
        ),
        "zb-h2": _Formula(
            lambda x: _zero_bubble(x, late=2), lambda x: np.full(x.stages, 2.0 * x.stages - 1)
        ),
        "zb-v": _Formula(_zero_bubble_v, lambda x: np.full(x.devices, float(x.devices))),
    }
)


def _formula(name: str) -> _Formula:
    if name not in _FORMULAS:
        raise PlanError(
            f"'{name}' has no closed form", kind="bad-schedule", where="schedule",
            remedy=f"simulate it, or use one of {', '.join(_FORMULAS)}",
        )  # fmt: skip
    return _FORMULAS[name]

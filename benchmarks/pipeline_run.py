"""(Interleaved) 1F1B of a transformer on the schedule simulator."""

from __future__ import annotations

from collections.abc import Sequence

from planner.pipeline.schedule import Links, Simulator, StageCosts, build


def cut(parts: int, cuts: int, most: float) -> list[float]:
    """The parts that each cut has, as evenly as they go, as shares of a device's `most`."""
    base, more = divmod(parts, cuts)
    return [(base + (cut < more)) / most for cut in range(cuts)]


def run_s(
    stages: int,
    chunks: int,
    micro: int,
    shares: Sequence[float],
    one: float,
    ahead: float,
    head: float,
    send: float,
) -> float:
    """Seconds of 1F1B, interleaved if there are chunks, on the simulator.

    Args:
        stages: of the pipeline.
        chunks: of a stage.
        micro: micro-batches.
        shares: of every cut in the work of the fullest device.
        one: seconds of the fullest device on one micro-batch, forward and backward.
        ahead: share of the forward pass in it.
        head: seconds of logits and loss, forward and backward.
        send: seconds of a transfer; the sender waits for it.
    """
    if chunks > 1:
        schedule = build("interleaved", stages, micro, chunks=chunks)
    else:
        schedule = build("1f1b", stages, micro)
    extra = [0.0] * (len(shares) - 1) + [head]
    costs = StageCosts(
        forward_s=tuple(one * ahead * s + x / 3.0 for s, x in zip(shares, extra, strict=True)),
        input_gradient_s=tuple(
            one * (1.0 - ahead) * s + x * 2.0 / 3.0 for s, x in zip(shares, extra, strict=True)
        ),
        output_bytes=(1.0,) * len(shares),
    )
    links = Links(latency_s=send, overlap=False)
    return Simulator(schedule).step_s(costs, links)

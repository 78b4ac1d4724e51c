"""What to try next with a plan, from its own figures: no search, no price that it does not hold."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.stop import Stop, asked_text
from ..common.units_text import bytes_text, seconds_text, share_text
from ..files.plan_file import Pipeline, PlanFile
from ..files.program_plan import ProgramPlan

MUCH = 0.2  # share of the step from which on communication or waiting is spoken of
BUSY = 0.5  # share of the peak rate while it computes, above which the devices are called busy
FULL = 0.05  # share of the memory limit: with less left, memory limits the plan too
ROOM = 0.25  # share of the memory limit: with more left, a larger batch is likely to fit
TASK = "`meshwright plan TARGET"
HOST_LINK = "copies to and from the memory of the host"


@dataclass(frozen=True, slots=True)
class Use:
    """What a step does with the devices' arithmetic, as shares of the step.

    mfu: matrix products at the peak rate, without those that are computed again.
    hfu: the same with these.
    launches: starting kernels; 0 where that is no large part of compute.
    host_link: copies to and from the host that nothing hides.
    """

    mfu: float
    hfu: float
    launches: float = 0.0
    host_link: float = 0.0


def next_of_program(
    program: ProgramPlan,
    devices: int,
    *,
    first: tuple[str, float],
    layout: str,
    use: Use,
) -> str:
    """What would make the step shorter, as a sentence with a command.

    The step without a collective is that of this plan less the exposed seconds of the collective;
    other plans are not searched, and the command that does is named.

    Args:
        program: the plan.
        devices: number of devices.
        first: the largest part of the step beside compute, and its share.
        layout: well-known plans in which the axes of that collective split the program; empty for
            compute.
        use: what the step does with the devices' arithmetic.
    """
    step_s, (what, share) = program.step_s, first
    left = max(program.limit_bytes - program.peak_bytes, 0.0)
    room = _room(left, program.limit_bytes)
    gap = max(0.0, 1.0 - program.lower_bound_s / step_s)
    if program.stop == Stop.TIME_LIMIT.name:
        return (
            f"raise --time-limit: the search ended early, {share_text(gap)} above its lower bound"
        )
    if use.host_link >= MUCH:
        return (
            f"{HOST_LINK} are {use.host_link:.0%} of the step: each of more devices copies less "
            f"({TASK} -c ... --sweep devices={devices},{2 * devices}`), and copies of state and "
            f"parameters do not grow with the batch ({TASK} ... --sweep batch=...`)"
        )
    if is_full(left, program.limit_bytes):
        twice = bytes_text(2 * program.limit_bytes)
        return (
            "memory is nearly full, so a faster plan may not fit: `meshwright explain PLAN.JSON "
            f"--memory {twice.replace(' ', '')}` plans with twice the memory{_exposed(program)}"
        )
    again = _again(program, use, left)
    exposed = program.exposed_s / step_s
    if layout and exposed >= MUCH:
        less_s = step_s * (1.0 - share)
        return (
            f"{again}{what} is {share:.0%} of the step; without it a step takes "
            f"{seconds_text(less_s)}: {_against(layout, room)}"
        )
    return f"{again}{_computing(program, devices, use, room)}"


def _again(program: ProgramPlan, use: Use, left: float) -> str:
    """What the backward pass need not compute again, as the program asks for, if memory is free."""
    if use.hfu <= use.mfu or program.recomputed is not None or left <= ROOM * program.limit_bytes:
        return ""
    more = use.hfu / use.mfu - 1.0
    return (
        f"jax.checkpoint computes {more:.0%} of the flops of products again, though "
        f"{bytes_text(left)} of memory are left: {TASK} --recompute search` keeps what pays; "
    )


def is_full(memory_left: float, limit_bytes: float) -> bool:
    """Whether memory limits a plan too."""
    return memory_left < FULL * limit_bytes


def _room(memory_left: float, limit_bytes: float) -> str:
    """How much memory is left for more, where that is much."""
    much = memory_left > ROOM * limit_bytes
    return f" ({bytes_text(memory_left)} of memory are left for it)" if much else ""


def _exposed(program: ProgramPlan) -> str:
    exposed = program.exposed_s / program.step_s
    if exposed < MUCH:
        return ""
    return f"; {exposed:.0%} of the step is communication that waits"


def _against(layout: str, room: str) -> str:
    """What makes a collective of a layout smaller beside the rest."""
    if "data parallel" in layout:
        return (
            "collectives over axes that split the batch move mostly parameters and gradients, "
            f"whose bytes do not grow with it, so a larger batch helps{room} ({TASK} ... --sweep "
            "batch=...` prices it)"
        )
    return (
        "its bytes grow with the batch, so that faster links help, or fewer devices along it "
        "(`meshwright explain PLAN.JSON --bandwidth 2` and `--mesh` price these)"
    )


def _computing(program: ProgramPlan, devices: int, use: Use, room: str) -> str:
    """What to do about a step that is mostly compute."""
    if use.launches:
        return (
            f"starting kernels is {use.launches:.0%} of the step, which takes the same time for "
            f"shorter arrays: a larger batch{room} is almost free, more devices hardly help "
            f"({TASK} ... --sweep batch=...` prices it)"
        )
    share = program.compute_s / program.step_s
    rate = use.hfu / share if share else 0.0
    more = f"{TASK} -c ... --sweep devices={devices},{2 * devices}` prices twice the devices"
    if rate >= BUSY:
        return (
            f"compute runs at {share_text(rate)} of the devices' peak, so more devices help: {more}"
        )
    return (
        f"compute is {share:.0%} of the step at {share_text(rate)} of the devices' peak: a larger "
        f"batch{room} or wider layers make longer products (`meshwright explain PLAN.JSON` "
        f"shows where time goes); {more}"
    )


def next_of_stages(file: PlanFile, pipeline: Pipeline, *, full: bool) -> str:
    """The same for a plan in stages.

    Where nothing was asked for, the bound is of all numbers of stages and micro-batches, so that
    no other is advised: only another batch, or other devices.

    Args:
        file: the plan.
        pipeline: how its stages make a step.
        full: whether memory is nearly full.
    """
    if pipeline.stop == Stop.TIME_LIMIT.name:
        return "raise --time-limit: the search ended early"
    each = dict.fromkeys((stage.devices for stage in file.stages), 0.0)
    for stage in file.stages:
        each[stage.devices] += stage.step_s
    busy = [*each.values()]
    mean = sum(busy) / len(busy)
    even = f"spread evenly, without any waiting, it takes {seconds_text(_even_s(pipeline))}"
    if pipeline.bubble < MUCH:
        memory = " (memory is nearly full)" if full else ""
        devices = max(end for _, end in each)
        return (
            f"devices wait only {pipeline.bubble:.0%} of the step{memory}{_left(pipeline)}: {TASK} "
            f"-c ... --sweep devices={devices},{2 * devices}` prices twice the devices"
        )
    waits = f"devices wait {pipeline.bubble:.0%} of the step; {even}"
    if max(busy) > (1.0 + MUCH) * mean:
        waits = (
            f"stages are uneven, the busiest works {seconds_text(max(busy))} and the mean "
            f"{seconds_text(mean)} of a step of {seconds_text(pipeline.step_s)}; {even}"
        )
    if asked := asked_text(pipeline.warnings):
        return f"{waits}: leave out what was asked for ({asked}), and others are planned too"
    return (
        f"{waits}{_left(pipeline)}: a larger batch shortens the wait ({TASK} ... --sweep "
        "batch=...` prices it)"
    )


def _even_s(pipeline: Pipeline) -> float:
    """Seconds of a step whose work is spread evenly over all devices."""
    return pipeline.step_s * (1.0 - pipeline.bubble)


def _left(pipeline: Pipeline) -> str:
    """What other pipelines can be faster by, where a bound is known."""
    if not pipeline.lower_bound_s:
        return ""
    gap = max(0.0, 1.0 - pipeline.lower_bound_s / pipeline.step_s)
    return f"; other pipelines are at most {share_text(gap)} faster"

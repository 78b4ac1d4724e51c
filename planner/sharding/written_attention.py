"""Attention that a program writes out: run by the kernel of the devices where that pays.

The replaced program is planned as any other. Which of the two is planned is decided by the bound of
their steps: the sum of their operations, each split in its best way over all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from costmodel import Cluster, ComputeModel
from ir import Graph, IRError
from ir.attention_kernels import AttentionSite, WithKernels
from ir.trace import Traced, trace

from ..common.errors import PlanError
from ..common.options import Options
from ..common.request import Request
from ..files.program_plan import AttentionRow
from ..training.step_call import StepCall
from .cost.least_seconds import least_step_s
from .plan_traced import program_for

SHORT: Final = ("bfloat16", "float16")
SLOWER: Final = "the kernel is not faster at this size"


def largest_head(machine: Cluster) -> int:
    """Features of a head that the kernels of a device take: 256 since Hopper, which has float8."""
    return 256 if machine.device.peak("float8_e4m3fn") else 128


def with_kernels(
    fn: Any, step: Callable[[Any], StepCall], request: Request
) -> tuple[Any, tuple[AttentionRow, ...]]:
    """The function with the attention that it writes out run by kernels, or as it is.

    Args:
        fn: the function, or the loss of a training step.
        step: makes the step that is planned of either.
        request: machine and options.

    Returns:
        The function, and what was found in it.
    """
    options, machine = request.options, request.machine
    always = options.attention == "kernel"
    if options.attention == "written" or not (always or machine.attention):
        return fn, ()
    try:
        written = _traced(step(fn))
    except (IRError, PlanError):
        return fn, ()  # planning says what is wrong with it
    if not any(_short_exponentials(written.graph)):
        return fn, ()
    request.say("attention")
    wrapped = WithKernels(fn, largest_head(machine))
    try:
        replaced = _traced(step(wrapped))
    except (IRError, PlanError) as error:
        return fn, _rows(wrapped.sites, f"with the kernel the program is not traced: {error}")
    if all(site.why for site in wrapped.sites):
        return fn, _rows(wrapped.sites)
    if not always and _least_s(replaced, machine, options) >= _least_s(written, machine, options):
        return fn, _rows(wrapped.sites, SLOWER)
    return wrapped, _rows(wrapped.sites)


def as_attended(fn: Any, rows: tuple[AttentionRow, ...], machine: Cluster) -> Any:
    """The function as a plan with these rows runs it."""
    return WithKernels(fn, largest_head(machine)) if any(not row.why for row in rows) else fn


def _traced(call: StepCall) -> Traced:
    return trace(call.watched, *call.args)


def _rows(sites: tuple[AttentionSite, ...], why: str = "") -> tuple[AttentionRow, ...]:
    """Rows of what was found; `why` holds for what would be replaced."""
    return tuple(AttentionRow(s.line, s.what, s.why or why, *s.tolerance) for s in sites)


def _short_exponentials(graph: Graph) -> Iterator[bool]:
    """Whether bodies have both an exponential and a product of 16-bit numbers."""
    ops = {node.op for node in graph.nodes}
    if "exp" in ops:
        types = (
            graph.type_of(v)
            for node in graph.nodes
            if node.op == "dot_general"
            for v in node.inputs
        )
        yield any(each.dtype in SHORT for each in types)
    for node in graph.nodes:
        for body in node.bodies:
            yield from _short_exponentials(body)


def _least_s(traced: Traced, machine: Cluster, options: Options) -> float:
    facts = program_for(traced, replace(options, shardings="warn"), machine).facts
    return least_step_s(facts, ComputeModel(machine), machine.num_devices)

"""What a plan is, in a few figures: nearest known layout, speed, what limits it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from costmodel import Cluster, ComputeModel
from ir import ATTENTION, GROUPED, Graph, flops_of, lookup
from ir.analysis import operand_types

from ..common.units_text import dollars_text, seconds_text, share_text
from ..files.plan_file import Pipeline, PlanFile
from ..files.program_plan import BaselineRow, ProgramPlan
from .accuracy import accuracy_text
from .analysed_plan import AnalysedPlan
from .what_next import is_full, next_of_program, next_of_stages

# Share of the bytes of a role that an axis splits, from which on the axis counts as splitting it:
# norms and biases often stay whole.
MOST = 0.5
COMPUTE = "compute"
MOST_PARTS = 3  # of a step that are named
CENT = 0.01  # dollars


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """The first lines of a plan's page.

    layout: what each group of mesh axes does, in the words of well-known plans.
    other: name of the fastest hand-written plan that fits, empty if none was priced.
    times_as_fast: its seconds over the seconds of this plan; 0 if there is none.
    peak_share: matrix products at the devices' peak rate, as a share of the step of all devices.
    examples_per_s: size of the batch over the step; 0 if no argument is a batch.
    tokens_per_s: the same of batch times sequence; 0 if no batch argument has a sequence of ids.
    limits: what the step consists of, most first: (text, share of the step).
    memory_left: bytes that the limit leaves on each device.
    limited_by: what takes most of the step, with its share, and whether memory is nearly full.
    dollars, kwh: price and energy of a step on all devices; None where the cluster names none.
    accuracy: how far predictions for this device were off, as a sentence.
    recomputes: whether products of `peak_share` include some that are computed again.
    what_next: what would make the step shorter, and the command that prices it.
    """

    step_s: float
    layout: str
    other: str
    times_as_fast: float
    peak_share: float
    examples_per_s: float
    tokens_per_s: float
    limits: tuple[tuple[str, float], ...]
    memory_left: float
    limited_by: str
    dollars: float | None
    kwh: float | None
    accuracy: str
    recomputes: bool
    what_next: str

    def sentence(self) -> str:
        """What the plan is, how good, and what limits it."""
        said = [f"{seconds_text(self.step_s)} a step", self.layout]
        if self.other:
            said.append(
                f"{self.compared()} as {self.other}, the fastest hand-written plan that fits"
            )
        said.append(f"limited by {self.limited_by}" if self.limited_by else "")
        return ", ".join(filter(None, said))

    def compared(self) -> str:
        """The step against that of the fastest hand-written plan."""
        return f"{self.times_as_fast:.2f} times as fast" if self.other else ""

    def lines(self) -> list[str]:
        """For the terminal."""
        rows = {
            "in short": [self.sentence()], "speed": self.rates(), "cost": self.costs(),
            "consists of": self.parts(), "how sure": [self.accuracy],
            "what next": [self.what_next] if self.what_next else [],
        }  # fmt: skip
        return [f"  {name:<12} {', '.join(texts)}" for name, texts in rows.items() if texts]

    def costs(self) -> list[str]:
        """Price and energy of a step on all devices, where prices are given."""
        found: list[str] = []
        if self.dollars is not None:
            small = self.dollars < CENT
            more = f" ({dollars_text(1000 * self.dollars)} for 1,000 steps)" if small else ""
            found.append(f"{dollars_text(self.dollars)} a step{more}")
        if self.kwh is not None:
            found.append(f"{self.kwh:.3g} kWh a step")
        return found

    def rates(self) -> list[str]:
        """Examples, tokens, and the use of the devices' arithmetic."""
        counted = ((self.examples_per_s, "examples"), (self.tokens_per_s, "tokens"))
        found = [f"{rate:,.{0 if rate >= 100 else 1}f} {unit}/s" for rate, unit in counted if rate]
        if self.peak_share:
            name, again = ("HFU", ", those computed again too,") if self.recomputes else ("MFU", "")
            found.append(
                f"{name} {share_text(self.peak_share)} (matrix products{again} at the devices' "
                "peak rate)"
            )
        return found

    def parts(self) -> list[str]:
        """What takes most of the step."""
        return [f"{text} {share:.0%}" for text, share in self.limits[:MOST_PARTS]]

    def record(self) -> dict[str, Any]:
        """For `--json`."""
        limits = [list(part) for part in self.limits]
        return asdict(self) | {"limits": limits, "sentence": self.sentence()}


def at_a_glance(analysed: AnalysedPlan) -> Glance:
    """The glance of the plan of one program.

    Args:
        analysed: the plan with its graph and decisions.
    """
    program = analysed.program
    examples, tokens = _batch(analysed)
    other, seconds = _fastest(program.baselines)
    step, limits = program.step_s, _limits(program)
    left = max(program.limit_bytes - program.peak_bytes, 0.0)
    dollars, kwh = _costs(analysed.cluster, step)
    peak_share = _at_peak_s(analysed) / analysed.cluster.num_devices / step if step else 0.0
    return Glance(
        step_s=step,
        layout=_layout(analysed),
        other=other,
        times_as_fast=seconds / step if other and step else 0.0,
        peak_share=peak_share,
        examples_per_s=examples / step if step else 0.0,
        tokens_per_s=tokens / step if step else 0.0,
        limits=limits,
        memory_left=left,
        limited_by=_limited_by(limits, left, program.limit_bytes),
        dollars=dollars,
        kwh=kwh,
        accuracy=accuracy_text(analysed.cluster, step),
        recomputes=_recomputes(analysed.graph),
        what_next=_what_next(analysed, limits, peak_share, left) if step else "",
    )


def glance_of_stages(
    file: PlanFile, pipeline: Pipeline, programs: Sequence[AnalysedPlan]
) -> Glance:
    """The glance of a plan in stages.

    Args:
        file: the plan.
        pipeline: how its stages make a step.
        programs: each of `file.programs` with its graph and decisions.
    """
    cluster, step = Cluster.from_dict(pipeline.cluster), pipeline.step_s
    other, seconds = _fastest(pipeline.baselines)
    left = max(pipeline.limit_bytes - file.peak_bytes, 0.0)
    limits = (("waiting for other stages", pipeline.bubble),)
    dollars, kwh = _costs(cluster, step)
    slowest = max(range(len(file.stages)), key=lambda s: file.stages[s].step_s)
    stages = [programs[stage.program] for stage in file.stages]
    at_peak_s = sum(_at_peak_s(stage) for stage in stages) / cluster.num_devices
    parts = [_batch(stage) for stage in stages]  # of a micro-batch
    examples, tokens = (pipeline.microbatches * max(counts) for counts in zip(*parts, strict=True))
    return Glance(
        step_s=step,
        layout=f"a pipeline of {len(file.stages)} stages with {pipeline.microbatches} "
        f"micro-batches, schedule {pipeline.schedule}",
        other=other,
        times_as_fast=seconds / step if other and step else 0.0,
        peak_share=at_peak_s / step if step else 0.0,
        examples_per_s=examples / step if step else 0.0,
        tokens_per_s=tokens / step if step else 0.0,
        limits=limits,
        memory_left=left,
        limited_by=f"stage {slowest}, which is busiest{_nearly_full(left, pipeline.limit_bytes)}",
        dollars=dollars,
        kwh=kwh,
        accuracy=accuracy_text(cluster, step),
        recomputes=any(_recomputes(stage.graph) for stage in stages),
        what_next=next_of_stages(file, pipeline, full=is_full(left, pipeline.limit_bytes)),
    )


def _costs(cluster: Cluster, step_s: float) -> tuple[float | None, float | None]:
    """Dollars and kilowatt hours of a step of all devices, each None where no price is given."""
    prices, device_hours = cluster.prices, cluster.num_devices * step_s / 3600
    if prices is None:
        return None, None
    rate, watts = prices.dollars_per_device_hour, prices.watts_per_device
    dollars = None if rate is None else rate * device_hours
    return dollars, None if watts is None else watts * device_hours / 1000


def _limited_by(
    limits: tuple[tuple[str, float], ...], memory_left: float, limit_bytes: float
) -> str:
    """What takes most of the step, and memory where hardly any is left."""
    if not limits:
        return ""
    text, share = limits[0]
    return f"{text} ({share:.0%} of the step){_nearly_full(memory_left, limit_bytes)}"


def _nearly_full(memory_left: float, limit_bytes: float) -> str:
    return " with memory nearly full" if is_full(memory_left, limit_bytes) else ""


def _what_next(
    analysed: AnalysedPlan,
    limits: tuple[tuple[str, float], ...],
    peak_share: float,
    memory_left: float,
) -> str:
    """Advice about the largest part of the step beside compute, or about compute."""
    program = analysed.program
    moved = [part for part in limits if part[0] != COMPUTE]
    first = moved[0] if moved else (COMPUTE, 1.0)
    names = set(first[0].rpartition(" over ")[2].split("*")) if moved else set[str]()
    layouts = [
        _known(analysed, position, axis)
        for position, (axis, size) in enumerate(analysed.decisions.mesh.axes)
        if size > 1 and axis in names
    ]
    return next_of_program(
        program, analysed.cluster.num_devices, first=first, layout=", ".join(layouts),
        peak_share=peak_share, memory_left=memory_left,
    )  # fmt: skip


def _fastest(baselines: dict[str, BaselineRow]) -> tuple[str, float]:
    fitting = [(row.step_s, name) for name, row in baselines.items() if row.fits]
    seconds, name = min(fitting, default=(0.0, ""))
    return name, seconds


def _limits(program: ProgramPlan) -> tuple[tuple[str, float], ...]:
    """Compute, and exposed collectives by kind and axes, as shares of the step."""
    spent: dict[str, float] = defaultdict(float)
    spent[COMPUTE] = program.compute_s
    for row in program.collectives:
        spent[f"{row.kind} over {'*'.join(row.axes)}"] += row.exposed_s
    order = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    return tuple((text, s / program.step_s) for text, s in order if program.step_s and s)


def _products(analysed: AnalysedPlan) -> list[tuple[int, float]]:
    """Matrix products, also those inside kernels: flat number and flops of all rounds of each."""
    flat = analysed.flat
    return [
        (i, op.weight * flops_of(lookup(op.node.op), op.node, operand_types(flat, op)))
        for i, op in enumerate(flat.ops)
        if op.node.op in ("dot_general", "conv_general_dilated", GROUPED, *ATTENTION)
    ]


def _at_peak_s(analysed: AnalysedPlan) -> float:
    """Seconds of all matrix products at the peak rate of one device."""
    flat, compute = analysed.flat, ComputeModel(analysed.cluster)
    total = 0.0
    for i, flops in _products(analysed):
        dtype = operand_types(flat, flat.ops[i])[0].dtype
        total += flops / compute.peak_flops(dtype, tensor=True)
    return total


def _recomputes(graph: Graph) -> bool:
    """Whether a program has regions of `jax.checkpoint`, which a backward pass computes again."""
    return any(node.op == "remat" or any(map(_recomputes, node.bodies)) for node in graph.nodes)


def _batch(analysed: AnalysedPlan) -> tuple[int, int]:
    """Examples of a step, and tokens, where an argument [batch, sequence] of whole numbers is."""
    types = [item.type for item in analysed.graph.inputs if item.role == "batch"]
    ids = [t for t in types if len(t.shape) == 2 and t.dtype.startswith(("int", "uint"))]
    examples = max((t.shape[0] for t in types if t.shape), default=0)
    return examples, max((math.prod(t.shape) for t in ids), default=0)


def _layout(analysed: AnalysedPlan) -> str:
    """What the mesh axes split, in the words of well-known plans."""
    mesh = analysed.decisions.mesh
    groups: dict[str, list[str]] = defaultdict(list)
    for position, (axis, size) in enumerate(mesh.axes):
        if size > 1:
            groups[_known(analysed, position, axis)].append(axis)
    return "; ".join(
        f"{name} over {mesh.product(tuple(axes))} devices ({'*'.join(axes)})"
        for name, axes in groups.items()
    )


def _known(analysed: AnalysedPlan, position: int, axis: str) -> str:
    """The well-known plan in which an axis splits what this one splits."""
    split = _most_split(analysed, position)
    stored = {role: _stores(analysed, axis, role) for role in ("parameter", "optimizer-state")}
    if split == "batch":
        if stored["parameter"]:
            return "fully sharded data parallel"
        return "ZeRO data parallel" if stored["optimizer-state"] else "data parallel"
    names = {"sequence": "sequence parallel", "experts": "expert parallel", "": "mostly unsplit"}
    return names.get(split, "tensor parallel")


def _most_split(analysed: AnalysedPlan, position: int) -> str:
    """The kind of dimension that one mesh axis splits in most of the flops of products.

    Returns:
        batch, sequence, experts, `other`, or nothing if most are not split.
    """
    flat, kinds = analysed.flat, analysed.kinds
    spent: dict[str, float] = defaultdict(float)
    for i, flops in _products(analysed):
        factor = analysed.decisions.ops[flat.ops[i].place][position]
        spent[(kinds.of_factor(i, factor) or "other") if factor else ""] += flops
    return max(spent, key=lambda kind: (spent[kind], kind), default="")


def _stores(analysed: AnalysedPlan, axis: str, role: str) -> bool:
    """Whether an axis splits most of the bytes of the arguments of a role."""
    pairs = zip(analysed.graph.inputs, analysed.decisions.inputs, strict=True)
    rows = [(s, float(item.type.nbytes)) for item, s in pairs if item.role == role]
    total = sum(nbytes for _, nbytes in rows)
    return total > 0.0 and sum(b for s, b in rows if axis in s.axes) >= MOST * total

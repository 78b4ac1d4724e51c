"""What a plan is, in a few figures: nearest known layout, speed, what limits it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from costmodel import Cluster, ComputeModel
from costmodel.compiler import analyse

from ..common.stop import PROVED, Stop, covered_text, pipelines_text
from ..common.units_text import dollars_text, seconds_text, share_text
from ..files.plan_file import ONE_PROGRAM, Pipeline, PlanFile
from ..files.program_plan import BaselineRow, ProgramPlan
from .accuracy import accuracy_text
from .analysed_plan import AnalysedPlan
from .copies import copies_text
from .experts import experts_text, imbalance_text
from .layout import layout_of_axes, layout_text
from .products import at_peak_s, computed_again
from .rates import examples_of, tokens_of
from .what_next import HOST_LINK, Use, is_full, next_of_program, next_of_stages

COMPUTE, LAUNCHES = "compute", "starting kernels"
INSIDE, WAITING = "collectives inside stages", "waiting for other stages"
# Share of compute that launches of kernels take, from which on these are named in its place.
MOSTLY = 0.5
MOST_PARTS = 3  # of a step that are named
DATA = ("data-parallel", "zero-1", "zero-2", "fsdp")  # split the batch over all devices
OTHERS = "; their steps are products mostly, and this one's are launches, so this says little"
CENT = 0.01  # dollars
ENDED = (Stop.TIME_LIMIT.name, Stop.INTERRUPTED.name)
# What a lower bound is of.
ALL = "plan of the search space"
PART_SEEN = "plan that was looked at before the search ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """The first lines of a plan's page.

    layout: what each group of mesh axes does, in the words of well-known plans.
    other: name of the fastest hand-written plan that fits, empty if none was priced.
    times_as_fast: its seconds over the seconds of this plan; 0 if there is none.
    bounded: how far the step is above the lower bound, in words; empty if no bound is known.
    mfu: matrix products at the devices' peak rate, as a share of the step of all devices, without
        those that the backward pass computes again.
    hfu: the same with these.
    examples_per_s: size of the batch over the step; 0 if no argument is a batch.
    tokens_per_s: the same of batch times sequence; 0 if no batch argument has a sequence of ids.
    limits: what the step consists of, most first: (text, share of the step).
    memory_left: bytes that the limit leaves on each device.
    limited_by: what takes most of the step, with its share, and whether memory is nearly full.
    dollars, kwh: price and energy of a step on all devices; None where the cluster names none.
    accuracy: how far predictions for this device were off, as a sentence.
    what_next: what would make the step shorter, and the command that prices it.
    left_out: well-known plans that were not priced, and why; empty if there are none.
    imbalance: what prices assume of experts that are not equally busy; empty if nothing.
    experts: what their products are split by, what that takes, and what other ways take.
    copies: parameters that several stages hold; empty if there are none.
    """

    step_s: float
    layout: str
    other: str
    times_as_fast: float
    bounded: str
    mfu: float
    hfu: float
    examples_per_s: float
    tokens_per_s: float
    limits: tuple[tuple[str, float], ...]
    memory_left: float
    limited_by: str
    dollars: float | None
    kwh: float | None
    accuracy: str
    what_next: str
    left_out: str = ""
    imbalance: str = ""
    experts: tuple[str, ...] = ()
    copies: str = ""

    def sentence(self) -> str:
        """What the plan is, how good, and what limits it."""
        limits = f"limited by {self.limited_by}" if self.limited_by else ""
        return "; ".join(filter(None, (self.what(), self.how_good(), limits)))

    def what(self) -> str:
        """The step, and the nearest known layout."""
        return f"{seconds_text(self.step_s)} a step; {self.layout}"

    def how_good(self) -> str:
        """The step beside hand-written plans and its lower bound; empty if neither is known."""
        beside = f"{self.compared()} as {self.against()}" if self.other else ""
        return "; ".join(filter(None, (beside, self.bounded)))

    def compared(self) -> str:
        """The step against that of the fastest hand-written plan."""
        return f"{self.times_as_fast:.2f} times as fast" if self.other else ""

    def against(self) -> str:
        """What the step is compared with."""
        if self.other == ONE_PROGRAM:
            return "the best plan without stages"
        return f"{self.other}, the fastest hand-written plan that fits"

    def lines(self) -> list[str]:
        """For the terminal."""
        rows = {
            "in short": [self.sentence()], "speed": self.rates(), "cost": self.costs(),
            "consists of": self.parts(),
            "experts": ["; ".join(self.experts)] if self.experts else [],
            "in copies": [self.copies] if self.copies else [],
            "how sure": list(filter(None, (self.accuracy, self.imbalance))),
            "what next": [self.what_next] if self.what_next else [],
            "left out": [self.left_out] if self.left_out else [],
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
        if self.mfu:
            found.append(f"MFU {share_text(self.mfu)} (matrix products at the devices' peak rate)")
        if self.hfu > self.mfu:
            found.append(f"HFU {share_text(self.hfu)} (with those computed again)")
        return found

    def parts(self) -> list[str]:
        """What takes most of the step, and the rest."""
        found = [f"{text} {share_text(share)}" for text, share in self.limits[:MOST_PARTS]]
        rest = self.limits[MOST_PARTS:]
        left = share_text(sum(share for _, share in rest))
        return [*found, *([f"and {len(rest)} more {left}"] if rest else [])]

    def record(self) -> dict[str, Any]:
        """For `--json`."""
        limits = [list(part) for part in self.limits]
        return asdict(self) | {
            "limits": limits, "experts": list(self.experts), "sentence": self.sentence(),
        }  # fmt: skip


def at_a_glance(analysed: AnalysedPlan) -> Glance:
    """The glance of the plan of one program.

    Args:
        analysed: the plan with its graph and decisions.
    """
    program = analysed.program
    other, seconds = _fastest(program.baselines)
    step, limits = program.step_s, _limits(analysed)
    left = max(program.limit_bytes - program.peak_bytes, 0.0)
    dollars, kwh = _costs(analysed.cluster, step)
    model_s, all_s = (s / analysed.cluster.num_devices for s in _at_peak_s(analysed))
    return Glance(
        step_s=step,
        layout=layout_text(analysed),
        other=other,
        times_as_fast=seconds / step if other and step else 0.0,
        bounded=_bounded(step, program.lower_bound_s, _bounded_plans(program)),
        mfu=model_s / step if step else 0.0,
        hfu=all_s / step if step else 0.0,
        examples_per_s=examples_of(analysed) / step if step else 0.0,
        tokens_per_s=tokens_of(analysed) / step if step else 0.0,
        limits=limits,
        memory_left=left,
        limited_by=_limited_by(limits, left, program.limit_bytes),
        dollars=dollars,
        kwh=kwh,
        accuracy=accuracy_text(analysed.cluster, step) + (OTHERS if _is_launches(limits) else ""),
        imbalance=imbalance_text([analysed]),
        experts=experts_text([analysed], program.baselines),
        what_next=_what_next(analysed, limits, (model_s / step, all_s / step)) if step else "",
        left_out=_left_out(analysed),
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
    limits = _limits_of_stages(file, pipeline)
    dollars, kwh = _costs(cluster, step)
    slowest = max(range(len(file.stages)), key=lambda s: file.stages[s].step_s)
    stages = [programs[stage.program] for stage in file.stages]
    model_s, all_s = (
        sum(each) / cluster.num_devices for each in zip(*map(_at_peak_s, stages), strict=True)
    )
    examples = pipeline.microbatches * max(map(examples_of, stages))  # stages take micro-batches
    tokens = pipeline.microbatches * max(map(tokens_of, stages))
    return Glance(
        step_s=step,
        layout=f"a pipeline of {len(file.stages)} stages with {pipeline.microbatches} "
        f"micro-batches, schedule {pipeline.schedule}",
        other=other,
        times_as_fast=seconds / step if other and step else 0.0,
        bounded=_bounded(
            step, pipeline.lower_bound_s, f"pipeline {pipelines_text(pipeline.warnings)}"
        ),
        mfu=model_s / step if step else 0.0,
        hfu=all_s / step if step else 0.0,
        examples_per_s=examples / step if step else 0.0,
        tokens_per_s=tokens / step if step else 0.0,
        limits=limits,
        memory_left=left,
        limited_by=f"stage {slowest}, which is busiest{_nearly_full(left, pipeline.limit_bytes)}",
        dollars=dollars,
        kwh=kwh,
        accuracy=accuracy_text(cluster, step),
        imbalance=imbalance_text(stages),
        experts=experts_text(stages, pipeline.baselines),
        copies=copies_text(file, stages),
        what_next=next_of_stages(file, pipeline, full=is_full(left, pipeline.limit_bytes)),
    )


def _bounded_plans(program: ProgramPlan) -> str:
    """What the lower bound of a plan of one program is of."""
    if program.stop in ENDED:
        return PART_SEEN
    covered = covered_text(program.warnings)
    return f"plan {covered}" if covered else ALL


def _bounded(step_s: float, lower_bound_s: float, which: str) -> str:
    """How much faster another plan may be, by the lower bound of all that were searched.

    Args:
        step_s: of the plan [s].
        lower_bound_s: of the plans that were searched [s].
        which: what these are called.
    """
    if not step_s or not lower_bound_s:
        return ""
    gap = max(0.0, 1.0 - lower_bound_s / step_s)
    if gap <= PROVED:
        return f"no {which} is faster, by proof"
    return f"no {which} is more than {share_text(gap)} faster, by a lower bound"


def _left_out(analysed: AnalysedPlan) -> str:
    """Hand-written plans that split the batch over all devices, where it does not divide."""
    examples, devices = examples_of(analysed), analysed.cluster.num_devices
    priced = analysed.program.baselines
    if not priced or not examples % devices or any(name in priced for name in DATA):
        return ""
    has_state = any(item.role == "optimizer-state" for item in analysed.graph.inputs)
    names = [name for name in DATA if has_state or not name.startswith("zero")]
    return f"{', '.join(names)}: a batch of {examples:,} does not divide over {devices:,} devices"


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
    analysed: AnalysedPlan, limits: tuple[tuple[str, float], ...], used: tuple[float, float]
) -> str:
    """Advice about the largest part of the step beside compute, or about compute.

    Args:
        analysed: the plan.
        limits: what its step consists of.
        used: MFU and HFU.
    """
    parts = dict(limits)
    moved = [part for part in limits if part[0] not in (COMPUTE, HOST_LINK, LAUNCHES)]
    first = moved[0] if moved else (COMPUTE, 1.0)
    layout = layout_of_axes(analysed, first[0].rpartition(" over ")[2].split("*")) if moved else ""
    use = Use(*used, parts.get(LAUNCHES, 0.0), parts.get(HOST_LINK, 0.0))
    return next_of_program(
        analysed.program, analysed.cluster.num_devices, first=first, layout=layout, use=use
    )


def _fastest(baselines: dict[str, BaselineRow]) -> tuple[str, float]:
    fitting = [(row.step_s, name) for name, row in baselines.items() if row.fits]
    seconds, name = min(fitting, default=(0.0, ""))
    return name, seconds


def _limits(analysed: AnalysedPlan) -> tuple[tuple[str, float], ...]:
    """Compute, and exposed collectives by kind and axes, as shares of the step.

    What of compute is copies to and from the host that nothing hides is a part of its own, and so
    are launches, t = kernels x t_launch, where these are most of it.
    """
    program = analysed.program
    spent: dict[str, float] = defaultdict(float)
    copies = analysed.account.host_copies if program.host_bytes else ()
    spent[HOST_LINK] = min(sum(copy.exposed_s for copy in copies), program.compute_s)
    compute_s = program.compute_s - spent[HOST_LINK]
    launches_s = min(_launches_s(analysed), compute_s)
    if launches_s < MOSTLY * compute_s:
        launches_s = 0.0
    spent[LAUNCHES], spent[COMPUTE] = launches_s, compute_s - launches_s
    for row in program.collectives:
        spent[f"{row.kind} over {'*'.join(row.axes)}"] += row.exposed_s
    order = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    return tuple((text, s / program.step_s) for text, s in order if program.step_s and s)


def _is_launches(limits: tuple[tuple[str, float], ...]) -> bool:
    return LAUNCHES in dict(limits)


def _launches_s(analysed: AnalysedPlan) -> float:
    """Seconds that a device takes to start the kernels of a step; 0 if these are few."""
    flat = analysed.flat
    launch_s = ComputeModel(analysed.cluster).launch_s
    if launch_s * sum(op.weight for op in flat.ops) < MOSTLY * analysed.program.compute_s:
        return 0.0  # no op starts more than one: which do need not be known
    kernels = zip(flat.ops, analyse(flat).launches, strict=True)
    return launch_s * sum(op.weight * count for op, count in kernels)


def _limits_of_stages(file: PlanFile, pipeline: Pipeline) -> tuple[tuple[str, float], ...]:
    """Waiting, and what stages do in the rest of the step, as shares of all devices' time.

    A stage's time is divided as that of its program is, into compute and exposed collectives.
    """
    busy = {COMPUTE: 0.0, INSIDE: 0.0}
    for stage, size, program in zip(file.stages, file.sizes, file.members, strict=True):
        exposed = program.exposed_s / program.step_s if program.step_s else 0.0
        busy[COMPUTE] += size * stage.step_s * (1.0 - exposed)
        busy[INSIDE] += size * stage.step_s * exposed
    total = sum(busy.values())
    parts = [(text, s / total * (1.0 - pipeline.bubble)) for text, s in busy.items() if s]
    parts.append((WAITING, pipeline.bubble))
    return tuple(sorted((part for part in parts if part[1]), key=lambda part: -part[1]))


def _at_peak_s(analysed: AnalysedPlan) -> tuple[float, float]:
    """Seconds of matrix products at the peak rate of one device: once each, and all."""
    flat, cluster = analysed.flat, analysed.cluster
    again = computed_again(flat, chosen=analysed.program.recomputed is not None)
    every_s = at_peak_s(flat, cluster)
    return (at_peak_s(flat, cluster, again) if again else every_s), every_s

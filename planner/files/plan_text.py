"""A plan as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from costmodel import Cluster, group_for
from ir import Sharding
from profiles import ProfileError

from ..common.layer_names import common_name, without_numbers
from ..common.stop import Stop, pipelines_text, stop_text
from ..common.units_text import bytes_text, printable, seconds_text
from .plan_file import ONE_PROGRAM, Pipeline, PlanFile, StageRow
from .program_plan import PaddedRow, ProgramPlan

MOST_ROWS = 8
MOST_ARGUMENTS = 24


def show_plan(
    file: PlanFile,
    seconds: Mapping[str, float],
    inputs: Mapping[str, Sharding],
    glance: Sequence[str] = (),
    *,
    cached: bool = False,
) -> str:
    """The plan's page.

    Args:
        file: the plan.
        seconds: spent on planning, by pass.
        inputs: name of every argument -> its sharding; empty for a plan in several stages.
        glance: lines after the first one.
        cached: the plan was found in the plan store.
    """
    if file.pipeline is None:
        lines = _program(file.programs[0], inputs, glance)
    else:
        lines = _stages(file, file.pipeline, glance)
    lines += [f"  warning: {text}" for text in file.whole.warnings]
    if seconds:
        spent = ", ".join(f"{k} {v:.2f} s" for k, v in seconds.items())
        begin = "taken from the plan store" if cached else "planned"
        lines.append(f"  {begin} in {spent}")
    return "\n".join(map(printable, lines))


def plan_line(file: PlanFile) -> str:
    """The plan in one line: program, cluster, mesh or stages, step, memory and gap."""
    whole, (first, *others) = file.whole, file.members
    mesh = ",".join(f"{axis}={n}" for axis, n in first.mesh)
    form = f"{1 + len(others)} stages" if file.in_stages else mesh
    return printable(
        f"{whole.name} on {whole.cluster.get('name', 'cluster')}, {form}: "
        f"step {seconds_text(whole.step_s)}, {bytes_text(file.peak_bytes)} of "
        f"{bytes_text(whole.limit_bytes)} per device, gap {file.gap:.2%}"
    )


def _stages(file: PlanFile, pipeline: Pipeline, glance: Sequence[str]) -> list[str]:
    """A plan in stages: schedule, prediction, stages, other plans, rules."""
    lines = [
        f"Plan for {pipeline.name} on {pipeline.cluster.get('name', 'cluster')}",
        *glance,
        f"  pipeline     {len(file.stages)} stages, {pipeline.microbatches} micro-batches, "
        f"{pipeline.schedule}, idle {pipeline.bubble:.1%}",
        f"  step         {seconds_text(pipeline.step_s)} simulated",
        f"  memory       {bytes_text(file.peak_bytes)} peak per device of "
        f"{bytes_text(pipeline.limit_bytes)}, "
        f"{bytes_text(max(pipeline.limit_bytes - file.peak_bytes, 0.0))} left",
        f"  lower bound  {_bound_of_stages(file, pipeline)}",
    ]
    if pipeline.no_single:
        lines.append(f"  no stages    a plan of one program {pipeline.no_single}")
    for s, (stage, program) in enumerate(zip(file.stages, file.members, strict=True)):
        first, end = stage.devices
        mesh = " x ".join(f"{axis}={n}" for axis, n in program.mesh)
        again = f", {again_text(stage, program)}" if stage.recompute != "none" else ""
        lines.append(
            f"  stage {s:<6} slots {stage.layers[0]} to {stage.layers[1]} on devices {first} to "
            f"{end - 1} ({mesh}): busy {seconds_text(stage.step_s)}, "
            f"{bytes_text(stage.peak_bytes)}{again}"
        )
    lines += _baselines(pipeline)
    if file.substitutions:
        rules = [f"{rule} {count} times" for rule, count in file.substitutions.items()]
        lines.append(f"  rewritten    {', '.join(rules)}")
    if rows := [row for program in file.programs for row in program.padded]:
        lines.append(f"  padded       inside the stages, {padded_text(rows)}")
    if orders := {(row.was, row.parts) for program in file.programs for row in program.ordered}:
        each = " and ".join(
            f"{was:,} in zigzag over {parts} devices" for was, parts in sorted(orders)
        )
        lines.append(f"  ordered      sequences of {each}, in the stages")
    if blocks := {program.sorted_blocks for program in file.programs} - {0}:
        each = " and ".join(map(str, sorted(blocks)))
        lines.append(
            f"  sorted       rows of experts within {each} blocks of tokens, in the stages"
        )
    return lines


def chosen_text(program: ProgramPlan) -> str:
    """How many values a plan has chosen to be computed again; empty if it has not chosen."""
    if program.recomputed is None:
        return ""
    count = sum(len(row.numbers) for row in program.recomputed)
    values = "1 value" if count == 1 else f"{count} values"
    return f"{values} chosen to be computed again" if count else "all values kept"


def again_text(stage: StageRow, program: ProgramPlan) -> str:
    """What a stage computes again, and what of the rest waits on the host.

    The first is its kind of recomputation, or how many values are chosen.
    """
    again = chosen_text(program) or f"{stage.recompute} recomputation"
    return ", ".join(filter(None, (again, hosted_text(stage, program))))


def in_pipeline(s: int, file: PlanFile) -> str:
    """What a stage is in its pipeline, above what explains one of its micro-batches."""
    stage, program = file.stages[s], file.members[s]
    return (
        f"stage {s}, {again_text(stage, program)}: {bytes_text(stage.peak_bytes)} of "
        f"{bytes_text(file.whole.limit_bytes)} with all micro-batches in flight\n"
        "one micro-batch alone:"
    )


def hosted_text(stage: StageRow, program: ProgramPlan) -> str:
    """What a stage sends to the host, and what stays on a device; empty if it sends nothing."""
    if not program.hosted or stage.cost is None:
        return ""
    stacks = sum(len(row.numbers) for row in program.hosted if row.place)
    values = sum(len(row.numbers) for row in program.hosted) - stacks
    counts = ((stacks, "stack"), (values, "value"))
    what = " and ".join(f"{n} {name}{'s' * (n > 1)}" for n, name in counts if n)
    return (
        f"{what} on the host: of each micro-batch in flight "
        f"{bytes_text(program.host_bytes)} there, {bytes_text(stage.cost.activation_bytes)} here"
    )


def _bound_of_stages(file: PlanFile, pipeline: Pipeline) -> str:
    if not pipeline.lower_bound_s:
        return "none is known" + ("" if file.stop is Stop.GAP else f": {file.stop.value}")
    return (
        f"{seconds_text(pipeline.lower_bound_s)} for all pipelines "
        f"{pipelines_text(pipeline.warnings)}, gap {file.gap:.2%}: {file.stop.value}"
    )


def _borders(program: ProgramPlan) -> str:
    """Which mesh axes stay on the fast links of a host or domain; empty where all do."""
    try:
        cluster = Cluster.from_dict(program.cluster, where="key `cluster`")
    except ProfileError:  # a measured table has changed since
        return ""
    sizes = tuple(n for _, n in program.mesh)
    hosts = {
        axis: group_for(cluster, sizes, (k,)).hosts
        for k, (axis, count) in enumerate(program.mesh)
        if count > 1
    }
    beyond = [axis for axis, count in hosts.items() if count > 1]
    within = [axis for axis, count in hosts.items() if count == 1]
    if not beyond:
        return ""
    words = f"; {', '.join(beyond)} between hosts"
    return words + (f", {', '.join(within)} within one" if within else "")


def _program(
    program: ProgramPlan, inputs: Mapping[str, Sharding], glance: Sequence[str]
) -> list[str]:
    """A plan of one program: mesh, prediction, proof, other plans, collectives, shardings."""
    name = program.cluster.get("name", "cluster")
    gap = (program.step_s - program.lower_bound_s) / program.step_s if program.step_s else 0.0
    lines = [
        f"Plan for {program.name} on {name}",
        *glance,
        f"  mesh         {' x '.join(f'{a}={n}' for a, n in program.mesh)}   "
        f"(from: {program.origin}{_borders(program)})",
        f"  step         {seconds_text(program.step_s)} predicted = "
        f"{seconds_text(program.compute_s)} compute + {_communication(program)}",
        f"  memory       {bytes_text(program.peak_bytes)} peak per device of "
        f"{bytes_text(program.limit_bytes)} (arguments {bytes_text(program.argument_bytes)}), "
        f"{bytes_text(max(program.limit_bytes - program.peak_bytes, 0.0))} left"
        + (f", {bytes_text(program.host_bytes)} of the host's" if program.host_bytes else ""),
        f"  lower bound  {seconds_text(program.lower_bound_s)}, gap {max(gap, 0.0):.2%}: "
        f"{stop_text(Stop[program.stop], program.warnings)}",
    ]
    if program.decided_ops < len(program.ops):
        lines.append(
            f"               for plans that shard repeated layers alike ({program.decided_ops} of "
            f"{len(program.ops)} operations are decided, the others follow)"
        )
    if program.substitutions:
        lines.append(f"  rewritten    {rewrites_text(program)}")
    if program.padded:
        lines.append(f"  padded       inside the program, {padded_text(program.padded)}")
    if program.sorted_blocks:
        lines.append(
            f"  sorted       rows of experts within {program.sorted_blocks} blocks of tokens"
        )
    for row in program.ordered:
        lines.append(
            f"  ordered      sequences of {row.was:,} in zigzag over {row.parts} devices, from the "
            "batch to the loss"
        )
    if program.host_states:
        names = list(inputs)
        held = ", ".join(names[a] for a in program.host_states)
        lines.append(f"  on the host  between steps: {held}")
    lines += attention_text(program)
    if program.microbatches > 1:
        lines.append(f"  micro-batches {program.microbatches}")
    return lines + _baselines(program) + _collectives(program) + _arguments(inputs)


def attention_text(program: ProgramPlan) -> list[str]:
    """Attention that the program writes out: what runs it, within which tolerance."""
    lines: list[str] = []
    for row in program.attention:
        how = f"as written: {row.why}"
        if not row.why:
            more = f" + {row.within_z:.2g} x largest score" if row.within_z else ""
            how = f"by the kernel, within ({row.within:.2g}{more}) of the largest value"
        lines.append(f"{'' if lines else '  attention':<15}{row.line} {row.what}: {how}")
    return lines


def _communication(program: ProgramPlan) -> str:
    """Communication, and how much of it runs beside compute."""
    hidden = program.communication_s - program.exposed_s
    if hidden <= 0.0:
        return f"{seconds_text(program.communication_s)} communication"
    total = seconds_text(program.communication_s)
    return f"{seconds_text(program.exposed_s)} exposed of {total} communication"


def rewrites_text(program: ProgramPlan) -> str:
    """Proven rules that the program was rewritten by, such as `merge-projections 12 times`."""
    found: dict[str, int] = {}
    for row in program.substitutions:
        found[row.rule] = found.get(row.rule, 0) + row.count
    times = {1: "once", 2: "twice"}
    return ", ".join(f"{rule} {times.get(n, f'{n} times')}" for rule, n in found.items())


def padded_text(rows: Sequence[PaddedRow]) -> str:
    """Sizes that are padded, such as `from sizes that do not divide: 12 to 16`."""
    alone = dict.fromkeys(f"{row.was:,} to {row.size:,}" for row in rows if row.size > row.was)
    near = dict.fromkeys(f"{row.size:,}" for row in rows if row.size == row.was)
    found = [f"from sizes that do not divide: {', '.join(alone)}"] if alone else []
    found += [f"sizes that differ by borders: to {', '.join(near)}"] if near else []
    return "; ".join(found)


def _baselines(program: ProgramPlan | Pipeline) -> list[str]:
    if not program.baselines:
        return []
    rows = sorted(program.baselines.items(), key=lambda item: (not item[1].fits, item[1].step_s))
    width = max(len(name) for name, _ in rows)
    best = " and the best without stages" if ONE_PROGRAM in program.baselines else ""
    lines = [f"  hand-written plans{best}, priced alike"]
    for name, b in rows:
        ratio = b.step_s / program.step_s if program.step_s else 1.0
        verdict = "" if b.fits else "   does not fit"
        lines.append(
            f"    {name:<{width}}  {seconds_text(b.step_s):>9}  {ratio:5.2f}x  "
            f"{bytes_text(b.peak_bytes):>10}  {b.mesh}{verdict}"
        )
    return lines


def _collectives(program: ProgramPlan) -> list[str]:
    if not program.collectives:
        return ["  no collectives"]
    kinds, shown = len(program.collectives), program.collectives[:MOST_ROWS]
    some = f"; {len(shown)} of {kinds} rows" if kinds > len(shown) else ""
    lines = [f"  collectives per step and device, dearest first{some}"]
    for c in shown:
        lines.append(
            f"    {c.kind:<18} over {'*'.join(c.axes):<6} x{c.count:<5.0f} "
            f"{bytes_text(c.bytes):>10}  {seconds_text(c.seconds):>9}  {c.cause}"
        )
    rest = program.collectives[MOST_ROWS:]
    if rest:
        lines.append(
            f"    and {len(rest)} more: {bytes_text(sum(c.bytes for c in rest))}, "
            f"{seconds_text(sum(c.seconds for c in rest))}"
        )
    return lines


def _arguments(inputs: Mapping[str, Sharding]) -> list[str]:
    """Arguments that are split; equal ones of repeated layers are one row."""
    split = {n: str(s) for n, s in inputs.items() if not s.is_replicated}
    alike: dict[tuple[str, str], list[str]] = {}
    for name, sharding in split.items():
        alike.setdefault((without_numbers(name), sharding), []).append(name)
    rows = [(common_name(names), len(names), s) for (_, s), names in alike.items()]
    lines = [f"  {len(split)} of {len(inputs)} arguments are split"]
    shown = rows[:MOST_ARGUMENTS]
    width = max((len(name) for name, *_ in shown), default=0)
    for name, count, sharding in shown:
        lines.append(f"    {name:<{width}}  {f'{count} x' if count > 1 else '':>6}  {sharding}")
    if len(rows) > MOST_ARGUMENTS:
        lines.append(f"    and {sum(count for _, count, _ in rows[MOST_ARGUMENTS:])} more")
    return lines

"""`jax`: a Python module that a team keeps: mesh, shardings and constraints, for JAX alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape
from hashlib import sha256

from ir import Sharding
from ir.analysis import flatten

from ...common.errors import PlanError
from ...common.units_text import bytes_text, printable, seconds_text
from ...sharding.lower import lower_decisions
from ..analysed_plan import AnalysedPlan
from .constrained import Constrained, constrained, type_text
from .edits import edits
from .record import Exported, Subject
from .source_text import axes_text, list_text, literal, module_text, row_text, tuple_text

_MOST_SOURCES = 4


def jax_module(subject: Subject) -> Exported:
    """The module at the path.

    Raises:
        PlanError: if the plan is of another program than the user's own function.
    """
    analysed = subject.analysed
    _check(analysed)
    data = "\n\n".join(_tables(analysed)) + "\n"
    notes = (
        "constraints are annotations: XLA chooses the collectives that keep them, which may be "
        "others than those of Plan.compile; compare a step with the unsharded one",
    )
    return Exported(module_text(_docstring(analysed), "jax_module.py", data), (), notes)


def _check(analysed: AnalysedPlan) -> None:
    program = analysed.program
    if program.substitutions:
        rules = ", ".join(sorted({row.rule for row in program.substitutions}))
        raise PlanError(
            f"it rewrites the program ({rules}), and a module for the unchanged function cannot",
            kind="bad-plan", where=analysed.where,
            remedy="plan with substitutions=False (--no-substitutions)",
        )  # fmt: skip
    if program.microbatches > 1:
        raise PlanError(
            f"its step is one of {program.microbatches} micro-batches that Meshwright wrote, which "
            "no function of yours is", kind="bad-plan", where=analysed.where,
            remedy="plan with microbatches=1, or plan your own step",
        )  # fmt: skip

    for edit in edits(program):
        raise PlanError(
            f"it {edit.what}, and a module for the unchanged function cannot", kind="bad-plan",
            where=analysed.where, remedy=f"plan with {edit.without}",
        )  # fmt: skip


def _docstring(analysed: AnalysedPlan) -> str:
    program, cluster = analysed.program, analysed.cluster
    name = re.sub(r"\W", "_", program.name)
    peak, limit = bytes_text(program.peak_bytes), bytes_text(program.limit_bytes)
    gap = max(0.0, 1 - program.lower_bound_s / program.step_s) if program.step_s > 0 else 0.0
    title = re.sub(r"[^\w. :-]", "_", cluster.name)
    count = len(program.in_parts)
    left = f"\nThe plan runs {count} products in parts beside permutes, which XLA does not do here."
    return f'''"""Shardings of {name} on {title}, planned by Meshwright for JAX alone.

    step = shard({name}, *args)  # args: arrays, or shapes from jax.eval_shape
    args = jax.device_put(args, in_shardings(make_mesh(), *args))
    results = step(*args)

Predicted, not measured: {seconds_text(program.step_s)} a step, of which {seconds_text(program.exposed_s)} exposed communication;
{peak} of {limit} on each device; at most {gap:.2%} slower than any other plan.
The plan needs no compiler options; it recomputes what the function itself does.{left if count else ""}
Digest of the planned program: {program.graph_digest[:16]}
"""'''  # noqa: E501


def _tables(analysed: AnalysedPlan) -> Iterator[str]:
    """The data of the module, table by table."""
    program, decisions = analysed.program, analysed.decisions
    heads = sum(role == "constant" for role in program.roles)
    items = analysed.graph.inputs[heads:]
    states = {i.name: s for i, s in zip(items, decisions.inputs[heads:], strict=True)}
    arguments = list(dict.fromkeys(name.partition("/")[0] for name in states))
    whole = [n for n, name in enumerate(arguments) if _donated(analysed, heads, name)]
    found = "\n".join(f"{item.name} {type_text(item.type)}" for item in items)
    mesh = ", ".join(f"{literal(axis)}: {size}" for axis, size in program.mesh)
    held = tuple_text([literal(name) for name in arguments])
    yield (
        f"MESH = {{{mesh}}}\n"
        f"ARGUMENTS = {held}  # those that hold arrays\n"
        f"DONATED = {tuple_text([str(n) for n in whole])}  # positions of arguments\n"
        f"{_gpu_options(analysed)}"
        f"FINGERPRINT = {literal(sha256(found.encode()).hexdigest()[:16])}  # of the arguments"
    )
    yield (
        "# Path in the arguments -> sharding; the first pattern that matches holds.\n"
        + list_text(
            "RULES", [row_text([literal(pattern), spec]) for pattern, spec in rules(states)]
        )
    )
    yield (
        "# Each result in order: the number of the argument's leaf that it lies like, or its own.\n"
        + list_text("RESULTS", _results(analysed, list(states.values())))
    )
    tied = {result: argument for argument, result in program.ties}
    plan = lower_decisions(flatten(analysed.graph), decisions, analysed.reshard, tied)
    yield (
        "# Primitive, type of its result, which of all results of these two in the order in which\n"
        "# the program runs, sharding. Above each the lines of code. Layers of a scan count once.\n"
        + list_text("CONSTRAINTS", list(_constraints(constrained(plan))))
    )


def _gpu_options(analysed: AnalysedPlan) -> str:
    options = analysed.program.compiler_options
    if not options:
        return "GPU_OPTIONS = {}\n"
    rows = "".join(f"    {literal(name)}: {value},\n" for name, value in options.items())
    return f"GPU_OPTIONS = {{  # of XLA's compiler\n{rows}}}\n"


def _donated(analysed: AnalysedPlan, heads: int, argument: str) -> bool:
    names = [item.name.partition("/")[0] for item in analysed.graph.inputs[heads:]]
    given = set(analysed.program.donated)
    return all(n in given for n, name in enumerate(names) if name == argument)


def _results(analysed: AnalysedPlan, arguments: Sequence[Sharding]) -> list[str]:
    """Rows of equal neighbours."""
    tied = {result: argument for argument, result in analysed.program.ties}
    rows: list[str] = []
    start = end = -1  # argument leaves of the row that is open
    for n, state in enumerate(analysed.decisions.outputs):
        a = tied.get(n, -1)
        if a >= 0 and arguments[a] == state:
            if rows and end == a:
                rows.pop()
            else:
                start = a
            end = a + 1
            rows.append(f"    *range({f'{start}, ' if start else ''}{end}),")
        else:
            end = -1
            rows.append(f"    {_spec(state)},")
    return rows


# --- patterns -----------------------------------------------------------------------------------


def rules(states: Mapping[str, Sharding]) -> list[tuple[str, str]]:
    """(pattern, PartitionSpec) such that the first pattern that matches a path has its spec.

    Each pattern is the shortest end of a path, without its numbers, that no path with another spec
    has; whole arrays are left to the last one.
    """
    specs = {path: _spec(state) for path, state in states.items()}
    found: list[tuple[str, str]] = []
    for path, spec in specs.items():
        if spec == "P()" or any(fnmatchcase(path, pattern) for pattern, _ in found):
            continue
        for pattern in _patterns(path):
            if all(specs[other] == spec for other in specs if fnmatchcase(other, pattern)):
                found.append((pattern, spec))
                break
    return [*found, ("*", "P()")]


def _patterns(path: str) -> Iterator[str]:
    """Patterns that match a path, the most general first."""
    head, *parts = (escape(part) for part in path.split("/"))
    wild = [re.sub(r"[0-9]+", "*", part) for part in parts]
    for k in range(1, len(parts) + 1):
        tail = "/".join(wild[len(parts) - k :])
        yield f"*/{tail}"
        if k < len(parts):
            yield f"{head}/*/{tail}"
    yield "/".join([head, *wild])
    yield "/".join([head, *parts])


# --- text ---------------------------------------------------------------------------------------


def _constraints(rows: Sequence[Constrained]) -> Iterator[str]:
    """Rows, under the lines of code that they come from."""
    last = ""
    for row in rows:
        shown = [printable(source) for source in row.sources[:_MOST_SOURCES]]
        more = len(row.sources) - len(shown)
        lines = ", ".join(shown) + (f" and {more} more" if more else "")
        if lines and lines != last:
            yield f"    # {lines}"
        last = lines or last
        yield row_text([literal(row.op), literal(row.type), literal(row.which), _spec(row.state)])


def _spec(state: Sharding) -> str:
    """A PartitionSpec as source, without what is whole at its end."""
    dims = list(state.dims)
    while dims and not dims[-1]:
        dims.pop()
    return f"P({', '.join(map(axes_text, dims))})"

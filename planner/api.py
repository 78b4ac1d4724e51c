# pyright: basic
"""`plan` and `load`: the whole compiler on one page."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from costmodel import Cluster, parse_cluster
from ir import IRError, TraceError, check, digest, show
from ir.trace import Traced, trace

from .binding import Bound
from .errors import PlanError
from .filecheck import check_file
from .flatten import flatten
from .fusion import analyse
from .intra.facts import Facts
from .mesh_search import Candidate
from .options import Options, wishes
from .plan import Plan
from .planfile import (
    FILE_VERSION,
    FORMAT,
    BaselineRow,
    CollectiveRow,
    PlanFile,
    StageRow,
    read,
    rows_of,
)
from .program import Program, roles_of
from .replan import candidates
from .search import Found, Search
from .stepcall import StepCall, step_for
from .version import VERSION

# Micro-batch counts that are tried in turn when a step does not fit.
MICROBATCHES = range(1, 65)
TRAINING_ROLES = ("parameter", "optimizer-state", "batch")


def plan(
    fn: Callable[..., Any],
    *args: Any,
    cluster: str | Path | Cluster,
    optimizer: Any = None,
    has_aux: bool = False,
    batch_axis: int = 0,
    donate_argnums: int | Sequence[int] = (),
    roles: Sequence[str] = (),
    options: Options | None = None,
    progress: Callable[[str], None] | None = None,
    **settings: Any,
) -> Plan:
    """Plans a function on a cluster; nothing is computed or allocated.

    Args:
        fn: anything `jax.jit` takes. With `optimizer=`, a loss function of (params, batch).
        args: its arguments: pytrees of arrays or `jax.ShapeDtypeStruct`.
        cluster: a name such as `8xh100`, `64xv100-16gb:8`, `host`, a YAML or JSON file, or a
            `Cluster`.
        optimizer: an optax optimizer; the planner then owns the training step, which is
            (params, opt_state, batch) -> (params, opt_state, loss).
        has_aux: the loss function returns (loss, aux).
        batch_axis: example dimension of the batch, for micro-batches.
        donate_argnums: arguments whose buffers may be reused.
        roles: role of each argument (parameter, optimizer-state, batch); guessed if empty.
        options: settings of the search.
        progress: called with a line of text as the search goes on.
        **settings: fields of `Options`, given directly; they win.

    Returns:
        The fastest plan found that fits in memory.

    Raises:
        PlanError: if nothing fits or an option is wrong.
        TraceError: if the function cannot be traced.
    """
    start = time.monotonic()
    wanted = _options(options, settings)
    machine = _machine(cluster)
    say = progress or (lambda _: None)
    name = getattr(fn, "__name__", type(fn).__name__)
    donate = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    only_with = {
        "has_aux": has_aux, "batch_axis": batch_axis, "microbatches": wanted.microbatches,
        "loss_reduction": wanted.loss_reduction != "auto",
    }  # fmt: skip
    if optimizer is None:
        _refuse(only_with, "only with optimizer=: the planner cuts only steps that it owns")
        _check_roles(roles, donate, len(args))
        call = StepCall(fn, args, (), "auto")
        one = _One(call, 1, donate, tuple(roles), name)
        return _plan(one, machine, wanted, say, start)
    owned = {"donate_argnums": donate, "roles": roles}
    _refuse(owned, "only without optimizer=: the planner knows them of a step that it owns")

    def build(count: int) -> _One:
        made = step_for(
            fn, args, optimizer=optimizer, microbatches=count, has_aux=has_aux,
            loss_reduction=wanted.loss_reduction, batch_axis=batch_axis,
        )  # fmt: skip
        return _One(made, count, (0, 1), TRAINING_ROLES, name)

    counts = (wanted.microbatches,) if wanted.microbatches else MICROBATCHES
    return _fewest(build, counts, machine, wanted, say, start)


def load(path: str | Path) -> Plan:
    """Reads a plan file; `bind` it to its function before running it.

    Raises:
        PlanError: if the file is not a valid plan of this version.
    """
    file = read(path)
    check_file(file, str(path))
    return Plan(file, where=str(path))


def _options(options: Options | None, settings: dict[str, Any]) -> Options:
    known = set(Options.__dataclass_fields__)
    if unknown := sorted(set(settings) - known):
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise PlanError(
            f"unknown setting {', '.join(unknown)}", kind="bad-option", where="plan",
            remedy=f"{hint}settings are {', '.join(sorted(known))}",
        )  # fmt: skip
    if not isinstance(options, Options | None):
        raise PlanError(
            f"options must be planner.Options, got a {type(options).__name__}", kind="bad-option",
            where="plan", remedy="pass its fields directly or as options=Options(...)",
        )  # fmt: skip
    return replace(options or Options(), **settings)


def _machine(cluster: str | Path | Cluster) -> Cluster:
    if not isinstance(cluster, str | Path | Cluster):
        raise PlanError(
            f"a cluster cannot be a {type(cluster).__name__}", kind="bad-argument", where="cluster",
            remedy="write for example 8xh100, host, or the path of a .yaml file",
        )  # fmt: skip
    return parse_cluster(cluster, host_devices=len(jax.devices()))


def _refuse(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value:
            raise PlanError(f"{name} is used {why}", kind="bad-option", where=name,
                            remedy="leave it out")  # fmt: skip


def _check_roles(roles: Sequence[str], donate: Sequence[int], count: int) -> None:
    if isinstance(roles, str) or len(roles) > count:
        raise PlanError(
            f"must be one role for each of {count} arguments, got {roles!r}", kind="bad-argument",
            where="roles", remedy="write for example roles=('parameter', 'batch')",
        )  # fmt: skip
    if any(not isinstance(item, int) for item in donate):
        raise PlanError(
            f"must be positions of arguments, got {donate}", kind="bad-argument",
            where="donate_argnums", remedy="write for example donate_argnums=(0, 1)",
        )  # fmt: skip


@dataclass(frozen=True)
class _One:
    """One step to plan."""

    call: StepCall
    microbatches: int
    donate: tuple[int, ...]
    roles: tuple[str, ...]
    name: str


def _fewest(
    build: Callable[[int], _One],
    counts: Sequence[int],
    machine: Cluster,
    options: Options,
    say: Callable[[str], None],
    start: float,
) -> Plan:
    """The plan with the fewest micro-batches that fits; its bound and gap are for that count.

    Each further micro-batch starts every kernel and gathers every split parameter once more.
    """
    refused: PlanError | None = None
    for count in counts:
        if count > 1:
            say(f"{count} micro-batches")
        try:
            one = build(count)
        except PlanError as error:
            if refused is None:
                raise
            if error.kind == "bad-batch":
                continue  # the batch does not divide by this count
            break  # the loss does not divide at all: the first refusal stands
        try:
            return _plan(one, machine, options, say, start)
        except PlanError as error:
            if error.kind != "does-not-fit":
                raise
            refused = refused or error
    assert refused is not None
    raise refused


def _plan(
    one: _One, machine: Cluster, options: Options, say: Callable[[str], None], start: float
) -> Plan:
    say("trace")
    begun = time.monotonic()
    traced = trace(one.call.fn, *one.call.args, donate_argnums=one.donate, roles=one.roles)
    try:
        check(traced.graph, after="trace")
    except IRError as error:
        raise TraceError(f"the traced program is not well-formed: {error}") from error
    if not traced.graph.inputs and not traced.graph.nodes:
        raise PlanError(
            f"'{one.name}' has no arguments and computes nothing", kind="bad-argument",
            where="plan", remedy="pass the arguments after the function: plan(fn, *args, ...)",
        )  # fmt: skip
    flat = flatten(traced.graph)
    names = {v: i.name for v, i in zip(flat.inputs, traced.graph.inputs, strict=True)}
    resolved = wishes(options, names, {v: flat.values[v].type.rank for v in names})
    program = Program(
        Facts(flat, analyse(flat), _ties(traced), _donated(traced)),
        roles_of([item.role for item in traced.graph.inputs], flat), resolved,
    )  # fmt: skip
    traced_s = time.monotonic() - begun
    search = Search(program, machine, options, say)
    found = search.run()
    total = time.monotonic() - start
    seconds = {
        "trace": traced_s, "substitute": 0.0, "build": found.seconds["build"],
        "solve": found.seconds["solve"], "inter": 0.0, "total": total,
    }  # fmt: skip
    file = _file(one, traced, machine, options, found, program, search.limit)
    return Plan(file, Bound(traced), seconds)


def _ties(traced: Traced) -> tuple[tuple[int, int], ...]:
    """Ties in positions of the graph's inputs, which start with captured constants."""
    heads = len(traced.program.consts)
    return tuple((a + heads, b) for a, b in traced.tied)


def _donated(traced: Traced) -> frozenset[int]:
    heads = len(traced.program.consts)
    return frozenset(a + heads for a in traced.donated)


def _file(
    one: _One,
    traced: Traced,
    machine: Cluster,
    options: Options,
    found: Found,
    program: Program,
    limit: float,
) -> PlanFile:
    best = found.best
    sums = best.account
    ops, values = rows_of(best.decisions)
    layers = (0, len(traced.graph.nodes))
    mesh = dict(best.mesh.axes)
    warnings = (
        *traced.warnings, *one.call.warnings, *dict.fromkeys(program.flat.warnings),
        *_idle(best, machine),
    )  # fmt: skip
    stage = StageRow(
        layers, (0, machine.num_devices), mesh, sums.step_s, sums.peak_bytes,
        "as written",
    )  # fmt: skip
    return PlanFile(
        format=FORMAT,
        version=FILE_VERSION,
        planner=VERSION,
        jax=jax.__version__,
        name=one.name,
        graph_digest=digest(traced.graph),
        graph=show(traced.graph),
        cluster=machine.to_dict(),
        mesh=best.mesh.axes,
        step_s=sums.step_s,
        compute_s=sums.compute_s,
        communication_s=sums.communication_s,
        peak_bytes=sums.peak_bytes,
        argument_bytes=sums.argument_bytes,
        limit_bytes=limit,
        room_bytes=best.builder.cache.reshard.room_bytes,
        lower_bound_s=max(found.lower_bound_s, 0.0),
        decided_ops=len(set(best.built.op_node.values())),
        stop=found.stop.name,
        origin=best.name,
        microbatches=one.microbatches,
        schedule="none",
        emission=options.emission,
        loss_reduction=one.call.reduction,
        donated=traced.donated,
        ties=_ties(traced),
        roles=tuple(item.role for item in traced.graph.inputs),
        inputs=tuple(str(s) for s in best.decisions.inputs),
        outputs=tuple(str(s) for s in best.decisions.outputs),
        pins=options.pins,
        forbidden=options.forbidden,
        stages=(stage,),
        baselines={
            name: BaselineRow(b.step_s, b.peak_bytes, b.fits, b.mesh)
            for name, b in sorted(found.baselines.items())
        },
        collectives=tuple(
            CollectiveRow(c.kind, c.axes, c.group_size, c.bytes, c.count, c.seconds, c.cause)
            for c in sums.collectives
        ),
        substitutions=(),
        warnings=warnings,
        ops=ops,
        values=values,
        candidates=candidates(found, best),
    )


def _idle(best: Candidate, machine: Cluster) -> list[str]:
    """A warning for every mesh axis along which all devices do the same."""
    used: set[str] = set()
    for roles in best.decisions.ops.values():
        used.update(a for a, r in zip(best.mesh.names, roles, strict=True) if r)
    for state in best.decisions.values.values():
        used.update(state.axes)
    idle = [(a, n) for a, n in best.mesh.axes if a not in used and n > 1]
    busy = machine.num_devices
    for _, n in idle:
        busy //= n
    if not idle:
        return []
    return [
        f"only {busy} of {machine.num_devices} devices do different work: nothing is split over "
        f"mesh axis {', '.join(f'{a}={n}' for a, n in idle)}, because no dimension divides or "
        "splitting would cost more than it saves"
    ]

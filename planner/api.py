# pyright: basic
"""`plan` and `load`: the whole compiler on one page."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from costmodel import Cluster, parse_cluster

from .common.errors import PlanError
from .common.garbage_collection import seldom_collected
from .common.options import Options
from .common.surface import public
from .files.plan_file import read
from .pipeline.check_plan import check_plan
from .pipeline.one_or_stages import better_pipeline
from .pipeline.planned import Planned, in_one_program
from .pipeline.stage_planner import Training
from .result.plan import Plan
from .sharding.fewest_microbatches import fewest
from .sharding.plan_program import One, plan_one
from .training.step_call import StepCall, step_for

# Micro-batch counts that are tried in turn when a step does not fit.
MICROBATCHES = range(1, 65)
TRAINING_ROLES = ("parameter", "optimizer-state", "batch")


@public
@seldom_collected()
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
        The fastest plan found that fits in memory, in several stages where these are faster.

    Raises:
        PlanError: if nothing fits or an option is wrong.
        NotTracedError: if the function cannot be traced.
        BadProfileError: if the cluster is not known or its description is malformed.
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
        "pipeline": wanted.pipeline != "auto",
    }  # fmt: skip
    if optimizer is None:
        _refuse(only_with, "only with optimizer=: the planner cuts only steps that it owns")
        _check_roles(roles, donate, len(args))
        call = StepCall(fn, args, (), "auto")
        one = One(call, 1, donate, tuple(roles), name)
        return _plan_of(in_one_program(plan_one(one, machine, wanted, say, start)))
    owned = {"donate_argnums": donate, "roles": roles}
    _refuse(owned, "only without optimizer=: the planner knows them of a step that it owns")

    def build(count: int) -> One:
        made = step_for(
            fn, args, optimizer=optimizer, microbatches=count, has_aux=has_aux,
            loss_reduction=wanted.loss_reduction, batch_axis=batch_axis,
        )  # fmt: skip
        return One(made, count, (0, 1), TRAINING_ROLES, name)

    counts = (wanted.microbatches,) if wanted.microbatches else MICROBATCHES
    training = Training(fn, args, optimizer, has_aux, batch_axis, name)
    found = better_pipeline(
        training, machine, wanted, say, start,
        lambda cutoff_s: fewest(build, counts, machine, wanted, say, start, cutoff_s),
    )  # fmt: skip
    return _plan_of(found)


@public
def load(path: str | Path) -> Plan:
    """Reads a plan file; `bind` it to its function before running it.

    Raises:
        PlanError: if the file is not a valid plan of this version.
    """
    file = read(path)
    check_plan(file, str(path))
    return Plan(file, where=str(path))


def _plan_of(found: Planned) -> Plan:
    """What a search found, with all that can be done with it."""
    return Plan(found.file, found.bound, found.seconds, cached=found.cached)


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

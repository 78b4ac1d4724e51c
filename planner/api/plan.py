# pyright: basic
"""`plan` and `load`: the whole compiler on one page."""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from costmodel import Cluster, parse_cluster

from .. import pipeline
from ..common.errors import Interrupted, PlanError
from ..common.garbage_collection import seldom_collected
from ..common.interruption import Interruption
from ..common.log import LOGGER
from ..common.options import SCHEDULES, Options
from ..common.request import Request, heard
from ..common.stop import OF_BOUNDS
from ..common.surface import public
from ..common.units_text import printable
from ..files.plan_file import read
from ..files.plan_text import plan_line
from ..pipeline.planned import Planned, in_one_program
from ..result.plan import Plan
from ..sharding.fewest_microbatches import plan_step
from ..sharding.plan_traced import One
from ..sharding.written_attention import with_kernels
from ..solver.numba_processes import is_compiling
from ..training.step_call import StepCall
from ..training.training import Training


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
        fn: any function that `jax.jit` takes. With `optimizer=`, a loss function of
            (params, batch).
        args: arguments of the function: pytrees of arrays or `jax.ShapeDtypeStruct`.
        cluster: a `Cluster`, a name such as `8xh100`, `64xv100-16gb:8` or `host`, or the path of a
            YAML or JSON file.
        optimizer: an optax optimizer. The planner then makes the training step,
            (params, opt_state, batch) -> (params, opt_state, loss).
        has_aux: whether the loss function returns (loss, aux).
        batch_axis: index of the batch dimension that counts examples.
        donate_argnums: indices of the arguments whose buffers may be reused.
        roles: role of each argument (parameter, optimizer-state, batch); guessed if empty.
        options: settings of the search.
        progress: receiver of a line of text at each step of the search.
        **settings: fields of `Options`, which replace those of `options`.

    Returns:
        The fastest plan found that fits in memory, in one program or in stages.

    Raises:
        PlanError: if nothing fits or an option is wrong.
        Interrupted: after Ctrl-C: a `KeyboardInterrupt` whose `plan` is the best plan found by
            then, or a plain `KeyboardInterrupt` where there was none.
        NotTracedError: if the function cannot be traced.
        BadProfileError: if the cluster is unknown or its description is malformed.
    """
    start, wanted = time.monotonic(), options_of(options, settings)
    if not {*SCHEDULES}.issuperset(wanted.schedules):  # the usual ones need no list of all others
        pipeline.schedule.check_pipelines(wanted.schedules)
    interruption = Interruption(keeps=True)
    say = interruption.checked(heard(progress))
    machine = replace(machine_of(cluster), imbalance=wanted.imbalance)
    request = Request(machine, wanted, say, start, interruption)
    name = getattr(fn, "__name__", type(fn).__name__)
    LOGGER.info("planning %s on %s", name, request.machine.name)
    if is_compiling():
        say("compiling the solver's loops, once on this machine")
    donate = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    if optimizer is not None:
        owned = {"donate_argnums": donate, "roles": roles}
        _refuse(owned, "only without optimizer=: the planner knows them of a step that it owns")
        training = Training(fn, args, optimizer, has_aux, batch_axis, name)
        with interruption.listening():
            loss, rows = with_kernels(
                fn, lambda loss: replace(training, loss_fn=loss).step(1, wanted.loss_reduction),
                request,
            )  # fmt: skip
            training = replace(training, loss_fn=loss)
            found = pipeline.one_or_stages.one_or_stages(training, request)
        return _plan_of(found.with_attention(rows), request)
    only_with = {"has_aux": has_aux, "batch_axis": batch_axis} | _training_only(request.options)
    _refuse(only_with, "only with optimizer=: the planner cuts only steps that it owns")
    _check_roles(roles, donate, len(args))
    with interruption.listening():
        calls: dict[int, StepCall] = {}

        def call(step: Any) -> StepCall:
            return calls.setdefault(id(step), StepCall(step, args, (), "auto"))

        step, rows = with_kernels(fn, call, request)
        one = One(call(step), 1, donate, tuple(roles), name)
        found = in_one_program(plan_step(one, request))
    return _plan_of(found.with_attention(rows), request)


@public
def load(path: str | Path) -> Plan:
    """Reads a plan file; `bind` it to its function before running it.

    Raises:
        PlanError: if the file is not a valid plan of this version.
    """
    file = read(path)
    pipeline.check_plan.check_plan(file, str(path))
    LOGGER.info("read %s: %s", path, plan_line(file))
    return Plan(file, where=str(path))


def _plan_of(found: Planned, request: Request) -> Plan:
    """The user's plan of a search's result.

    Raises:
        Interrupted: with the plan, if Ctrl-C ended the search.
    """
    begin = "from the plan store" if found.cached else "planned"
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.seconds.items())
    LOGGER.info("%s: %s (%s)", begin, plan_line(found.file), spent)
    for note in found.file.whole.warnings:
        level = logging.INFO if note in OF_BOUNDS else logging.WARNING
        LOGGER.log(level, "%s", printable(note))
    plan = Plan(found.file, found.bound, found.seconds, cached=found.cached)
    if request.interruption.happened:
        raise Interrupted(plan)
    return plan


def options_of(options: Options | None, settings: dict[str, Any]) -> Options:
    """The options with some fields replaced.

    Raises:
        PlanError: if there is no such field, or its value is wrong.
    """
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


def _training_only(options: Options) -> dict[str, Any]:
    """The given settings that only apply to training steps."""
    return {
        "microbatches": options.microbatches,
        "loss_reduction": options.loss_reduction != "auto",
        "pipeline": options.pipeline != "auto",
    }


def machine_of(cluster: str | Path | Cluster) -> Cluster:
    """The cluster of that name or file; `host` has the devices present.

    Raises:
        PlanError: if it is of another type.
        ProfileError: if the text or the file does not describe a cluster.
    """
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

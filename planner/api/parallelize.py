# pyright: basic
"""`parallelize`: a function that is planned when it is called, in place of `jax.jit`."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax
from jax.core import Tracer, eval_context

from costmodel import Cluster
from ir.trace import structs_of

from ..common.errors import ArgumentError, NotFollowedWarning, NotTracedError, PlanError
from ..common.surface import public
from ..common.units_text import printable
from ..result.enough_devices import check_enough
from ..result.plan import Plan
from ..sharding.search.asked import is_not_followed
from .call_parts import Argnames, Argnums, Marked, call_of, marked
from .frameworks import Opened, opened
from .plan import load, machine_of, options_of
from .plan import plan as plan_function

P = ParamSpec("P")
R = TypeVar("R")

WHERE = "parallelize"
OURS = str(Path(__file__).resolve().parents[1])
# Whether a plan is being made: a parallelized function that is called is then a part of it.
_PLANNING: ContextVar[bool] = ContextVar("planning", default=False)


@overload
def parallelize(
    fn: Callable[P, R],
    /,
    *,
    cluster: str | Path | Cluster | None = None,
    plan: str | Path | Plan | None = None,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
    donate_argnums: Argnums = None,
    donate_argnames: Argnames = None,
    **settings: Any,
) -> Parallelized[P, R]: ...
@overload
def parallelize(
    *,
    cluster: str | Path | Cluster | None = None,
    plan: str | Path | Plan | None = None,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
    donate_argnums: Argnums = None,
    donate_argnames: Argnames = None,
    **settings: Any,
) -> Callable[[Callable[P, R]], Parallelized[P, R]]: ...
@public
def parallelize(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    cluster: str | Path | Cluster | None = None,
    plan: str | Path | Plan | None = None,
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
    donate_argnums: Argnums = None,
    donate_argnames: Argnames = None,
    **settings: Any,
) -> Any:
    """Makes a function that is planned at its first call, in place of `jax.jit`.

    Each combination of shapes, types and static values is planned once. Arguments are moved to
    where the plan wants them; results stay where it leaves them, and fit the next call. Modules of
    Flax NNX are updated in place as under `nnx.jit`; beside modules of Equinox all that is no array
    is static, as under `equinox.filter_jit`.

    Args:
        fn: the function; a decorator is returned without it.
        cluster: as of `plan`; `host` has the devices present.
        plan: a plan made before, or the path of its file, in place of a cluster.
        static_argnums: positions of arguments that are values of Python, as of `jax.jit`.
        static_argnames: names of such arguments.
        donate_argnums: positions of arguments whose buffers may be reused, as of `jax.jit`.
        donate_argnames: names of such arguments.
        **settings: `roles=`, `options=`, `progress=` and fields of `Options`, as of `plan`.

    Returns:
        The function, which has `plan_for` (plans ahead, shapes suffice), `plan` and `lower`.

    Raises:
        PlanError: if an option is wrong, or the plan file is not valid.

    What the function asks for and its plan does not follow, such as memory of the host, is a
    `NotFollowedWarning` when it is planned; other warnings of the plan are in `plan.warnings`.
    """
    if (cluster is None) == (plan is None):
        found = "neither" if plan is None else "both"
        raise ArgumentError(
            f"expected either cluster= or plan=, got {found}", kind="bad-argument", where=WHERE,
            remedy="it takes (fn, cluster=..., ...) such as cluster='host' for the devices "
            "present, or (fn, plan=...) with a plan file",
        )  # fmt: skip
    _check(settings, given=plan is not None)
    made = load(plan) if isinstance(plan, str | Path) else plan
    if fn is None:
        return functools.partial(
            parallelize, cluster=cluster, plan=made, static_argnums=static_argnums,
            static_argnames=static_argnames, donate_argnums=donate_argnums,
            donate_argnames=donate_argnames, **settings,
        )  # fmt: skip
    try:  # jit knows what is wrong with these
        jax.jit(
            fn, static_argnums=static_argnums, static_argnames=static_argnames,
            donate_argnums=donate_argnums, donate_argnames=donate_argnames,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise ArgumentError(str(error), kind="bad-argument", where=WHERE,
                            remedy="see help(jax.jit)") from error  # fmt: skip
    static = marked(fn, static_argnums, static_argnames)
    donated = marked(fn, donate_argnums, donate_argnames)
    source = _Planned(cluster, settings) if made is None else _Given(made)
    return Parallelized(fn, static, donated, source)


def _check(settings: dict[str, Any], *, given: bool) -> None:
    """Checks the settings before the first call.

    Raises:
        PlanError: if one is unknown, or is not for this use.
    """
    if settings and given:
        raise PlanError(
            f"{', '.join(sorted(settings))}: a plan is given, nothing is left to search",
            kind="bad-option", where=WHERE, remedy="leave it out, or give cluster= and no plan=",
        )  # fmt: skip
    if other := sorted(settings.keys() & {"optimizer", "has_aux", "batch_axis"}):
        raise PlanError(
            f"{other[0]}= makes another function than the one that is given", kind="bad-option",
            where=WHERE, remedy="parallelize a training step, or write "
            "plan(loss, params, batch, optimizer=..., cluster=...).compile()",
        )  # fmt: skip
    fields = {k: v for k, v in settings.items() if k not in ("options", "progress", "roles")}
    options_of(settings.get("options"), fields)


def _to_the_user() -> int:
    """The `stacklevel` of the first caller outside this package, for a warning of my caller."""
    level, frame = 0, sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        level, frame = level + 1, frame.f_back
    return level + 1


class _Planned:
    """Plans are searched for on a cluster."""

    made: Plan | None = None

    def __init__(self, cluster: Any, settings: dict[str, Any]) -> None:
        self.cluster, self.settings = cluster, settings

    def check_devices(self) -> None:
        """Checks that there are enough devices, before a search whose plan could not run."""
        machine = machine_of(self.cluster)
        what = f"the cluster '{machine.name}'"
        check_enough(len(jax.devices()), machine.num_devices, what, WHERE)

    def plan_of(self, fn: Callable[..., Any], args: Any, donated: tuple[int, ...]) -> Plan:
        found = plan_function(
            fn, *args, cluster=self.cluster, donate_argnums=donated, **self.settings
        )
        for text in filter(is_not_followed, found.warnings):  # nobody may look at the plan
            warnings.warn(printable(text), NotFollowedWarning, stacklevel=_to_the_user())
        return found


class _Given:
    """The plan is made."""

    def __init__(self, made: Plan) -> None:
        self.made = made

    def check_devices(self) -> None:
        """`Plan.compile` does it at once."""

    def plan_of(self, fn: Callable[..., Any], args: Any, donated: tuple[int, ...]) -> Plan:
        """The plan for the function.

        Raises:
            PlanError: if it is for another function, or donates other arguments.
        """
        bound = self.made.bind(fn, *args)
        counts = [len(jax.tree.leaves(arg)) for arg in args]
        wanted = {sum(counts[:n]) + k for n in donated for k in range(counts[n])}
        if (found := {*bound.program.donated}) != wanted:
            names = [item.name for item in bound.graph.inputs if item.role != "constant"]
            other = ", ".join(names[n] for n in sorted(found ^ wanted))
            raise PlanError(
                f"the plan and the call differ in whether {other} is donated", kind="differs",
                where=self.made.where,
                remedy="give the donate_argnums that the plan was made with, or plan anew",
            )  # fmt: skip
        return bound


class Parallelized(Generic[P, R]):
    """A function that runs as it is planned; see `parallelize`."""

    __name__: str
    __wrapped__: Callable[P, R]

    def __init__(
        self, fn: Callable[P, R], static: Marked, donated: Marked, source: _Planned | _Given
    ) -> None:
        self._fn, self._static, self._donated, self._source = fn, static, donated, source
        self._plans: dict[Hashable, Plan] = {}
        self._steps: dict[Hashable, Any] = {}
        self._latest = source.made
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if _PLANNING.get():
            return self._fn(*args, **kwargs)
        with self._opened(args, kwargs) as call:
            return call.closed(self._step(call)(*call.traced))

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", type(self._fn).__name__)
        return f"<parallelized {name}, {len(self._plans)} plans>"

    @property
    def plan(self) -> Plan:
        """The plan of the latest call that was planned.

        Raises:
            PlanError: if there was none.
        """
        if self._latest is None:
            raise PlanError(
                "has no plan before its first call", kind="not-planned", where=repr(self),
                remedy="call it, or `plan_for` with shapes",
            )  # fmt: skip
        return self._latest

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan:
        """Plans ahead of calls with such arguments; needs no devices.

        Args:
            args: arguments of a call, with arrays or `jax.ShapeDtypeStruct`.
            kwargs: keyword arguments of the call.

        Raises:
            PlanError: if they cannot be planned.
        """
        with self._opened(args, kwargs) as call:
            return self._plan(call)

    def structs_for(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Positional arguments of a call as shapes with the plan's shardings: targets of Orbax.

        Args:
            args: arguments of a call, with arrays or `jax.ShapeDtypeStruct`.
            kwargs: keyword arguments of the call.

        Raises:
            PlanError: if they cannot be planned, or there are too few devices.
        """
        with self._opened(args, kwargs) as given:
            call = given.with_traced(jax.tree.map(_strong, given.traced))
            places = self._plan(call).shardings
            shapes = jax.tree.map(_with_sharding, call.traced, places)
            return call.arguments(shapes)[0]

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(fn).lower`, of the planned program; shapes suffice."""
        with self._opened(args, kwargs) as call:
            return self._step(call).lower(*call.traced)

    def _opened(self, args: Any, kwargs: Any) -> AbstractContextManager[Opened]:
        """A call taken apart, while the context lasts."""
        return opened(call_of(self._static, args, kwargs), self._donated, self)

    def _step(self, call: Opened) -> Any:
        """The compiled plan of a call."""
        key = call.key()
        if key not in self._steps:
            if key not in self._plans:
                self._source.check_devices()
            with eval_context():  # it may be called while JAX traces its caller
                self._steps[key] = self._plan(call).compile()
        return self._steps[key]

    def _plan(self, call: Opened) -> Plan:
        key = call.key()
        if key not in self._plans:
            args = jax.tree.map(_untraced, call.traced)
            inside = _PLANNING.set(True)
            try:
                with eval_context():
                    found = self._source.plan_of(call.function(self._fn), args, call.donated)
            except NotTracedError as error:
                if error.__cause__ is None:
                    raise
                raised = error.__cause__
            else:
                self._plans[key] = self._latest = found
                return found
            finally:
                _PLANNING.reset(inside)
            raise raised  # what the user's function raised
        return self._plans[key]


def _strong(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of a leaf as it comes from a checkpoint, where numbers are arrays too."""
    kind = structs_of("", leaf)
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype)


def _with_sharding(leaf: jax.ShapeDtypeStruct, place: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)


def _untraced(leaf: Any) -> Any:
    """An argument without what JAX traces: its shape and type."""
    if not isinstance(leaf, Tracer):
        return leaf
    kind = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)

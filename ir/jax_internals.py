# pyright: basic
"""All that depends on the version of JAX: what equations hold, how they run, private imports.

Other files read equations through this one, so that a graph is the same whichever of the known
versions traced it, and another version is met here with one error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, final

import jax

from .errors import TraceError
from .jax_versions import KNOWN, known
from .regions import Scan

try:  # what a version may move
    from jax._src import xla_bridge
    from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]
    from jax.extend import core as jcore
    from jax.extend.random import threefry2x32_p
    from jax.extend.source_info_util import current_name_stack, user_context
except ImportError as error:
    raise ImportError(f"JAX {jax.__version__} is installed ({error}), but {known()}") from error

# Calls that only group equations, and those with derivatives of their own; the value is the
# parameter that holds the body.
_GROUPS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
}
_DERIVED = {
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
REMAT = ("remat2", "remat", "checkpoint")
# Parameters that say nothing where they are None; versions have more or fewer of them.
OPTIONAL = ("sharding", "out_sharding", "mesh", "accuracy", "ctx_mesh")

Array = Any

# A primitive with a derivative of its own that is a function of others, and such as are no more
# than that: to open them would lose what they recompute.
_EXPANDED = "call_hi_primitive"
_RECOMPUTED = ("OptRemat", "RematTraced")
_CALLED = ("call_jaxpr", "fun_jaxpr", "jaxpr", "body_jaxpr")
_HELD = {
    "scan": ("jaxpr", "length", "reverse", "unroll", "num_consts", "num_carry"),
    "while": ("cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts"),
    "cond": ("branches",),
    **dict.fromkeys(REMAT, ("jaxpr", "policy", "prevent_cse")),
}


def check_version(found: str = jax.__version__) -> None:
    """Refuses a JAX that the tests were not run with.

    Raises:
        TraceError: if it is one.
    """
    numbers = tuple(int(part) for part in found.split(".")[:2])
    if numbers not in KNOWN:
        raise _unknown(f"JAX {found} is installed")


def _unknown(what: str) -> TraceError:
    why, _, remedy = known().partition("; ")
    return TraceError(f"{what}, but {why}", where="the installed JAX", remedy=remedy)


# --- what an equation holds -----------------------------------------------------------------


def params_of(eqn: Any) -> dict[str, Any]:
    """Parameters of an equation under the names that all versions have here.

    A scan has `num_consts` and `num_carry`, which JAX 0.11 and later say by two trees.

    Raises:
        TraceError: if it is a loop, a branch or a checkpoint of an unknown version.
    """
    name, params = eqn.primitive.name, dict(eqn.params)
    if name == "scan" and {"ft_in", "ft_out"} <= params.keys():
        consts, carry, _ = params.pop("ft_in").unpack()
        del params["ft_out"]
        params |= {"num_consts": len(consts), "num_carry": len(carry)}
    if missing := [key for key in _HELD.get(name, ()) if key not in params]:
        raise _unknown(
            f"JAX {jax.__version__} has a {name} without {', '.join(missing)} (it has "
            f"{', '.join(sorted(eqn.params))})"
        )
    return params


def shown(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that belong into a graph, where versions say the same in the same words.

    Args:
        name: of the primitive.
        params: from `params_of`.
    """
    found = {k: v for k, v in params.items() if v is not None or k not in OPTIONAL}
    if name in REMAT:
        found["policy"] = _policy(params["policy"])
    if name == "top_k" and found.get("is_stable") is True:
        del found["is_stable"]  # before JAX 0.11 all were
    return found


def _policy(policy: Any) -> Any:
    """A policy of JAX's own as data, which is a record in some versions and a function in others.

    Others are given back as they are.
    """
    known = jax.checkpoint_policies
    for products, no_batch in (
        (known.dots_saveable, False),
        (known.dots_with_no_batch_dims_saveable, True),
    ):
        if policy == products:
            return (("only_if_no_batch_dims", no_batch),)
    return policy


def group_of(eqn: Any) -> Any:
    """The jaxpr of a call that only groups equations; None for any other equation."""
    return eqn.params.get(_GROUPS.get(eqn.primitive.name))


def inlined(eqn: Any) -> Any:
    """The jaxpr that means the same as an equation in place of it; None where there is none.

    Raises:
        TraceError: if it would lose what the equation recomputes.
    """
    name = eqn.primitive.name
    if name == _EXPANDED:
        return _expanded(eqn)
    body = eqn.params.get(_DERIVED.get(name))
    return group_of(eqn) if body is None else body


def _expanded(eqn: Any) -> Any:
    """What a high-level primitive of JAX 0.11 and later lowers to."""
    kind = type(eqn.params["_prim"]).__name__
    if kind in _RECOMPUTED:
        raise TraceError(
            f"the program holds a '{kind}', which Meshwright cannot read yet",
            remedy="trace it with jax.config.update('jax_remat3', False)",
        )
    structs = [struct_of(var.aval) for var in eqn.invars]
    return jax.make_jaxpr(lambda *xs: eqn.primitive.to_lojax(*xs, **eqn.params))(*structs)


def struct_of(aval: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of an abstract value, as arguments are given."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def bodies_of(eqn: Any) -> list[Any]:
    """The jaxprs that an equation runs, the test of a loop left out."""
    if eqn.primitive.name == _EXPANDED:
        return [_expanded(eqn)]
    bodies = [eqn.params[key] for key in _CALLED if key in eqn.params]
    return [*bodies, *eqn.params.get("branches", ())]


# --- jaxprs -----------------------------------------------------------------------------------

# One class since JAX 0.11, two before.
_JAXPRS = (jcore.Jaxpr, getattr(jcore, "ClosedJaxpr", jcore.Jaxpr))
Literal = jcore.Literal
Primitive = jcore.Primitive
function_of = jcore.jaxpr_as_fun


def is_jaxpr(value: Any) -> bool:
    """Whether a parameter is a program."""
    return isinstance(value, _JAXPRS)


def opened(body: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr, and the values of its `constvars`."""
    return (body.jaxpr, body.consts) if hasattr(body, "consts") else (body, ())


def equations(body: Any) -> Sequence[Any]:
    """The equations of a jaxpr."""
    return opened(body)[0].eqns


def with_consts_as_arguments(closed: Any) -> Any:
    """The jaxpr that takes what a closed one has captured before its arguments."""
    jaxpr = closed.jaxpr
    return jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])


# --- running ------------------------------------------------------------------------------------


def run_equation(eqn: Any, operands: Sequence[Array], changed: Mapping[str, Any]) -> list[Array]:
    """Runs an equation's primitive with some parameters changed, under its own source line."""
    given = eqn.primitive.get_bind_params({**eqn.params, **changed})
    functions, params = given if isinstance(given, tuple) else ((), given)
    with under(eqn):
        found = eqn.primitive.bind(*functions, *operands, **params)
    return list(found) if eqn.primitive.multiple_results else [found]


@contextlib.contextmanager
def under(eqn: Any) -> Generator[None]:
    """Whatever is traced belongs to the source line of an equation."""
    source = user_context(eqn.source_info.traceback, name_stack=current_name_stack())
    with source, eqn.ctx.manager:
        yield


def scan(
    params: Mapping[str, Any],
    step: Callable[[Sequence[Array], Sequence[Array]], tuple[Sequence[Array], Sequence[Array]]],
    carry: Sequence[Array],
    xs: Sequence[Array],
) -> list[Array]:
    """`step(carry, slices of xs) -> (carry, slices of ys)`, as often as a scan's parameters say."""

    def body(carry: Sequence[Array], slices: Sequence[Array]) -> Any:
        after, ys = step(carry, slices)
        return list(after), list(ys)

    last, ys = jax.lax.scan(
        body, list(carry), list(xs), length=params["length"], reverse=params["reverse"],
        unroll=params["unroll"],
    )  # fmt: skip
    return [*last, *ys]


def run_scan(
    params: Mapping[str, Any], body: Callable[..., Sequence[Array]], operands: Sequence[Array]
) -> list[Array]:
    """A scan with these parameters around another body, which takes and returns what its own does.

    Args:
        params: from `params_of`.
        body: (constants, carries, slices of xs) -> (carries, slices of ys), as flat lists.
        operands: of the scan.
    """
    wiring = Scan.in_jaxpr(params)
    consts, carry, xs = wiring.operands(operands)

    def step(carry: Sequence[Array], slices: Sequence[Array]) -> Any:
        return wiring.results(body(*consts, *carry, *slices))

    return scan(params, step, carry, xs)


@final
class _Scan:
    """Stands for the primitive of a scan: runs it with the parameters of `params_of`."""

    name = "scan"
    multiple_results = True

    def bind(self, *operands: Array, **params: Any) -> list[Array]:
        return run_scan(params, function_of(params["jaxpr"]), operands)


_SCAN = _Scan()


def primitive_of(eqn: Any) -> Any:
    """What `bind` runs with the parameters of `params_of`."""
    return _SCAN if eqn.primitive.name == "scan" else eqn.primitive


threefry2x32 = threefry2x32_p


def draws_by_counter() -> bool:
    """Whether Threefry hashes the number of each element, as it does by default."""
    return bool(jax.threefry_partitionable.value)


# --- source lines -------------------------------------------------------------------------------


def frames_of(eqn: Any) -> Iterable[tuple[Any, int]]:
    """Code and instruction of each frame that made an equation, innermost first."""
    traceback = eqn.source_info.traceback
    return () if traceback is None else zip(*traceback.raw_frames(), strict=True)


def line_of(eqn: Any, code: Any, instruction: int) -> int:
    """The line of one of an equation's frames."""
    return eqn.source_info.traceback.code_addr2line(code, instruction)


# --- compilers ----------------------------------------------------------------------------------


def cpu_devices(count: int) -> Sequence[Any]:
    """So many CPU devices: those of this process, or of a second client.

    Raises:
        TraceError: if this version has no such client.
    """
    here = jax.devices("cpu")
    if len(here) >= count:
        return here[:count]
    if not hasattr(xla_client, "make_cpu_client"):
        raise _unknown(f"JAX {jax.__version__} has no xla_client.make_cpu_client")
    return xla_client.make_cpu_client(num_devices=count).devices()


@contextlib.contextmanager
def platform_named(platform: str) -> Generator[None]:
    """Lets JAX lower for a platform in a process without a client of it.

    Raises:
        TraceError: if this version names platforms elsewhere.
    """
    known = getattr(xla_bridge, "canonicalize_platform", None)
    if known is None:
        raise _unknown(f"JAX {jax.__version__} has no xla_bridge.canonicalize_platform")

    def answer(asked: str) -> str:
        try:
            return known(asked)
        except RuntimeError:
            return platform

    xla_bridge.canonicalize_platform = answer
    try:
        yield
    finally:
        xla_bridge.canonicalize_platform = known


@contextlib.contextmanager
def without_places() -> Generator[None]:
    """Leaves the caller's source lines out of lowered programs."""
    name = "jax_traceback_in_locations_limit"
    before = jax.config.values[name]
    jax.config.update(name, 0)
    try:
        yield
    finally:
        jax.config.update(name, before)

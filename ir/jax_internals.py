# pyright: basic
"""All code that depends on the version of JAX: equations, how they run, private imports.

Other files read equations through this one, so that every known version gives the same graph, and
an unknown one a single error. Devices and lowerings are those of `jax_compilers.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, final

import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr

from .errors import TraceError
from .jax_versions import KNOWN, known
from .placements import FROM_HOST, TO_HOST
from .regions import Scan
from .registered import REGISTERED

try:  # names that a version may move
    from jax._src.cudnn import fused_attention_stablehlo as fused_attention_stablehlo
    from jax._src.cudnn import scaled_matmul_stablehlo as scaled_matmul_stablehlo
    from jax._src.interpreters.pxla import _discharge_internal_refs as references_as_values
    from jax.extend import core as jcore
    from jax.extend.random import threefry2x32_p
    from jax.extend.source_info_util import current_name_stack, user_context
except ImportError as error:
    raise ImportError(f"JAX {jax.__version__} is installed ({error}), but {known()}") from error

REMAT = ("remat2", "remat", "checkpoint")
# Parameters that have no effect if None; versions have more or fewer of them.
STANDS_FOR: Final = "stands_for"  # a primitive of this package that is read as another
OPTIONAL = ("sharding", "out_sharding", "mesh", "accuracy", "ctx_mesh")

Array = Any

_HELD = {
    "scan": ("jaxpr", "length", "reverse", "unroll", "num_consts", "num_carry"),
    "while": ("cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts"),
    "cond": ("branches",),
    **dict.fromkeys(REMAT, ("jaxpr", "policy", "prevent_cse")),
}


def check_version(found: str = jax.__version__) -> None:
    """Refuses a version of JAX that is not tested.

    Raises:
        TraceError: if the version is not tested.
    """
    numbers = tuple(int(part) for part in found.split(".")[:2])
    if numbers not in KNOWN:
        raise unknown(f"JAX {found} is installed")


def unknown(what: str) -> TraceError:
    why, _, remedy = known().partition("; ")
    return TraceError(f"{what}, but {why}", where="the installed JAX", remedy=remedy)


# --- parts of an equation ------------------------------------------------------------------


def name_of(eqn: Any) -> str:
    """The name of the primitive that an equation is read as."""
    own = eqn.primitive.name
    return eqn.params["kernel"].name if own == STANDS_FOR else own


def params_of(eqn: Any) -> dict[str, Any]:
    """Parameters of an equation under the same names for all versions.

    `num_consts` and `num_carry` of a scan are two trees in JAX 0.11 and later.

    Raises:
        TraceError: if it is a loop, a branch or a checkpoint of an unknown version.
    """
    name, params = eqn.primitive.name, dict(eqn.params)
    if name == STANDS_FOR:
        return dict(params["params"])
    if name == "scan" and {"ft_in", "ft_out"} <= params.keys():
        consts, carry, _ = params.pop("ft_in").unpack()
        del params["ft_out"]
        params |= {"num_consts": len(consts), "num_carry": len(carry)}
    if missing := [key for key in _HELD.get(name, ()) if key not in params]:
        raise unknown(
            f"JAX {jax.__version__} has a {name} without {', '.join(missing)} (it has "
            f"{', '.join(sorted(eqn.params))})"
        )
    return params


def shown(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters to keep in a graph, in the same form for all versions.

    Args:
        name: name of the primitive.
        params: from `params_of`.
    """
    found = {k: v for k, v in params.items() if v is not None or k not in OPTIONAL}
    if name == "pallas_call":
        return {"kernel": _kernel(params)}
    if name == "shard_map":
        return _mapped(params)
    if name == REGISTERED:
        return {}  # what there is to show is in its call
    if name in REMAT:
        found["policy"] = _policy(params["policy"])
    if name == "top_k" and found.get("is_stable") is True:
        del found["is_stable"]  # before JAX 0.11 all were
    return found


def _kernel(params: Mapping[str, Any]) -> str:
    """Hash of a Pallas kernel, which works on references and runs as it is."""
    blocks = getattr(params.get("grid_mapping"), "block_mappings", ())
    maps = [str(getattr(block, "index_map_jaxpr", "")) for block in blocks]
    text = "\n".join(maps + [f"{key}={value}" for key, value in sorted(params.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _mapped(params: Mapping[str, Any]) -> dict[str, Any]:
    """Mesh, specs and body of a `shard_map`, as data; axes that it leaves to the compiler.

    Raises:
        TraceError: if it has other parameters than in the known versions.
    """
    if missing := {"mesh", "in_specs", "out_specs", "jaxpr", "newly_manual_axes"} - {*params}:
        raise unknown(f"JAX {jax.__version__} has a shard_map without {', '.join(missing)}")

    def entries(spec: Any) -> tuple[tuple[str, ...], ...]:
        found = ((entry,) if isinstance(entry, str) else entry or () for entry in spec)
        return tuple(tuple(map(str, entry)) for entry in found)

    axes = tuple((str(name), int(size)) for name, size in params["mesh"].shape.items())
    left = sorted({name for name, size in axes if size > 1} - {*params["newly_manual_axes"]})
    return {
        "auto": tuple(left), "in_specs": tuple(map(entries, params["in_specs"])),
        "jaxpr": params["jaxpr"], "mesh": axes,
        "out_specs": tuple(map(entries, params["out_specs"])),
    }  # fmt: skip


def _policy(policy: Any) -> Any:
    """JAX's own checkpoint policies as data; a record in some versions, a function in others.

    Other policies are returned unchanged.
    """
    known = jax.checkpoint_policies
    for products, no_batch in (
        (known.dots_saveable, False),
        (known.dots_with_no_batch_dims_saveable, True),
    ):
        if policy == products:
            return (("only_if_no_batch_dims", no_batch),)
    return policy


def acts(eqn: Any) -> bool:
    """Whether an equation acts outside the program, which reading a mesh axis does not."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects)


def is_backward(eqn: Any) -> bool:
    """Whether an equation belongs to the backward pass of `jax.grad` or `jax.vjp`."""
    return "transpose(" in str(eqn.source_info.name_stack)


def scopes_of(eqn: Any) -> tuple[str, ...]:
    """Names of the `jax.named_scope` around an equation, the innermost last."""
    parts = eqn.source_info.name_stack.stack
    return tuple(part.name for part in parts if type(part).__name__ == "Scope")


def struct_of(aval: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of an abstract value, as arguments are given."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


# --- jaxprs -----------------------------------------------------------------------------------

# One class since JAX 0.11, two before.
_JAXPRS = (jcore.Jaxpr, getattr(jcore, "ClosedJaxpr", jcore.Jaxpr))
Literal = jcore.Literal
Primitive = jcore.Primitive
function_of = jcore.jaxpr_as_fun


def is_jaxpr(value: Any) -> bool:
    """Whether a parameter is a jaxpr."""
    return isinstance(value, _JAXPRS)


def opened(body: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr, and the values of its `constvars`."""
    return (body.jaxpr, body.consts) if hasattr(body, "consts") else (body, ())


def without_references(closed: Any) -> Any:
    """A traced function whose own references (`jax.new_ref`) are values that it carries.

    Raises:
        TraceError: if a reference goes into an operation that JAX cannot rewrite so.
    """
    held = any(type(effect).__name__ == "InternalMutableArrayEffect" for effect in closed.effects)
    if not held or any(hasattr(v.aval, "inner_aval") for v in closed.jaxpr.constvars):
        return closed
    try:
        return references_as_values(closed)
    except NotImplementedError as error:
        raise TraceError(
            f"has a reference in an operation that JAX cannot run without it: {error}",
            remedy="carry arrays as values there instead of references",
        ) from error


def evaluated(jaxpr: Any, consts: Sequence[Any], *operands: Array) -> list[Array]:
    """Results of a jaxpr under the mesh that is set now, not the one under which it was traced.

    Args:
        jaxpr: an open jaxpr without calls, such as what a scatter does with two numbers.
        consts: values of its `constvars`.
        operands: of it.
    """
    (now,) = jax.make_jaxpr(lambda x: x + x)(0.0).eqns
    here = jaxpr.replace(eqns=[eqn.replace(ctx=now.ctx) for eqn in jaxpr.eqns])
    return eval_jaxpr(here, consts, *operands)


def equations(body: Any) -> Sequence[Any]:
    """The equations of a jaxpr."""
    return opened(body)[0].eqns


def with_consts_as_arguments(closed: Any) -> Any:
    """The jaxpr with its captured constants as first arguments."""
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
    """Gives everything traced inside the source line and the scopes of an equation."""
    names = current_name_stack() + eqn.source_info.name_stack
    source = user_context(eqn.source_info.traceback, name_stack=names)
    with source, eqn.ctx.manager:
        yield


def scan(
    params: Mapping[str, Any],
    step: Callable[[Sequence[Array], Sequence[Array]], tuple[Sequence[Array], Sequence[Array]]],
    carry: Sequence[Array],
    xs: Sequence[Array],
) -> list[Array]:
    """`step(carry, slices of xs) -> (carry, slices of ys)`, repeated as a scan's parameters say."""

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
    """Runs a scan with these parameters and another body of the same signature.

    Args:
        params: from `params_of`.
        body: (constants, carries, slices of xs) -> (carries, slices of ys), as flat lists.
        operands: operands of the scan.
    """
    wiring = Scan.in_jaxpr(params)
    consts, carry, xs = wiring.operands(operands)

    def step(carry: Sequence[Array], slices: Sequence[Array]) -> Any:
        return wiring.results(body(*consts, *carry, *slices))

    return scan(params, step, carry, xs)


@final
class _Scan:
    """Replaces the primitive of a scan: runs it with the parameters of `params_of`."""

    name = "scan"
    multiple_results = True

    def bind(self, *operands: Array, **params: Any) -> list[Array]:
        return run_scan(params, function_of(params["jaxpr"]), operands)


_SCAN = _Scan()


def primitive_of(eqn: Any) -> Any:
    """The primitive to bind with the parameters of `params_of`."""
    if eqn.primitive.name == STANDS_FOR:
        return eqn.params["kernel"]
    return _SCAN if eqn.primitive.name == "scan" else eqn.primitive


def recomputed_region() -> tuple[Any, dict[str, Any]]:
    """The primitive of `jax.checkpoint` and its parameters in a backward pass, without a body."""
    (eqn,) = jax.make_jaxpr(jax.checkpoint(lambda x: x + x))(0.0).eqns
    params = {**params_of(eqn), "differentiated": True, "prevent_cse": True}
    del params["jaxpr"]
    return eqn.primitive, params


def rounding(dtype: str) -> tuple[Any, dict[str, Any]]:
    """The primitive that rounds to the precision of a floating type, and its parameters."""
    bits = jnp.finfo(dtype)
    params = {"exponent_bits": bits.nexp, "mantissa_bits": bits.nmant}
    (eqn,) = jax.make_jaxpr(lambda x: jax.lax.reduce_precision(x, **params))(0.0).eqns
    return eqn.primitive, params_of(eqn)


def counted_loop(length: int) -> tuple[Any, dict[str, Any]]:
    """What stands for the primitive of a scan and its parameters, without a body."""
    return _SCAN, {"length": length, "reverse": False, "unroll": 1}


def host_copies() -> dict[str, tuple[Any, dict[str, Any]]]:
    """The primitive and parameters of a copy to the host's memory, and of one back, by op."""
    host, device = jax.memory.Space.Host, jax.memory.Space.Device
    jaxpr = jax.make_jaxpr(lambda x: jax.device_put(jax.device_put(x, host), device))(0.0)
    away, back = jaxpr.eqns
    return {
        TO_HOST: (away.primitive, params_of(away)), FROM_HOST: (back.primitive, params_of(back))
    }  # fmt: skip


threefry2x32 = threefry2x32_p


def draws_by_counter() -> bool:
    """Whether Threefry hashes the index of each element, which is the default."""
    return bool(jax.threefry_partitionable.value)


# --- source lines -------------------------------------------------------------------------------


def traceback_of(eqn: Any) -> Any:
    """Where an equation was made."""
    return eqn.source_info.traceback


def on_lines(traceback: Any) -> contextlib.AbstractContextManager[None]:
    """Gives everything traced inside the lines of a traceback, if there is one."""
    return contextlib.nullcontext() if traceback is None else user_context(traceback)


def frames_of(eqn: Any) -> Iterable[tuple[Any, int]]:
    """Code and instruction of each frame that made an equation, innermost first."""
    traceback = eqn.source_info.traceback
    return () if traceback is None else zip(*traceback.raw_frames(), strict=True)


def line_of(eqn: Any, code: Any, instruction: int) -> int:
    """The line of one of an equation's frames."""
    return eqn.source_info.traceback.code_addr2line(code, instruction)

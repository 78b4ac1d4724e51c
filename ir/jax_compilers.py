# pyright: basic
"""Devices, lowerings and platforms of JAX that a version may move."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax

from .jax_internals import Primitive, struct_of, unknown
from .jax_versions import known as known_versions

try:  # names that a version may move
    from jax._src import api, xla_bridge
    from jax._src.interpreters import pxla
    from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]
    from jax.interpreters import ad, batching, mlir
except ImportError as error:
    raise ImportError(
        f"JAX {jax.__version__} is installed ({error}), but {known_versions()}"
    ) from error


def cpu_devices(count: int) -> Sequence[Any]:
    """`count` CPU devices, of this process or of a second client.

    Raises:
        TraceError: if this version has no such client.
    """
    here = jax.devices("cpu")
    if len(here) >= count:
        return here[:count]
    if not hasattr(xla_client, "make_cpu_client"):
        raise unknown(f"JAX {jax.__version__} has no xla_client.make_cpu_client")
    return xla_client.make_cpu_client(num_devices=count).devices()


def copier(sharding: Any, dtype: Any) -> Callable[[Any], Any]:
    """Copies arrays to other devices, each shard as it is: `jax.device_put` without its checks.

    It takes a tenth of the time. Where this version has no such copy, and for keys of random
    numbers, it is `jax.device_put`.

    Args:
        sharding: that cuts arrays of this process into the same shards as they have, for as many
            devices of this process.
        dtype: of the arrays.
    """
    copy = getattr(xla_client, "batched_copy_array_to_devices_with_sharding", None)
    if copy is None or jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        return lambda x: jax.device_put(x, sharding)
    semantics = [xla_client.ArrayCopySemantics.REUSE_INPUT]
    devices, shardings = [sharding._internal_device_list], [sharding]

    def copied(x: Any) -> Any:
        if x.is_deleted():  # the copy does not look
            return jax.device_put(x, sharding)
        return copy([x], devices, shardings, semantics)[0]

    return copied


# What donated arguments of a lowered function are marked with: the result that takes their buffer,
# or that any may.
_DONATED = ("tf.aliasing_output", "jax.buffer_donor")
# Part of what JAX keeps traced functions by.
_CHANGED_BY = jax.make_user_context(None)


@contextlib.contextmanager
def differentiated_through(
    change: Callable[[Callable[..., Any]], Callable[..., Any]], by: object
) -> Generator[None]:
    """Changes every function before JAX differentiates it in reverse.

    `by` names the change: functions of `jax.jit` are traced anew for another one. `jax.grad` and
    `jax.value_and_grad`, and what libraries make of them, call `jax.vjp`.

    Raises:
        TraceError: if this version has no such function where they look for it.
    """
    known = getattr(api, "vjp", None)
    if known is None or known is not jax.vjp:
        raise unknown(f"JAX {jax.__version__} has no jax._src.api.vjp")

    def changed(fn: Callable[..., Any], *primals: Any, **settings: Any) -> Any:
        return known(change(fn), *primals, **settings)

    api.vjp = jax.vjp = changed
    try:
        with _CHANGED_BY(by):  # functions of `jax.jit` keep what they were traced to before
            yield
    finally:
        api.vjp = jax.vjp = known


def lower_on_cpu(primitive: Any, function: Callable[..., Sequence[Any]]) -> None:
    """Lowers a primitive for CPUs as `function` of its operands and parameters."""
    mlir.register_lowering(primitive, mlir.lower_fun(function), platform="cpu")


@contextlib.contextmanager
def compiler_types(*sides: Sequence[Any]) -> Generator[list[list[Any]]]:
    """Types of abstract values as the compiler writes them, while its context is open."""
    with mlir.make_ir_context(), mlir.ir.Location.unknown():
        yield [
            [mlir.ir.RankedTensorType.get(a.shape, mlir.dtype_to_ir_type(a.dtype)) for a in side]
            for side in sides
        ]


@contextlib.contextmanager
def platform_named(platform: str) -> Generator[None]:
    """Lets JAX lower for a platform that has no client in this process.

    Described devices have no memories, and JAX leaves out copies between memories where it sees
    but one: here it keeps them.

    Raises:
        TraceError: if this version names platforms, or looks for memories, elsewhere.
    """
    known = getattr(xla_bridge, "canonicalize_platform", None)
    if known is None:
        raise unknown(f"JAX {jax.__version__} has no xla_bridge.canonicalize_platform")
    one_memory = getattr(pxla, "are_all_shardings_default_mem_kind", None)
    if one_memory is None:
        raise unknown(f"JAX {jax.__version__} has no pxla.are_all_shardings_default_mem_kind")

    def answer(asked: str) -> str:
        try:
            return known(asked)
        except RuntimeError:
            return platform

    xla_bridge.canonicalize_platform = answer
    pxla.are_all_shardings_default_mem_kind = lambda shardings: False
    try:
        yield
    finally:
        xla_bridge.canonicalize_platform = known
        pxla.are_all_shardings_default_mem_kind = one_memory


def put_arguments(
    lowered: Any, at: Sequence[int], memory: str, overwritten: Mapping[int, int]
) -> None:
    """Says of some flat arguments of a lowered function in which memory they are.

    Shardings over described devices, which have no memories, do not say it; donated arguments are
    then given to results without regard to where these are.

    Args:
        lowered: the function, which is changed.
        at: arguments.
        memory: kind of their memory.
        overwritten: donated argument -> the result that takes its buffer.

    Raises:
        TraceError: if this version keeps lowered functions in another form.
    """
    inner = getattr(lowered, "_lowering", None)
    kept = getattr(inner, "compile_args", {}).get("kept_var_idx")
    if kept is None:
        raise unknown(f"JAX {jax.__version__} has no compile_args of lowered functions")
    ir, module, order = mlir.ir, lowered.compiler_ir("stablehlo"), sorted(kept)
    with module.context:
        functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op
            for op in module.body.operations if "sym_name" in op.attributes
        }  # fmt: skip
        main = functions["main"]
        attrs = list(main.arg_attrs)
        for number, argument in enumerate(order, len(attrs) - len(order)):
            known = {entry.name: entry.attr for entry in ir.DictAttr(attrs[number])}
            donated = [known.pop(name) for name in _DONATED if name in known]
            if donated and argument in overwritten:
                index = ir.IntegerType.get_signless(32)
                known[_DONATED[0]] = ir.IntegerAttr.get(index, overwritten[argument])
            if argument in at:
                known["mhlo.memory_kind"] = ir.StringAttr.get(memory)
            attrs[number] = ir.DictAttr.get(known)
        main.arg_attrs = ir.ArrayAttr.get(attrs)


@contextlib.contextmanager
def without_places() -> Generator[None]:
    """Omits the caller's source lines from lowered programs."""
    name = "jax_traceback_in_locations_limit"
    before = jax.config.values[name]
    jax.config.update(name, 0)
    try:
        yield
    finally:
        jax.config.update(name, before)


def function_primitive(
    name: str, batched: Callable[[Sequence[bool], dict[str, Any]], dict[str, Any]]
) -> Any:
    """A primitive that runs its parameter `function`, a function of arrays to a list of arrays.

    It is differentiated as the function is.

    Args:
        name: of the primitive.
        batched: (whether each operand has a new first dimension, parameters) -> parameters, those
            under `jax.vmap`.
    """
    found = Primitive(name)
    found.multiple_results = True

    def run(*operands: Any, function: Callable[..., Any], **_: Any) -> Any:
        return function(*operands)

    def typed(*operands: Any, function: Callable[..., Any], **_: Any) -> Any:
        return jax.make_jaxpr(function)(*map(struct_of, operands)).out_avals

    def derived(primals: Any, tangents: Any, *, function: Callable[..., Any], **_: Any) -> Any:
        moving = [k for k, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

        def of_moving(*values: Any) -> Any:
            given = list(primals)
            for k, value in zip(moving, values, strict=True):
                given[k] = value
            return function(*given)

        return jax.jvp(of_moving, [primals[k] for k in moving], [tangents[k] for k in moving])

    def over(operands: Any, dims: Any, **params: Any) -> Any:
        has = [dim is not None for dim in dims]
        first = [
            jax.numpy.moveaxis(x, dim, 0) if mapped else x
            for x, dim, mapped in zip(operands, dims, has, strict=True)
        ]
        axes = [0 if mapped else None for mapped in has]
        params = batched(has, params)
        params["function"] = jax.vmap(params["function"], in_axes=axes)
        results = found.bind(*first, **params)
        return results, [0] * len(results)

    found.def_impl(run)
    found.def_abstract_eval(typed)
    ad.primitive_jvps[found] = derived
    batching.primitive_batchers[found] = over
    mlir.register_lowering(found, mlir.lower_fun(run))
    return found

# pyright: basic
"""JAX function to graph: arguments, their names and roles, and the state carried along."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from .attention_kernels import WithKernels
from .carried import Flat, operands, roles_of, ties
from .errors import TraceError, doing
from .graph import Graph, Input
from .host_kernels import cudnn_assumed as cudnn_assumed
from .inlined import added_wide
from .inplace import Watch as Watch
from .inplace import Watched as Watched
from .jax_internals import check_version, without_references
from .jaxpr import const_aval as const_aval
from .jaxpr import content_of as content_of
from .jaxpr import read_jaxpr as read_jaxpr
from .jaxpr import tensor_type
from .placements import Placement, is_explicit, is_on_host, placement
from .program import Binding as Binding
from .program import Program as Program
from .program import prune as prune
from .sources import Sources as Sources
from .stand_ins import CapturedArray as CapturedArray
from .text import show

ROLES = ("parameter", "optimizer-state", "batch", "argument")


@dataclass(frozen=True)
class Places:
    """Where the user asks the arguments and results to be: flat number -> placement.

    inputs: by their own shardings, or by those of a jitted function.
    outputs: by those of a jitted function.
    """

    inputs: Mapping[int, Placement] = field(default_factory=dict)
    outputs: Mapping[int, Placement] = field(default_factory=dict)


@dataclass(frozen=True)
class Traced:
    """A traced function: the program and how its arguments and results are laid out."""

    program: Program
    in_tree: Any
    out_tree: Any
    args_info: tuple[jax.ShapeDtypeStruct, ...]
    out_names: tuple[str, ...]
    donated: tuple[int, ...]  # positions among the flat arguments
    tied: tuple[tuple[int, int], ...]  # (flat argument, flat result) that hold the same state
    warnings: tuple[str, ...]
    closed: Any = field(default=None, compare=False, repr=False)  # the jaxpr that was read
    places: Places = Places()

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @cached_property
    def text(self) -> str:
        """The text form of the graph."""
        return show(self.graph)


@cudnn_assumed()
def trace(
    fn: Callable[..., Any] | Watched,
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    roles: Sequence[str] = (),
    pinned: bool = False,
    offload: bool = False,
) -> Traced:
    """Traces `fn(*args)` to a graph; nothing is computed or allocated.

    Args:
        fn: anything `jax.jit` takes, an already jitted function, or what `watched` makes of them.
        args: pytrees of arrays or `jax.ShapeDtypeStruct`.
        donate_argnums: positions of arguments whose buffers may be reused, added to those
            that a jitted `fn` already donates.
        roles: role of each positional argument, one of parameter, optimizer-state, batch and
            argument; guessed from names and donation where not given.
        pinned: whether the graph says where a jitted function wants its results.
        offload: whether copies to the host's memory, and back, are ops of their own; else, and
            where a result is left there, they are requests that nothing follows.

    Raises:
        TraceError: if an argument is not an array or the function fails to trace.
    """
    check_version()
    known = fn if isinstance(fn, Watched) else watched(fn, args)
    fn, watch = known.fn, known.watch
    if unknown := sorted(set(roles) - set(ROLES)):
        raise TraceError(
            f"has {unknown}, expected some of {', '.join(ROLES)}", where="roles",
            remedy="give one for each argument, or none to have them guessed",
        )  # fmt: skip
    names, leaves, warnings = _flat_arguments(fn, args)
    tree = jax.tree.structure(args)
    structs = jax.tree.unflatten(tree, map(_typed, leaves, jax.tree.leaves(args)))
    # a jitted function that is rewritten is traced anew; what it asks for is still its own
    own = _jitted_inside(fn)
    jitted = fn if _is_jitted(fn) else jax.jit(known.run)
    try:
        traced = jitted.trace(*structs)
    except Exception as error:
        name = _name(fn)
        raise TraceError(
            f"fails to trace with the given arguments: {_first_line(error)}",
            where=f"function '{name}'",
            remedy=f"call `jax.eval_shape({name}, ...)` with them to see it alone",
        ) from error
    if jitted is fn:
        _watch_inside(watch, fn, args, structs)
    closed = without_references(traced.jaxpr)
    starts = np.cumsum([0] + [jax.tree.structure(arg).num_leaves for arg in args]).tolist()
    donated = _donated(donate_argnums, own.trace(*structs) if own else traced, starts)
    out_leaves, out_tree = jax.tree.flatten(traced.out_info)
    out_names = tuple(
        jax.tree_util.keystr(path, simple=True, separator="/") or "out"
        for path, _ in jax.tree_util.tree_flatten_with_path(traced.out_info)[0]
    )
    found = traced.out_info
    parts = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    given = Flat(args, leaves, names)
    tied = ties(given, Flat(parts, out_leaves, out_names), donated, operands(closed.jaxpr))
    leaf_roles = roles_of(_argument_names(fn, len(args)), given, {a for a, _ in tied}, roles)
    inputs = [
        Input(name, tensor_type(leaf), role)
        for name, leaf, role in zip(names, leaves, leaf_roles, strict=True)
    ]
    kept = _kept(closed, inputs)
    own = jitted if jitted is fn else own
    asked = ((), ()) if own is None else _asked(own, structs)
    over_meshes = [s if (p := placement(s)) and p.mesh else None for s in asked[1]]
    # a result is a value of the device: what the program leaves on its host is not offloaded
    offload = offload and not any(map(is_on_host, (v.aval for v in closed.jaxpr.outvars)))
    with doing(f"reading the jaxpr of '{_name(fn)}'"):
        results = over_meshes if pinned else ()
        program = read_jaxpr(closed.jaxpr, closed.consts, kept, results=results, offload=offload)
    places = Places(
        _placements(map(_sharding, jax.tree.leaves(args))) | _placements(asked[0]),
        _placements(asked[1]),
    )
    if wide := added_wide(closed.jaxpr):
        warnings = (*warnings, _added_wide_text(wide))
    return Traced(
        program, jax.tree.structure((args, {})), out_tree, tuple(leaves), out_names,
        donated, tied, (*warnings, *watch.warnings), closed, places,
    )  # fmt: skip


def watched(fn: Callable[..., Any], args: tuple[Any, ...]) -> Watched:
    """A function that JAX traces once, however often `trace` reads it with these arguments.

    Raises:
        TraceError: if it is no function, or an argument is not an array.
    """
    if not callable(fn):
        raise TraceError(
            f"must be callable, got {type(fn).__name__}", where="fn",
            remedy="pass a function, or anything else that jax.jit takes",
        )  # fmt: skip
    return Watched(fn, _flat_arguments(fn, args)[0], args)


def _jitted_inside(fn: Any) -> Any:
    """The function of `jax.jit` whose attention is run by kernels; None if there is none."""
    return fn.fn if isinstance(fn, WithKernels) and _is_jitted(fn.fn) else None


def _is_jitted(fn: Any) -> bool:
    """Whether it is a function of `jax.jit`.

    Raises:
        TraceError: if it is one of another library's, which takes its arguments apart by itself.
    """
    if isinstance(fn, type(jax.jit(abs))):
        return True
    kind = type(fn)
    if hasattr(fn, "lower") and hasattr(fn, "__wrapped__") and kind.__module__ != "builtins":
        raise TraceError(
            f"is wrapped by {kind.__module__}.{kind.__qualname__}, which takes apart and updates "
            "its arguments by itself", where=f"function '{_name(fn)}'",
            remedy="plan the function inside it: arguments are pytrees of arrays, and what it "
            "updates it returns; or put `meshwright.parallelize` in its place",
        )  # fmt: skip
    return False


def _watch_inside(watch: Watch, jitted: Any, args: Any, structs: Any) -> None:
    """Watches what a jitted function does to objects, which it was traced without."""
    inner = jitted.__wrapped__
    watched = watch.on(inner, args)
    if watched is not inner:
        with contextlib.suppress(Exception):  # it has been traced: this call alone is wrong
            jax.eval_shape(watched, *structs)


def _asked(jitted: Any, structs: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Shardings that a jitted function asks of its flat arguments and results."""
    (*_, call) = jax.make_jaxpr(jitted)(*structs).jaxpr.eqns or (None,)
    params = {} if call is None else call.params
    return params.get("in_shardings", ()), params.get("out_shardings", ())


def _placements(shardings: Iterable[Any]) -> dict[int, Placement]:
    found = enumerate(map(placement, shardings))
    return {k: place for k, place in found if place is not None}


def _sharding(leaf: Any) -> Any:
    """The sharding that an argument is given with; that of one device is nobody's wish."""
    sharding = getattr(leaf, "sharding", None)
    return sharding if hasattr(sharding, "spec") else None


def _typed(struct: jax.ShapeDtypeStruct, leaf: Any) -> jax.ShapeDtypeStruct:
    """The type of an argument with its sharding, if that is part of the type."""
    sharding = getattr(leaf, "sharding", None)
    if not is_explicit(sharding):
        return struct
    return jax.ShapeDtypeStruct(
        struct.shape, struct.dtype, weak_type=struct.weak_type, sharding=sharding
    )


def _name(fn: Any) -> str:
    """What the user calls the function; that of a partial is the function's own."""
    named = getattr(fn, "func", fn)
    return getattr(named, "__name__", type(named).__name__)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def _added_wide_text(count: int) -> str:
    scatters, add = ("scatter", "adds") if count == 1 else ("scatters", "add")
    return (
        f"{count} {scatters} of 16-bit numbers {add} in float32: so many meet in one place that "
        "sums in 16 bits stop growing"
    )


def _kept(closed: Any, inputs: list[Input]) -> list[Input]:
    if len(closed.jaxpr.invars) != len(inputs):
        raise TraceError(
            f"hold {len(inputs)} arrays, the traced function takes {len(closed.jaxpr.invars)}",
            where="the arguments", remedy="bind static arguments of a jitted function beforehand, "
            "for instance with functools.partial, and pass what an outer function traces as an "
            "argument",
        )  # fmt: skip
    return inputs


def _donated(argnums: int | Sequence[int], traced: Any, starts: list[int]) -> tuple[int, ...]:
    """Flat positions that the caller or the jitted function donates."""
    asked = (argnums,) if isinstance(argnums, int) else argnums
    if bad := sorted(i for i in asked if not 0 <= i < len(starts) - 1):
        raise TraceError(
            f"has {bad}, but the function has {len(starts) - 1} arguments", where="donate_argnums",
            remedy="write positions of arguments, which count from 0",
        )  # fmt: skip
    own = {j for j, leaf in enumerate(jax.tree.leaves(traced.args_info)) if leaf.donated}
    return tuple(sorted(own.union(*(range(starts[i], starts[i + 1]) for i in asked))))


def _flat_arguments(
    fn: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[list[str], list[jax.ShapeDtypeStruct], tuple[str, ...]]:
    paths, leaves, warnings = [], [], []
    for head, arg in zip(_argument_names(fn, len(args)), args, strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]:
            name = _path(head, path)
            paths.append(name)
            leaves.append(_struct(name, leaf, warnings))
    return paths, leaves, tuple(warnings)


def _argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """A name for each positional argument; those of `*rest` are rest0, rest1, ..."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), "")
    extra = [f"{rest}{i - len(names)}" if rest else f"arg{i}" for i in range(len(names), count)]
    return [*names, *extra][:count]


def structs_of(name: str, tree: Any) -> Any:
    """The types of a pytree of arrays, numbers and `jax.ShapeDtypeStruct`s.

    Raises:
        TraceError: if a leaf is something else.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    return jax.tree.unflatten(structure, [_struct(_path(name, p), leaf, []) for p, leaf in paths])


def names_of(name: str, tree: Any) -> tuple[str, ...]:
    """What the leaves of a pytree are called that is an argument of that name."""
    return tuple(_path(name, path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0])


def _path(head: str, path: Any) -> str:
    """What an argument's leaf is called."""
    tail = jax.tree_util.keystr(path, simple=True, separator="/")
    return f"{head}/{tail}" if tail else head


def _struct(name: str, leaf: Any, warnings: list[str]) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, (bool, int, float, complex)):
        try:
            leaf = jax.numpy.asarray(leaf)
        except OverflowError as error:
            raise TraceError(
                f"does not fit: {error}", where=f"argument '{name}'",
                remedy="pass a smaller number, or a float",
            ) from None  # fmt: skip
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise TraceError(
            f"is a {type(leaf).__name__}, expected an array or jax.ShapeDtypeStruct",
            where=f"argument '{name}'",
            remedy="bind settings beforehand, for instance with functools.partial, and take what "
            "is no array out of models, as equinox.partition and meshwright.parallelize do",
        )
    if isinstance(leaf, jax.Ref):
        raise TraceError(
            "is a reference, which the step would change in place", where=f"argument '{name}'",
            remedy="pass its array (`ref[...]`) and return the new one",
        )  # fmt: skip
    dtype = leaf.dtype
    if not jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        record = np.dtype(dtype).names is not None and dtype != jax.dtypes.float0
        if record or np.dtype(dtype).kind in "OUSMm":
            raise TraceError(
                f"has dtype {dtype}, which JAX cannot hold", where=f"argument '{name}'",
                remedy="pass numbers, or bind it beforehand with functools.partial",
            )  # fmt: skip
        narrow = jax.dtypes.canonicalize_dtype(dtype)
        if narrow != dtype:
            warnings.append(
                f"'{name}' is {dtype} and is planned as {narrow}, as JAX runs it; set "
                "jax_enable_x64 to keep 64 bits"
            )
            dtype = narrow
    # A Python number takes the type of what it meets, and so does an array made of one.
    weak = bool(getattr(leaf, "weak_type", False))
    return jax.ShapeDtypeStruct(tuple(leaf.shape), dtype, weak_type=weak)

# pyright: basic
"""A function with the attention that it writes out run by kernels of cuDNN.

The replacement is made before differentiation: what `jax.vjp`, `jax.grad` and `jax.value_and_grad`
differentiate while the function is traced is rewritten first, so that the gradient is that of the
kernel, in loops and recomputed regions as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np
from jax.core import Tracer

from .arranged_attention import Arranged
from .compact_values import Constants, Expressions, Known, producers
from .host_kernels import cudnn_assumed
from .inlined import group_of
from .jax_compilers import differentiated_through
from .jax_internals import (
    REMAT,
    Literal,
    function_of,
    opened,
    params_of,
    run_equation,
    struct_of,
    under,
    with_consts_as_arguments,
    without_references,
)
from .sources import Sources
from .written_attention import Matcher, ReadMasks, WrittenAttention
from .written_scores import DiffersError, NoMatchError

Array = Any
_BODIES = {"scan": "jaxpr", "while": "body_jaxpr", **dict.fromkeys(REMAT, "jaxpr")}


@dataclass(frozen=True, order=True)
class AttentionSite:
    """Attention that a program writes out.

    line: file and line of its second product.
    what: its mask, heads, sizes and type.
    why: it stays as it is written; empty if the kernel runs it.
    tolerance: largest difference of outputs, of the largest value, for scores up to 1, and how much
        more for each further unit.
    """

    line: str
    what: str
    why: str = ""
    tolerance: tuple[float, float] = (0.0, 0.0)


@final
class WithKernels:
    """A function that runs the attention it writes out by kernels.

    Args:
        fn: the function.
        largest_head: features of a head that the kernels of the device take.
    """

    def __init__(self, fn: Callable[..., Any], largest_head: int = 256) -> None:
        self.fn, self._largest = fn, largest_head
        self._sources, self._sites = Sources(), dict[AttentionSite, None]()
        self._expressions, self._masks = Expressions(), ReadMasks()
        functools.update_wrapper(self, fn)

    @property
    def sites(self) -> tuple[AttentionSite, ...]:
        """What was found in all calls so far."""
        return tuple(sorted(self._sites))

    @cudnn_assumed()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inner = self.fn
        while hasattr(inner, "lower") and hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__  # a jitted function would show what it was traced to before
        try:
            with differentiated_through(self._rewritten, self):
                return self._rewritten(inner)(*args, **kwargs)
        finally:  # masks are large
            self._expressions, self._masks = Expressions(), ReadMasks()

    def _rewritten(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            traced, shape = jax.make_jaxpr(fn, return_shape=True)(*args, **kwargs)
            closed = without_references(traced)
            leaves, tree = jax.tree.leaves((args, kwargs)), jax.tree.structure(shape)
            return jax.tree.unflatten(tree, function_of(self._closed(closed, {}))(*leaves))

        return run

    def _closed(self, closed: Any, known: dict[Any, Known]) -> Any:
        """A jaxpr with the attention in it replaced; the same one if there is none."""
        if closed.effects:
            return closed
        structs = [struct_of(var.aval) for var in closed.jaxpr.invars]
        flat = jax.make_jaxpr(lambda *xs: _inlined(closed.jaxpr, closed.consts, xs))(*structs)
        jaxpr = flat.jaxpr
        pairs = zip(jaxpr.invars, closed.jaxpr.invars, strict=True)
        here = {var: known[before] for var, before in pairs if before in known}
        here |= {
            var: functools.partial(np.asarray, value)
            for var, value in zip(jaxpr.constvars, flat.consts, strict=True)
            if isinstance(value, np.ndarray)
            or (isinstance(value, jax.Array) and not isinstance(value, Tracer))
        }
        constants = Constants(jaxpr, here, self._expressions)
        body = _Body(jaxpr, flat.consts)
        matcher = Matcher(jaxpr, constants, self._masks)
        for eqn in jaxpr.eqns:
            site = self._site(matcher, eqn)
            if site is not None:
                body.sites[id(eqn)] = site
            changed = self._bodies(eqn, constants)
            if changed is not None:
                body.changed[id(eqn)] = changed
        if not body.sites and not body.changed:
            return closed
        return jax.make_jaxpr(body.run)(*structs)

    def _bodies(self, eqn: Any, constants: Constants) -> dict[str, Any] | None:
        """Parameters of a loop, branch or recomputed region with the attention in it replaced."""
        name = eqn.primitive.name
        if name == "cond":
            before = eqn.params["branches"]
            after = [
                self._closed(b, constants.into(eqn.invars[1:], b.jaxpr.invars)) for b in before
            ]
            return {"branches": tuple(after)} if any(map(_differ, before, after)) else None
        key = _BODIES.get(name)
        if key is None:
            return None
        before = eqn.params[key]
        closed = before if hasattr(before, "consts") else _closed_of(before)
        count, start = len(eqn.invars), 0
        if name == "scan":
            count = params_of(eqn)["num_consts"]
        elif name == "while":
            start, count = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        operands = eqn.invars[start : start + count]
        after = self._closed(closed, constants.into(operands, closed.jaxpr.invars))
        return {key: after} if _differ(closed, after) else None

    def _site(self, matcher: Matcher, eqn: Any) -> WrittenAttention | None:
        if eqn.primitive.name not in ("dot_general", "div", "mul"):
            return None
        line = self._sources.of(eqn)
        try:
            found = matcher.match(eqn)
        except NoMatchError:
            return None
        except DiffersError as why:
            self._sites[AttentionSite(line, _product(eqn), str(why))] = None
            return None
        whole = Arranged(found, matcher.made)
        why = self._refused(found, whole)
        tolerance = (0.0, 0.0) if why else tolerance_of(found)
        self._sites[AttentionSite(line, _named(found, whole), why, tolerance)] = None
        return None if why else found

    def _refused(self, found: WrittenAttention, whole: Arranged) -> str:
        """Why the kernel does not take these sizes; empty if it does."""
        features = max(found.sizes[found.features], found.sizes[found.out_features])
        if features > self._largest:
            return f"its heads have {features} features, the kernel takes {self._largest}"
        if found.sizes[found.out_features] % 8:
            return f"its values have {found.sizes[found.out_features]} features, no multiple of 8"
        if found.sizes[found.features] != found.sizes[found.out_features] and self._largest <= 128:
            return "its values have other features than its keys"
        q, k, v, bias = whole.structs()
        try:
            jax.eval_shape(lambda *xs: jax.vjp(whole.kernel, *xs)[0], q, k, v, bias)
        except (NotImplementedError, ValueError) as error:
            return f"the kernel does not take it: {str(error).splitlines()[0]}"
        return ""


def tolerance_of(found: WrittenAttention) -> tuple[float, float]:
    """Largest difference of outputs in units of the largest value: a + b Z for scores up to Z."""
    unit = 2.0**-8 if found.dtype == "bfloat16" else 2.0**-11
    shift = (2 * math.log(found.sizes[found.keys]), 4) if found.shifted else (0, 0)
    return (4 + found.late + shift[0]) * unit, (2 * found.roundings + shift[1]) * unit


def _product(eqn: Any) -> str:
    out = eqn.outvars[0].aval
    return f"products to {out.dtype.name}[{','.join(map(str, out.shape))}]"


def _named(found: WrittenAttention, one: Arranged) -> str:
    """Mask, heads, sizes and type in words."""
    masks = ["causal"] if found.causal else []
    masks += [f"window {found.window:,}"] if found.window else []
    masks += ["mask"] if found.masks or found.constant is not None else []
    masks += ["bias"] if found.biases else []
    heads = f"{one.heads:,} heads" + (
        f" on {one.key_heads:,}" if one.key_heads != one.heads else ""
    )
    t, s = found.sizes[found.queries[-1]], found.sizes[found.keys]
    size = f"{t:,} x {s:,} of {found.sizes[found.features]}"
    return ", ".join([*masks, f"{one.batch:,} x {heads}", size, found.dtype])


def _differ(before: Any, after: Any) -> bool:
    return before is not after


def _closed_of(jaxpr: Any) -> Any:
    """A jaxpr without captured constants as a closed one."""
    structs = [struct_of(var.aval) for var in jaxpr.invars]
    return jax.make_jaxpr(lambda *xs: _inlined(jaxpr, (), xs))(*structs)


# --- evaluation ---------------------------------------------------------------------------------


def _inlined(jaxpr: Any, consts: Sequence[Array], args: Sequence[Array]) -> list[Array]:
    """Runs a jaxpr with the calls in it that only group equations run in place."""
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(var: Any) -> Array:
        return var.val if isinstance(var, Literal) else env[var]

    for eqn in jaxpr.eqns:
        operands = [read(var) for var in eqn.invars]
        group = group_of(eqn)
        if group is None or _has_shardings(eqn):
            results = run_equation(eqn, operands, {})
        else:
            inner, held = opened(group)
            with under(eqn):
                results = _inlined(inner, held, operands)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _has_shardings(eqn: Any) -> bool:
    given = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    return any(type(each).__name__ != "UnspecifiedValue" for each in given)


@final
class _Body:
    """A body with attention in it, run on demand: what only the written form needs is left out."""

    def __init__(self, jaxpr: Any, consts: Sequence[Array]) -> None:
        self._jaxpr, self._consts, self._made = jaxpr, consts, producers(jaxpr)
        self._order = {id(eqn): i for i, eqn in enumerate(jaxpr.eqns)}
        self.sites: dict[int, WrittenAttention] = {}
        self.changed: dict[int, dict[str, Any]] = {}

    def run(self, *args: Array) -> list[Array]:
        jaxpr = self._jaxpr
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*self._consts, *args], strict=True))

        def read(var: Any) -> Array:
            if isinstance(var, Literal):
                return var.val
            if var not in env:
                for i in self._missing(var, env):
                    eqn = jaxpr.eqns[i]
                    env.update(zip(eqn.outvars, self._results(eqn, read), strict=True))
            return env[var]

        return [read(var) for var in jaxpr.outvars]

    def _missing(self, var: Any, env: dict[Any, Array]) -> list[int]:
        """Positions of the equations that a value still waits for."""
        found: set[int] = set()
        stack = [var]
        while stack:
            each = stack.pop()
            if isinstance(each, Literal) or each in env:
                continue
            eqn = self._made[each]
            i = self._order[id(eqn)]
            if i not in found:
                found.add(i)
                site = self.sites.get(id(eqn))
                stack += eqn.invars if site is None else Arranged(site, self._made).reads
        return sorted(found)

    def _results(self, eqn: Any, read: Callable[[Any], Array]) -> list[Array]:
        site = self.sites.get(id(eqn))
        if site is not None:
            with under(eqn):
                return [Arranged(site, self._made).run(read)]
        operands, changed = [read(var) for var in eqn.invars], self.changed.get(id(eqn), {})
        if eqn.primitive.name in REMAT and changed:
            closed = changed["jaxpr"]
            changed = {"jaxpr": with_consts_as_arguments(closed)}
            operands = [*closed.consts, *operands]
        return run_equation(eqn, operands, changed)

# pyright: basic
"""Steps with bodies: loops, branches, checkpoints, custom derivatives, calls."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..program import Drawn, Kind, Type, is_float

POLICIES = ("none", "dots", "everything", "nothing", "name")


def _some(d: Any, most: int, sort: str = "any") -> list[int] | None:
    """Values that enter a body, each once."""
    found = [d.value(sort) for _ in range(d.rng.randint(1, most))]
    return None if None in found else list(dict.fromkeys(found))


def _draw_scan(d: Any) -> Drawn | None:
    consts, carry = _some(d, 2), _some(d, 2, "number")
    xs = [] if d.rng.random() < 0.2 else _some(d, 2, "movable")
    if consts is None or carry is None or xs is None:
        return None
    stacked = [v for v in xs if d.types[v].rank]
    length = d.types[stacked[0]].shape[0] if stacked else d.rng.choice((0, 1, 2, 3))
    stacked = [v for v in stacked if d.types[v].shape[0] == length]
    if length > 8:
        return None
    slices = [Type(d.types[v].shape[1:], d.types[v].dtype) for v in stacked]
    carried = [d.types[v] for v in carry]
    made = d.rng.randint(0, 2)
    body = d.body([*(d.types[v] for v in consts), *carried, *slices], carried, 3, more=made)
    attrs = {"consts": len(consts), "carry": len(carry), "length": length,
             "reverse": d.rng.random() < 0.3, "unroll": d.rng.choice((1, 1, 1, 2))}  # fmt: skip
    return None if body is None else Drawn((*consts, *carry, *stacked), attrs, (body,))


def _scan(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    first, last = attrs["consts"], attrs["consts"] + attrs["carry"]

    def step(carry: Any, slices: Any) -> Any:
        results = bodies[0](*given[:first], *carry, *slices)
        return results[: last - first], results[last - first :]

    carry, ys = lax.scan(
        step, tuple(given[first:last]), tuple(given[last:]), attrs["length"],
        reverse=attrs["reverse"], unroll=attrs["unroll"],
    )  # fmt: skip
    return (*carry, *ys)


def _draw_loop(d: Any) -> Drawn | None:
    """A loop whose trips depend on a value, or are stated."""
    consts, carry = _some(d, 2), _some(d, 2, "number")
    count = d.typed((), "int32")
    if consts is None or carry is None or count is None:
        return None
    carried = [d.types[v] for v in carry]
    body = d.body([*(d.types[v] for v in consts), *carried], carried, 3)
    attrs = {"consts": len(consts)}
    return None if body is None else Drawn((count, *consts, *carry), attrs, (body,))


def _trips(count: Any) -> Any:
    return jnp.abs(count) % 4


def _while(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    count, *rest = given
    consts, carry = rest[: attrs["consts"]], rest[attrs["consts"] :]

    def step(state: Any) -> Any:
        return state[0] + 1, bodies[0](*consts, *state[1])

    found = lax.while_loop(lambda s: s[0] < _trips(count), step, (jnp.int32(0), tuple(carry)))
    return found[1]


def _fori(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    _, *rest = given
    consts, carry = rest[: attrs["consts"]], rest[attrs["consts"] :]
    return lax.fori_loop(0, 3, lambda i, state: bodies[0](*consts, *state), tuple(carry))


def _draw_cond(d: Any) -> Drawn | None:
    which, given = d.typed((), "int32"), _some(d, 3)
    if which is None or given is None:
        return None
    takes = [d.types[v] for v in given]
    first = d.body(takes, None, 3)
    if first is None:
        return None
    gives = d.gives(first)
    others = [d.body(takes, gives, 2) for _ in range(d.rng.choice((1, 1, 2)))]
    return None if None in others else Drawn((which, *given), {}, (first, *others))


def _cond(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    which, *rest = given
    return lax.switch(which, bodies, *rest)


def _draw_call(d: Any) -> Drawn | None:
    given = _some(d, 3)
    body = None if given is None else d.body([d.types[v] for v in given], None, 4)
    attrs = {"policy": d.rng.choice(POLICIES)}
    return None if given is None or body is None else Drawn(given, attrs, (body,))


def _checkpoint(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    policies = jax.checkpoint_policies
    policy = {
        "none": None, "dots": policies.dots_saveable, "everything": policies.everything_saveable,
        "nothing": policies.nothing_saveable, "name": policies.save_only_these_names("kept"),
    }[attrs["policy"]]  # fmt: skip
    return jax.checkpoint(bodies[0], policy=policy)(*given)


def _custom_jvp(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    """Its derivative is three times that of the body, so that one can tell them apart."""
    call = jax.custom_jvp(bodies[0])

    def rule(primals: Any, tangents: Any) -> Any:
        results, found = jax.jvp(bodies[0], primals, tangents)
        return results, tuple(_scaled(t, 3) for t in found)

    call.defjvp(rule)
    return call(*given)


def _custom_vjp(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    call = jax.custom_vjp(bodies[0])

    def forward(*xs: Any) -> Any:
        return bodies[0](*xs), xs

    def backward(xs: Any, cotangents: Any) -> Any:
        _, pull = jax.vjp(bodies[0], *xs)
        return tuple(_scaled(c, 3) for c in pull(cotangents))

    call.defvjp(forward, backward)
    return call(*given)


def _scaled(x: Any, by: int) -> Any:
    return x * jnp.asarray(by, x.dtype) if x.dtype != jax.dtypes.float0 else x


def _grad(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    """Derivatives of the sum of the body's floating results by its floating operands."""
    wanted = [k for k, x in enumerate(given) if is_float(x)]

    def total(*parts: Any) -> Any:
        full = list(given)
        for k, part in zip(wanted, parts, strict=True):
            full[k] = part
        sums = [jnp.sum(y.astype(jnp.float32)) for y in bodies[0](*full) if is_float(y)]
        return sum(sums, jnp.float32(0))

    return jax.grad(total, tuple(range(len(wanted))))(*(given[k] for k in wanted))


def _draw_grad(d: Any) -> Drawn | None:
    given = _some(d, 2, "float")
    body = None if given is None else d.body([d.types[v] for v in given], None, 4)
    return None if given is None or body is None else Drawn(given, {}, (body,))


def _draw_vmap(d: Any) -> Drawn | None:
    x = d.value("any", least=1)
    if x is None or not d.types[x].shape[0]:
        return None
    shape, dtype = d.types[x]
    extra = d.value("any")
    takes = [Type(shape[1:], dtype), d.types[extra]] if extra is not None else []
    body = d.body(takes, None, 3)
    return None if body is None or extra is None else Drawn((x, extra), {}, (body,))


def _vmap(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return jax.vmap(bodies[0], (0, None))(*given)


def _by_platform(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return lax.platform_dependent(*given, cpu=bodies[0], default=bodies[0])


def _jit(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return jax.jit(bodies[0])(*given)


KINDS = (
    Kind("by_platform", _draw_call, _by_platform, 0.1),
    Kind("checkpoint", _draw_call, _checkpoint, 0.7),
    Kind("cond", _draw_cond, _cond, 1.2),
    Kind("custom_jvp", _draw_call, _custom_jvp, 0.5),
    Kind("custom_vjp", _draw_call, _custom_vjp, 0.5),
    Kind("fori", _draw_loop, _fori, 0.6),
    Kind("grad", _draw_grad, _grad, 1),
    Kind("jit", _draw_call, _jit, 0.3),
    Kind("scan", _draw_scan, _scan, 1.5),
    Kind("vmap", _draw_vmap, _vmap, 0.6),
    Kind("while", _draw_loop, _while, 0.8),
)

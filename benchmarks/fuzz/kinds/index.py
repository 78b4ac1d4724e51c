# pyright: basic
"""Steps that read and write at indices, inside and out of range, in every mode."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from ..program import Drawn, Kind, dtype_of

MODES = ("clip", "fill", "promise_in_bounds")
WRITES = ("set", "add", "min", "max", "mul", "sub")


def _index_dtype(d: Any) -> str:
    return d.rng.choice(("int32", "int32", "int32", "int32", "uint8", "int8", "uint32", "int16"))


def _draw_gather(d: Any) -> Drawn | None:
    """Any gather: windows, several indexed dimensions, batched ones."""
    x = d.value("movable", least=1)
    if x is None or not d.types[x].size:
        return None
    shape = d.types[x].shape
    rank = len(shape)
    dims = list(range(rank))
    d.rng.shuffle(dims)
    indexed = sorted(dims[: d.rng.choice((1, 1, 1, min(2, rank)))])
    rest = [k for k in dims if k not in indexed]
    batched = rest[:1] if rest and d.rng.random() < 0.2 else []
    sizes = [n if d.rng.random() < 0.7 else d.rng.randint(1, n) for n in shape]
    for k in indexed:
        sizes[k] = 1 if d.rng.random() < 0.75 else d.rng.randint(1, shape[k])
    for k in batched:
        sizes[k] = 1
    collapsed = [k for k in indexed if sizes[k] == 1 and d.rng.random() < 0.8]
    places = [shape[k] for k in batched] + [d.size() for _ in range(d.rng.choice((0, 1, 1, 2)))]
    window = [k for k in range(rank) if k not in collapsed and k not in batched]
    out = list(range(len(places) + len(window)))
    offsets = sorted(d.rng.sample(out, len(window)))
    order = list(indexed)
    d.rng.shuffle(order)
    i = d.typed((*places, len(order)), _index_dtype(d))
    attrs = {
        "offsets": offsets, "collapsed": collapsed, "map": order, "batched": batched,
        "sizes": sizes, "mode": d.rng.choice(MODES),
    }  # fmt: skip
    if attrs["mode"] == "fill" and d.rng.random() < 0.4:
        attrs["fill"] = d.rng.choice((0, 7))
    return None if i is None else Drawn((x, i), attrs)


def _within(attrs: dict[str, Any], i: Any, room: list[int]) -> Any:
    """Indices as they are, but brought in range where the program promises that."""
    if attrs["mode"] != "promise_in_bounds":
        return i
    return jnp.clip(i, 0, jnp.asarray(room, i.dtype))


def _gather(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    x, i = given
    batched = tuple(attrs["batched"])
    numbers = lax.GatherDimensionNumbers(
        tuple(attrs["offsets"]), tuple(attrs["collapsed"]), tuple(attrs["map"]),
        batched, tuple(range(len(batched))),
    )  # fmt: skip
    room = [x.shape[k] - attrs["sizes"][k] for k in attrs["map"]]
    fill = attrs.get("fill")
    return lax.gather(
        x, _within(attrs, i, room), numbers, tuple(attrs["sizes"]), mode=attrs["mode"],
        fill_value=None if fill is None or x.dtype == bool else fill,
    )  # fmt: skip


def _draw_take(d: Any) -> Drawn | None:
    x = d.value("data", least=1)
    if x is None:
        return None
    i = d.typed(d.shape(d.rng.choice((0, 1, 1, 2))), _index_dtype(d))
    mode, dim = d.rng.choice(("clip", "fill", "wrap")), d.dim(x)
    if i is None or not d.types[x].shape[dim]:  # JAX refuses to take from nothing
        return None
    return Drawn((x, i), {"dim": dim, "mode": mode})


def _take(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return jnp.take(given[0], given[1], axis=attrs["dim"], mode=attrs["mode"])


def _draw_write(d: Any) -> Drawn | None:
    """Any scatter: `x.at[...]` with one or two indexed dimensions, or a window."""
    x = d.value("real", least=1)
    if x is None or not d.types[x].size:
        return None
    shape, dtype = d.types[x]
    rank = len(shape)
    dims = list(range(rank))
    d.rng.shuffle(dims)
    indexed = sorted(dims[: d.rng.choice((1, 1, 1, min(2, rank)))])
    how = d.rng.choice(WRITES)
    places = [d.size() for _ in range(d.rng.choice((0, 1, 1, 2)))]
    sizes = [n if d.rng.random() < 0.8 else d.rng.randint(1, n) for n in shape]
    for k in indexed:
        sizes[k] = 1 if d.rng.random() < 0.75 else d.rng.randint(1, shape[k])
    inserted = [k for k in indexed if sizes[k] == 1 and d.rng.random() < 0.8]
    window = [k for k in range(rank) if k not in inserted]
    out = list(range(len(places) + len(window)))
    offsets = sorted(d.rng.sample(out, len(window)))
    rest = iter(places)
    spread = dict(zip(offsets, (sizes[k] for k in window), strict=True))
    updates = [spread[k] if k in spread else next(rest) for k in out]
    i = d.typed((*places, len(indexed)), _index_dtype(d))
    u = d.typed(updates, dtype)
    attrs = {"how": how, "offsets": offsets, "inserted": inserted, "map": indexed,
             "sizes": sizes, "mode": d.rng.choice(MODES)}  # fmt: skip
    return None if i is None or u is None else Drawn((x, i, u), attrs)


def _write(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    """Replaced values are the same wherever indices meet, since their order is nobody's."""
    x, i, u = given
    how = attrs["how"]
    numbers = lax.ScatterDimensionNumbers(
        tuple(attrs["offsets"]), tuple(attrs["inserted"]), tuple(attrs["map"])
    )
    room = [x.shape[k] - attrs["sizes"][k] for k in attrs["map"]]
    if how == "set":
        u = jnp.full_like(u, 2)
    call = lax.scatter if how == "set" else getattr(lax, f"scatter_{how}")
    return call(x, _within(attrs, i, room), u, numbers, mode=attrs["mode"])


def _draw_at(d: Any) -> Drawn | None:
    """`x.at[n].set(value)` with an index that the program states."""
    x = d.value("data", least=1)
    if x is None or not d.types[x].shape[0]:
        return None
    n = d.types[x].shape[0]
    attrs = {"at": d.rng.randint(-n, n - 1), "how": d.rng.choice(("set", "add", "max"))}
    return Drawn((x,), attrs)


def _at(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    (x,) = given
    if x.dtype == bool or jnp.issubdtype(x.dtype, jnp.complexfloating) or x.dtype.itemsize == 1:
        return jnp.asarray(x).at[attrs["at"]].set(jnp.ones((), x.dtype))
    return getattr(jnp.asarray(x).at[attrs["at"]], attrs["how"])(jnp.asarray(2, x.dtype))


def _draw_static(d: Any) -> Drawn | None:
    x = d.value("data", least=1)
    if x is None or not d.types[x].shape[0]:
        return None
    n = d.types[x].shape[0]
    places = [d.rng.randint(-n, n - 1) for _ in range(d.rng.randint(1, 4))]
    return Drawn((x,), {"places": places})


def _static(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    return given[0][jnp.asarray(attrs["places"])]


def _draw_dynamic(d: Any) -> Drawn | None:
    x = d.value("movable", least=1)
    if x is None:
        return None
    shape = d.types[x].shape
    sizes = [n if d.rng.random() < 0.6 else d.rng.randint(0, n) for n in shape]
    starts = [d.typed((), d.rng.choice(("int32", "int32", "uint8", "int8"))) for _ in shape]
    return None if None in starts else Drawn((x, *starts), {"sizes": sizes})


def _dynamic(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    x, *starts = given
    starts = [s.astype(jnp.int32) for s in starts]
    return lax.dynamic_slice(x, starts, attrs["sizes"])


def _draw_update(d: Any) -> Drawn | None:
    x = d.value("data", least=1)
    if x is None:
        return None
    shape, dtype = d.types[x]
    part = d.typed([n if d.rng.random() < 0.6 else d.rng.randint(0, n) for n in shape], dtype)
    starts = [d.typed((), "int32") for _ in shape]
    return None if part is None or None in starts else Drawn((x, part, *starts))


def _update(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    x, part, *starts = given
    return lax.dynamic_update_slice(x, part, starts)


def _draw_one_hot(d: Any) -> Drawn | None:
    i = d.value("int32")
    return None if i is None else Drawn((i,), {"n": d.size(), "dtype": "float32"})


def _one_hot(attrs: dict[str, Any], bodies: Any, given: Any) -> Any:
    classes = jnp.arange(attrs["n"])
    return (given[0][..., None] == classes).astype(dtype_of(attrs["dtype"]))


def _draw_along(d: Any) -> Drawn | None:
    x = d.value("data", least=1)
    if x is None or not d.types[x].size:
        return None
    dim = d.dim(x)
    shape = list(d.types[x].shape)
    shape[dim] = d.size()
    i = d.typed(shape, "int32")
    return None if i is None else Drawn((x, i), {"dim": dim})


KINDS = (
    Kind("at", _draw_at, _at, 1.2),
    Kind("dynamic_slice", _draw_dynamic, _dynamic, 1.5),
    Kind("dynamic_update", _draw_update, _update, 1.5),
    Kind("gather", _draw_gather, _gather, 3),
    Kind("one_hot", _draw_one_hot, _one_hot, 0.4),
    Kind("places", _draw_static, _static, 0.8),
    Kind("take", _draw_take, _take, 1.2),
    Kind("take_along", _draw_along,
         lambda a, b, x: jnp.take_along_axis(*x, axis=a["dim"]), 0.6),
    Kind("write", _draw_write, _write, 3),
)  # fmt: skip

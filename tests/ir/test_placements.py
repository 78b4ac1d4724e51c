# pyright: basic
"""What programs ask for the places of values, as plain data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from ir import Placement, asks, parse, placement, show
from ir.placements import read_placement
from ir.trace import trace

AUTO = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((4, 1, 2), ("data", "one", "model"))
ONE = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
P = PartitionSpec

SHOWN = {
    "rows": (NamedSharding(AUTO, P("data")), "[data] on data=4,model=2"),
    "both": (
        NamedSharding(AUTO, P(None, ("data", "model"), P.UNCONSTRAINED)),
        "[-,data*model,*] on data=4,model=2",
    ),
    "replicated": (NamedSharding(AUTO, P()), "[] on data=4,model=2"),
    "size one": (
        NamedSharding(EXPLICIT, P("one", "data")),
        "[-,data] on data=4,one=1,model=2",
    ),
    "abstract": (NamedSharding(AUTO.abstract_mesh, P("data")), "[data] on data=4,model=2"),
    "waiting": (
        NamedSharding(EXPLICIT.abstract_mesh, P("data", unreduced=frozenset({"model"}))),
        "[data] partial over model on data=4,one=1,model=2",
    ),
    "host": (
        NamedSharding(AUTO, P("data"), memory_kind="pinned_host"),
        "[data] on data=4,model=2, memory 'pinned_host'",
    ),
    "memory": (jax.memory.Space.Host, "memory 'host'"),
    "device": (jax.devices()[1], f"device {jax.devices()[1]}"),
    "one device": (SingleDeviceSharding(jax.devices()[1]), f"device {jax.devices()[1]}"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_asked_for_is_read_and_stands_in_a_graph_as_data(name: str) -> None:
    value, text = SHOWN[name]
    found = placement(value)
    assert found is not None
    assert str(found) == text
    assert read_placement(found.attr) == found


@pytest.mark.parametrize(
    "value", [None, 3, AUTO, P("data"), jax.memory.Space.Device, NamedSharding(ONE, P("data")), abs]
)
def test_what_asks_for_nothing_is_none(value: Any) -> None:
    assert placement(value) is None


@pytest.mark.parametrize(
    "attr",
    [
        None, "auto", (), ("mesh",), (("mesh", 3),), (("mesh", (("x", "2"),)),), (("size", ()),),
        (("dims", ((1,),)),), (("mesh", ()), ("mesh", ())), (("memory", 1),), (("partial", "x"),),
    ],
)  # fmt: skip
def test_other_attributes_are_no_placements(attr: Any) -> None:
    assert read_placement(attr) is None


def test_a_traced_program_keeps_who_asks_and_where_through_its_text() -> None:
    rows, columns = NamedSharding(AUTO, P("data")), NamedSharding(AUTO, P(None, "model"))

    def fn(x: jax.Array) -> jax.Array:
        y = jax.jit(jnp.sin, in_shardings=rows)(x)
        y = jax.lax.with_sharding_constraint(y, columns)
        return jax.device_put(y, jax.memory.Space.Host) + 1.0

    traced = trace(jax.jit(fn, out_shardings=rows), jnp.ones((8, 8)), pinned=True)
    found = [ask for node in parse(show(traced.graph)).nodes for ask in asks(node)]
    first, second = Placement((("data", 4), ("model", 2)), (("data",),)), placement(columns)
    assert found == [
        ("jit", first), ("sharding_constraint", second), ("device_put", Placement(memory="host")),
        ("result", first),
    ]  # fmt: skip
    assert trace(jax.jit(fn, out_shardings=rows), jnp.ones((8, 8))).places.outputs == {0: first}

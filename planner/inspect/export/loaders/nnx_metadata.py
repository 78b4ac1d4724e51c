# pyright: basic
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

# <plan>
MESH: dict[str, int] = {}
RULES: list[tuple[str, tuple[Any, ...]]] = []
# </plan>


def make_mesh(devices: Any = None) -> Mesh:
    """The plan's mesh over the devices there are, host by host."""
    if devices is None:
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    need = int(np.prod(list(MESH.values())))
    if len(devices) < need:
        raise ValueError(f"the plan needs {need} devices, there are {len(devices)}")
    return Mesh(np.array(devices[:need], dtype=object).reshape(*MESH.values()), tuple(MESH))


def names(path: str) -> tuple[Any, ...]:
    """Mesh axes of each dimension of a variable, by the first pattern that matches its path."""
    for pattern, axes in RULES:
        if re.fullmatch(pattern, path):
            return axes
    raise KeyError(f"the plan has no parameter '{path}'")


def annotate(model: Any, kind: Any = nnx.Param) -> None:
    """Sets `out_sharding` of the variables of a kind to the plan's mesh axes."""
    found = [(path, v) for path, v in nnx.iter_graph(model) if isinstance(v, kind)]
    rows = [(variable, names("/".join(map(str, path)))) for path, variable in found]
    for variable, axes in rows:
        variable.set_metadata(out_sharding=axes)


def create(build: Callable[[], Any], mesh: Mesh) -> Any:
    """A model whose variables are made sharded, none of them whole on one device."""

    @nnx.jit
    def sharded() -> Any:
        model = build()
        annotate(model)
        state = nnx.state(model)
        specs = nnx.get_partition_spec(state)
        nnx.update(model, jax.lax.with_sharding_constraint(state, specs))
        return model

    with jax.set_mesh(mesh):
        return sharded()

# pyright: basic
"""A plan as one jitted function with the signature of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import NamedSharding

from ir import IRError, Literal, LoweredPlan, Mesh, Sharding
from ir.analysis import host_values
from ir.trace import Traced

from ..common.compiler_options import options_on
from ..common.errors import ArgumentError
from ..common.surface import public
from .constraints import constrained_program
from .context import PLACE, check_untyped, unmeshed
from .given import check_arrays, check_type
from .local import LocalProgram, local_program
from .local_op import partition_spec
from .run import Written

EMISSIONS = ("shard_map", "constraints")
HOST_MEMORY = "pinned_host"
Devices = Sequence[Any] | jax.sharding.Mesh


def build_mesh(mesh: Mesh, devices: Devices | None = None) -> jax.sharding.Mesh:
    """The mesh over real devices, host by host in row-major order.

    Args:
        mesh: axes and sizes.
        devices: devices to use in that order; all there are if None. A mesh of JAX with these axes
            is taken with its axes of size 1; of another one only the devices are.

    Raises:
        IRError: if there are fewer devices than the mesh needs.
    """
    if isinstance(devices, jax.sharding.Mesh):
        if _wide(devices.shape.items()) == _wide(mesh.axes) and {*mesh.names} <= {*devices.shape}:
            return jax.sharding.Mesh(devices.devices, devices.axis_names)  # in Auto mode
        devices = list(devices.devices.flat)
    if devices is None:
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    need = mesh.num_devices
    if len(devices) < need:
        platform = devices[0].platform if devices else jax.default_backend()
        remedy = (
            f"set XLA_FLAGS=--xla_force_host_platform_device_count={need} before JAX starts"
            if platform == "cpu"
            else "plan for the devices there are, or start more processes"
        )
        raise IRError(
            f"the plan needs {need} devices ({mesh}), but JAX has {len(devices)} of platform "
            f"'{platform}'", remedy=remedy,
        )  # fmt: skip
    grid = np.array(list(devices)[:need], dtype=object).reshape(mesh.sizes)
    return jax.sharding.Mesh(grid, mesh.names)


def _wide(axes: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(name, size) for name, size in axes if size > 1]


@dataclass(frozen=True, eq=False, repr=False)  # by identity: JAX keeps functions by their hash
class CompiledPlan:
    """A planned function; call it, or lower it, with the arguments of the original.

    in_shardings, out_shardings: pytrees of `NamedSharding`, of the positional arguments as a
        tuple and of the result.
    """

    mesh: jax.sharding.Mesh
    in_shardings: Any
    out_shardings: Any
    _jitted: Any
    _traced: Traced
    _flat_in: tuple[NamedSharding, ...]
    _local: LocalProgram | None
    host_arguments: tuple[int, ...] = ()  # flat arguments in the memory of the host

    @property
    def written(self) -> tuple[Written, ...] | None:
        """Steps of reshards in the program as it was lowered last; None if XLA chooses them."""
        return None if self._local is None else tuple(self._local.written)

    @public
    @unmeshed
    def __call__(self, *args: Any) -> Any:
        places = zip(self._flat(args), self._flat_in, self._carried, strict=True)
        leaves = [placed(leaf, sharding, carried=state) for leaf, sharding, state in places]
        try:
            results = self._jitted(*leaves)
        except TypeError:
            check_arrays(_names(self._traced), leaves)
            raise
        return jax.tree.unflatten(self._traced.out_tree, results)

    @public
    @unmeshed
    def lower(self, *args: Any) -> Any:
        """As `jax.jit(fn).lower(*args)`; shapes suffice."""
        return self._jitted.lower(*self._flat(args))

    @property
    def jitted(self) -> Any:
        """The jitted function of the flat arguments."""
        return self._jitted

    @property
    def structs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and types of the flat arguments."""
        return self._traced.args_info

    @unmeshed
    def lower_as_planned(self) -> Any:
        """Lowers it for the shapes that it was planned with."""
        return self._jitted.lower(*self._traced.args_info)

    @property
    def overwritten(self) -> dict[int, int]:
        """Donated flat argument -> the flat result that takes its buffer."""
        return {a: r for a, r in self._traced.tied if a in self._traced.donated}

    @cached_property
    def _carried(self) -> tuple[bool, ...]:
        """Whether each flat argument comes back as a result."""
        tied = {argument for argument, _ in self._traced.tied}
        return tuple(n in tied for n in range(len(self._flat_in)))

    def _flat(self, args: tuple[Any, ...]) -> list[Any]:
        leaves, tree = jax.tree.flatten((args, {}))
        if tree != self._traced.in_tree:
            raise ArgumentError(
                f"the function was planned for arguments of the structure {self._traced.in_tree}, "
                f"it is called with {tree}", kind="bad-argument", where=PLACE,
                remedy="plan it again for these",
            )  # fmt: skip
        return leaves


def placed(leaf: Any, sharding: NamedSharding, *, carried: bool) -> Any:
    """The argument where the plan wants it; an array that lies otherwise is moved first.

    Arrays on no mesh are moved too, and so are numbers and NumPy's arrays that state begins with:
    JAX would compile the function for them, and again for the arrays that come back.
    """
    if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.sharding == sharding:
        return leaf
    check_untyped(leaf, sharding.mesh)
    if carried and isinstance(leaf, (bool, int, float, complex)):
        leaf = jnp.asarray(leaf)
    movable = (jax.Array, np.ndarray, np.generic) if carried else jax.Array
    if isinstance(leaf, Tracer) or not isinstance(leaf, movable):
        return leaf  # under another jit the caller's program decides where it lies
    if not getattr(leaf, "committed", False) and not sharding.is_fully_addressable:
        return leaf  # every process has the same
    there: Any = getattr(leaf, "sharding", None)
    on_mesh = isinstance(there, NamedSharding) and there.mesh == sharding.mesh
    is_there = on_mesh and there.is_equivalent_to(sharding, leaf.ndim)
    return leaf if is_there else jax.device_put(leaf, sharding)


def compile_plan(
    traced: Traced,
    plan: LoweredPlan,
    *,
    devices: Devices | None = None,
    emission: str = "shard_map",
    gpu_options: Mapping[str, bool | int] | None = None,
) -> CompiledPlan:
    """The plan as a jitted function.

    Args:
        traced: the function as it was planned; its donated arguments stay donated.
        plan: what each device runs.
        devices: devices in row-major order of the mesh; all there are if None.
        emission: "shard_map" writes every collective of the plan; "constraints" annotates the
            program and leaves them to XLA's partitioner.
        gpu_options: options of XLA's compiler, where the devices are GPUs.

    Raises:
        IRError: if the plan is not of this function, or there are too few devices.
        ValueError: for another emission.
    """
    if emission not in EMISSIONS:
        raise ValueError(f"emission '{emission}' is not one of {', '.join(EMISSIONS)}")
    mesh = build_mesh(plan.mesh, devices)
    consts = tuple(_host(const) for const in traced.program.consts)
    ins, outs = shardings_of(plan, mesh)
    program: Callable[..., Any]
    local: LocalProgram | None = None
    if emission == "constraints":
        program = constrained_program(traced.program, plan, mesh)
    else:
        local = local_program(traced.program, plan)
        program = _on_shards(local, mesh, ins, outs)

    def planned_step(*leaves: Any) -> Any:
        _check_types(traced, leaves)
        return tuple(map(_weakened, program(*consts, *leaves), weak))

    weak = [bool(getattr(aval, "weak_type", False)) for aval in traced.closed.out_avals]
    args = ins[len(consts) :]
    jitted = jax.jit(
        planned_step, in_shardings=args, out_shardings=outs, donate_argnums=traced.donated,
        compiler_options=options_on(mesh.devices.flat[0].platform, gpu_options or {}),
    )  # fmt: skip
    positional, _ = jax.tree.unflatten(traced.in_tree, args)
    results = jax.tree.unflatten(traced.out_tree, outs)
    away, given = host_values(plan.flat), plan.flat.inputs[len(consts) :]
    hosted = tuple(k for k, v in enumerate(given) if v in away)
    return CompiledPlan(mesh, positional, results, jitted, traced, args, local, hosted)


def shardings_of(
    plan: LoweredPlan, mesh: jax.sharding.Mesh
) -> tuple[tuple[NamedSharding, ...], tuple[NamedSharding, ...]]:
    """Shardings of the arguments, captured constants first, and of the results.

    Raises:
        IRError: if one is in the memory of the host, and the devices have none.
    """
    away = host_values(plan.flat)
    if away.intersection(plan.flat.inputs):
        check_memories(mesh)

    def placed(states: Sequence[Sharding], values: Sequence[int | Literal]) -> Any:
        return tuple(
            NamedSharding(mesh, partition_spec(s), memory_kind=HOST_MEMORY if v in away else None)
            for s, v in zip(states, values, strict=True)
        )

    return placed(plan.arguments, plan.flat.inputs), placed(plan.results, plan.flat.outputs)


def check_memories(mesh: jax.sharding.Mesh) -> None:
    """Checks that the devices of a mesh can read the memory of their hosts.

    Raises:
        IRError: if JAX knows no such memory of theirs.
    """
    device = mesh.devices.flat[0]
    kinds = {memory.kind for memory in device.addressable_memories()}
    if kinds and HOST_MEMORY not in kinds:  # a description of a device has none
        raise IRError(
            f"the plan keeps arguments in the memory '{HOST_MEMORY}', which devices of platform "
            f"'{device.platform}' do not have with JAX {jax.__version__}",
            remedy="plan with offload='never', or run it with a JAX that has it",
        )  # fmt: skip


def _weakened(value: Any, weak: bool) -> Any:
    """The result as the function gives it; one made of Python numbers takes the type it meets."""
    if not weak:
        return value
    return lax.convert_element_type_p.bind(
        value, new_dtype=value.dtype, weak_type=True, sharding=None
    )


def _on_shards(
    local: LocalProgram,
    mesh: jax.sharding.Mesh,
    ins: Sequence[NamedSharding],
    outs: Sequence[NamedSharding],
) -> Callable[..., Any]:
    """The program on shards as one on whole arrays.

    Arguments without elements do not enter: their shards are made inside, since XLA drops what
    splits them and then misses it.
    """
    types = [item.type for item in local.program.graph.inputs]
    enters = [n for n, type_ in enumerate(types) if type_.size or type_.dtype.startswith("key")]

    def on_shards(*given: Any) -> tuple[Any, ...]:
        entered = dict(zip(enters, given, strict=True))
        shards = [
            entered[n] if n in entered else jnp.zeros(ins[n].shard_shape(type_.shape), type_.dtype)
            for n, type_ in enumerate(types)
        ]
        return local(*shards)

    mapped = jax.shard_map(
        on_shards,
        mesh=mesh,
        in_specs=tuple(ins[n].spec for n in enters),
        out_specs=tuple(sharding.spec for sharding in outs),
        check_vma=False,
    )
    return lambda *leaves: mapped(*(leaves[n] for n in enters))


def _check_types(traced: Traced, leaves: Sequence[Any]) -> None:
    """The program's attributes hold sizes, so that with others it may compute something else."""
    for name, leaf, planned in zip(_names(traced), leaves, traced.args_info, strict=True):
        check_type(name, leaf, planned)


def _names(traced: Traced) -> list[str]:
    """What the arguments are called that are not captured constants."""
    return [item.name for item in traced.graph.inputs[len(traced.program.consts) :]]


def _host(const: Any) -> Any:
    """A captured constant as data of this process, the same in each of them."""
    if not isinstance(const, jax.Array):
        return const
    if jnp.issubdtype(const.dtype, jax.dtypes.prng_key):
        words = jnp.asarray(np.asarray(jax.random.key_data(const)))
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(const))
    return np.asarray(const)

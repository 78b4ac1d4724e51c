# pyright: basic
from collections import Counter
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import version as jaxlib_version

# <plan>
MESH: dict[str, int] = {}
ARGUMENTS: tuple[str, ...] = ()
DONATED: tuple[int, ...] = ()
GPU_OPTIONS: dict[str, Any] = {}
FINGERPRINT: str = ""
RULES: list[tuple[str, P]] = []
RESULTS: list[int | P] = []
CONSTRAINTS: list[tuple[str, str, str, P]] = []
# </plan>


def make_mesh(devices: Any = None) -> Mesh:
    """The mesh over the devices given or there, host by host."""
    if devices is None:
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    sizes, need = tuple(MESH.values()), int(np.prod(list(MESH.values())))
    if len(devices) < need:
        raise ValueError(f"the plan needs {need} devices, there are {len(devices)}")
    return Mesh(np.array(devices[:need], dtype=object).reshape(sizes), tuple(MESH))


def paths(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What RULES call the leaves of the arguments, such as params/layers/0/up."""

    def name(head: str, path: Any, leaf: Any) -> str:
        del leaf
        tail = jax.tree_util.keystr(path, simple=True, separator="/")
        return f"{head}/{tail}" if tail else head

    heads = iter(ARGUMENTS)
    return tuple(
        jax.tree_util.tree_map_with_path(partial(name, next(heads, "")), arg)
        if jax.tree.leaves(arg)
        else arg
        for arg in args
    )


def in_shardings(mesh: Mesh, *args: Any) -> tuple[Any, ...]:
    """A NamedSharding for each leaf of the arguments, which are arrays or their shapes."""
    structs = jax.eval_shape(lambda *given: given, *args)
    names = paths(structs)
    pairs = zip(jax.tree.leaves(names), jax.tree.leaves(structs), strict=True)
    found = "\n".join(f"{name} {_type(struct)}" for name, struct in pairs)
    if sha256(found.encode()).hexdigest()[:16] != FINGERPRINT:
        raise ValueError(
            "names, shapes or types of the arguments are not those planned: plan again, or "
            f"compare:\n{found}"
        )

    def sharding(path: str) -> NamedSharding:
        return NamedSharding(mesh, next(s for p, s in RULES if fnmatchcase(path, p)))

    return jax.tree.map(sharding, names)


def shard(fn: Any, *args: Any, mesh: Mesh | None = None) -> Any:
    """`jax.jit(fn)` with the plan's shardings.

    Args:
        fn: the function that was planned, unchanged.
        args: its arguments: arrays, or shapes as of `jax.eval_shape`.
        mesh: from `make_mesh`.
    """
    mesh = make_mesh() if mesh is None else mesh
    ins = in_shardings(mesh, *args)
    flat = jax.tree.leaves(ins)
    tree = jax.tree.structure(jax.eval_shape(fn, *args))
    if tree.num_leaves != len(RESULTS):
        raise ValueError(f"{tree.num_leaves} results, planned with {len(RESULTS)}")
    outs = [flat[r] if isinstance(r, int) else NamedSharding(mesh, r) for r in RESULTS]
    platform = mesh.devices.flat[0].platform
    return jax.jit(
        constrained(fn, mesh),
        in_shardings=ins,
        out_shardings=jax.tree.unflatten(tree, outs),
        donate_argnums=DONATED,
        compiler_options=gpu_options() if platform == "gpu" else None,
    )


def gpu_options(version: str = jaxlib_version.__version__) -> dict[str, Any]:
    """GPU_OPTIONS in the names of jaxlib: from 0.11.1 some are modes, 2 is on."""
    if tuple(int(n) for n in version.split(".")[:3] if n.isdigit()) < (0, 11, 1):
        return GPU_OPTIONS
    old, new = "xla_gpu_enable_pipelined_", "xla_gpu_pipeline_"
    options = GPU_OPTIONS.items()
    return {n.replace(old, new): 2 * v if old in n else v for n, v in options}


def constrained(fn: Any, mesh: Mesh) -> Any:
    """`fn` with a sharding constraint at each result that CONSTRAINTS name."""
    at = {(op, t, n): s for op, t, which, s in CONSTRAINTS for n in _numbers(which)}

    def run(*args: Any) -> Any:
        closed, out = jax.make_jaxpr(fn, return_shape=True)(*args)
        kinds = {type(effect).__name__ for effect in closed.effects}
        if "InternalMutableArrayEffect" in kinds:
            raise ValueError(
                "has references (jax.new_ref), to which no constraint can be set: "
                "carry arrays as values, or run the plan with Meshwright"
            )
        leaves, seen = jax.tree.leaves(args), Counter[tuple[str, str]]()

        def constrain(op: str, x: Any) -> Any:
            key = op, _type(x)
            seen[key] += 1
            spec = at.get((*key, seen[key] - 1))
            if spec is None:
                return x
            return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

        # Calls such as jnp functions are inlined first, so that what nobody reads is not counted.
        inlined = jax.make_jaxpr(partial(_evaluate, closed, lambda op, x: x))(*leaves)
        results = _evaluate(inlined, constrain, *leaves)
        for op, t, which, _ in CONSTRAINTS:
            planned = int(which.rpartition(" of ")[2])
            if seen[op, t] != planned:
                raise ValueError(
                    f"the function has {seen[op, t]} results of {op} of type {t}, it was planned "
                    f"with {planned}: plan it again, or correct CONSTRAINTS"
                )
        return jax.tree.unflatten(jax.tree.structure(out), results)

    return run


def _type(x: Any) -> str:
    if not hasattr(x, "dtype"):
        return "token"
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def _numbers(which: str) -> list[int]:
    """Numbers written as `0,3,8-20:4 of 24`."""
    found: list[int] = []
    for part in which.partition(" of ")[0].split(","):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
_BODIES = {
    "scan": ("jaxpr",),
    "while": ("body_jaxpr", "cond_jaxpr"),
    "cond": ("branches",),
    "remat": ("jaxpr",),
}
_REMAT = {"checkpoint": "remat", "remat2": "remat"}
_PLACEMENTS = ("device_put", "mesh_cast", "reshard", "sharding_constraint")


def _evaluate(closed: Any, constrain: Any, *args: Any) -> list[Any]:
    """Runs a jaxpr, with `constrain(primitive, x)` in place of each result x."""
    jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
    variables = (*jaxpr.constvars, *jaxpr.invars)
    env: dict[Any, Any] = dict(zip(variables, (*consts, *args), strict=True))
    fixed = set[Any]()  # made of literals alone: not counted, as JAX may fold it

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else env[atom]  # a literal

    for eqn in _live(jaxpr):
        inputs = [read(atom) for atom in eqn.invars]
        name = str(eqn.primitive.name)
        name = _REMAT.get(name, name)
        if name in _CALLS:
            outputs = _evaluate(eqn.params[_CALLS[name]], constrain, *inputs)
        elif name in _PLACEMENTS:  # the plan places every value
            outputs = inputs
        else:
            params = dict(eqn.params)
            for key in _BODIES.get(name, ()):
                params[key] = _rebuilt(name, params[key], constrain)
            given = eqn.primitive.get_bind_params(params)
            functions, params = given if isinstance(given, tuple) else ((), given)
            with eqn.ctx.manager:
                found = eqn.primitive.bind(*functions, *inputs, **params)
            outputs = found if eqn.primitive.multiple_results else [found]
            if name in _BODIES or not all(
                hasattr(atom, "val") or atom in fixed for atom in eqn.invars
            ):
                outputs = [constrain(name, x) for x in outputs]
            else:
                fixed.update(eqn.outvars)
        env.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _live(jaxpr: Any) -> list[Any]:
    """Equations that have effects or results that are read."""
    wanted, found = set(map(id, jaxpr.outvars)), list[Any]()
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not wanted.isdisjoint(map(id, eqn.outvars)):
            wanted.update(map(id, eqn.invars))
            found.append(eqn)
    return found[::-1]


def _rebuilt(name: str, body: Any, constrain: Any) -> Any:
    """The body of a loop, branch or checkpoint, with constraints inside."""
    if isinstance(body, (tuple, list)):
        return tuple(_rebuilt(name, each, constrain) for each in body)
    structs = [_struct(var.aval) for var in getattr(body, "jaxpr", body).invars]

    def run(*xs: Any) -> list[Any]:
        return _evaluate(body, constrain, *[constrain(f"{name} input", x) for x in xs])

    found = jax.make_jaxpr(run)(*structs)
    return found if hasattr(body, "consts") else found.jaxpr


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)

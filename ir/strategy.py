"""Legal strategies of an op on a mesh, derived from its factor spec.

A strategy gives every mesh axis one role: unused (`""`), splitting a factor (its name), or
carrying a partial sum through the op (`"@g"`, g a group of the op's linear operands).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from .errors import IRError
from .factors import FactorSpec, operand_sharding, result_sharding
from .mesh import Mesh
from .sharding import Sharding

# More strategies than this are cut to those that split fewest factors: 3-D meshes on ops with
# many factors would otherwise have thousands, nearly all of them dominated.
MENU_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run an op: roles of the mesh axes and the states they imply."""

    roles: tuple[str, ...]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]

    def factor_axes(self, mesh: Mesh) -> dict[str, tuple[str, ...]]:
        """Axes of every split factor, in mesh order."""
        return factor_axes(self.roles, mesh)


def factor_axes(roles: Sequence[str], mesh: Mesh) -> dict[str, tuple[str, ...]]:
    axes: dict[str, tuple[str, ...]] = {}
    for axis, role in zip(mesh.names, roles, strict=True):
        if role and role[0] != "@":
            axes[role] = (*axes.get(role, ()), axis)
    return axes


def form_of(spec: FactorSpec, mesh: Mesh) -> Hashable:
    """What of a spec its strategies on a mesh depend on: two specs of one form share a menu."""
    counts = range(1, len(mesh.sizes) + 1)
    ways = sorted({math.prod(c) for n in counts for c in itertools.combinations(mesh.sizes, n)})
    fits = tuple(
        (name, size > 1, tuple((size % w == 0, size == w) for w in ways))
        for name, size in spec.sizes
    )
    return spec.operands, spec.results, spec.kinds, spec.joint, fits


def strategies(
    spec: FactorSpec,
    mesh: Mesh,
    pass_groups: tuple[tuple[int, ...], ...] = (),
    splits: Splits | None = None,
) -> tuple[Strategy, ...]:
    """All legal strategies, the unsplit one first; empty only if a mapped factor has no axis.

    Args:
        spec: factors of the op.
        mesh: the mesh.
        pass_groups: groups of operand positions through which partial sums may pass here; an
            empty one has its number and nothing else.
        splits: shardings on this mesh that are known already.
    """
    roles, tensors = _roles(spec, mesh, pass_groups), _Tensors(spec, splits or Splits(mesh))
    found: list[Strategy] = []
    for combination in itertools.product(*roles):
        strategy = _strategy(tensors, combination, pass_groups)
        if strategy is not None:
            found.append(strategy)
    if len(found) > MENU_LIMIT:
        found.sort(key=lambda s: (len({r for r in s.roles if r}), s.roles))
        found = found[:MENU_LIMIT]
    return tuple(found)


def _roles(
    spec: FactorSpec, mesh: Mesh, pass_groups: tuple[tuple[int, ...], ...]
) -> list[tuple[str, ...]]:
    if (single := single_factor(spec)) is not None:
        return [(single,) if ways > 1 else ("",) for ways in mesh.sizes]
    splittable = [name for name, size in spec.sizes if spec.can_split(name) and size > 1]
    sizes = dict(spec.sizes)
    mapped = [name for name, kind in spec.kinds if kind == "mapped"]
    if mapped:
        missing = {*mapped} - {*mesh.names}
        return [
            () if missing
            else (name,) if name in mapped
            else ("", *(n for n in splittable if n not in mapped and sizes[n] % ways == 0))
            for name, ways in zip(mesh.names, mesh.sizes, strict=True)
        ]  # fmt: skip
    passing = tuple(f"@{g}" for g, members in enumerate(pass_groups) if members)
    return [
        ("", *(name for name in splittable if sizes[name] % ways == 0), *passing)
        if ways > 1
        else ("",)
        for ways in mesh.sizes
    ]


def single_factor(spec: FactorSpec) -> str | None:
    """The factor that confines the op to one device, which every axis then has."""
    return next((name for name, kind in spec.kinds if kind == "single"), None)


@dataclass(frozen=True)
class Splits:
    """Shardings of tensors on one mesh by the roles of its axes, each worked out once.

    numbers: of tensors whose factors are alike.
    known: sharding by the number of the tensor and the roles; None where these are not legal.
    """

    mesh: Mesh
    numbers: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    known: dict[tuple[int, tuple[str, ...]], Sharding | None] = field(
        default_factory=dict[tuple[int, tuple[str, ...]], Sharding | None]
    )


class _Tensors:
    """The tensors of one op: operands, then results."""

    def __init__(self, spec: FactorSpec, splits: Splits) -> None:
        self.spec, self.mesh, self.splits = spec, splits.mesh, splits
        reduced = tuple((name, kind) for name, kind in spec.kinds if kind != "plain")
        sides = [(dims, ()) for dims in spec.operands] + [(dims, reduced) for dims in spec.results]
        self.names: list[frozenset[str]] = []
        self.numbers: list[int] = []
        for dims, kinds in sides:
            own = [by for dim in dims for name in dim for by in spec.splitting(name)]
            self.names.append(frozenset((*own, *(name for name, _ in kinds))))
            alike = dims, tuple(spec.size(name) for name in own), kinds, spec.joint
            self.numbers.append(splits.numbers.setdefault(alike, len(splits.numbers)))

    def of(self, roles: tuple[str, ...]) -> list[Sharding] | None:
        """States of operands and raw results; None if the roles are not legal."""
        known, found = self.splits.known, list[Sharding]()
        for k, names in enumerate(self.names):
            key = self.numbers[k], tuple([role if role in names else "" for role in roles])
            if key not in known:
                known[key] = self._sharding(k, key[1])
            state = known[key]
            if state is None:
                return None
            found.append(state)
        return found

    def _sharding(self, k: int, roles: tuple[str, ...]) -> Sharding | None:
        axes, count = factor_axes(roles, self.mesh), len(self.spec.operands)
        try:
            if k < count:
                return operand_sharding(self.spec, k, axes, self.mesh)
            return result_sharding(self.spec, k - count, axes, self.mesh)
        except IRError:
            return None


def _strategy(
    tensors: _Tensors, roles: tuple[str, ...], pass_groups: tuple[tuple[int, ...], ...]
) -> Strategy | None:
    passed = {role for role in roles if role[:1] == "@"} if pass_groups else set[str]()
    if len(passed) > 1:
        return None
    states = tensors.of(roles)
    if states is None:
        return None
    mesh, count = tensors.mesh, len(tensors.spec.operands)
    operands, results = tuple(states[:count]), tuple(states[count:])
    if passed:
        axes = tuple(a for a, r in zip(mesh.names, roles, strict=True) if r.startswith("@"))
        members = pass_groups[int(next(iter(passed))[1:])]
        if any(state.partial for state in results):
            return None
        partial = tuple((axis, "sum") for axis in axes)
        operands = tuple(
            Sharding(state.dims, partial) if i in members else state
            for i, state in enumerate(operands)
        )
        results = tuple(Sharding(state.dims, partial) for state in results)
    if any(state.partial and len({kind for _, kind in state.partial}) > 1 for state in results):
        return None
    return Strategy(roles, operands, results)


def strategy_of(
    spec: FactorSpec,
    mesh: Mesh,
    roles: tuple[str, ...],
    pass_groups: tuple[tuple[int, ...], ...] = (),
) -> Strategy:
    """The strategy with the given roles.

    Raises:
        IRError: if the roles are not legal for an op with this spec.
    """
    possible = zip(roles, _roles(spec, mesh, pass_groups), strict=True)
    legal = all(role in some for role, some in possible)
    strategy = _strategy(_Tensors(spec, Splits(mesh)), roles, pass_groups) if legal else None
    if strategy is None:
        raise IRError(f"the roles {roles} over {mesh} are not legal for an op with factors {spec}")
    return strategy


def value_states(
    mesh: Mesh, splits: Iterable[tuple[tuple[str, ...], ...]], *, partial: bool
) -> tuple[Sharding, ...]:
    """States in which a value may be kept, the whole one first.

    Args:
        mesh: the mesh.
        splits: even splits of the value's shape, from `costmodel.sharded_dims`.
        partial: also as partial sums over unused axes.
    """
    states: list[Sharding] = []
    for dims in splits:
        state = Sharding(dims)
        states.append(state)
        if partial:
            free = [axis for axis in mesh.names if axis not in state.axes and mesh.size(axis) > 1]
            for n in range(1, len(free) + 1):
                for axes in itertools.combinations(free, n):
                    states.append(Sharding(state.dims, tuple((axis, "sum") for axis in axes)))
    return tuple(states)

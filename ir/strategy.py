"""Legal strategies of an op on a mesh, derived from its factor spec.

A strategy gives every mesh axis one role: unused (`""`), splitting a factor (its name), or
carrying a partial sum through the op (`"@g"`, g a group of the op's linear operands).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
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
    ways = _ways(mesh)
    fits = tuple((name, size > 1, _fits(size, ways)) for name, size in spec.sizes)
    return spec.operands, spec.results, spec.kinds, spec.joint, fits


def _ways(mesh: Mesh) -> tuple[int, ...]:
    """Into how many parts some of the axes of a mesh split."""
    counts = range(1, len(mesh.sizes) + 1)
    some = (c for n in counts for c in itertools.combinations(mesh.sizes, n))
    return tuple(sorted({math.prod(c) for c in some}))


def _fits(size: int, ways: Sequence[int]) -> tuple[tuple[bool, bool], ...]:
    """For each number of parts, whether it divides a size, and whether it is that size."""
    return tuple([(size % w == 0, size == w) for w in ways])


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
    for combination, states in zip(itertools.product(*roles), tensors.states(roles), strict=True):
        strategy = _strategy(tensors, combination, states, pass_groups)
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


States = tuple[Sharding | None, ...]


@dataclass(frozen=True)
class Splits:
    """Shardings of tensors on one mesh by the roles of its axes, each worked out once.

    known: tensors whose factors are alike -> roles -> sharding; None where these are not legal.
    partial: dimensions and axes of partial sums -> sharding.
    """

    mesh: Mesh
    known: dict[Hashable, dict[tuple[str, ...], Sharding | None]] = field(
        default_factory=dict[Hashable, dict[tuple[str, ...], Sharding | None]]
    )
    partial: dict[Hashable, Sharding] = field(default_factory=dict[Hashable, Sharding])

    def passing(self, state: Sharding, axes: tuple[str, ...]) -> Sharding:
        """A state without partial sums, as one that waits to be summed over some axes."""
        key = state.dims, axes
        if key not in self.partial:
            self.partial[key] = Sharding(state.dims, tuple((axis, "sum") for axis in axes))
        return self.partial[key]


class _Tensors:
    """The tensors of one op: operands, then results."""

    def __init__(self, spec: FactorSpec, splits: Splits) -> None:
        self.spec, self.mesh, self.splits = spec, splits.mesh, splits
        reduced = tuple((name, kind) for name, kind in spec.kinds if kind != "plain")
        sides = [(dims, ()) for dims in spec.operands] + [(dims, reduced) for dims in spec.results]
        ways = _ways(self.mesh)
        # factors of each tensor -> their roles in what is known of tensors like it
        self.names: list[dict[str, str]] = []
        self.known: list[dict[tuple[str, ...], Sharding | None]] = []
        for dims, kinds in sides:
            own = [by for dim in dims for name in dim for by in spec.splitting(name)]
            each = dict.fromkeys((*own, *(name for name, _ in kinds)))
            names = {n: n if spec.joint else str(k) for k, n in enumerate(each)}
            alike = (
                tuple([tuple([names.get(n, n) for n in dim]) for dim in dims]),
                tuple([_fits(spec.size(n), ways) for n in own]),
                tuple([(names[n], kind) for n, kind in kinds]), spec.joint,
            )  # fmt: skip
            self.names.append(names)
            self.known.append(splits.known.setdefault(alike, {}))

    def states(self, roles: Sequence[Sequence[str]]) -> Iterable[States]:
        """States of operands and raw results for every combination of roles of the axes, in order.

        A state is None if the roles are not legal for its tensor.
        """
        if not self.names:
            return [()] * math.prod(map(len, roles))
        return zip(*[self._each(k, roles) for k in range(len(self.names))], strict=True)

    def _each(self, k: int, roles: Sequence[Sequence[str]]) -> Iterator[Sharding | None]:
        names, known = self.names[k], self.known[k]
        own = [[names.get(role, "") for role in some] for some in roles]
        for mine in itertools.product(*own):
            if mine not in known:
                known[mine] = self._sharding(k, mine)
            yield known[mine]

    def _sharding(self, k: int, mine: tuple[str, ...]) -> Sharding | None:
        named = {role: name for name, role in self.names[k].items()}
        axes = factor_axes([named.get(role, "") for role in mine], self.mesh)
        count = len(self.spec.operands)
        try:
            if k < count:
                return operand_sharding(self.spec, k, axes, self.mesh)
            return result_sharding(self.spec, k - count, axes, self.mesh)
        except IRError:
            return None


def _strategy(
    tensors: _Tensors,
    roles: tuple[str, ...],
    states: States,
    pass_groups: tuple[tuple[int, ...], ...],
) -> Strategy | None:
    legal = [state for state in states if state is not None]
    if len(legal) < len(states):
        return None
    passed = {role for role in roles if role[:1] == "@"} if pass_groups else set[str]()
    if len(passed) > 1:
        return None
    mesh, count = tensors.mesh, len(tensors.spec.operands)
    operands, results = tuple(legal[:count]), tuple(legal[count:])
    if passed:
        axes = tuple([a for a, r in zip(mesh.names, roles, strict=True) if r[:1] == "@"])
        members = pass_groups[int(next(iter(passed))[1:])]
        if any(state.partial for state in results):
            return None
        passing = tensors.splits.passing
        operands = tuple([
            passing(state, axes) if i in members else state for i, state in enumerate(operands)
        ])  # fmt: skip
        results = tuple([passing(state, axes) for state in results])
    for state in results:
        if state.partial and len({kind for _, kind in state.partial}) > 1:
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
    strategy = None
    if all(role in some for role, some in possible):
        tensors = _Tensors(spec, Splits(mesh))
        (states,) = tensors.states([(role,) for role in roles])
        strategy = _strategy(tensors, roles, states, pass_groups)
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

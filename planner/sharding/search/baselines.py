"""Hand-written plans, as limits on the same search.

Each is a set of rules on which axis may split what; within the rules the solver completes the plan
as well as it can, so that no expert's version of a baseline is faster than the baseline's price.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ir import (
    ATTENTION,
    EXCHANGE,
    GROUPED,
    GROUPS,
    NEAR,
    ROWS,
    FactorSpec,
    Sharding,
    Strategy,
    flops_of,
    lookup,
)
from ir.analysis import FlatProgram, Kinds, accumulators, operand_types

from ...common.surface import public_methods
from ..problem.argument_roles import Roles
from ..problem.build import Builder
from ..problem.records import Limits


@public_methods
@dataclass(frozen=True, slots=True)
class Baseline:
    """Price of a hand-written plan: seconds per step, bytes per device, whether they fit."""

    step_s: float
    peak_bytes: float
    fits: bool
    mesh: str = ""


BATCH, SEQUENCE, EXPERTS = "batch", "sequence", "experts"
TOKENS = "tokens"  # rows of grouped products: of the batch and of the sequence
MOST = 0.5  # share of the flops of products whose batch must divide over the data axes of a recipe
Menu = tuple[Strategy, ...]
# (kind of a factor, whether its op is outside forward and backward) -> may this axis split it?
Rule = Callable[[str, bool], bool]


@dataclass(frozen=True)
class Recipe:
    """A baseline on a mesh: the factors that each axis may split, and the shardings of arguments.

    axis: one rule per mesh axis, for factors of ops.
    state: (flat value, sharding) -> allowed, for arguments and results.
    data: axes that split the batch wherever an op has it and it divides.
    context: axes that split the sequence likewise.
    experts: axes that split the experts of products of these likewise.
    """

    name: str
    axis: tuple[Rule, ...]
    state: Callable[[int, Sharding], bool]
    data: tuple[int, ...] = ()
    context: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()


def _filtered(menu: Menu, kinds: Mapping[str, str], recipe: Recipe) -> Menu:
    """Strategies within the rules that split the batch over as many data axes as they can.

    Experts come before the batch.

    Args:
        menu: strategies of an op.
        kinds: kind of each of its factors.
        recipe: whose axes those are, and those that split the sequence likewise.
    """
    if len(menu) == 1:
        return menu
    data, context = recipe.data, recipe.context
    # no factor is of the batch, nor, where it is split, of the sequence
    update = {BATCH, TOKENS, *((SEQUENCE,) if context else ())}.isdisjoint(kinds.values())

    def may(rule: Rule, kind: str) -> bool:
        each = (BATCH, SEQUENCE) if kind == TOKENS else (kind,)
        return any(rule(one, update) for one in each)

    allowed = [{name for name, kind in kinds.items() if may(rule, kind)} for rule in recipe.axis]

    def legal(strategy: Strategy) -> bool:
        return all(
            role in names or role not in kinds
            for role, names in zip(strategy.roles, allowed, strict=True)
        )

    def count(strategy: Strategy) -> tuple[int, int]:
        of = [kinds.get(role) for role in strategy.roles]
        split = sum(of[a] in (BATCH, TOKENS) for a in data)
        split += sum(of[a] in (SEQUENCE, TOKENS) for a in context)
        return sum(of[a] == EXPERTS for a in recipe.experts), split

    kept = [s for s in menu if legal(s)]
    most = max(map(count, kept), default=(0, 0))
    return tuple(s for s in kept if count(s) == most or any(r[:1] == "@" for r in s.roles))


def _on_batch(kind: str, _update: bool) -> bool:
    return kind == BATCH


def _tensor(kind: str, _update: bool) -> bool:
    return kind != BATCH


def _data(kind: str, update: bool) -> bool:
    """Rule of a data axis with sharded state: factors of the batch, and any in the update."""
    return kind == BATCH or update


def _context(kind: str, update: bool) -> bool:
    """Rule of an axis of context parallelism: factors of the sequence, and any in the update."""
    return kind == SEQUENCE or update


def _within(kind: str, update: bool) -> bool:
    """Rule of a tensor axis beside those that split tokens."""
    return update or kind not in (BATCH, SEQUENCE)


class Recipes:
    """Builds the recipes that make sense for a program."""

    def __init__(self, builder: Builder, kinds: Kinds, roles: Roles) -> None:
        self.builder, self.kinds, self.roles = builder, kinds, roles
        self.flat: FlatProgram = builder.flat
        self.mesh = builder.mesh
        self.keeps = {*roles.parameters, *roles.states}

    def limits(self, recipe: Recipe) -> Limits:
        """The recipe as limits of the search; ops with equally judged factors share a menu."""
        known: dict[object, Menu] = {}
        elsewhere = replace(recipe, experts=())

        def op(i: int, spec: FactorSpec, menu: Menu) -> Menu:
            kinds = self.kinds.of_op(i)
            product = self.flat.ops[i].node.op in ("dot_general", GROUPED)
            key = (id(menu), kinds, product)
            if key not in known:
                named = dict(zip(spec.names, kinds, strict=True))
                if product and GROUPS in named and NEAR in named:  # sorted rows are tokens
                    named |= {ROWS: TOKENS, GROUPS: EXPERTS, NEAR: EXPERTS}
                for name, members in spec.joint:
                    if name == EXCHANGE and BATCH in {named.get(each) for each in members}:
                        named[name] = BATCH  # what is looked up is split as its lookups are
                known[key] = _filtered(menu, named, recipe if product else elsewhere)
            return known[key]

        return Limits(op, recipe.state)

    def _whole(self, v: int, state: Sharding) -> bool:
        return v not in self.keeps or state.is_replicated

    def _split(self, members: set[int]) -> Callable[[int, Sharding], bool]:
        """Rule that members are split over all axes where a dimension allows it, others whole."""

        def allowed(v: int, state: Sharding) -> bool:
            if v not in self.keeps:
                return True
            if v not in members:
                return state.is_replicated
            return self._is_full(v, state)

        return allowed

    def _is_full(self, v: int, state: Sharding) -> bool:
        full = set(self.mesh.names)
        options = self.builder.states(v, partial=False)
        if any(set(s.axes) == full for s in options):
            return set(state.axes) == full
        return state.is_replicated

    def recipes(self, *, every: bool, apart: bool = False) -> list[Recipe]:
        """The recipes that apply to this mesh, and over whose data axes the batch divides.

        Where it does not, most devices would repeat the work of others, which nobody writes.

        Args:
            every: whether to include those of a single axis, which on a mesh of several axes repeat
                those of the flat mesh.
            apart: whether the devices are in several islands of fast links.
        """
        found: list[Recipe] = []
        axes = tuple(range(len(self.mesh.names)))
        flat = every or len(axes) == 1
        if self.kinds.batch and flat:
            found.extend(self._data_parallel(axes))
        if self.kinds.batch and (every or len(axes) <= 2):
            found.extend(self._expert())
        found.extend(self._megatron())
        if self.kinds.batch and self.roles.parameters and len(axes) == 2:
            found.extend(self._two_ways(apart=apart))
        if self.kinds.sequence and self.roles.parameters and self._has_kernels:
            found.extend(self._context_parallel(len(axes)))
        if self.roles.parameters and flat:
            found.append(self._largest())
        return [recipe for recipe in found if self._divides(recipe.data)]

    @cached_property
    def _batches(self) -> dict[int, float]:
        """Sizes of the batch in products, and the flops of those."""
        found: dict[int, float] = defaultdict(float)
        for i, op in enumerate(self.flat.ops):
            if op.node.op in ("dot_general", "conv_general_dilated"):
                kinds = self.kinds.of_op(i)
                spec = self.builder.spec(op)
                sizes = [n for (_, n), kind in zip(spec.sizes, kinds, strict=True) if kind == BATCH]
                flops = flops_of(lookup(op.node.op), op.node, operand_types(self.flat, op))
                found[max(sizes, default=0)] += op.weight * flops
        return found

    def _divides(self, axes: Sequence[int]) -> bool:
        """Whether the batch divides over some axes, in most of the flops of products that have one.

        Args:
            axes: positions of mesh axes.
        """
        ways = math.prod(self.mesh.sizes[a] for a in axes)
        having = {size: flops for size, flops in self._batches.items() if size}
        dividing = sum(flops for size, flops in having.items() if size % ways == 0)
        return dividing >= MOST * sum(having.values())

    def _two_ways(self, *, apart: bool) -> list[Recipe]:
        """On two axes, the second of close devices: fully sharded with tensor parallel, and hybrid.

        The first splits parameters and state over all devices, the batch over the first axis and
        products over the second. The second splits the batch over all devices, and parameters and
        state only over close ones. Experts write them for several islands, and the first for small
        batches.
        """
        second = self.mesh.names[1]
        whole = self._divides((0, 1))

        def near(v: int, state: Sharding) -> bool:
            if v not in self.keeps:
                return True
            options = self.builder.states(v, partial=False)
            able = any(set(s.axes) == {second} for s in options)
            return set(state.axes) == ({second} if able else set())

        found: list[Recipe] = []
        if apart or not whole:
            found.append(Recipe("fsdp-tp", (_data, _tensor), self._split(self.keeps), (0,)))
        if apart and self.roles.states:
            found.append(Recipe("hsdp", (_data, _data), near, (0, 1)))
        return found

    @property
    def _has_kernels(self) -> bool:
        """Whether attention runs in kernels, which blocks of the sequence can call."""
        return any(op.node.op in ATTENTION for op in self.flat.ops)

    def _context_parallel(self, count: int) -> list[Recipe]:
        """The sequence split on one axis, beside data parallelism, tensor parallelism or both.

        Tensor parallelism is innermost, then the sequence, data parallelism outermost. Parameters
        and state are split over all devices, and gathered where products read them. Attention is
        split along the sequence in the best of its ways: in a ring, in zigzag order, gathered.
        """
        state = self._split(self.keeps)
        name, with_tensor = "context-parallel", "context-parallel-tp"
        if count == 1:
            return [Recipe(name, (_context,), state, (), (0,))]
        found: list[Recipe] = []
        if count == 2:
            found.append(Recipe(name, (_data, _context), state, (0,), (1,)))
            found.append(Recipe(with_tensor, (_context, _within), state, (), (0,)))
        if count == 3:
            found.append(Recipe(with_tensor, (_data, _context, _within), state, (0,), (1,)))
        return found

    def _data_parallel(self, axes: tuple[int, ...]) -> list[Recipe]:
        data: tuple[Rule, ...] = (_on_batch,) * len(axes)
        free: tuple[Rule, ...] = (_data,) * len(axes)
        found = [Recipe("data-parallel", data, self._whole, axes)]
        if self.roles.states:
            split = self._split(set(self.roles.states))
            sums = set(accumulators(self.flat))

            def whole_sums(v: int, state: Sharding) -> bool:
                return not (v in sums and state.axes) and split(v, state)

            # without accumulation they differ only in when gradients are freed
            found.append(Recipe("zero-1", free, whole_sums if sums else split, axes))
            found.append(Recipe("zero-2", free, split, axes))
        if self.roles.parameters:
            found.append(Recipe("fsdp", free, self._split(self.keeps), axes))
        return found

    def _expert(self) -> list[Recipe]:
        """Products of experts and their matrices by experts over as many axes as these divide over.

        The rest is data parallel; parameters and state beside experts are whole, or over all axes.
        """
        if not self.kinds.experts:
            return []

        def rule(kind: str, update: bool) -> bool:
            return kind == EXPERTS or _data(kind, update)

        full, most = set(self.mesh.names), dict[int, int]()

        def over(v: int, sharding: Sharding) -> int:
            """Axes that split experts."""
            dims = enumerate(sharding.dims)
            return sum(len(axes) for d, axes in dims if self.kinds.of_dim(v, d) == EXPERTS)

        def state(v: int, sharding: Sharding) -> bool:
            if v not in self.keeps:
                return True
            if v not in most:
                options = self.builder.states(v, partial=False)
                most[v] = max((over(v, option) for option in options), default=0)
            if most[v]:
                return over(v, sharding) == most[v]
            return sharding.is_replicated or set(sharding.axes) == full

        every = tuple(range(len(self.mesh.names)))
        return [Recipe("expert-parallel", (rule,) * len(every), state, every, (), every)]

    def _megatron(self) -> list[Recipe]:
        """Tensor parallel on one axis, data parallel on the others, each axis in turn.

        With three axes only the innermost, which stays among the closest devices.
        """
        if not self.roles.parameters:
            return []
        count = len(self.mesh.names)
        tensors = range(count) if count <= 2 else (count - 1,)
        return [recipe for t in tensors for recipe in self._tensor_parallel(t)]

    def _tensor_parallel(self, tensor: int) -> list[Recipe]:
        name = self.mesh.names[tensor]

        def without(kind: str, _update: bool) -> bool:
            return kind not in (BATCH, "sequence")

        def state(v: int, sharding: Sharding) -> bool:
            return v not in self.keeps or set(sharding.axes) <= {name}

        def rules(rule: Rule) -> tuple[Rule, ...]:
            return tuple(rule if a == tensor else _on_batch for a in range(len(self.mesh.names)))

        data = tuple(a for a in range(len(self.mesh.names)) if a != tensor)
        recipes = [Recipe("megatron", rules(without), state, data)]
        if self.kinds.sequence:
            recipes.append(Recipe("megatron-sp", rules(_tensor), state, data))
        return recipes

    def _largest(self) -> Recipe:
        """Every parameter split along its largest dimension that divides."""
        full = set(self.mesh.names)

        def state(v: int, sharding: Sharding) -> bool:
            if v not in self.keeps:
                return True
            shape = self.flat.values[v].type.shape
            ways = self.mesh.num_devices
            fitting = [d for d, size in enumerate(shape) if size and size % ways == 0]
            if not fitting:
                return sharding.is_replicated
            largest = max(fitting, key=lambda d: (shape[d], -d))
            return set(sharding.dims[largest]) == full

        anything: Rule = lambda _kind, _update: True  # noqa: E731
        return Recipe("largest-dimension", (anything,) * len(self.mesh.names), state)

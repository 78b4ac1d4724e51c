"""Records that the builder of problems fills: limits, menus, nodes, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel import ComputeModel, ProductChunks, ReshardModel
from ir import FactorSpec, Mesh, ReshardStep, Sharding, Splits, Strategy, TensorType

from ...solver.problem import Floats, IntraProblem
from .buffers import LiveIntervals, watched
from .overlap_tables import ChunksTable, PartsTable
from .reshard_seconds import Reshards
from .skeleton import Outline

States = tuple[Sharding, ...]
_Menus = dict[object, tuple[Strategy, ...]]
_Index = dict[object, tuple[NDArray[np.intp], str]]
_Products = dict[object, PartsTable | None]
_Chunks = dict[object, ChunksTable | None]
_Sent = dict[tuple[TensorType, Sharding], list["Sent"]]
_Classes = dict[tuple[int, int], tuple[NDArray[np.int64], "NodeRef"]]
_Least = dict[int, dict[object, float]]
_Near = dict[object, tuple[list[int], list[tuple[list[int], int, Sharding]]]]
AllowOp = Callable[[int, FactorSpec, tuple[Strategy, ...]], tuple[Strategy, ...]]
AllowState = Callable[[int, Sharding], bool]


@dataclass(frozen=True, slots=True)
class Limits:
    """The options that a search may choose from; `None` allows everything.

    op(i, spec, menu): the allowed strategies of the menu for flat op i.
    state(v, sharding): whether flat value v (an argument or port) may have this state; v is
        -1 - position for results.
    values: results of ops that `state` limits too.
    """

    op: AllowOp | None = None
    state: AllowState | None = None
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRef:
    """The op or value of a node of the problem, with its options in order."""

    op: int  # -1 for a value
    value: int  # -1 for an op
    menu: tuple[Strategy, ...]
    states: States


@dataclass(frozen=True, slots=True)
class Exchange:
    """An all-to-all that may run in chunks beside products, in one run.

    chunk_s: seconds of one of each number of chunks; infinite where it does not divide.
    local_bytes: bytes of a device that are exchanged.
    """

    chunk_s: tuple[float, ...]
    local_bytes: float


@dataclass(slots=True)
class Sent:
    """An all-to-all of a value.

    alone_s: seconds as a whole.
    ways: in chunks, by the dimension that is cut, where it was asked for.
    """

    step: ReshardStep
    alone_s: float
    ways: dict[int, Exchange] = field(default_factory=dict[int, Exchange])


@dataclass
class MenuCache:
    """Menus, costs and edge tables of one mesh, shared by all searches on it."""

    mesh: Mesh
    reshard: ReshardModel
    compute: ComputeModel
    menus: _Menus = field(default_factory=_Menus)
    states: dict[object, States] = field(default_factory=dict[object, States])
    vectors: dict[object, Floats] = field(default_factory=dict[object, Floats])
    edges: dict[object, Reshards] = field(default_factory=dict[object, Reshards])
    columns: dict[object, States] = field(default_factory=dict[object, States])
    index: _Index = field(default_factory=_Index)
    forms: dict[int, Hashable] = field(default_factory=dict[int, Hashable])
    products: _Products = field(default_factory=_Products)
    chunks: _Chunks = field(default_factory=_Chunks)
    chunked: dict[object, ProductChunks] = field(default_factory=dict[object, ProductChunks])
    least: _Least = field(default_factory=_Least)
    sent: _Sent = field(default_factory=_Sent)
    near: _Near = field(default_factory=_Near)
    classes: _Classes = field(default_factory=_Classes)
    ways: dict[int, Mapping[str, Floats]] = field(default_factory=dict[int, Mapping[str, Floats]])
    splits: Splits = field(init=False)

    def __post_init__(self) -> None:
        self.splits = Splits(self.mesh)

    def parts(self, spec: FactorSpec, menu: tuple[Strategy, ...]) -> Mapping[str, Floats]:
        """Number of parts of every factor under each strategy."""
        if id(menu) not in self.ways:
            ways = {name: np.ones(len(menu)) for name in spec.names}
            for axis, parts in enumerate(self.mesh.sizes):
                for k, strategy in enumerate(menu):
                    role = strategy.roles[axis]
                    if role in ways:  # else unused, or it carries a partial sum
                        ways[role][k] *= parts
            self.ways[id(menu)] = ways
            self.menus[("keep", id(menu))] = menu
        return self.ways[id(menu)]

    def column(self, menu: tuple[Strategy, ...], side: str, position: int) -> States:
        """States of an "operand" or "result" under each strategy; one object for equal ones."""
        key = (id(menu), side, position)
        if key not in self.columns:
            states = tuple((s.operands if side == "operand" else s.results)[position] for s in menu)
            self.columns[key] = self.columns.setdefault(("is", states), states)
            self.menus[("keep", id(menu))] = menu
        return self.columns[key]

    def same(self, count: int, times: int = 1) -> Reshards:
        """Those of two nodes that take the same option, one object for equal sizes.

        Args:
            count: number of options.
            times: how often the first node has each of them.
        """
        key = "same", count, times
        if key not in self.edges:
            same = np.where(np.eye(count, dtype=bool), 0.0, np.inf)
            self.edges[key] = Reshards.of(np.vstack((same,) * times))
        return self.edges[key]

    def lift(self, states: States) -> States:
        """The states with a leading dimension."""
        key = ("lift", states)
        if key not in self.columns:
            self.columns[key] = tuple(s.stacked() for s in states)
        return self.columns[key]


@dataclass
class Menus:
    """The caches of all meshes of one machine, shared by searches over similar programs."""

    known: dict[tuple[Mesh, float], MenuCache] = field(
        default_factory=dict[tuple[Mesh, float], MenuCache]
    )
    chunked: dict[object, ProductChunks] = field(default_factory=dict[object, ProductChunks])
    least: _Least = field(default_factory=_Least)

    def on(self, reshard: ReshardModel, compute: ComputeModel) -> MenuCache:
        """The cache of a mesh for a new program, with the entries that any program can share.

        Args:
            reshard: prices of reshards on the mesh, with the cap on transient buffers.
            compute: prices of ops on the machine's devices.
        """
        mesh, room_bytes = reshard.mesh, reshard.room_bytes
        if (mesh, room_bytes) not in self.known:
            made = MenuCache(mesh, reshard, compute, chunked=self.chunked, least=self.least)
            for (other, _), held in self.known.items():
                if other == mesh:
                    reshard, edges = held.reshard.with_room(room_bytes), dict[object, Reshards]()
                    made = replace(held, reshard=reshard, edges=edges)
                    break
            self.known[mesh, room_bytes] = made
        # factor specs are keyed by their id, which is unique as long as their program lives
        return replace(self.known[mesh, room_bytes], forms=dict[int, Hashable]())


@dataclass(frozen=True)
class Built:
    """A problem, and the op or value of each of its nodes."""

    problem: IntraProblem
    refs: tuple[NodeRef, ...]
    outline: Outline
    work: tuple[Floats, ...]  # seconds of compute and of taking memory, per node and option
    live_intervals: LiveIntervals
    # seconds of compute beside which a collective may run, of each passage and run; None: none
    beside_s: Floats | None = None
    moments: tuple[int, ...] | None = None  # at which memory is watched; None: all
    followed: tuple[int, ...] = ()  # nodes that the nodes after those of `refs` follow

    @property
    def op_node(self) -> dict[int, int]:
        """Flat op -> node."""
        return self.outline.op_node

    @property
    def value_node(self) -> dict[int, int]:
        """Flat value -> node, of values that have their own."""
        return self.outline.value_node

    @property
    def out_node(self) -> dict[int, int]:
        """Position of a result of the program -> node."""
        return self.outline.out_node

    @property
    def waits(self) -> tuple[tuple[int, int], ...]:
        """Nodes of partial results that wait, and those of their ops."""
        return self.outline.waits

    def watching(self, moments: tuple[int, ...]) -> Built:
        """The problem with memory watched at these moments only."""
        count = len(self.work)
        cut = IntraProblem(
            self.problem.node_cost[:count],
            tuple(e for e in self.problem.edges if e.u < count and e.v < count),
            self.live_intervals.usage, ((0, 0),) * count, self.problem.limit, self.problem.work,
        )  # fmt: skip
        problem, followed = watched(cut, self.live_intervals, moments)
        return replace(self, problem=problem, moments=moments, followed=followed)

    def watching_also(self, moments: Iterable[int]) -> Built:
        """The problem with memory watched at these moments too, where only some are watched."""
        if self.moments is None or set(moments) <= set(self.moments):
            return self
        return self.watching(tuple(sorted({*self.moments, *moments})))

    def compute_s(self, choice: Sequence[int]) -> float:
        """Seconds of compute, without communication."""
        return sum(float(w[k]) for w, k in zip(self.work, choice, strict=False))

    def taking_s(self, choice: Sequence[int]) -> float:
        """The part of `compute_s` that takes memory for results: the costs of value nodes."""
        values = (n for n, ref in enumerate(self.refs) if ref.op < 0)
        return sum(float(self.work[n][choice[n]]) for n in values)

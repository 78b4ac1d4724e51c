"""The search over mesh shapes: the finest are solved, baselines are priced, the best is kept."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from costmodel import Cluster, CollectiveModel, ComputeModel
from ir import SHARD_MAP

from ...common.errors import PlanError, ShortError
from ...common.mesh_setting import AXES
from ...common.options import Options
from ...common.request import Request
from ...common.stop import PROVED, Stop
from ...common.store.keys import Memory, memory_of
from ...common.units_text import bytes_text
from ..cost.least_seconds import least_step_s
from ..problem.program import Program
from ..problem.records import Menus
from .baselines import Baseline
from .context import THOROUGH, WORTH, Candidate, Effort, Scope
from .hand_written import HandWritten
from .mesh_refinement import coarser, finest
from .mesh_shapes import mesh_of, mesh_shapes
from .on_mesh import MeshSearch

# Share of a device's memory for a plan: the rest is for the allocator, collective buffers and
# values that the compiler stores for longer than the program order needs.
USABLE = 0.9
OR_PARTS = " or more micro-batches"  # of the remedies of a step that does not fit
# Gap at which the search ends on meshes whose plans only start the search on finer ones.
COARSE_GAP = 3e-3


def limit_of(options: Options, cluster: Cluster) -> float:
    """Memory limit of a device [bytes]."""
    return float(options.memory_bytes or USABLE * cluster.memory_bytes)


@dataclass
class SearchOutcome:
    """Result of a search over meshes: the best plan, its rivals, baselines and a bound."""

    best: Candidate
    candidates: list[Candidate]
    baselines: dict[str, Baseline]
    lower_bound_s: float
    stop: Stop
    seconds: dict[str, float] = field(default_factory=dict[str, float])


@dataclass
class _Seen:
    """What a search has seen so far.

    bounds: lower bounds of the finest meshes that were searched or left out [s].
    open: number of the finest meshes.
    """

    found: list[Candidate] = field(default_factory=list[Candidate])
    by_hand: HandWritten = field(default_factory=HandWritten)
    searchers: list[MeshSearch] = field(default_factory=list[MeshSearch])
    bounds: list[float] = field(default_factory=list[float])
    open: int = 0


class Search:
    """One search; all solves on one mesh share menus, tables and prices.

    known: plans of the same program on any mesh, as starting points.
    menus: menus of other searches on the same cluster.
    """

    def __init__(
        self,
        program: Program,
        request: Request,
        memory: Memory | None = None,
        effort: Effort = THOROUGH,
        cutoff_s: float = float("inf"),
        known: Sequence[Candidate] = (),
        menus: Menus | None = None,
    ) -> None:
        self.request, self.known, self.cutoff_s = request, known, cutoff_s
        self.options, self.cluster = options, cluster = request.options, request.machine
        self.scope = Scope(
            program, request, limit_of(options, cluster), CollectiveModel(cluster),
            ComputeModel(cluster), request.deadline,
            memory or memory_of(options), effort, menus or Menus(),
        )  # fmt: skip

    @property
    def limit(self) -> float:
        """Memory limit of a device [bytes]."""
        return self.scope.limit

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes to search.

        Raises:
            PlanError: if the user's shape has another number of devices.
        """
        shape = self.options.shape
        if shape is None:
            axes = self.scope.effort.axes
            return tuple(s for s in mesh_shapes(self.cluster) if len(s) <= axes)
        total = math.prod(shape)
        if total != self.cluster.num_devices or len(shape) > len(AXES):
            raise PlanError(
                f"mesh {self.options.mesh} has {total} devices in {len(shape)} axes, the cluster "
                f"{self.cluster.num_devices} devices and a plan at most {len(AXES)} axes",
                kind="bad-option", where="Options.mesh",
                remedy=f"use one of {', '.join(map(str, mesh_shapes(self.cluster)))}",
            )  # fmt: skip
        return (shape,)

    def run(self) -> SearchOutcome:
        """Solves every shape and baseline.

        Raises:
            PlanError: if nothing fits in memory, or pins leave no choice.
        """
        return self._outcome(self._seen())

    def best(self) -> Candidate:
        """The best plan of `run`, without its bound.

        Raises:
            PlanError: as `run`.
        """
        return self._best(self._seen())[0]

    def lower_bound_s(self) -> float:
        """Lower bound of the step over all plans that fit, on any mesh, without a plan [s]."""
        return min(self._searcher(shape).glimpse() for shape in finest(self.shapes()))

    def quick(self) -> tuple[float, Candidate | None]:
        """As `lower_bound_s`, and a rough plan on the mesh that has the bound."""
        searchers = [self._searcher(shape) for shape in finest(self.shapes())]
        bounds = [one.glimpse() for one in searchers]
        least_s = min(bounds)
        return least_s, searchers[bounds.index(least_s)].rough()

    def _seen(self) -> _Seen:
        """What a search of every shape and baseline finds."""
        least = self.scope.program.facts.least_peak(self.cluster.num_devices)
        if least > self.limit:
            self.scope.least.append(least)
            self._refuse(ShortError)
        seen = _Seen()
        try:
            self._search(seen)
        except KeyboardInterrupt:
            asked, fitting = self.options.baseline, self._fitting(seen.found)
            known = [one for one in fitting if asked in (None, one.name)]
            if not self.request.interruption.kept(found=bool(known)):
                raise
            seen.by_hand.leave_unknown()
        return seen

    def _search(self, seen: _Seen) -> None:
        """Solves shapes and baselines, as long as that is worth while."""
        found, bounds, best_s = seen.found, seen.bounds, self.cutoff_s
        shapes = self.shapes()
        fine = finest(shapes)
        seen.open = len(fine)
        known = (*self.known, *self._hints())
        for searcher, least_s in self._in_order(shapes, fine):
            some = bool(bounds) or (self.scope.out_of_time and bool(self._fitting(found)))
            if some and self.scope.ending:
                bounds.extend([least_s] if searcher.mesh.sizes in fine else [])
                self.scope.late |= self.scope.out_of_time
                continue
            seen.searchers.append(searcher)
            last = searcher.mesh.sizes in fine
            if not last and self.options.baselines:
                found.extend(seen.by_hand.on(searcher))
            # the first of the finest meshes is searched to the end
            cutoff = self.cutoff_s if last and not bounds else best_s
            gap = 0.0 if last else COARSE_GAP
            best, bound = searcher.best((*known, *self._fitting(found)), cutoff * (1 - WORTH), gap)
            found.extend(best)
            bounds.extend([max(bound, least_s)] if last else [])
            best_s = min([best_s, *(c.account.step_s for c in best)])
            self.scope.say(f"mesh {searcher.mesh}", best_s, bound)
            if self.request.interruption.happened:
                raise KeyboardInterrupt
        if self._is_beaten(seen):
            return
        for searcher in seen.searchers if self.options.baselines else ():
            few = len(searcher.mesh.axes) <= 2 or not self.scope.ending
            if searcher.mesh.sizes in fine and few:
                found.extend(seen.by_hand.on(searcher))
        found.extend(seen.by_hand.made_to_fit())

    def _is_beaten(self, seen: _Seen) -> bool:
        """Whether no plan is below the cutoff, so that no hand-written one is either."""
        if self.options.baseline is not None or self.cutoff_s == float("inf"):
            return False
        below_s = self.cutoff_s * (1 - WORTH)
        return len(seen.bounds) == seen.open and min(seen.bounds, default=0.0) >= below_s

    def _outcome(self, seen: _Seen) -> SearchOutcome:
        """The best of what was found, and a bound."""
        best_one, found = self._best(seen)
        bounds = [*seen.bounds, *([0.0] if len(seen.bounds) < seen.open else [])]
        bound = min(min(bounds, default=0.0), best_one.account.step_s)
        if best_one.account.step_s - bound > PROVED * best_one.account.step_s:
            bound = min(max(bound, self._floor_s()), best_one.account.step_s)
        close = best_one.account.step_s - bound <= PROVED * best_one.account.step_s
        stop = Stop.TIME_LIMIT if self.scope.late else Stop.OPTIMAL if close else Stop.GAP
        if self.request.interruption.happened:
            stop = Stop.INTERRUPTED
        table = seen.by_hand.table
        return SearchOutcome(best_one, found, table, bound, stop, self.scope.seconds)

    def _best(self, seen: _Seen) -> tuple[Candidate, list[Candidate]]:
        """The best of what was found, and the candidates."""
        found = seen.found
        if self.options.baseline is not None:
            found = self._only(self.options.baseline, found, seen.by_hand.table)
        fitting = self._fitting(found)
        if not fitting:
            self._refuse()
        best_one = min(
            fitting,
            key=lambda c: (c.account.step_s, c.name != "search", len(c.mesh.axes), c.name),
        )
        shapes = self.shapes()
        seen.searchers.sort(key=lambda s: shapes.index(s.mesh.sizes))
        return self._on_coarsest(best_one, seen.searchers), found

    def _floor_s(self) -> float:
        """Lower bound of the step on any mesh [s], which needs no search."""
        scope, devices = self.scope, self.cluster.num_devices
        known = scope.menus.least.setdefault(devices, {})
        return least_step_s(scope.program.facts, scope.compute, devices, known)

    def _hints(self) -> list[Candidate]:
        """Plans on coarser meshes than the requested one, as starting points."""
        found: list[Candidate] = []
        if any(op.node.op == SHARD_MAP for op in self.scope.program.flat.ops):
            return found  # on others its axes are missing
        for shape in coarser(self.options.shape or ()):
            scope = replace(
                self.scope, least=[], blocked={}
            )  # an option that fails on a coarse mesh may fit on a finer one
            searcher = MeshSearch(scope, mesh_of(shape))
            found.extend(self._fitting(searcher.best(found)[0]))
        return found

    def _fitting(self, found: Sequence[Candidate]) -> list[Candidate]:
        return [c for c in found if c.account.peak_bytes <= self.limit * (1 + 1e-9)]

    def _in_order(
        self, shapes: Sequence[tuple[int, ...]], fine: Collection[tuple[int, ...]]
    ) -> Iterator[tuple[MeshSearch, float]]:
        """Coarse meshes, whose plans start the search on finer ones, then the finest.

        Both are in order of their quick bounds, so that the first soon excludes others.

        Returns:
            Meshes, each with a quick lower bound of its plans [s]: 0 where there is no other.
        """
        coarse = sorted((s for s in shapes if s not in fine), key=len)
        for some in (coarse, sorted(fine, key=lambda s: max(s) / min(s))):
            each = [self._searcher(shape) for shape in some]
            bounds = [searcher.glimpse() if len(each) > 1 else 0.0 for searcher in each]
            yield from sorted(zip(each, bounds, strict=True), key=lambda pair: pair[1])

    def _searcher(self, shape: tuple[int, ...]) -> MeshSearch:
        mesh = mesh_of(shape, self.options.axes)
        self.scope.say(f"mesh {mesh}")
        return MeshSearch(self.scope, mesh)

    def _on_coarsest(self, best: Candidate, searchers: Sequence[MeshSearch]) -> Candidate:
        """The plan re-expressed on the coarsest mesh that can represent it."""
        for searcher in searchers:
            if len(searcher.mesh.axes) < len(best.mesh.axes):
                coarse = searcher.re_expressed(best)
                if coarse is not None and coarse.account.peak_bytes <= self.limit * (1 + 1e-9):
                    return coarse
        return best

    def _only(
        self, name: str, found: list[Candidate], baselines: dict[str, Baseline]
    ) -> list[Candidate]:
        """The candidates of one baseline."""
        kept = [c for c in found if c.name == name]
        if not kept and name in baselines:
            raise PlanError(
                f"does not fit: '{name}' needs {bytes_text(baselines[name].peak_bytes)} on each "
                f"device, the limit is {bytes_text(self.limit)}", kind="does-not-fit",
                where="Options.baseline", remedy="use more devices or another plan",
            )  # fmt: skip
        if not kept:
            raise PlanError(
                f"no hand-written plan of this program is called '{name}'", kind="bad-option",
                where="Options.baseline", remedy=f"there are {', '.join(sorted(baselines))}",
            )  # fmt: skip
        return kept

    def _refuse(self, error: type[PlanError] = PlanError) -> None:
        if not self.scope.least and self.scope.blocked:
            name, mesh = next(iter(self.scope.blocked.items()))
            wishes = self.scope.program.wishes
            asked = [f"'{p.pattern}={','.join(p.dims)}'" for p in wishes.of_argument(name)]
            asked += [f"'{p.pattern}' in the program" for p in wishes.of_program(name)]
            raise PlanError(
                f"no sharding of '{name}' satisfies {' and '.join(asked)} on any mesh tried, "
                f"for instance {mesh}", kind="bad-pin", where="pins",
                remedy="drop or loosen one of them, or check that the sizes divide",
            )  # fmt: skip
        if self.scope.beaten:
            raise PlanError(
                "no plan is below the step that there is already", kind="not-faster",
                where=self.cluster.name, remedy="keep that one",
            )  # fmt: skip
        least = min(self.scope.least, default=float("inf"))
        if least <= self.limit:
            options = self.scope.request.options
            remedies = ["raise the time limit"] if math.isfinite(options.time_limit_s) else []
            remedies += ["loosen the pins"] if options.pins else []
            chosen = options.recompute in ("auto", "search")
            remedies += [] if chosen else ["pass recompute='auto'"]
            raise PlanError(
                f"no plan within {bytes_text(self.limit)} on each device was found, though one "
                f"may exist: none needs less than {bytes_text(least)}",
                kind="does-not-fit", where=self.cluster.name,
                remedy=", or ".join([*remedies, "raise the memory limit"]),
            )  # fmt: skip
        over = least - self.limit
        raise error(
            f"does not fit: every plan of this program needs {bytes_text(least)} or more on each "
            f"device, {bytes_text(over)} more than the limit of {bytes_text(self.limit)}",
            kind="does-not-fit", where=self.cluster.name,
            remedy=f"use about {max(2, round(least / self.limit + 0.5))} times the devices, a "
            f"smaller batch{OR_PARTS}, jax.checkpoint around layers, or at least "
            f"{bytes_text(least)} of memory", needs_bytes=least,
        )  # fmt: skip

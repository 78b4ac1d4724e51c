"""What `explain` found, as data and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..common.stop import Stop, stop_text
from ..common.units_text import bytes_text, printable, seconds_text
from ..files.plan_text import chosen_text
from ..files.program_plan import ProgramPlan
from ..sharding.cost.account import Account
from .again import Again, lines_of
from .cost_changes import Change

MOST_SHOWN = 3
MOST_NAMED = 9
MOST_COLLECTIVES = 10
MOST_OTHERS = 3


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another option of a tensor or op, with everything else solved anew around it.

    added_s, added_bytes: per step and at the peak, more than with the plan's own option solved
        alike; 0 s where the solver does not tell the two apart, less only where the plan is not
        the best that there is. None where the option does not fit or is not possible.
    gap: gap of that solution.
    because: its collectives that differ most from those with the plan's own option.
    """

    option: str
    added_s: float | None = None
    added_bytes: float | None = None
    gap: float | None = None
    because: tuple[Change, ...] = ()

    def __str__(self) -> str:
        if self.added_s is None or self.added_bytes is None:
            return f"  instead  {self.option}: does not fit or is not possible"
        closed = self.gap is None or self.gap < 1e-3
        how = "solved" if closed else f"solved to a gap of {self.gap:.1%}"
        more = "+" if self.added_bytes >= 0 else "-"
        memory = f"{more}{bytes_text(abs(self.added_bytes))} at the peak"
        text = f"  instead  {self.option}: {_more_s(self.added_s)}, {memory} ({how})"
        reason = ", ".join(map(str, self.because))
        return f"{text}\n           {reason}" if reason else text


def _more_s(added_s: float) -> str:
    if added_s < 0:
        return f"{seconds_text(-added_s)} faster"
    return f"+{seconds_text(added_s)}" if added_s else "no slower"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The choice for one tensor or op, with its alternatives and the constraint that forced it.

    forced: the user's wishes that leave no choice, or less; alternatives may break them.
    factors: the op's factor spec; empty for a tensor.
    alternatives: the cheapest first.
    unsolved: further options that were not solved.
    better_s: by which a step is faster than the plan with the same option and everything else
        solved anew as for the alternatives, which are held against that; 0 where it is not.
    gap: gap of the plan.
    """

    name: str
    chosen: str
    forced: str
    factors: str
    memory_bytes: float
    alternatives: tuple[Alternative, ...]
    unsolved: int
    better_s: float = 0.0
    gap: float = 0.0

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.chosen}"]
        if self.forced:
            lines.append(f"  forced   {self.forced}; alternatives may break this")
        if self.factors:
            lines.append(f"  factors  {self.factors}")
        lines.append(f"  memory   {bytes_text(self.memory_bytes)} per device")
        if not self.alternatives:
            lines.append("  there is no other option: no dimension divides over a mesh axis")
        lines += [line for option in self.alternatives for line in str(option).splitlines()]
        if self.unsolved:
            lines.append(f"  {self.unsolved} further options were not solved")
        return "\n".join(map(printable, (*lines, *self._notes())))

    def _notes(self) -> Iterator[str]:
        """Where the plan is not the best one, which a plan with a gap may not be."""
        within = f"the plan's gap to its bound is {self.gap:.2%}"
        if self.better_s > 0:
            yield (
                f"  note     with this choice kept, a step was found that is "
                f"{seconds_text(self.better_s)} faster than the plan, and options are held against "
                f"that; {within}"
            )
        if any(a.added_s is not None and a.added_s < 0 for a in self.alternatives):
            why = "it breaks the user's wishes" if self.forced else within
            yield f"  note     an option is faster than the one chosen: {why}"


@dataclass(frozen=True, slots=True)
class Matches:
    """The matches of a name in a plan: the first explained, the rest by name."""

    matches: tuple[Explanation, ...]
    more: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        return {"matches": [asdict(match) for match in self.matches], "more": list(self.more)}

    def __str__(self) -> str:
        parts = [str(match) for match in self.matches]
        if self.more:
            some = ", ".join(self.more[: MOST_NAMED - MOST_SHOWN])
            parts.append(printable(f"{len(self.more)} more match: {some}"))
        return "\n\n".join(parts)


@dataclass(frozen=True, slots=True)
class Overview:
    """Time and memory of a whole plan, and the next best plans."""

    account: Account
    program: ProgramPlan
    again: tuple[Again, ...] = ()

    def summary(self) -> dict[str, Any]:
        sums = self.account
        return {
            "step_s": sums.step_s, "compute_s": sums.compute_s,
            "communication_s": sums.communication_s, "exposed_s": sums.exposed_s,
            "windows": [asdict(w) for w in sums.windows], "peak_bytes": sums.peak_bytes,
            "limit_bytes": self.program.limit_bytes,
            "collectives": [asdict(c) for c in sums.collectives],
            "host_bytes": sums.host_bytes,
            "host_copies": [asdict(c) for c in sums.host_copies],
            "computed_again": [asdict(one) for one in self.again],
        }  # fmt: skip

    def __str__(self) -> str:
        sums, program = self.account, self.program
        free = program.limit_bytes - sums.peak_bytes
        room = f"{bytes_text(free)} are free" if free >= 0 else f"{bytes_text(-free)} too much"
        lines = [
            f"step {seconds_text(sums.step_s)}: {seconds_text(sums.compute_s)} compute, "
            f"{seconds_text(sums.exposed_s)} exposed of {seconds_text(sums.communication_s)} "
            "communication",
            f"memory {bytes_text(sums.peak_bytes)} of {bytes_text(program.limit_bytes)}: {room}",
            f"bound {seconds_text(program.lower_bound_s)}: no plan that was searched for is faster"
            f"; {stop_text(Stop[program.stop], program.warnings)}",
            *_others(program),
            *filter(None, (chosen_text(program),)),
            "communication, dearest first",
        ]
        lines += [
            f"  {seconds_text(c.seconds):>8}  {c.kind} over {'*'.join(c.axes)}, {c.count:.0f} x, "
            f"for {c.cause}; {seconds_text(c.exposed_s)} exposed"
            for c in sums.collectives[:MOST_COLLECTIVES]
        ]
        rest = sums.collectives[MOST_COLLECTIVES:]
        if rest:
            total = seconds_text(sum(c.seconds for c in rest))
            lines.append(f"  {total:>8}  in {len(rest)} more")
        return "\n".join(map(printable, [*lines, *lines_of(self.again), *_host_copies(sums)]))


def _host_copies(sums: Account) -> list[str]:
    """Copies to and from the host, by op and source line."""
    if not sums.host_copies:
        return []
    total: dict[tuple[str, str], list[float]] = {}
    for copy in sums.host_copies:
        row = total.setdefault((copy.op, copy.source), [0.0, 0.0, 0.0, 0.0])
        figures = copy.seconds, copy.exposed_s, copy.nbytes, copy.count
        row[:] = [a + b for a, b in zip(row, figures, strict=True)]
    return [
        f"copies to and from the host, whose memory holds {bytes_text(sums.host_bytes)}",
        *(
            f"  {seconds_text(spent):>8}  {op.replace('_', ' ')}, {count:.0f} x, "
            f"{bytes_text(nbytes)}{f', {source}' if source else ''}; {seconds_text(exposed)} "
            "exposed, as part of compute"
            for (op, source), (spent, exposed, nbytes, count) in total.items()
        ),
    ]


def _others(program: ProgramPlan) -> list[str]:
    """The next best plans: hand-written ones, and the best of other meshes."""
    rows = [
        (b.step_s, name, f"{bytes_text(b.peak_bytes)}{'' if b.fits else ', does not fit'}")
        for name, b in program.baselines.items()
        if name != program.origin
    ]
    meshes = [(c.step_s, f"mesh {c.mesh}", bytes_text(c.peak_bytes)) for c in program.candidates]
    rows = [*sorted(rows)[:MOST_OTHERS], *sorted(meshes)[:1]]
    if not rows or not program.step_s:
        return []
    width = max(len(name) for _, name, _ in rows)
    return [
        "next best: hand-written plans, and the best on another mesh",
        *(
            f"  {seconds_text(step_s):>8}  {name:<{width}}  "
            f"{step_s / program.step_s - 1:+.1%}, {more}"
            for step_s, name, more in rows
        ),
    ]

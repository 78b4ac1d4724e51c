"""Plans and pipeline stages in the plan store; what is read is checked before it is believed."""

from __future__ import annotations

import msgspec

from costmodel import Cluster

from .errors import PlanError
from .filecheck import check_file
from .inter.price import StagePrice
from .options import Options
from .planfile import PlanFile
from .remembered import Memory, key_of
from .solutions import FINAL
from .stop import Stop


class _Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A planned pipeline stage."""

    file: PlanFile
    price: StagePrice
    lower_bound_s: float


def kept_plan(memory: Memory, key: str, graph: str, traced_digest: str) -> PlanFile | None:
    """A plan of a graph, as it was kept; None if there is none that is sound.

    graph, traced_digest: text and digest of the graph as it was traced; the plan's own graph is
        another if it was rewritten.
    """
    file = memory.get("plan", key, PlanFile)
    if file is None:
        return None
    if file.substitutions:
        return file if file.traced_digest == traced_digest and _sound(file, file.graph) else None
    return file if _sound(file, graph) else None


def keep_plan(memory: Memory, key: str, file: PlanFile) -> None:
    """Keeps a plan, unless time cut its search short."""
    if Stop[file.stop] in FINAL:
        memory.put("plan", key, file)


def kept_stage(memory: Memory, key: str, graph: str) -> tuple[PlanFile, StagePrice, float] | None:
    """Plan, price and bound of a pipeline stage."""
    row = memory.get("stage", key, _Stage)
    if row is None or not _sound(row.file, graph):
        return None
    return row.file, row.price, row.lower_bound_s


def keep_stage(
    memory: Memory, key: str, file: PlanFile, price: StagePrice, lower_bound_s: float
) -> None:
    """Keeps a pipeline stage, unless time cut its search short."""
    if Stop[file.stop] in FINAL:
        memory.put("stage", key, _Stage(file, price, lower_bound_s))


def _sound(file: PlanFile, graph: str) -> bool:
    if file.graph != graph:
        return False
    try:
        check_file(file, "plan store")
    except PlanError:
        return False
    return True


def plan_key(name: str, parts: tuple[object, ...], machine: Cluster, options: Options) -> str:
    """A name for the plan of a program.

    Args:
        name: of the function.
        parts: the program: its graph as text, the roles, ties and donation of its arguments, and
            whatever else of it the plan file says.
        machine: that is planned for, with its tables.
        options: of the search.
    """
    return key_of("plan", name, parts, machine, options)

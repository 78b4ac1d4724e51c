"""Pipeline stages in the plan store; plans are checked on reading."""

from __future__ import annotations

import msgspec

from costmodel import Cluster
from ir.trace import Traced

from ..common.options import Options
from ..common.stop import Stop
from ..common.store.keys import Memory, key_of
from ..files.program_plan import ProgramPlan
from ..sharding.plan_program import key_of_one
from ..sharding.plan_traced import One
from ..sharding.search.context import Effort
from ..sharding.search.stored_plans import is_sound
from ..solver.cached import FINAL
from .divide.stage_price import Phases, StagePrice


class _Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A planned pipeline stage."""

    file: ProgramPlan
    price: StagePrice
    lower_bound_s: float


def stored_stage(
    memory: Memory, key: str, graph: str
) -> tuple[ProgramPlan, StagePrice, float] | None:
    """Plan, price and lower bound [s] of a stored stage; None if there is no sound one."""
    row = memory.get("stage", key, _Stage)
    if row is None or not is_sound(row.file, graph):
        return None
    return row.file, row.price, row.lower_bound_s


def store_stage(
    memory: Memory, key: str, file: ProgramPlan, price: StagePrice, lower_bound_s: float
) -> None:
    """Stores a pipeline stage, unless the time limit ended its search."""
    if Stop[file.stop] in FINAL:
        memory.put("stage", key, _Stage(file, price, lower_bound_s))


def stage_key(
    one: One,
    traced: Traced,
    phases: Phases,
    machine: Cluster,
    options: Options,
    effort: Effort,
) -> str:
    """Key of a pipeline stage in the plan store."""
    parts = (
        phases.loop, sorted(phases.forward), sorted(phases.input_gradient),
        sorted(phases.weight_gradient), list(phases.saved), list(phases.takes),
        list(phases.sums), list(phases.own), repr(one.in_flight),
    )  # fmt: skip
    return key_of("stage", key_of_one(one, traced, machine, options, effort), parts)

"""The schedule of a pipeline's plan file, with the costs of its stages."""

from __future__ import annotations

from typing import Any

import msgspec

from costmodel import Cluster

from ..files.plan_file import PlanFile
from .divide.simulated import costs_of, links_of, table_of
from .divide.stage_price import StagePrice
from .schedule import Priced, price, turns_of
from .schedule.transform import with_optimizer
from .schedule.user_file import OwnSchedule, ScheduleFile, file_of


def own_of(file: PlanFile) -> OwnSchedule:
    """Schedule, costs, links and memory limits; each device of it is one stage's sub-mesh."""
    joined = file.joined
    prices = [
        StagePrice(c.forward_s, c.input_gradient_s, c.weight_gradient_s, c.once_s, c.held_bytes,
                   c.activation_bytes, c.boundary_bytes,
                   c.held_bytes if c.static_bytes is None else c.static_bytes)
        for c in file.costs
    ]  # fmt: skip
    across = [c.sent_bytes for c in file.costs[:-1]]
    table = table_of(joined.schedule, joined.microbatches, file.recompute, joined.chunks)
    links = links_of(file.groups, Cluster.from_dict(joined.cluster))
    limits = (joined.limit_bytes,) * len(file.groups)
    group = turns_of(joined.schedule, joined.chunks).group(len(file.stages))
    costs = costs_of(file.recompute, prices, across, file.sizes, group)
    return OwnSchedule(with_optimizer(table), costs, links, limits)


def priced_of(file: PlanFile) -> Priced:
    """Simulates the pipeline, and other schedules of the same stages beside it."""
    return price(own_of(file))


def schedule_file(file: PlanFile) -> ScheduleFile:
    """The schedule as a file of tasks for `meshwright simulate`."""
    own = own_of(file)
    return msgspec.structs.replace(
        file_of(own.schedule), name=file.joined.schedule, costs=own.costs, links=own.links,
        memory_bytes=own.memory_bytes,
    )  # fmt: skip


def transfers(file: PlanFile) -> list[dict[str, Any]]:
    """Transfers of a step between stages: values forward, their gradients back."""
    spans = [stage.devices for stage in file.stages]
    return [
        {
            "from_devices": list(spans[a]), "to_devices": list(spans[b]), "bytes": size,
            "count": file.joined.microbatches, "what": what,
        }
        for s, size in enumerate(c.sent_bytes for c in file.costs[:-1])
        for a, b, what in ((s, s + 1, "values"), (s + 1, s, "gradients"))
    ]  # fmt: skip

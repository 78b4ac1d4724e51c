"""A pipeline as its file says it: the schedule that it runs with what its stages cost."""

from __future__ import annotations

from typing import Any

import msgspec

from costmodel import Cluster

from .divide.simulated import costs_of, links_of, table_of
from .divide.stage_price import StagePrice
from .pipeline_file import PipelineFile
from .schedule import Priced, price
from .schedule.transform import with_optimizer
from .schedule.user_file import CostsFile, LinksFile, OwnSchedule, ScheduleFile, file_of


def own_of(file: PipelineFile) -> OwnSchedule:
    """The schedule with its costs, links and limits; one device of it is a stage's sub-mesh."""
    prices = [
        StagePrice(c.forward_s, c.input_gradient_s, c.weight_gradient_s, c.once_s, c.held_bytes,
                   c.activation_bytes, c.boundary_bytes)
        for c in file.costs
    ]  # fmt: skip
    across = [c.sent_bytes for c in file.costs[:-1]]
    table = with_optimizer(table_of(file.schedule, file.microbatches, file.recompute, file.chunks))
    links = links_of(file.groups, Cluster.from_dict(file.cluster))
    limits = (file.limit_bytes,) * len(file.groups)
    return OwnSchedule(table, costs_of(file.recompute, prices, across, file.sizes), links, limits)


def priced_of(file: PipelineFile) -> Priced:
    """The pipeline, simulated, beside other schedules of the same stages."""
    return price(own_of(file))


def schedule_file(file: PipelineFile) -> ScheduleFile:
    """The same as a file of tasks that `meshwright simulate` reads."""
    own = own_of(file)
    assert own.costs is not None
    assert own.links is not None
    columns = {name: getattr(own.costs, name) for name in CostsFile.__struct_fields__}
    links = {name: getattr(own.links, name) for name in LinksFile.__struct_fields__}
    return msgspec.structs.replace(
        file_of(own.schedule), name=file.schedule, costs=CostsFile(**columns),
        links=LinksFile(**links), memory_bytes=own.memory_bytes,
    )  # fmt: skip


def transfers(file: PipelineFile) -> list[dict[str, Any]]:
    """What goes from stage to stage in a step: values forward, their gradients back."""
    spans = file.spans
    return [
        {
            "from_devices": list(spans[a]), "to_devices": list(spans[b]), "bytes": size,
            "count": file.microbatches, "what": what,
        }
        for s, size in enumerate(c.sent_bytes for c in file.costs[:-1])
        for a, b, what in ((s, s + 1, "values"), (s + 1, s, "gradients"))
    ]  # fmt: skip

"""Plans a target with the options of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import planner
from costmodel import Cluster
from ir import TraceError

from ..common.errors import PlanError
from . import wishes
from .target import Target


def planned(
    text: str,
    target: Target,
    cluster: str | Cluster,
    given: dict[str, Any],
    say: Callable[[str], None],
) -> planner.Plan:
    """The plan of a target; options of the command line win over its settings.

    Raises:
        PlanError: if nothing fits, or an option or the target is wrong.
    """
    settings: dict[str, Any] = {"cache": True} | wishes.merged(target.settings, given)
    if "microbatches" in given and settings.get("optimizer") is None:
        raise PlanError(
            "needs a target with optimizer= in its settings: the planner cuts only steps that it "
            "owns", kind="bad-option", where="--microbatches",
            remedy="return (loss_fn, (params, batch), {'optimizer': ...}), or leave it out",
        )  # fmt: skip
    try:
        return planner.plan(target.fn, *target.args, cluster=cluster, progress=say, **settings)
    except TraceError as error:
        place = f"{error.where}: " if error.where else ""
        raise PlanError(
            f"{place}{error.message}", kind="trace", where=text, remedy=error.remedy
        ) from error

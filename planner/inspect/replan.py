"""Plans the program of a plan file on another cluster or with other options."""

from __future__ import annotations

import msgspec

from costmodel import Cluster

from ..common.options import Options
from ..common.request import Request
from ..common.resolved_pins import wishes_for
from ..files.program_plan import ProgramPlan
from ..sharding.search.found_to_file import outcome
from ..sharding.search.over_meshes import Search
from .analysed_plan import AnalysedPlan


def replanned(analysed: AnalysedPlan, cluster: Cluster, options: Options) -> ProgramPlan:
    """The plan of the same program on a cluster, with options.

    The program is that of the file: a training step keeps its number of micro-batches.

    Raises:
        PlanError: if nothing fits, or no plan satisfies the options.
    """
    wishes = wishes_for(options, analysed.flat, analysed.program.ties)
    search = Search(analysed.searched(wishes), Request(cluster, options))
    found = search.run()
    return msgspec.structs.replace(
        analysed.program, **outcome(found, cluster, options, search.limit)
    )

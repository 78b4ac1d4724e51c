"""Pipeline schedules: tables of tasks, checked and simulated.

`build(name, stages, microbatches)` makes one of `schedules()`; `simulate(schedule, costs, links)`
says when everything runs, what memory it takes and where time is lost.
"""

from .check import check as check
from .costs import Links as Links
from .costs import StageCosts as StageCosts
from .costs import uniform as uniform
from .placement import Placement as Placement
from .placement import bidirectional as bidirectional
from .placement import chain as chain
from .placement import looped as looped
from .placement import placed as placed
from .placement import v_shape as v_shape
from .registry import build as build
from .registry import schedules as schedules
from .simulate import Simulator as Simulator
from .simulate import simulate as simulate
from .table import Schedule as Schedule
from .table import table_of as table_of
from .task import Kind as Kind
from .task import Row as Row
from .task import Task as Task
from .timeline import MemoryCurve as MemoryCurve
from .timeline import Timeline as Timeline

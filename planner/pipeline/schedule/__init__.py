"""Pipeline schedules: tables of tasks, checked and simulated.

`build(name, stages, microbatches)` makes one of `schedules()`; `simulate(schedule, costs, links)`
says when everything runs, what memory it takes and where time is lost; `read_own(path)` reads a
schedule of the user's.
"""

from .check import check as check
from .costs import Links as Links
from .costs import StageCosts as StageCosts
from .costs import uniform as uniform
from .greedy import greedy as greedy
from .placement import Placement as Placement
from .placement import bidirectional as bidirectional
from .placement import chain as chain
from .placement import looped as looped
from .placement import v_shape as v_shape
from .pricing import Priced as Priced
from .pricing import price as price
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
from .transform import with_offload as with_offload
from .transform import with_optimizer as with_optimizer
from .transform import with_recomputation as with_recomputation
from .transform import with_sync as with_sync
from .transform import with_transfers as with_transfers
from .user_file import OwnSchedule as OwnSchedule
from .user_file import read_own as read_own
from .user_file import read_schedule as read_schedule
from .user_file import write_schedule as write_schedule

from . import budget as budget
from . import iopddl as iopddl
from . import problem as problem
from . import solve as solve
from .exact.infeasibility import conflict as conflict

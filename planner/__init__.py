"""Meshwright's planner: `plan` a JAX function on a cluster, `load` a plan file."""

from .shadow import check_not_shadowed as check_not_shadowed

check_not_shadowed()

from .account import Collective as Collective
from .api import load as load
from .baselines import Baseline as Baseline
from .byhand import by_hand as by_hand
from .checkpoint import restore as restore
from .checkpoint import structs as structs
from .compare import Comparison as Comparison
from .compare import compare as compare
from .errors import ArgumentError as ArgumentError
from .errors import BadProfileError as BadProfileError
from .errors import BadRuleError as BadRuleError
from .errors import NotAProgramError as NotAProgramError
from .errors import NotTracedError as NotTracedError
from .errors import PlanError as PlanError
from .moves import ArrayMove as ArrayMove
from .moves import Moves as Moves
from .moves import moves as moves
from .options import Options as Options
from .pipeplan import PipelinePlan as PipelinePlan
from .plan import Plan as Plan
from .plan import Stage as Stage
from .stop import Stop as Stop
from .verify import Verification as Verification
from .version import VERSION as VERSION

# After the modules of the same names, which would else be what type checkers take them for.
from .api import plan as plan  # isort: skip
from .verify import verify as verify  # isort: skip

"""Meshwright's planner: `plan` a JAX function on a cluster, `load` a plan file."""

from .common.import_guard import check_not_shadowed as check_not_shadowed

check_not_shadowed()

from .api import load as load
from .api import plan as plan
from .common.errors import ArgumentError as ArgumentError
from .common.errors import BadProfileError as BadProfileError
from .common.errors import BadRuleError as BadRuleError
from .common.errors import NotAProgramError as NotAProgramError
from .common.errors import NotTracedError as NotTracedError
from .common.errors import PlanError as PlanError
from .common.options import Options as Options
from .common.stop import Stop as Stop
from .common.version import VERSION as VERSION
from .result.by_hand import by_hand as by_hand
from .result.compare import Comparison as Comparison
from .result.compare import compare as compare
from .result.moves.moves import ArrayMove as ArrayMove
from .result.moves.moves import Moves as Moves
from .result.moves.moves import moves as moves
from .result.plan import Plan as Plan
from .result.restore import restore as restore
from .result.restore import structs as structs
from .result.stage import Stage as Stage
from .result.verify.program import Verification as Verification
from .result.verify.verify import verify as verify
from .sharding.cost.account import Collective as Collective
from .sharding.search.baselines import Baseline as Baseline

PipelinePlan = Plan  # plans in stages had a class of their own

"""Which proven rewrites a plan gains from: found by search, priced by plans, kept in its file."""

from .joint_choice import Joint as Joint
from .joint_choice import JointProblem as JointProblem
from .joint_choice import choose_together as choose_together

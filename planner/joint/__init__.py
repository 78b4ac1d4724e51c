"""Rewrites and shardings in one exact choice, for small programs."""

from .compare import Joint as Joint
from .compare import JointProblem as JointProblem
from .compare import choose_together as choose_together

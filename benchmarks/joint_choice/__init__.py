"""Rewrites and shardings of a small program chosen in one exact extraction, to compare with.

`egraph.py` holds all programs of known sizes that the catalogue makes equal to one (`saturate.py`),
written as terms (`terms.py`, `shapes.py`); `choice.py` chooses one of them with its shardings.
"""

from .choice import Joint as Joint
from .choice import JointProblem as JointProblem
from .choice import choose_together as choose_together

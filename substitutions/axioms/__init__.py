"""Equations of the ops from which equality saturation proves rules.

Those of TASO are its 43 properties, with the condition that each needs to be true of every
convolution that the ops cover; the others are of tensors on logical devices. What holds without a
condition in a direction is what saturation uses in that direction.

Sources: TASO (SOSP 2019, table 2); Unity (OSDI 2022, section 4).
"""

from .axiom import CONDITIONAL as CONDITIONAL
from .axiom import LETTERS as LETTERS
from .axiom import Axiom as Axiom
from .parallel import PARALLEL_AXIOMS as PARALLEL_AXIOMS
from .taso import TASO_AXIOMS as TASO_AXIOMS

AXIOMS = TASO_AXIOMS + PARALLEL_AXIOMS

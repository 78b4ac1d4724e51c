"""What rules are worth in floats and whole numbers."""

from .record import BOUNDED as BOUNDED
from .record import EXACT as EXACT
from .record import REASSOCIATED as REASSOCIATED
from .record import UNBOUNDED as UNBOUNDED
from .record import WORTHS as WORTHS
from .record import Worth as Worth
from .record import weakest as weakest

"""What rules are worth in floats and whole numbers, and numbers that show it."""

from .differences import Bound as Bound
from .differences import beyond as beyond
from .differences import tried as tried
from .differences import unequal as unequal
from .record import BOUNDED as BOUNDED
from .record import EXACT as EXACT
from .record import REASSOCIATED as REASSOCIATED
from .record import UNBOUNDED as UNBOUNDED
from .record import WORTHS as WORTHS
from .record import Worth as Worth
from .record import weakest as weakest
from .values import Array as Array
from .values import arguments as arguments
from .values import draw as draw
from .values import limits as limits

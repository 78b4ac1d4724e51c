"""The ops of which rules are made, one record for each."""

from .convolutions import STRIDES as STRIDES
from .record import LARGEST_PARAMETER as LARGEST_PARAMETER
from .record import OTHER as OTHER
from .record import PARAMETERS as PARAMETERS
from .record import PLAIN as PLAIN
from .record import RELU as RELU
from .record import SAME as SAME
from .record import VALID as VALID
from .record import Compute as Compute
from .record import Form as Form
from .record import RuleOp as RuleOp
from .table import CONSTANTS as CONSTANTS
from .table import OPS as OPS

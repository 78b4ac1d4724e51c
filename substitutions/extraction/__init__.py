"""The cheapest program in an e-graph, with shared values paid once."""

from .egraph import EGraph as EGraph
from .egraph import ENode as ENode
from .egraph import Extraction as Extraction
from .extract import EXTRACTORS as EXTRACTORS
from .extract import extract as extract
from .ilp import Effort as Effort
from .quiet_highs import QuietHighs as QuietHighs
from .read import read_egraph as read_egraph
from .simplify import Simplified as Simplified
from .simplify import simplify as simplify

"""Rewrites of programs into equal ones: a catalogue, rules of others, and verdicts on both."""

from .catalogue import CATALOGUE as CATALOGUE
from .catalogue import Row as Row
from .catalogue import RowVerdict as RowVerdict
from .catalogue import judge_row as judge_row
from .errors import RuleError as RuleError
from .extraction import EXTRACTORS as EXTRACTORS
from .extraction import EGraph as EGraph
from .extraction import ENode as ENode
from .extraction import Extraction as Extraction
from .extraction import extract as extract
from .extraction import read_egraph as read_egraph
from .generate import Generated as Generated
from .generate import catalogue_of as catalogue_of
from .generate import generate as generate
from .published import read_rules as read_rules
from .rule import Op as Op
from .rule import Ref as Ref
from .rule import Rule as Rule
from .verify import VERDICTS as VERDICTS
from .verify import Verdict as Verdict
from .verify import judge as judge
from .verify import judge_all as judge_all

from .judge import RowVerdict as RowVerdict
from .judge import judge_row as judge_row
from .row import Row as Row
from .rows import CATALOGUE as CATALOGUE
from .rows import worth_of_row as worth_of_row

from .judge import ACCEPTED as ACCEPTED
from .judge import VERDICTS as VERDICTS
from .judge import Verdict as Verdict
from .judge import judge as judge
from .judge import judge_all as judge_all
from .worth import holds as holds

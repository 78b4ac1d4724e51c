from . import by_hand as by_hand
from . import compare as compare
from . import reprice as reprice

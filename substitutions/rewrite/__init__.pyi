from .apply import Place as Place
from .apply import apply as apply
from .apply import find as find
from .apply import patterns as patterns

from ..program.net import Draft as Draft
from ..program.net import Mark as Mark
from ..program.net import draft_of as draft_of
from .apply import Place as Place
from .apply import apply as apply
from .apply import find as find
from .apply import patterns as patterns

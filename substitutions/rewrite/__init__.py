"""Rules of the catalogue applied to traced programs."""

from .apply import Place as Place
from .apply import apply as apply
from .apply import find as find
from .apply import patterns as patterns
from .net import Draft as Draft
from .net import Mark as Mark
from .net import draft_of as draft_of

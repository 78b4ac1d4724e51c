"""Pipelines of imported layer profiles: formats, cost conventions, planners."""

from __future__ import annotations

from .formulas import CONVENTIONS as CONVENTIONS
from .graph import LayerGraph as LayerGraph
from .machine import Host as Host
from .machine import Machine as Machine
from .machine import flat as flat
from .outcome import Outcome as Outcome
from .price import price as price
from .problem import Problem as Problem
from .question import Question as Question
from .question import ask as ask
from .reading import read_profile as read_profile
from .registry import PLANNERS as PLANNERS

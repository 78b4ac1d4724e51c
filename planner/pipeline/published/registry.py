"""All planners on layer graphs, by name."""

from __future__ import annotations

from functools import partial

from .planner import Planner
from .planners import ours
from .planners.alpa import ALPA
from .planners.amp import AMP
from .planners.dapple import DAPPLE
from .planners.equal import DATA_PARALLEL, EQUAL_LAYERS
from .planners.pipedream import PIPEDREAM
from .planners.piper import PIPER

# Cheap ones, whose plans give ours something to beat from the start.
FIRST = (DATA_PARALLEL, EQUAL_LAYERS)

OURS = Planner(
    "ours", "exact search, see threshold_search.py and label_search.py", "flush",
    partial(ours.plan, against=FIRST),
)  # fmt: skip

PLANNERS: dict[str, Planner] = {
    planner.name: planner
    for planner in (OURS, ALPA, AMP, DAPPLE, DATA_PARALLEL, EQUAL_LAYERS, PIPEDREAM, PIPER)
}

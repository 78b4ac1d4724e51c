"""All conventions on layer graphs."""

from __future__ import annotations

from .convention import Convention
from .conventions.bottleneck import PIPEDREAM, PIPEDREAM_OVERLAP, PIPER
from .conventions.dapple import DAPPLE
from .conventions.latency import ALPA, AMP, FLUSH

CONVENTIONS: dict[str, Convention] = {
    convention.name: convention
    for convention in (ALPA, AMP, DAPPLE, FLUSH, PIPEDREAM, PIPEDREAM_OVERLAP, PIPER)
}

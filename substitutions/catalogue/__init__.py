"""The rules of our own: rows by family, generic in degree, axis and rank."""

from collections.abc import Mapping

from .algebra import CASTS, LAYOUTS, LOOKUPS, PRODUCTS, REDUCTIONS, SCALES
from .devices import COLLECTIVES, DERIVED
from .judge import RowVerdict as RowVerdict
from .judge import judge_row as judge_row
from .row import Row as Row
from .worth import worth_of_row as worth_of_row

CATALOGUE: Mapping[str, tuple[Row, ...]] = {
    "products": PRODUCTS,
    "scales": SCALES,
    "casts": CASTS,
    "layouts": LAYOUTS,
    "reductions": REDUCTIONS,
    "lookups": LOOKUPS,
    "derived": DERIVED,
    "collectives": COLLECTIVES,
}

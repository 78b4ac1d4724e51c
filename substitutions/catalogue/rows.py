"""All rows of the catalogue, by family."""

from collections.abc import Mapping

from .algebra import CASTS, LAYOUTS, LOOKUPS, PRODUCTS, REDUCTIONS, SCALES
from .devices import COLLECTIVES, DERIVED
from .row import Row

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

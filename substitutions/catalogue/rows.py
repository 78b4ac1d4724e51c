"""All rows of the catalogue, by family."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import RuleError
from ..worth import Worth
from .devices import COLLECTIVES, DERIVED
from .layouts import CASTS, LAYOUTS, LOOKUPS, REDUCTIONS
from .products import PRODUCTS, SCALES
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
_WORTHS = {row.name: row.worth for rows in CATALOGUE.values() for row in rows}


def worth_of_row(name: str) -> Worth:
    """The worth of a row of the catalogue.

    Raises:
        RuleError: if the catalogue has no such row, or the row has no worth.
    """
    worth = _WORTHS.get(name)
    if worth is None:
        raise RuleError(
            "the catalogue does not say what the rule is worth in floats", where=name,
            remedy="write what `judge_row(row).worth()` says as `worth` into its row",
        )  # fmt: skip
    return worth

"""Rules that the search tries, in the order of the catalogue."""

from __future__ import annotations

from substitutions import BOUNDED, CATALOGUE, WORTHS, worth_of_row

SEARCHED = tuple(row.name for rows in CATALOGUE.values() for row in rows if row.searched)


def rules_for(wish: bool | str) -> tuple[str, ...]:
    """Rules that may be applied.

    Args:
        wish: the option `substitutions`.
    """
    if wish is False:
        return ()
    least = WORTHS.index(BOUNDED if wish is True else wish)
    return tuple(r for r in SEARCHED if WORTHS.index(worth_of_row(r).floats) <= least)

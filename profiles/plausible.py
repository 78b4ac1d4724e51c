"""Whether timings agree with the figures of the machine they belong to.

A table in microseconds passes every bound on a single number. Against the device's own peak and
bandwidth it stands out by a factor of a million; between caches, small sizes and two directions of
a link, honest timings stay well inside a factor of a thousand.
"""

from __future__ import annotations

from collections.abc import Iterable

# Rates above so many times the figure are not believed: small sizes come from a cache, a collective
# goes over several wires, and a figure may have been taken while the machine was busy.
PRODUCTS = 100.0
MEMORY = 1000.0
LINKS = 100.0
# What is so large that it takes this long at the figure reaches this share of it at its best.
LARGE_S = 1e-5
LEAST = 5e-3


def check_rates(
    table: str, rows: Iterable[tuple[float, float]], figure: float, most: float, figure_name: str
) -> None:
    """Holds the rates of a table against a figure of the machine.

    Args:
        table: its key.
        rows: amount and seconds of each, the amount in the unit of the figure times seconds.
        figure: that they are held against.
        most: how many times it a rate may be.
        figure_name: for the message.

    Raises:
        ValueError: names the first row that is too fast, or the table if all are too slow.
    """
    best, large = 0.0, False
    for i, (amount, seconds) in enumerate(rows):
        rate = amount / seconds
        if rate > most * figure:
            raise ValueError(
                f"`{table}.rows[{i}]` implies {rate:.3g} per second, more than {most:g} times the "
                f"{figure_name} of {figure:.3g}; found a time that is too short or in another unit"
            )
        if amount >= LARGE_S * figure:
            best, large = max(best, rate), True
    if large and best < LEAST * figure:
        raise ValueError(
            f"`{table}.rows` imply at most {best:.3g} per second, less than {LEAST:g} of the "
            f"{figure_name} of {figure:.3g}; found times that are in another unit"
        )

"""The choices of what a program computes again that are looked at."""

from __future__ import annotations

from collections.abc import Sequence

from .every_choice import every_choice
from .frontier import SecondsOf, frontier
from .kinds import KINDS, chosen_by_kind
from .saved import Key, Layer

MOST_CHOICES = 8
EVERY_CHOICE_OF = 6  # nodes, of which every choice is planned


def choices(layers: Sequence[Layer], seconds: SecondsOf) -> list[frozenset[Key]]:
    """What is computed again: every set of few nodes, else minimum cuts and choices with a name.

    Args:
        layers: bodies with a forward pass.
        seconds: seconds of the node at a place, over the whole step.
    """
    each = recomputable(layers)
    if len(each) <= EVERY_CHOICE_OF:
        return [frozenset[Key](), *every_choice(each)]
    found = frontier(layers, seconds, MOST_CHOICES)
    named = [chosen_by_kind(layers, kind) for kind in KINDS]
    return [*named[:2], *(choice.values for choice in found), *named[2:]]


def recomputable(layers: Sequence[Layer]) -> list[frozenset[Key]]:
    """Results of each node that may be computed again."""
    return [layer.keys([node]) for layer in layers for node in layer.needed() if node.again]

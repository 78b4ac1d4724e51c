"""All kinds of files."""

from __future__ import annotations

from .kind import Kind
from .kinds import layers, machines, plans, problems, rules, stores

FAMILIES = (plans, machines, stores, rules, layers, problems)


def every(*, quick: bool) -> list[Kind]:
    """All kinds; without those that take long to make if `quick`."""
    return [kind for family in FAMILIES for kind in family.kinds(quick=quick)]

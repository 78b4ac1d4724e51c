"""The user's wishes as limits on a problem: states of values, and menus of operations."""

from __future__ import annotations

from collections.abc import Iterator

from ir import FactorSpec, Mesh, Strategy
from ir.analysis import FlatProgram

from ...common.resolved_pins import Wishes
from ..problem.records import AllowOp, Limits
from ..problem.restricted import Within


def wished(wishes: Wishes, flat: FlatProgram, mesh: Mesh, given: Limits | None = None) -> Limits:
    """Turns the user's wishes into limits on a mesh.

    Args:
        wishes: wishes of the user.
        flat: the program.
        mesh: the mesh to search.
        given: further limits, which hold for ops without a wish.
    """
    menus = given.op if given else None
    if wishes.inside:
        menus = _menus(wishes, flat, mesh, menus)
    return Limits(menus, lambda v, s: wishes.allows(v, s, mesh), tuple(wishes.inside))


def _menus(wishes: Wishes, flat: FlatProgram, mesh: Mesh, given: AllowOp | None) -> AllowOp:
    def allowed(i: int, spec: FactorSpec, menu: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        made = flat.ops[i].outputs
        if wishes.inside.keys().isdisjoint(made):
            return menu if given is None else given(i, spec, menu)
        return tuple(
            strategy
            for strategy in menu
            if all(wishes.allows(v, s, mesh) for v, s in zip(made, strategy.results, strict=True))
        )

    return allowed


def blocked(wishes: Wishes, flat: FlatProgram, left: Within) -> Iterator[str]:
    """Names of arguments, and source lines of ops, without any sharding left."""
    for ref, kept in zip(left.built.refs, left.kept, strict=True):
        if kept is not None and not len(kept):
            made = flat.ops[ref.op].outputs if ref.op >= 0 else (ref.value,)
            asked = (one.where for v in made if (one := wishes.inside.get(v)))
            name = wishes.names.get(ref.value) or next(asked, "")
            if name:
                yield name

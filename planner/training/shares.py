"""Dependence of a value on the examples of a batch; see `batch_dependence` for the kinds."""

from __future__ import annotations

from dataclasses import dataclass

from ir import Node

from .edits import Place

ANY = -1


@dataclass(frozen=True, slots=True)
class Share:
    """Dependence of a value on the examples.

    kind: zero | same | rows | total | late | mixed; and of rows, index: an entry is its example's
        own number; never: no entry holds.
    power: p above.
    dim, inner: of rows, the dimension that runs over the examples, and how many of its
        consecutive entries belong to one; ANY if all its entries are alike.
    columns: of indices, the columns that hold the example's own number.
    reason: of mixed and late, the cause.
    drawn: draws for which `inner` is a guess, with the guess of each.
    """

    kind: str
    power: int = 0
    dim: int = ANY
    inner: int = ANY
    columns: tuple[int, ...] = ()
    reason: str = ""
    drawn: tuple[tuple[Place, int], ...] = ()

    @property
    def by_example(self) -> bool:
        return self.kind in ("rows", "index", "never")

    def moved(self, by: int) -> Share:
        """The share after adding or dropping a first dimension."""
        if not self.by_example:
            return self
        kind = "rows" if by < 0 or self.kind == "rows" else self.kind
        return Share(kind, self.power, self.dim + by, self.inner, drawn=self.drawn)


class Relaid(Exception):  # noqa: N818 (it is caught where it means to begin again)
    """A draw has another layout of examples than the guess."""

    def __init__(self, inner: dict[Place, int]) -> None:
        super().__init__()
        self.inner = inner


ZERO = Share("zero")
SAME = Share("same")


def mixed(reason: str) -> Share:
    return Share("mixed", reason=reason)


def at(node: Node) -> str:
    """Where an op stands, for messages."""
    return f"{node.op} ({node.source})" if node.source else node.op


def joined(a: Share, b: Share, node: Node, *, exact: bool) -> Share:
    """The narrowest share that holds for both; with edits if `exact`."""
    if a == b or b.kind in ("zero", "mixed"):
        return b if b.kind == "mixed" else a
    if a.kind in ("zero", "mixed"):
        return a if a.kind == "mixed" else b
    if {a.kind, b.kind} == {"same", "total"}:
        same, total = (a, b) if a.kind == "same" else (b, a)
        if exact or same.power - 1 == total.power:
            return total
    rows = a.by_example and b.by_example and (a.dim, a.power) == (b.dim, b.power)
    if rows and (ANY in (a.inner, b.inner) or a.inner == b.inner):
        return Share("rows", a.power, a.dim, max(a.inner, b.inner))
    return mixed(f"{at(node)} carries a value whose dependence on the examples changes")

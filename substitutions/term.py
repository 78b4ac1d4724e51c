"""Sides of rules as terms."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Term:
    """A variable (no kind), or an op on terms; `part` is the number of the op's output."""

    kind: str
    name: str = ""
    params: tuple[tuple[str, str], ...] = ()
    args: tuple[Term, ...] = ()
    part: int = 0
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        held = hash((self.kind, self.name, self.params, self.args, self.part))
        object.__setattr__(self, "_hash", held)

    def __hash__(self) -> int:
        return self._hash


def axis_of(term: Term) -> int:
    """The axis that an op works on."""
    return int(dict(term.params)["axis"])

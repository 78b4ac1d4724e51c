"""Which values of loops, branches and checkpoints have a form of their own inside.

An edited program has some values in another form, such as padded ones. What enters a body in it
leaves it in it, where that is possible: a loop carries what both its first value and its next one
can be.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Generic, Protocol, TypeVar

from ir import Scan, While
from ir.analysis import Place
from ir.trace import Program

from ..recompute.draft import Draft, Item, Value

Port = bool | None  # whether a value of a body is in the form; None if either serves
# Forms of what enters and leaves a region, and its bodies.
Edited = tuple[list[bool], list[bool], dict[int, Draft]]


class Bodies(Protocol):
    """What edits the bodies of a program."""

    def body(
        self, program: Program, place: Place, entering: Sequence[bool], leaving: Sequence[Port]
    ) -> tuple[Draft, list[Port]]:
        """A body in the form, and which of its results are in it.

        Args:
            program: the body.
            place: of it.
            entering: which of its inputs are in the form.
            leaving: which of its results have to be.
        """
        ...


Whole = TypeVar("Whole", bound=Bodies)


class RegionForms(Generic[Whole]):
    """Loops, branches and checkpoints of a body whose values have forms.

    whole: of all bodies.
    place: of this one.
    """

    whole: Whole
    place: Place

    @abstractmethod
    def dims(self, v: Value) -> Collection[int]:
        """Dimensions of a value that the form is about."""

    @abstractmethod
    def home(self, v: Value) -> Port:
        """The form in which a value is made."""

    def region(self, i: int, item: Item) -> Edited:
        """An edited region of node i."""
        edit = {"scan": self._scan, "while": self._while, "cond": self._cond,
                "remat": self._remat}[item.op]  # fmt: skip
        return edit(i, item)

    def _body(
        self, i: int, item: Item, number: int, entering: Sequence[Port], leaving: Sequence[Port]
    ) -> tuple[Draft, list[Port]]:
        """A body of node i, whose captured constants stay as they are."""
        program = item.binding.bodies[number]
        forms = [*([False] * len(program.consts)), *map(bool, entering)]
        return self.whole.body(program, (*self.place, i, number), forms, leaving)

    def _homes(self, values: Sequence[Value], *, along: int = -1) -> list[bool]:
        """Whether values enter a region in the form; not if they are taken apart along it."""
        return [self.home(v) is True and along not in self.dims(v) for v in values]

    def _scan(self, i: int, item: Item) -> Edited:
        wiring = Scan.of(item.node)
        consts, carries, xs = wiring.operands(item.ins)
        fixed, slices = self._homes(consts), self._homes(xs, along=0)
        carried, found = self._homes(carries), list[Port]()
        stacks = wiring.results(item.outs)[1]
        apart = [None if 0 not in self.dims(v) else False for v in stacks]
        while True:
            wanted: list[Port] = [True if form else None for form in carried]
            _, found = self._body(i, item, 0, [*fixed, *carried, *slices], [*wanted, *apart])
            after = [bool(f) for f in found[: wiring.carries]]
            if after == carried:
                break
            carried = [a or b for a, b in zip(carried, after, strict=True)]
        leaving = [*carried, *(bool(f) for f in found[wiring.carries :])]
        draft, _ = self._body(i, item, 0, [*fixed, *carried, *slices], leaving)
        return [*fixed, *carried, *slices], leaving, {0: draft}

    def _while(self, i: int, item: Item) -> Edited:
        wiring = While.of(item.node)
        of_test, of_step, carries = (self._homes(part) for part in wiring.operands(item.ins))
        while True:
            wanted: list[Port] = [True if form else None for form in carries]
            _, found = self._body(i, item, wiring.step, [*of_step, *carries], wanted)
            after = [bool(f) for f in found]
            if after == carries:
                break
            carries = [a or b for a, b in zip(carries, after, strict=True)]
        step, _ = self._body(i, item, wiring.step, [*of_step, *carries], list(carries))
        test, _ = self._body(i, item, wiring.test, [*of_test, *carries], [False])
        return [*of_test, *of_step, *carries], carries, {wiring.step: step, wiring.test: test}

    def _cond(self, i: int, item: Item) -> Edited:
        entering = self._homes(item.ins)
        each = range(len(item.binding.bodies))
        free: list[Port] = [None] * len(item.outs)
        found = [self._body(i, item, b, entering[1:], free)[1] for b in each]
        leaving = [any(forms) for forms in zip(*found, strict=True)]
        bodies = {b: self._body(i, item, b, entering[1:], list(leaving))[0] for b in each}
        return entering, leaving, bodies

    def _remat(self, i: int, item: Item) -> Edited:
        entering = self._homes(item.ins)
        draft, forms = self._body(i, item, 0, entering, [None] * len(item.outs))
        return entering, [bool(f) for f in forms], {0: draft}

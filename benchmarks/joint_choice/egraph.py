"""Programs that compute the same, held together: classes of equal values and the ways to each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ir import TensorType
from substitutions import RuleError

from .shapes import Params, result_type


@dataclass(frozen=True, slots=True)
class Form:
    """An op on classes, or an input (no kind) by name."""

    kind: str
    params: Params = ()
    args: tuple[int, ...] = ()
    name: str = ""


@dataclass
class Forms:
    """Classes by number, with the type that all values of a class have.

    Equal forms are in one class, always; `merge` makes two classes one, and `repair` draws the
    consequences.

    joined: classes with a concatenation among their forms.
    """

    inputs: Mapping[str, TensorType]
    types: list[TensorType] = field(default_factory=list[TensorType])
    joined: set[int] = field(default_factory=set[int])
    _parent: list[int] = field(default_factory=list[int])
    _known: dict[Form, int] = field(default_factory=dict[Form, int])

    def find(self, c: int) -> int:
        """The number that stands for a class now."""
        while self._parent[c] != c:
            self._parent[c] = self._parent[self._parent[c]]
            c = self._parent[c]
        return c

    def input(self, name: str) -> int:
        if name not in self.inputs:
            raise RuleError(f"no input '{name}'", where="forms")
        return self._add(Form("", name=name), self.inputs[name])

    def op(self, kind: str, params: Params, args: Sequence[int]) -> int | None:
        """The class of an op on classes; None if the op does not take them."""
        held = tuple(self.find(c) for c in args)
        type_ = result_type(kind, params, [self.types[c] for c in held])
        return None if type_ is None else self._add(Form(kind, params, held), type_)

    def _add(self, form: Form, type_: TensorType) -> int:
        if form not in self._known:
            self._known[form] = len(self._parent)
            self._parent.append(len(self._parent))
            self.types.append(type_)
            if form.kind == "concat":
                self.joined.add(self._known[form])
        return self.find(self._known[form])

    def merge(self, a: int, b: int) -> bool:
        """Makes two classes one; whether they were two."""
        a, b = sorted((self.find(a), self.find(b)))
        if self.types[a] != self.types[b]:
            raise RuleError(f"{self.types[a]} and {self.types[b]} made equal", where="forms")
        self._parent[b] = a
        if b in self.joined:
            self.joined.add(a)
        return a != b

    def repair(self) -> None:
        """Classes of ops on equal operands become equal, until nothing changes."""
        changed = True
        while changed:
            changed, fresh = False, dict[Form, int]()
            for form, c in self._known.items():
                plain = Form(form.kind, form.params, tuple(map(self.find, form.args)), form.name)
                other = fresh.setdefault(plain, c)
                changed |= self.merge(other, c)
            self._known = {form: self.find(c) for form, c in fresh.items()}

    def members(self) -> dict[int, list[Form]]:
        """The forms of every class, in the order in which they were made."""
        found: dict[int, list[Form]] = {}
        for form, c in self._known.items():
            found.setdefault(self.find(c), []).append(form)
        return found

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[tuple[Form, int]]:
        for form, c in self._known.items():
            yield form, self.find(c)

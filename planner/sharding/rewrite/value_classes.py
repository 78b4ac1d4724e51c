"""An e-graph of programs: classes of values that rewrites of one program make equal.

A node of the traced program is known by its place, whichever program it is met in: if it reads
another value in a rewritten program than before, the two values are classes. Nodes that a rule made
are known by what they compute.

It is built from whole programs with the bodies of their loops, which neither egglog holds nor the
`EGraph` of `substitutions`: that one is finished, has costs, and is the input of extraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ir import Graph, Literal, Node, Scan, TensorType, captured, runs_of
from ir.analysis import find
from substitutions import Draft, Mark

Place = tuple[int, ...]
Value = int | Literal


@dataclass(frozen=True, slots=True)
class ClassNode:
    """A node on classes.

    place: in the traced program; () for a node that a rule made.
    runs: how often it runs in one call.
    move: that made it first, -1 for a traced node.
    """

    node: Node
    args: tuple[Value, ...]
    outs: tuple[int, ...]
    place: Place
    runs: float
    move: int


@dataclass
class ProgramClasses:
    """Where the classes stand in one program.

    outs: place of a node in that program -> classes of its results.
    new: places of nodes that rules made.
    traced: places, in the traced program, of the nodes that are still there.
    """

    outs: dict[Place, tuple[int, ...]] = field(default_factory=dict[Place, tuple[int, ...]])
    new: set[Place] = field(default_factory=set[Place])
    traced: set[Place] = field(default_factory=set[Place])


@dataclass
class ValueClasses:
    """Classes by number, with the type that all values of a class have.

    traced: forms by place.
    made: forms that rules made.
    at: class -> values of the traced program, each by the place of its body and its number.
    ends: place of a body -> classes that it returns.
    runs: of each body of the traced program, by its place.
    """

    types: list[TensorType] = field(default_factory=list[TensorType])
    traced: dict[Place, ClassNode] = field(default_factory=dict[Place, ClassNode])
    made: list[ClassNode] = field(default_factory=list[ClassNode])
    at: dict[int, list[tuple[Place, int]]] = field(
        default_factory=dict[int, list[tuple[Place, int]]]
    )
    ends: dict[Place, tuple[Value, ...]] = field(default_factory=dict[Place, tuple[Value, ...]])
    runs: dict[Place, float] = field(default_factory=dict[Place, float])
    _parent: list[int] = field(default_factory=list[int])
    _inputs: dict[object, int] = field(default_factory=dict[object, int])
    _known: dict[object, ClassNode] = field(default_factory=dict[object, ClassNode])

    def find(self, c: int) -> int:
        """The number that stands for a class now."""
        return find(self._parent, c)

    def add(self, draft: Draft, move: int = -1) -> ProgramClasses:
        """Takes a program in: first the traced one, then those that rules made of it."""
        seen = ProgramClasses()
        inputs = [self._input(((), k), i.type) for k, i in enumerate(draft.graph.inputs)]
        self._walk(draft.graph, draft.marks, inputs, ((), ()), 1.0, move, seen)
        self._repair()
        return seen

    def forms(self) -> Iterator[ClassNode]:
        """All forms, their classes as they stand now."""
        made = [form for form in self.made if self._known[self._key(form)] is form]
        for form in (*self.traced.values(), *made):
            args = tuple(a if isinstance(a, Literal) else self.find(a) for a in form.args)
            yield replace(form, args=args, outs=tuple(map(self.find, form.outs)))

    def _class(self, type_: TensorType) -> int:
        self._parent.append(len(self._parent))
        self.types.append(type_)
        return self._parent[-1]

    def _input(self, key: object, type_: TensorType) -> int:
        if key not in self._inputs:
            self._inputs[key] = self._class(type_)
        return self._inputs[key]

    def _merge(self, left: Value, right: Value) -> bool:
        if isinstance(left, Literal) or isinstance(right, Literal):
            return False
        a, b = sorted((self.find(left), self.find(right)))
        self._parent[b] = a
        return a != b

    def _walk(
        self, graph: Graph, marks: Sequence[Mark], inputs: Sequence[Value],
        places: tuple[Place, Place], runs: float, move: int, seen: ProgramClasses,
    ) -> None:  # fmt: skip
        """A graph or body; `places` are those of its own program and of the traced one."""
        here, there = places
        values = list(inputs)

        def value(o: int | Literal) -> Value:
            return o if isinstance(o, Literal) else values[o]

        for i, (node, mark) in enumerate(zip(graph.nodes, marks, strict=True)):
            args = tuple(map(value, node.inputs))
            if mark.place:
                form = self._old(node, mark.place, args, runs)
                seen.traced.add(mark.place)
            else:
                form = self._new(node, args, runs, move)
                seen.new.add((*here, i))
            seen.outs[*here, i] = form.outs
            values += form.outs
            for b, body in enumerate(node.bodies):
                inner = self._entered(node, body, (*mark.place, b), args)
                below = (*here, i, b), (*mark.place, b)
                self._walk(body, mark.bodies[b], inner, below, runs * runs_of(node), move, seen)
        if move < 0:
            self.runs[there] = runs
            for number, c in enumerate(values):
                if not isinstance(c, Literal):
                    self.at.setdefault(c, []).append((there, number))
        found = tuple(map(value, graph.outputs))
        for left, right in zip(self.ends.setdefault(there, found), found, strict=True):
            self._merge(left, right)

    def _entered(self, node: Node, body: Graph, place: Place, args: Sequence[Value]) -> list[Value]:
        """Classes of what a body reads; what it does not change is the value outside."""
        own, count = captured(body), len(body.inputs)
        same = Scan.of(node).constants if node.op == "scan" else 0
        same = len(args) if node.op == "remat" else same
        return [
            args[k - own] if own <= k < own + same
            # a rule may give a loop more constants: what follows them is counted from the end
            else self._input((place, k if k < own else k - count), item.type)
            for k, item in enumerate(body.inputs)
        ]  # fmt: skip

    def _old(self, node: Node, place: Place, args: tuple[Value, ...], runs: float) -> ClassNode:
        known = self.traced.get(place)
        if known is None:
            outs = tuple(map(self._class, node.outputs))
            known = ClassNode(node, args, outs, place, runs, -1)
            self.traced[place] = known
            if not node.bodies and not node.has_attr("effect"):
                self._known.setdefault(self._key(known), known)
            return known
        added = len(args) - len(known.args)
        if added:
            consts = Scan.of(known.node).constants
            args = (*args[:consts], *args[consts + added :])
        for left, right in zip(known.args, args, strict=True):
            self._merge(left, right)
        return known

    def _new(self, node: Node, args: tuple[Value, ...], runs: float, move: int) -> ClassNode:
        form = ClassNode(node, args, (), (), runs, move)
        key = self._key(form)
        known = self._known.get(key)
        if known is None:
            known = replace(form, outs=tuple(map(self._class, node.outputs)))
            self._known[key] = known
            self.made.append(known)
        return known

    def _key(self, form: ClassNode) -> object:
        args = tuple(a if isinstance(a, Literal) else self.find(a) for a in form.args)
        return form.node.op, args, form.node.outputs, repr(form.node.attrs)

    def _repair(self) -> None:
        """What nodes that rules made compute of equal values becomes classes."""
        changed = True
        while changed:
            changed, fresh = False, dict[object, ClassNode]()
            for form in self._known.values():
                other = fresh.setdefault(self._key(form), form)
                if other is not form and not (form.place and other.place):
                    for a, b in zip(form.outs, other.outs, strict=True):
                        changed |= self._merge(a, b)
            self._known = fresh

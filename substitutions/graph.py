"""The graphs of which rules are made: ops on values, in the order in which they run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """A value of a graph: an input by name (`op` is -1), or output `output` of op `op`."""

    op: int
    output: int = 0
    name: str = ""

    def __str__(self) -> str:
        if self.op < 0:
            return self.name
        return f"%{self.op}.{self.output}" if self.output else f"%{self.op}"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a rule; parameters are sorted by name."""

    kind: str
    inputs: tuple[Ref, ...]
    params: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, name: str) -> int:
        for key, value in self.params:
            if key == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: int) -> int:
        return dict(self.params).get(name, default)

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value}" for key, value in self.params)
        return f"{self.kind}[{shown}]({', '.join(map(str, self.inputs))})"


Side = tuple[Op, ...]

"""What was decided: the roles of the mesh axes for every op, the state of every value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..mesh import Mesh
from ..sharding import Sharding
from .flat_program import Place, Site

ValueKey = tuple[Place, int]  # place of the enclosing body (() at the top), number of the value


@dataclass(frozen=True)
class Decisions:
    """A plan for one mesh, keyed by places in the graph, so that it outlives the solver.

    ops: place -> role of every mesh axis: "" unused, a factor's name, or "@g" (a partial sum
        passes through operand group g of the op's linear rule).
    values: state in which each value is kept: arguments, results of ops and of regions, inputs of
        bodies. A value made of literals alone has no entry: it is made in whatever state is read.
    inputs, outputs: states of the program's flat arguments and results, never partial.
    in_parts: sites of the reshards beside which their product runs in parts: collective matmuls.
    chunks: numbers of chunks, by the sites of exchanges that run in chunks beside products.
    """

    mesh: Mesh
    ops: Mapping[Place, tuple[str, ...]]
    values: Mapping[ValueKey, Sharding]
    inputs: tuple[Sharding, ...]
    outputs: tuple[Sharding, ...]
    in_parts: frozenset[Site] = frozenset()
    chunks: Mapping[Site, int] = field(default_factory=dict[Site, int])

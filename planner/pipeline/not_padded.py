"""Which sizes in the stages of a pipeline do not divide, as stages are not padded.

Padding edits a program before it is planned, and plan files keep the edit of a program of its own.
A stage is cut out of the loss and differentiated first, so that its edit would have to be made
again in both of its passes; files of stages do not keep one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..files.program_plan import ProgramPlan
from ..sharding.padding.candidates import classes_of, padded_size, products
from ..sharding.padding.classified import Classified
from ..sharding.planned_program import PlannedProgram


def not_padded(plans: Sequence[PlannedProgram]) -> tuple[str, ...]:
    """A warning of the sizes that padding could have split over more devices of a stage.

    Args:
        plans: of the stages.
    """
    each = {id(plan.program): plan for plan in plans}.values()
    found = sorted({size for plan in each for size in _sizes(plan.program, plan)})
    if not found:
        return ()
    sizes = ", ".join(f"{size:,}" for size in found)
    return (
        f"products of stages have sizes that do not divide ({sizes}) and are not split over all "
        "devices of their stage: dimensions are padded in plans of one program only; pad them in "
        "the model, or plan with pipeline='off'",
    )


def _sizes(program: ProgramPlan, plan: PlannedProgram) -> set[int]:
    """Sizes of the classes of products that some axis of the mesh does not split."""
    devices = math.prod(size for _, size in program.mesh)
    roles = {row.place: row.roles for row in program.ops}
    known = Classified(plan.traced.graph)
    able = {one.number: one.size for one in classes_of(known)}
    found = set[int]()
    for i, classes in products(known):
        of = roles.get(known.flat.ops[i].place, ())
        if not all(of):
            found |= {able[c] for c in classes & able.keys() if padded_size(able[c], devices)}
    return found

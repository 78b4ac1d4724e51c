"""Plans in the plan store; what is read is checked before it is believed."""

from __future__ import annotations

from costmodel import Cluster

from ...common.errors import PlanError
from ...common.options import Options
from ...common.stop import Stop
from ...common.store.keys import Memory, key_of
from ...files.check import check_program
from ...files.program_plan import ProgramPlan
from ...solver.cached import FINAL


def kept_plan(memory: Memory, key: str, graph: str, traced_digest: str) -> ProgramPlan | None:
    """A plan of a graph, as it was kept; None if there is none that is sound.

    graph, traced_digest: text and digest of the graph as it was traced; the plan's own graph is
        another if it was rewritten.
    """
    program = memory.get("plan", key, ProgramPlan)
    if program is None:
        return None
    if program.substitutions:
        return (
            program
            if program.traced_digest == traced_digest and is_sound(program, program.graph)
            else None
        )
    return program if is_sound(program, graph) else None


def keep_plan(memory: Memory, key: str, program: ProgramPlan) -> None:
    """Keeps a plan, unless time cut its search short."""
    if Stop[program.stop] in FINAL:
        memory.put("plan", key, program)


def is_sound(program: ProgramPlan, graph: str) -> bool:
    if program.graph != graph:
        return False
    try:
        check_program(program, "plan store")
    except PlanError:
        return False
    return True


def plan_key(name: str, parts: tuple[object, ...], machine: Cluster, options: Options) -> str:
    """A name for the plan of a program.

    Args:
        name: of the function.
        parts: the program: its graph as text, the roles, ties and donation of its arguments, and
            whatever else of it the plan file says.
        machine: that is planned for, with its tables.
        options: of the search.
    """
    return key_of("plan", name, parts, machine, options)

"""Plans in the plan store; every plan that is read is checked."""

from __future__ import annotations

from costmodel import Cluster

from ...common.errors import PlanError
from ...common.options import Options
from ...common.stop import Stop
from ...common.store.keys import Memory, key_of
from ...files.check import check_program
from ...files.program_plan import ProgramPlan
from ...solver.cached import FINAL


def stored_plan(memory: Memory, key: str, graph: str, traced_digest: str) -> ProgramPlan | None:
    """The stored plan of a graph; None if there is no sound one.

    Args:
        memory: the plan store.
        key: key of the plan in it.
        graph: text of the traced graph.
        traced_digest: digest of the traced graph, which a rewritten plan names.
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


def store_plan(memory: Memory, key: str, program: ProgramPlan) -> None:
    """Stores a plan, unless the time limit ended its search."""
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
    """Key of a program's plan in the plan store.

    Args:
        name: name of the function.
        parts: the program: its graph as text, the roles, ties and donation of its arguments, and
            all else that enters the plan file.
        machine: the cluster with its measured tables.
        options: options of the search.
    """
    return key_of("plan", name, parts, machine, options)

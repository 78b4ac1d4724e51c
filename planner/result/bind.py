# pyright: basic
"""The plan of one program joined with the function it was made for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from ir import differences, digest
from ir.trace import Traced, structs_of, trace

from ..common.errors import PlanError
from ..files.program_plan import ProgramPlan
from ..inspect.analysed_plan import AnalysedPlan
from ..sharding.ordering.rows import as_ordered
from ..sharding.padding.rows import as_padded
from ..sharding.recompute.variants import as_planned
from ..sharding.rewrite.replay import as_rewritten
from ..sharding.sorted_rows.rows import as_blocked
from ..sharding.written_attention import as_attended
from ..training.step_call import step_for


def bound_program(
    analysed: AnalysedPlan, fn: Any, args: tuple[Any, ...], settings: dict[str, Any]
) -> Traced:
    """The function that a plan was made for, traced and rewritten as the plan says.

    Args:
        analysed: the plan.
        fn: the function, or the loss function of a plan made with `optimizer=`.
        args: its arguments.
        settings: `optimizer=`, `has_aux=` and `batch_axis=`, if the plan was made with them.

    Raises:
        PlanError: if the function or its arguments differ from the plan's; it says how.
    """
    program = analysed.program
    hint = "" if settings else _hint(program)
    fn = as_attended(fn, program.attention, analysed.cluster)
    if settings:
        fn, args = _step_of(program, fn, args, settings)
    traced = trace(fn, *args, pinned=program.shardings == "pin", offload=program.offload == "auto")
    traced = _with_state(traced, program)
    traced = as_planned(traced, program.recomputed, program.hosted, program.host_states)
    traced = as_padded(traced, program.padded, analysed.where)
    traced = as_blocked(traced, program.sorted_blocks, analysed.where)
    traced = as_ordered(traced, program.ordered, analysed.where)
    if program.substitutions:
        traced = as_rewritten(traced, program, analysed.where, hint)
    traced = _with_state(traced, program)
    if digest(traced.graph) != program.graph_digest:
        raise PlanError(
            "the plan is for another function or other arguments: "
            + differences(analysed.graph, traced.graph),
            kind="differs", where=analysed.where, remedy=f"plan this function anew{hint}",
        )  # fmt: skip
    return traced


def _hint(program: ProgramPlan) -> str:
    trains = "optimizer-state" in program.roles
    return ", or give bind the optimizer= that it was made with" if trains else ""


def _with_state(traced: Traced, program: ProgramPlan) -> Traced:
    """The traced function with the roles, donation and ties that the plan was made with."""
    graph = traced.graph
    if len(program.roles) == len(graph.inputs):
        inputs = zip(graph.inputs, program.roles, strict=True)
        graph = replace(graph, inputs=tuple(replace(item, role=role) for item, role in inputs))
    heads = len(traced.program.consts)
    ties = tuple((a - heads, b) for a, b in program.ties)
    run = replace(traced.program, graph=graph)
    return replace(traced, program=run, donated=program.donated, tied=ties)


def _step_of(program: ProgramPlan, fn: Any, args: Any, settings: dict[str, Any]) -> tuple[Any, Any]:
    """The training step that the planner built of a loss, with its arguments.

    Raises:
        PlanError: if the settings are not those of `optimizer=`.
    """
    check_settings(settings)
    from_step = step_for(
        fn, args, microbatches=program.microbatches, loss_reduction=program.loss_reduction,
        **settings,
    )  # fmt: skip
    return from_step.fn, from_step.args


def check_settings(settings: dict[str, Any]) -> None:
    """Checks that settings of `Plan.bind` are those of a training step.

    Raises:
        PlanError: if one is unknown or there is no optimizer.
    """
    unknown = set(settings) - {"optimizer", "has_aux", "batch_axis"}
    if unknown or "optimizer" not in settings:
        given = ", ".join(sorted(settings)) or "none of them"
        raise PlanError(
            f"takes optimizer= with has_aux= and batch_axis=, got {given}", kind="bad-option",
            where="Plan.bind",
            remedy="pass what the plan was made with, or nothing if it had no optimizer=",
        )  # fmt: skip


def form_of(tree: Any) -> tuple[Any, list[tuple[int, ...]]]:
    """Structure of a pytree and the shapes of its leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [tuple(x.shape) if hasattr(x, "shape") else np.shape(x) for x in leaves]


def specs_like(
    traced: Traced, specs: Any, tree: Any, what: str, argnum: int | None, where: str
) -> Any:
    """Specs of the argument that has the structure and shapes of a tree.

    Args:
        traced: the function.
        specs: of its arguments, as a tuple of pytrees.
        tree: one whole argument.
        what: the tree is, for errors.
        argnum: position of the argument; found by its form if None.
        where: the plan is, for errors.

    Raises:
        PlanError: if no argument, or more than one, has this form.
        TraceError: if a leaf cannot be an array.
    """
    structure, shapes = form_of(tree)
    args, _ = jax.tree.unflatten(traced.in_tree, list(traced.args_info))
    pairs = list(zip(args, specs, strict=True))
    chosen = pairs if argnum is None else pairs[argnum : argnum + 1]
    found = [each for arg, each in chosen if form_of(arg) == (structure, shapes)]
    if not found:
        raise PlanError(
            f"{what} has {len(shapes)} arrays in {structure}, which is "
            + ("none of the arguments" if argnum is None else f"not argument {argnum}"),
            kind="differs", where=where, remedy="pass one whole argument of the function",
        )  # fmt: skip
    if any(each != found[0] for each in found):
        raise PlanError(
            f"{what} has the form of {len(found)} arguments that are sharded differently",
            kind="ambiguous", where=where, remedy="say which one with argnum=",
        )  # fmt: skip
    structs_of("tree", tree)  # of the same shapes, but perhaps of no numbers
    return found[0]


def placed(tree: Any, specs: Any, mesh: jax.sharding.Mesh) -> Any:
    """The arrays of a tree on a mesh.

    Raises:
        PlanError: if they are shapes.
    """
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(tree)):
        raise PlanError(
            "holds shapes, expected arrays", kind="bad-argument", where="tree",
            remedy="pass arrays, or let `init` create them in their places",
        )  # fmt: skip
    return jax.tree.map(lambda x, s: jax.device_put(x, NamedSharding(mesh, s)), tree, specs)

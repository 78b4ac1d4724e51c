# pyright: basic
"""A stage with its gradients as one traced program, and that program in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ir import Operand
from ir.trace import Program, trace

from ...training.derivative_rules import chosen, merged
from ...training.microbatch import wide
from .equations import Array, Equations, Key, is_float
from .forward_backward import Split, split
from .stage import Stage, Staged
from .uses import use_struct


@dataclass(frozen=True)
class Slope:
    """A gradient sent backward: of value `key`, from stage `source` to stage `target`."""

    key: Key
    source: int
    target: int


@dataclass(frozen=True)
class StageProgram:
    """A stage's program for one micro-batch, with gradients.

    Arguments, in order: parameters, batch leaves, values of earlier stages, incoming gradients (in
    the loss's stage followed by that of the loss), accumulated gradients. Results: values for later
    stages, outgoing gradients, accumulated gradients.

    moves: for each parameter, whether it has a gradient.
    incoming, outgoing: gradients from later and to earlier stages.
    args: values of the program by kind of argument.
    captured: arguments that are always the same arrays, which the loss has captured.
    """

    stage: Stage
    program: Program
    moves: tuple[bool, ...]
    incoming: tuple[Slope, ...]
    outgoing: tuple[Slope, ...]
    args: dict[str, tuple[int, ...]]
    parts: Split
    captured: dict[int, Any] = field(default_factory=dict[int, Any])


@dataclass(frozen=True)
class Joint:
    """A stage with its gradients as a function of arrays.

    run(params, batch, takes, slopes, sums) -> (gives, sent, sums).
    offload: whether it sends values to the host that wait there for its backward pass; copies that
        the loss itself asks for are not followed.
    """

    stage: Stage
    run: Callable[..., tuple[list[Array], list[Array], list[Array]]]
    moves: tuple[bool, ...]
    incoming: tuple[Slope, ...]
    outgoing: tuple[Slope, ...]
    structs: dict[str, list[jax.ShapeDtypeStruct]]
    gives: list[jax.ShapeDtypeStruct]
    offload: bool = False


def joint_of(program: Equations, cut: Staged, number: int) -> Joint:
    """Builds a stage with its gradients.

    Args:
        program: the loss.
        cut: its stages.
        number: index of the stage.
    """
    stage, structs = cut.stages[number], cut.structs
    params = [use_struct(program, use) for use in stage.params]
    moves = tuple(is_float(p) for p in params)
    flows = [is_float(structs[key]) for key in stage.takes]
    incoming = tuple(
        Slope(key, reader, number)
        for key in stage.gives
        if is_float(structs[key])
        for reader in cut.readers(key)
    )
    outgoing = tuple(
        Slope(key, number, cut.maker(key)) for key in stage.takes if is_float(structs[key])
    )
    slopes = [_plain(structs[slope.key]) for slope in incoming]
    loss_stage, loss_key = cut.outputs[0]
    if number == loss_stage:
        slopes.append(_plain(structs[loss_key]))

    def run(params: Any, batch: Any, takes: Any, slopes: Any, sums: Any) -> Any:
        def forward(moving: Any, flowing: Any) -> Any:
            found = stage.run(merged(params, moving, moves), batch, merged(takes, flowing, flows))
            return [x for x in found if is_float(x)], found

        args = (chosen(params, moves), chosen(takes, flows))
        floats, back, gives = jax.vjp(forward, *args, has_aux=True)
        keys = [key for key, x in zip(stage.gives, gives, strict=True) if is_float(x)]
        seeds = []
        for key, x in zip(keys, floats, strict=True):
            terms = [s for slope, s in zip(incoming, slopes, strict=False) if slope.key == key]
            if number == loss_stage and key == loss_key:
                terms.append(slopes[-1])
            seeds.append(sum(terms[1:], terms[0]) if terms else jnp.zeros_like(x))
        grads, sent = back(seeds)
        added = [lax.add(s, g.astype(s.dtype)) for s, g in zip(sums, grads, strict=True)]
        return list(gives), list(sent), added

    given = {
        "params": params,
        "batch": [_plain(program.avals[program.batch[i]]) for i in stage.batch],
        "takes": [_plain(structs[key]) for key in stage.takes],
        "slopes": slopes,
        "sums": [
            jax.ShapeDtypeStruct(p.shape, wide(p.dtype)) for p, m in zip(params, moves, strict=True)
            if m
        ],
    }  # fmt: skip
    gives = [_plain(structs[key]) for key in stage.gives]
    return Joint(stage, run, moves, incoming, outgoing, given, gives)


def stage_program(joint: Joint) -> StageProgram:
    """Traces a stage with its gradients."""
    traced = trace(joint.run, *joint.structs.values(), offload=joint.offload)
    at = len(traced.program.consts)
    args: dict[str, tuple[int, ...]] = {}
    for name, values in joint.structs.items():
        args[name] = tuple(range(at, at + len(values)))
        at += len(values)
    outputs = traced.graph.outputs
    a, b = len(joint.stage.gives), len(joint.stage.gives) + len(joint.outgoing)
    return program_of(joint, traced.program, args, (outputs[:a], outputs[a:b], outputs[b:]))


def program_of(
    joint: Joint,
    program: Program,
    args: dict[str, tuple[int, ...]],
    results: tuple[Sequence[Operand], Sequence[Operand], Sequence[Operand]],
    captured: dict[int, Any] | None = None,
) -> StageProgram:
    """Splits a stage's traced program into its parts.

    Args:
        joint: the stage.
        program: traced program of one micro-batch.
        args: its values by kind of argument.
        results: values for later stages, outgoing gradients, accumulated gradients.
        captured: as of `StageProgram`.
    """
    parts = split(program, *results, (*args["slopes"], *args["sums"]), captured)
    return StageProgram(
        joint.stage, program, joint.moves, joint.incoming, joint.outgoing, args, parts,
        captured or {},
    )  # fmt: skip


def _plain(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)

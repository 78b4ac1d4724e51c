# pyright: basic
"""The steps of a stage's forward pass, and which of them its backward pass recomputes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ir.jax_internals import function_of, run_equation, run_scan

from ...training.equation_list import Equation, read
from .entries import Taken
from .equations import Array, Key
from .outline import AGAIN, PART, keys_of, literal_of, numbered, what_of

Env = dict[Key, Array]
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class StageStep:
    """A function that reads some values of an environment and writes others.

    what: what it computes of the values that it reads, hashable.
    layer: steps of one layer are recomputed together; -1 for loops, which recompute each iteration.
    """

    run: Callable[[Env], None]
    reads: tuple[Key, ...]
    writes: tuple[Key, ...]
    what: tuple[object, ...]
    layer: int = 0


def policy_of(recompute: str) -> Any:
    """The `jax.checkpoint` policy of a kind of recomputation.

    selective: keeps products with weights and convolutions, not products between activations
        (attention) nor light ops (Korthikanti et al., 2022, section 5).
    full: keeps only the inputs of the layer.
    """
    return {"selective": _keeps, "full": jax.checkpoint_policies.nothing_saveable}[recompute]


def _keeps(primitive: Any, *_: Any, **params: Any) -> bool:
    if primitive.name == "dot_general":
        return not params["dimension_numbers"][1][0]
    return primitive.name == "conv_general_dilated"


def layered(steps: Sequence[StageStep], recompute: str, gives: Iterable[Key]) -> list[StageStep]:
    """Joins the steps of each layer into one that is recomputed in the backward pass.

    Args:
        steps: all steps of the stage, in order.
        recompute: one of `RECOMPUTE`.
        gives: values that the stage returns.
    """
    if recompute == "none":
        return list(steps)
    groups: list[list[StageStep]] = []
    for step in steps:
        if groups and step.layer >= 0 and groups[-1][-1].layer == step.layer:
            groups[-1].append(step)
        else:
            groups.append([step])
    found: list[StageStep] = []
    wanted = set(gives)
    for group in reversed(groups):
        found.append(_joined(group, recompute, wanted) if group[0].layer >= 0 else group[0])
        wanted -= set(found[-1].writes)
        wanted |= set(found[-1].reads)
    return found[::-1]


def _joined(group: Sequence[StageStep], recompute: str, wanted: set[Key]) -> StageStep:
    made: dict[Key, None] = {}
    reads: dict[Key, None] = {}
    for step in group:
        reads.update(dict.fromkeys(key for key in step.reads if key not in made))
        made.update(dict.fromkeys(step.writes))
    writes = tuple(key for key in made if key in wanted)

    def body(*ins: Array) -> list[Array]:
        env = dict(zip(reads, ins, strict=True))
        for step in group:
            step.run(env)
        return [env[key] for key in writes]

    run = jax.checkpoint(body, policy=policy_of(recompute))

    def again(env: Env) -> None:
        env.update(zip(writes, run(*(env[key] for key in reads)), strict=True))

    numbers = {key: k for k, key in enumerate(reads)}
    rows = numbered([(step.what, step.reads, step.writes) for step in group], numbers)
    what = (AGAIN, recompute, rows, tuple(numbers[key] for key in writes))
    return StageStep(again, tuple(reads), writes, what, group[0].layer)


def run_op(op: Equation, layer: int) -> StageStep:
    """A step that runs one equation."""

    def step(env: Env) -> None:
        env.update(zip(op.outs, op.run([read(env, v) for v in op.ins]), strict=True))

    return StageStep(step, keys_of(op.ins), op.outs, what_of(op, op.ins), layer)


def apply_op(op: Equation, ins: Sequence[Any], key: Key, layer: int) -> StageStep:
    """A step that runs an equation with one result on other operands."""

    def step(env: Env) -> None:
        (env[key],) = op.run([read(env, v) for v in ins])

    return StageStep(step, keys_of(ins), (key,), ("apply", *what_of(op, ins)), layer)


def run_loop(
    op: Equation, ins: Sequence[Any], outs: Sequence[Key], length: int, recompute: str
) -> StageStep:
    """A step that runs some iterations of a loop over layers; each is recomputed by itself."""
    params, what = op.params, ("rounds", length, recompute, *what_of(op, ins))
    changed: dict[str, Any] = {"length": length, "unroll": min(params["unroll"], length)}
    if recompute == "none":

        def step(env: Env) -> None:
            found = run_equation(op.eqn, [read(env, v) for v in ins], changed)
            env.update(zip(outs, found, strict=True))

        return StageStep(step, keys_of(ins), tuple(outs), what, -1)
    body = jax.checkpoint(
        function_of(params["jaxpr"]), policy=policy_of(recompute), prevent_cse=False
    )

    def layers(env: Env) -> None:
        found = run_scan(params | changed, body, [read(env, v) for v in ins])
        env.update(zip(outs, found, strict=True))

    return StageStep(layers, keys_of(ins), tuple(outs), what, -1)


def cut_part(v: Key, key: Key, span: tuple[int, int], length: int, layer: int) -> StageStep:
    """A step that slices a span of the entries of a stacked value, of which it has `length`."""
    low, high = span

    def step(env: Env) -> None:
        env[key] = lax.slice_in_dim(env[v], low, high)

    return StageStep(step, (v,), (key,), (PART, low, high, length), layer)


def take(part: Taken, source: Key, key: Key, layer: int) -> StageStep:
    """A step that makes a result of the entries of a stack that are its operand."""

    def step(env: Env) -> None:
        env[key] = part.run(env[source])

    return StageStep(step, (source,), (key,), part.what, layer)


def join_parts(v: Key, keys: Sequence[Key], layer: int) -> StageStep:
    """A step that concatenates the parts of a stacked value."""

    def step(env: Env) -> None:
        env[v] = jnp.concatenate([env[key] for key in keys])

    return StageStep(step, tuple(keys), (v,), ("join",), layer)


def constant(key: Key, value: Any, layer: int) -> StageStep:
    """A step that writes a literal of the program."""

    def step(env: Env) -> None:
        env[key] = jnp.asarray(value)

    return StageStep(step, (), (key,), ("constant", *literal_of(value)), layer)

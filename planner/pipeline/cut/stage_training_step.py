# pyright: basic
"""A stage as a training step of its own, which the planner shards like any program.

    (params, state, batch, takes, slopes) -> (params, state, one number per output of the stage)

A `lax.scan` runs the micro-batches one after another, as in the unsharded step; then the stage's
own parameters are updated. Delayed gradient sums, sharded optimizer state and gathered parameters
are found as in any program. The runtime runs the body of the loop in parts, with its decisions.

Every iteration reads the same micro-batch, and its outputs are summed to one number: this program
holds one micro-batch at a time; `sharding/problem/in_flight.py` adds the others in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ir import IRError, Literal, Node, Scan
from ir.trace import Program, Traced, trace

from ...common.errors import PlanError
from .opened_loss import Opened
from .stage import Staged
from .stage_gradient import Joint, StageProgram, joint_of, program_of

ROLES = ("parameter", "optimizer-state", "batch", "batch", "batch")


@dataclass(frozen=True)
class StageTrainingStep:
    """The traced training step of a stage.

    loop: index of the node that runs the micro-batches.
    params: indices of the graph inputs that are parameters.
    states: indices of the graph inputs that are optimizer state.
    """

    joint: Joint
    traced: Traced
    loop: int
    params: tuple[int, ...]
    states: tuple[int, ...]
    program: StageProgram

    @property
    def body(self) -> Program:
        """One micro-batch."""
        return self.traced.program.bindings[self.loop].bodies[0]


def stage_training_step(
    loss: Opened, cut: Staged, number: int, optimizer: Any
) -> StageTrainingStep:
    """Cuts a stage out of a loss and traces its training step.

    Args:
        loss: the loss.
        cut: its stages.
        number: index of the stage.
        optimizer: the optax optimizer of its parameters.
    """
    return training_step_of(joint_of(loss.program, cut, number), loss.microbatches, optimizer)


def training_step_of(joint: Joint, count: int, optimizer: Any) -> StageTrainingStep:
    """Traces the training step of a stage.

    Args:
        joint: the stage, forward and backward.
        count: number of micro-batches.
        optimizer: the optax optimizer of its parameters.

    Raises:
        PlanError: if it does not take some of the parameters without the others.
    """
    given = joint.structs
    moving = [p for p, m in zip(given["params"], joint.moves, strict=True) if m]
    state = _state_of(optimizer, moving)

    def stage_step(params: Any, state: Any, batch: Any, takes: Any, slopes: Any) -> Any:
        def body(sums: Any, _: None) -> Any:
            gives, sent, sums = joint.run(params, batch, takes, slopes, sums)
            return sums, [_seen(x) for x in (*gives, *sent)]

        zeros = [jnp.zeros(s.shape, s.dtype) for s in given["sums"]]
        sums, ys = lax.scan(body, zeros, length=count)
        own = [p for p, m in zip(params, joint.moves, strict=True) if m]
        grads = [s.astype(p.dtype) for s, p in zip(sums, own, strict=True)]
        updates, state = optimizer.update(grads, state, own)
        fresh = iter([(p + u.astype(p.dtype)) for p, u in zip(own, updates, strict=True)])
        new = [next(fresh) if m else p for p, m in zip(params, joint.moves, strict=True)]
        return new, state, ys

    traced = trace(
        stage_step, given["params"], state, given["batch"], given["takes"], given["slopes"],
        donate_argnums=(0, 1), roles=ROLES, offload=joint.offload,
    )  # fmt: skip
    heads, own = len(traced.program.consts), len(given["params"])
    states = len(jax.tree.leaves(state))
    loop = _loop(traced.graph.nodes, len(given["sums"]), count)
    return StageTrainingStep(
        joint, traced, loop, tuple(range(heads, heads + own)),
        tuple(range(heads + own, heads + own + states)), _body_program(joint, traced, loop),
    )  # fmt: skip


def _state_of(optimizer: Any, params: list[Any]) -> Any:
    """The state of an optimizer of a stage's parameters, which are a list of their own."""
    try:
        state = jax.eval_shape(optimizer.init, params)
        jax.eval_shape(optimizer.update, params, state, params)
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        raise PlanError(
            "does not take the parameters of a stage, a list without the others: "
            f"{type(error).__name__}: {text[0]}",
            kind="bad-optimizer", where="optimizer",
            remedy="masks and labels that are trees of all parameters need one program: pass "
            "pipeline='off'",
        ) from error  # fmt: skip
    return state


def _loop(nodes: tuple[Node, ...], carried: int, count: int) -> int:
    for i, node in enumerate(nodes):
        if node.op == "scan" and (Scan.of(node).carries, node.attr("length")) == (carried, count):
            return i
    raise IRError("the loop over micro-batches is not in the traced program")


def _body_program(joint: Joint, traced: Traced, loop: int) -> StageProgram:
    """The body of the loop as the program of one micro-batch."""
    node, binding = traced.graph.nodes[loop], traced.program.bindings[loop]
    body = binding.bodies[0]
    heads, at = len(body.consts), len(traced.program.consts)
    wiring = Scan.of(node)
    fixed, sums, _ = wiring.operands(range(heads, heads + len(node.inputs)))
    position = {o: v for v, o in zip(fixed, node.inputs, strict=False) if isinstance(o, int)}
    args, head = {"sums": tuple(sums)}, at
    states = len(traced.args_info) - sum(
        len(joint.structs[name]) for name in ("params", "batch", "takes", "slopes")
    )
    known: set[int] = set()
    for name in ("params", "batch", "takes", "slopes"):
        span = range(at, at + len(joint.structs[name]))
        # a value that no op reads is no input of the loop; it gets a number that nothing else has
        args[name] = tuple(position.get(v, -1 - v) for v in span)
        known.update(span)
        at += len(span) + (states if name == "params" else 0)
    captured = {position[v]: traced.program.consts[v] for v in position if v < head}
    if not position.keys() - known <= {*range(head)}:
        raise IRError("the loop over micro-batches reads a value from outside its stage")
    gives = len(joint.stage.gives)
    types = [*joint.gives, *(None for _ in joint.outgoing)]
    new_sums, returned = wiring.results(body.graph.outputs)
    outputs = zip(returned, types, strict=True)
    seen = [_unseen(body, o, struct) for o, struct in outputs]
    results = (seen[:gives], seen[gives:], new_sums)
    return program_of(joint, body, args, results, captured)


def _seen(x: Any) -> Any:
    """A number that depends on all of a value, so that the value has to be whole in the end."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = lax.convert_element_type(x, jnp.float32)
    return jnp.einsum(x, range(x.ndim), x, range(x.ndim), []) if x.ndim else x * x


def _unseen(
    body: Program, output: int | Literal, struct: jax.ShapeDtypeStruct | None
) -> int | Literal:
    """The value that `_seen` made a number of; `struct` is its type, None for a gradient."""
    graph = body.graph
    steps = 1
    if struct is not None and not jnp.issubdtype(struct.dtype, jnp.inexact):
        steps += 1 + jnp.issubdtype(struct.dtype, jax.dtypes.prng_key)
    o = output
    for _ in range(steps):
        if isinstance(o, Literal) or o not in graph.maker:
            raise IRError("a result of the loop over micro-batches was not found in it")
        o = graph.nodes[graph.maker[o]].inputs[0]
    return o

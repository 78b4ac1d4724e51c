# pyright: basic
"""The collectives of the emitted program are those of the plan."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from costmodel import full_bytes
from ir import Mesh, Sharding
from ir.analysis.decisions import Decisions
from ir.trace import Traced, trace
from planner.emit import compile_plan, count_collectives, local_program
from planner.emit.jit import build_mesh
from planner.emit.local_op import partition_spec
from tests.helpers_exhaustive import usual
from tests.helpers_numerics import check_numerics
from tests.planner.emit.models import MODELS, floats
from tests.planner.emit.plans import (
    CUBE,
    LINE,
    MESHES,
    decisions_by,
    lowered,
    random_decisions,
)

Counts = Counter[tuple[str, int, int]]


def planned(traced: Traced, decisions: Decisions) -> tuple[Counts, str]:
    """Collectives of the steps that emission wrote, and the program before XLA changes it."""
    mesh = decisions.mesh
    program = local_program(traced.program, lowered(traced, decisions))
    mapped = jax.shard_map(
        program,
        mesh=build_mesh(mesh),
        in_specs=tuple(map(partition_spec, decisions.inputs)),
        out_specs=tuple(map(partition_spec, decisions.outputs)),
        check_vma=False,
    )
    text = jax.jit(mapped).lower(*traced.args_info).as_text(dialect="hlo")
    found: Counts = Counter()
    for item in program.written:
        kind, step = item.step.collective, item.step
        if kind is not None:
            size = full_bytes(step, item.type, mesh)
            found[_key(kind, mesh.product(step.axes), size)] += 1
    return found, text


def _key(kind: str, group: int, size: float) -> tuple[str, int, int]:
    # A permute of n devices may be made of shorter cycles.
    return kind, 0 if kind == "collective-permute" else group, int(size)


def counted(text: str, mesh: Mesh) -> Counts:
    found: Counts = Counter()
    for item in count_collectives(text, devices=mesh.num_devices):
        found[_key(item.kind, item.group_size, item.bytes)] += round(item.count)
    return found


@pytest.mark.parametrize("mesh", usual(MESHES, ["cube"]))
@pytest.mark.parametrize("name", ["attention", "dropout", "embedding", "mlp", "momentum"])
def test_every_step_is_one_collective(name: str, mesh: str) -> None:
    function, args = MODELS[name]
    traced = trace(function, *args)
    expected, text = planned(traced, random_decisions(traced.graph, MESHES[mesh], seed=11))
    assert expected.total() > 5
    assert counted(text, MESHES[mesh]) == expected


def train(w1, w2, x):
    def loss(w1, w2):
        return jnp.sum((jnp.tanh(x @ w1) @ w2) ** 2)

    value, (g1, g2) = jax.value_and_grad(loss, (0, 1))(w1, w2)
    return w1 - 0.01 * g1, w2 - 0.01 * g2, value


TRAIN_ARGS = (floats(32, 48) / 8, floats(48, 40) / 8, floats(16, 32))
ROWS, WHOLE, SCALAR = Sharding((("x",), ())), Sharding(((), ())), Sharding(())


def splits_batch(types, op, menu):
    """Splits the dimension of 16, which is the batch; else the first one of the result."""

    def score(strategy):
        sides = ((types, strategy.operands), (op.node.outputs, strategy.results))
        split = {
            size
            for tensors, states in sides
            for type_, state in zip(tensors, states, strict=True)
            for size, axes in zip(type_.shape, state.dims, strict=True)
            if axes
        }
        return 16 in split, any(strategy.results[0].dims[:1])

    return max(menu, key=score)


def fsdp() -> tuple[Traced, Decisions]:
    """Parameters and updates in rows over eight devices, the batch of 16 split."""
    traced = trace(train, *TRAIN_ARGS)

    def publish(raw: Sharding) -> Sharding:
        if not raw.partial:
            return raw
        # Gradients come transposed.
        return Sharding((*raw.dims[:-1], ("x",))) if raw.dims else SCALAR

    decisions = decisions_by(
        traced.graph, LINE, (ROWS, ROWS, ROWS), (ROWS, ROWS, SCALAR), splits_batch, publish
    )
    return traced, decisions


def test_compiled_collectives_are_the_steps() -> None:
    traced, decisions = fsdp()
    report = check_numerics(traced, lowered(traced, decisions), TRAIN_ARGS, rtol=1e-5)
    assert report.ok, str(report)
    expected, _ = planned(traced, decisions)
    compiled = compile_plan(traced, lowered(traced, decisions)).lower(*TRAIN_ARGS).compile()
    assert counted(compiled.as_text(), LINE) == expected
    kinds = Counter(kind for kind, _, _ in expected.elements())
    # w1 once, w2 forward and backward; both gradients; the loss.
    assert kinds == {"all-gather": 3, "reduce-scatter": 2, "all-reduce": 1}


def test_a_permute_is_counted() -> None:
    traced = trace(lambda x: x * 2.0, np.ones((8, 8), np.float32))
    turned = Sharding((("c", "a"), ())), Sharding((("a", "c"), ()))
    decisions = decisions_by(
        traced.graph, CUBE, turned[:1], turned[1:], lambda types, op, menu: menu[0], lambda raw: raw
    )
    decisions = Decisions(CUBE, decisions.ops, {((), 0): turned[0], ((), 1): turned[0]},
                          decisions.inputs, decisions.outputs)  # fmt: skip
    expected, text = planned(traced, decisions)
    assert counted(text, CUBE) == expected
    assert check_numerics(traced, lowered(traced, decisions), [np.ones((8, 8), np.float32)]).ok


def with_gathers(count):
    """Products with one split parameter, which each of them gathers."""

    def products(w, x):
        for _ in range(count):
            x = jnp.tanh(x @ w)
        return x

    args = (floats(32, 32), floats(16, 32))
    traced = trace(products, *args)
    decisions = decisions_by(
        traced.graph, LINE, (ROWS, ROWS), (ROWS,), splits_batch, lambda raw: raw
    )
    return traced, decisions, args


def test_gathers_of_an_argument_are_not_merged() -> None:
    """Every op that reads a split parameter whole gathers it anew, also in compiled programs."""
    traced, decisions, args = with_gathers(3)
    compiled = compile_plan(traced, lowered(traced, decisions)).lower(*args).compile()
    assert counted(compiled.as_text(), LINE) == {("all-gather", 8, 32 * 32 * 4): 3}
    assert check_numerics(traced, lowered(traced, decisions), args, rtol=1e-5).ok


def test_a_later_gather_waits_for_an_operand_of_the_op_before() -> None:
    """So that it can run beside that op, which reads the gather before it."""
    traced, decisions, args = with_gathers(4)
    mapped = jax.shard_map(
        local_program(traced.program, lowered(traced, decisions)), mesh=build_mesh(LINE),
        in_specs=tuple(partition_spec(s) for s in decisions.inputs),
        out_specs=tuple(partition_spec(s) for s in decisions.outputs), check_vma=False,
    )  # fmt: skip
    (call,) = jax.make_jaxpr(mapped)(*args).jaxpr.eqns
    body = call.params["jaxpr"].eqns
    came_from = {}  # what a barrier gives is what it was given
    for eqn in body:
        if eqn.primitive.name == "optimization_barrier":
            came_from |= {
                o: came_from.get(i, i) for o, i in zip(eqn.outvars, eqn.invars, strict=True)
            }
    products = [eqn.invars[0] for eqn in body if eqn.primitive.name == "dot_general"]
    read = [came_from.get(v, v) for v in products]
    waits = [eqn.invars[1] for eqn in body if eqn.primitive.name == "optimization_barrier"]
    assert len(set(read)) == 4
    # no argument is waited for: the second gather has only its own product's operand
    assert [came_from.get(v, v) for v in waits] == [read[1], read[1], read[2]]

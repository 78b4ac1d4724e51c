# pyright: basic
"""Source lines of nodes: the user's, never a library's or Meshwright's own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import equinox
import jax
import jax.numpy as jnp
import optax

from ir import Graph
from ir.trace import trace
from planner import Plan, plan, register_op
from tests.planner.pipeline.unproved import without_proof

HERE = Path(__file__).name
X, W = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4, 64, 64), "float32")


def lines(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.source:
            yield node.source
        for body in node.bodies:
            yield from lines(body)


def block(x, w):
    return jnp.tanh(x @ w)


def loss(params, batch):
    x, _ = jax.lax.scan(lambda x, w: (block(x, w), None), batch, params)
    return jnp.mean(x * x)


def files(found: Plan) -> set[str]:
    texts = [program.graph for program in found.file.programs]
    texts += [row.cause for program in found.file.programs for row in program.collectives]
    return {name for text in texts for name in re.findall(r"[\w.]+\.py(?=:\d)", text)}


def test_a_training_step_with_micro_batches_names_lines_of_its_loss() -> None:
    found = plan(
        loss, W, X, cluster="8xh100", optimizer=optax.adam(1e-3), microbatches=2, baselines=False,
        pipeline="off",
    )  # fmt: skip
    assert files(found) == {HERE}


@without_proof()
def test_stages_name_lines_of_their_loss() -> None:
    found = plan(
        loss, W, X, cluster="4xv100-16gb:2", optimizer=optax.adam(1e-3), pipeline=2,
        baselines=False, schedules="1f1b", substitutions=False,
    )  # fmt: skip
    assert files(found) == {HERE}
    loops = [n for a in found.analysed_programs for n in a.graph.nodes if n.op == "scan"]
    assert loops
    assert all(n.source.startswith(HERE) for n in loops)


def test_a_collective_at_the_end_of_a_loop_names_a_line_in_it() -> None:
    found = plan(loss_and_gradient, W, X, cluster="8xv100-16gb", mesh=(8,), baselines=False)
    causes = [row.cause for row in found.file.programs[0].collectives]
    assert causes
    assert all(HERE in cause or cause.startswith("result") for cause in causes), causes


def loss_and_gradient(params, batch):
    value, slope = jax.value_and_grad(loss)(params, batch)
    return params - 0.1 * slope, value


def test_decorators_of_libraries_are_passed_over() -> None:
    @contextlib.contextmanager
    def scope():
        yield

    @scope()
    @equinox.filter_jit
    def decorated(x):
        return jnp.sin(x)

    first = test_decorators_of_libraries_are_passed_over.__code__.co_firstlineno
    found = [*lines(trace(lambda x: decorated(x) + 1.0, X).graph)]
    assert found
    assert all(line.startswith(f"{HERE}:") for line in found)
    assert all(first < int(line.rpartition(":")[2]) <= first + 15 for line in found)


def test_a_registered_kernel_has_the_line_that_calls_it() -> None:
    kernel = register_op(lambda x: jnp.sin(x) * 2.0, factors="r c -> r c", name="sine")

    def called(x):
        return kernel(x) + 1.0

    (node,) = (n for n in trace(called, X).graph.nodes if n.op == "registered_op")
    assert node.source == f"{HERE}:{called.__code__.co_firstlineno + 1}"

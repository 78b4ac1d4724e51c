# pyright: basic
"""In which order a compiler runs the ends of a program, and what it keeps over loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from costmodel.compiler import analyse, lifetimes
from ir.analysis import flatten
from ir.trace import trace

LAYERS, ROWS, WIDTH, WORDS = 3, 64, 16, 256


def struct(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def found(fn, *args, alone=False):
    flat = flatten(trace(fn, *args).program.graph)
    return flat, lifetimes(flat, analyse(flat).stored, (), alone=alone)


def the(flat, op: str, *shape: int) -> int:
    """The result of the only op of a kind with a shape outside of loops."""
    (value,) = (
        v for one in flat.ops for v in one.outputs
        if one.node.op == op and flat.values[v].type.shape == shape and len(one.place) == 1
    )  # fmt: skip
    return value


def hidden(x, ws):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]


def test_a_gradient_behind_a_loop_does_not_keep_what_it_is_made_of() -> None:
    """The head's weight gradient is made before the backward loop, though the step returns it."""

    def step(ws, head, x):
        return jax.grad(lambda h: jnp.sum(jnp.sin(hidden(x, h[0]) @ h[1])))((ws, head))

    flat, when = found(step, struct(LAYERS, WIDTH, WIDTH), struct(WIDTH, 8), struct(ROWS, WIDTH))
    backward = max(region.start for region in flat.regions)
    gradients = [
        v for op in flat.ops for v in op.outputs
        if op.node.op == "dot_general" and len(op.place) == 1
        and sorted(flat.values[v].type.shape) == [8, WIDTH]
    ]  # fmt: skip
    assert gradients
    assert all(when.made[v] < backward for v in gradients)


def test_a_product_without_a_loop_in_between_waits_until_it_is_read() -> None:
    def step(w, x):
        early = x @ w
        late = jnp.sin(x).sum(0)
        return jnp.cumsum(early.sum(0) * late)

    flat, when = found(step, struct(WIDTH, WIDTH), struct(ROWS, WIDTH))
    product = the(flat, "dot_general", ROWS, WIDTH)
    assert when.made[product] > 0
    assert when.made[product] == min(op.time for op in flat.ops if product in op.reads)


def attend(q, k, v):
    """Attention written out, and its gradients."""

    def loss(q, k, v):
        probs = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k), axis=-1)
        return jnp.sum(jnp.sin(jnp.einsum("bqk,bkd->bqd", probs, v)))

    dq, dk, dv = jax.grad(loss, (0, 1, 2))(q, k, v)
    return jnp.einsum("bqd,de->bqe", dq + dk + dv, jnp.ones((WIDTH, WIDTH)))


def test_a_product_that_is_the_last_to_read_scores_runs_at_once() -> None:
    """The gradient of values is made before that of scores: probabilities are free by then."""
    flat, when = found(attend, *(struct(4, ROWS, WIDTH),) * 3)
    products = [op for op in flat.ops if op.node.op == "dot_general"]
    _, gradient = (op for op in products if op.node.outputs[0].shape == (4, ROWS, ROWS))
    (of_values,) = (op for op in products if op.node.outputs[0].shape == (4, WIDTH, ROWS))
    (probs,) = (op.outputs[0] for op in flat.ops if op.node.op == "div" and
                op.outputs[0] in of_values.reads)  # fmt: skip
    assert when.made[of_values.outputs[0]] == of_values.time == when.needed[probs]
    assert when.needed[probs] < when.made[gradient.outputs[0]]


def two_layers(weights, x):
    """A training step of two layers."""

    def loss(weights):
        first, second = weights
        return jnp.sum(jnp.sin(jnp.sin(x @ first) @ second))

    grads = jax.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]


def test_gradients_of_weights_wait_beside_collectives_alone() -> None:
    """On one device a gradient is made as soon as that frees what it is made of."""
    args = (struct(WIDTH, WIDTH),) * 2, struct(ROWS, WIDTH)
    at = {}
    for alone in (False, True):
        flat, when = found(two_layers, *args, alone=alone)
        products = [op for op in flat.ops if op.node.outputs[0].shape == (WIDTH, WIDTH)
                    and op.node.op == "dot_general"]  # fmt: skip
        assert len(products) == 2
        at[alone] = [when.made[op.outputs[0]] - op.time for op in products]
    assert at[True][0] == 0
    assert at[False][0] > 0


def made(flat, when, result: int) -> int:
    """The moment at which a result of the program is made."""
    value = flat.outputs[result]
    assert isinstance(value, int)
    return when.made[value]


def nll(logits, labels):
    picked = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def test_what_is_scattered_into_zeros_and_added_is_one_buffer() -> None:
    """The other summand's sources are free before the sum is read."""

    def step(w, labels, x):
        return jax.grad(lambda w: nll((x @ w).astype("bfloat16").astype("float32"), labels))(w)

    flat, when = found(step, struct(WIDTH, WORDS), struct(ROWS, dtype="int32"), struct(ROWS, WIDTH))
    scattered = the(flat, "scatter-add", ROWS, WORDS)
    (reader,) = flat.readers[scattered]
    assert reader.node.op == "add_any"
    logits = next(
        v for op in flat.ops for v in op.outputs
        if op.node.op == "convert_element_type" and flat.values[v].type.dtype == "bfloat16"
    )  # fmt: skip
    made = min(when.made[v] for op in flat.ops if reader.outputs[0] in op.reads for v in op.outputs)
    assert when.needed[logits] < made
    assert when.made[scattered] <= when.needed[logits]
    assert when.needed[scattered] >= made


def test_a_loss_that_nothing_else_reads_is_computed_last() -> None:
    def step(w, labels, x):
        return jax.value_and_grad(jax.checkpoint(lambda w: nll(x @ w, labels)))(w)

    def alone(w, labels, x):
        return nll(x @ w, labels), jnp.cumsum(w, 0)

    args = struct(WIDTH, WORDS), struct(ROWS, dtype="int32"), struct(ROWS, WIDTH)
    flat, when = found(alone, *args)
    assert made(flat, when, 0) >= made(flat, when, 1)
    flat, when = found(step, *args)
    assert made(flat, when, 0) == flat.clock - 1


def test_turned_logits_are_kept_beside_what_is_scattered() -> None:
    """Time-major logits, turned before their loss: XLA stores more than the scattered buffer."""

    def step(w, labels, x):
        turned = jax.grad(
            lambda w: jnp.mean(jax.vmap(nll)(jnp.einsum("sbm,mv->bsv", x, w), labels))
        )
        return turned(w)

    labels, x = struct(4, ROWS, dtype="int32"), struct(ROWS, 4, WIDTH)
    flat, when = found(step, struct(WIDTH, WORDS), labels, x)
    (scatter,) = (op for op in flat.ops if op.node.op == "scatter-add")
    (reader,) = flat.readers[scatter.outputs[0]]
    assert reader.node.op == "add_any"
    logits = next(op.outputs[0] for op in flat.ops if op.node.op == "dot_general")
    made = min(when.made[v] for op in flat.ops if reader.outputs[0] in op.reads for v in op.outputs)
    assert when.needed[logits] >= made

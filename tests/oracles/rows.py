# pyright: basic
"""Rows of Alpa's tests that speak of one mesh, with what they expect.

Source: Alpa (OSDI 2022), repository alpa-projects/alpa: tests/shard_parallel (4.1 mlp, 4.2 bert,
4.3 moe, 4.4 conv, 4.5 basic) and playground/auto_sharding_solver (4.7), Apache-2.0; the numbers
are its closed forms, the models are written anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tests.oracles import models, transformers
from tests.oracles.helpers import Links, Setting, Solved, Step
from tests.oracles.models import floats, ints

Shape = tuple[int, int]
Pins = Sequence[tuple[str, str]]
Expected = Callable[[Step, "Row"], float]


@dataclass(frozen=True)
class Row:
    """One expectation.

    expected: the objective that Alpa asserts, or that of the plan it asserts.
    reductions: all-reduces of that plan, before a compiler joins them; None if not stated, or if
        equally good plans have other counts. A reduce-scatter and an all-gather count as one.
    moves: its all-to-alls.
    same_space: our choices are cut to Alpa's here, so the objective is met, not only bounded.
    """

    section: str
    name: str
    step: Callable[[], Step]
    mesh: Shape
    expected: Expected
    reductions: float | None = None
    moves: int = 0
    links: Links = field(default_factory=Links)
    recipe: str = ""
    pins: Pins = ()
    same_space: bool = False
    tolerance: float = 0.01

    def __str__(self) -> str:
        return f"{self.section} {self.name} {self.mesh[0]}x{self.mesh[1]}"

    def solve(self) -> Solved:
        return Setting(self.step(), self.mesh, self.links).solve(recipe=self.recipe, pins=self.pins)

    def all_reduce(self, full_bytes: float, dim: int | None = None) -> float:
        """Price over one dimension; over the only one that is not 1 if none is named."""
        at = int(self.mesh[0] == 1) if dim is None else dim
        return self.links.all_reduce(full_bytes, self.mesh[at], at)


def of_weights(step: Step, row: Row, *, share: float = 1.0, dim: int | None = None) -> float:
    """All-reduces of every parameter's gradient, the parameters split `1 / share` ways."""
    leaves = jax.tree.leaves(_params(step))
    return sum(row.all_reduce(4 * math.prod(x.shape) * share, dim) for x in leaves)


def _params(step: Step) -> Any:
    state = step.args[0]
    return state["params"] if isinstance(state, dict) and "stats" in state else state


def flat(*shapes: Shape) -> tuple[Shape, ...]:
    return shapes or ((4, 1), (1, 4))


def zero(_: Step, __: Row) -> float:
    return 0.0


# --- 4.1 ---------------------------------------------------------------------------------------

NARROW, WIDE = partial(models.mlp, 6, 256, 32), partial(models.mlp, 6, 32, 256)
UNEVEN_LINKS = Links(beta=(1.0, 0.1))


def activations(count: int, full_bytes: float) -> Expected:
    return lambda _, row: count * row.all_reduce(full_bytes)


def grid_mlp(_: Step, row: Row) -> float:
    kernels = row.all_reduce(32 * 32 * 4 / 2, 0) + row.all_reduce(32 * 4, 0)
    return 6 * kernels + 5 * row.all_reduce(256 * 32 * 4 / 2, 1)


def sharded_state(step: Step, row: Row) -> float:
    """Each gradient reduce-scattered, each parameter gathered; as Alpa's rewrite has it."""
    leaves = jax.tree.leaves(_params(step))
    return sum(_halves(row, 4 * math.prod(x.shape), gathers=1) for x in leaves)


def sharded_parameters(step: Step, row: Row) -> float:
    """Gathered in the forward and in the backward pass."""
    leaves = jax.tree.leaves(_params(step))
    return sum(_halves(row, 4 * math.prod(x.shape), gathers=2) for x in leaves)


def _halves(row: Row, full_bytes: float, gathers: int) -> float:
    at = int(row.mesh[0] == 1)
    gather = row.links.all_gather(full_bytes, row.mesh[at], at)
    return (1 + gathers) * gather


def flat_weights(step: Step, row: Row) -> float:
    """Over all devices as one dimension."""
    flattened = replace(row, mesh=(math.prod(row.mesh), 1))
    return of_weights(step, flattened)


MLP_ROWS = (
    *(Row("4.1", "MLP-6 data parallel", NARROW, m, of_weights, 12) for m in flat()),
    *(Row("4.1", "MLP-6 model parallel", WIDE, m, activations(5, 32 * 256 * 4), 5) for m in flat()),
    Row("4.1", "MLP-6 2-D", NARROW, (2, 2), grid_mlp, 17, links=UNEVEN_LINKS),
    Row("4.1", "MLP-6 2-D, batch on dim 0", NARROW, (2, 2), grid_mlp, 17, links=UNEVEN_LINKS,
        recipe="megatron"),
    *(Row("4.1", "MLP-6 force data parallel", WIDE, m, flat_weights, recipe="data-parallel",
          same_space=True) for m in flat((4, 1), (2, 2))),
    Row("4.1", "MLP-6 batch on dim 0", WIDE, (4, 1), of_weights, 12, recipe="data-parallel",
        same_space=True),
    Row("4.1", "MLP-6 batch on dim 0", WIDE, (1, 4), activations(5, 32 * 256 * 4), 5,
        recipe="megatron", same_space=True),
    Row("4.1", "MLP-6 data parallel, sharded state", NARROW, (4, 1), sharded_state, 12,
        recipe="zero-2", same_space=True),
    Row("4.1", "MLP-6 ZeRO-3", NARROW, (4, 1), sharded_parameters, 18, recipe="fsdp"),
)  # fmt: skip

# --- 4.2 ---------------------------------------------------------------------------------------

SMALL_BERT = partial(transformers.bert, 2, 8, 8, 128, 8)
BERT_LINKS = Links(alpha=(2.0, 2.0), beta=(1.0, 0.1))
HIDDEN = 8 * 8 * 128 * 4


def grid_bert(step: Step, row: Row) -> float:
    return of_weights(step, row, share=0.5, dim=0) + 7 * row.all_reduce(HIDDEN / 2, 1)


def grid_embedding(_: Step, row: Row) -> float:
    table, hidden, scalars = 1024 * 8 * 4, 8 * 8 * 8 * 4, 8 * 8 * 4
    of_activations = row.all_reduce(hidden / 2, 1) + row.all_reduce(scalars / 2, 1)
    return row.all_reduce(table / 2, 0) + 2 * of_activations


LARGE_BERT = partial(transformers.bert, 2, 64, 64, 32, 8)
MASKED_BERT = partial(transformers.masked_language, 2, 32, 32, 16, 4, 128)
BERT_ROWS = (
    *(Row("4.2", "BERT data parallel", LARGE_BERT, m, of_weights, 24) for m in flat()),
    *(Row("4.2", "BERT model parallel", SMALL_BERT, m, activations(7, HIDDEN), 7) for m in flat()),
    Row("4.2", "BERT 2-D", SMALL_BERT, (2, 2), grid_bert, 31, links=BERT_LINKS),
    Row("4.2", "BERT 2-D, batch on dim 0", SMALL_BERT, (2, 2), grid_bert, links=BERT_LINKS,
        recipe="megatron", same_space=True),
    *(Row("4.2", "BERT model parallel, recomputed", partial(SMALL_BERT, remat=True), m,
          activations(11, HIDDEN), 11) for m in flat()),
    Row("4.2", "tied embedding 2-D", partial(transformers.tied_embedding, 1024, 8, 8, 8), (2, 2),
        grid_embedding, 5),
    *(Row("4.2", "BERT MLM data parallel", MASKED_BERT, m, of_weights, 34) for m in flat()),
)  # fmt: skip

# --- 4.3 ---------------------------------------------------------------------------------------


def experts(_: Step, row: Row) -> float:
    """Four all-to-alls; attention, norms and the gate data parallel, experts split."""
    at, width = int(row.mesh[0] == 1), 64
    move = row.links.all_to_all(64 * 16 * width * 2 * 4, row.mesh[at], at)
    sizes = (3 * width**2, 3 * width, width**2, width, *(width,) * 4, width * 16)
    return 4 * move + sum(row.all_reduce(4 * size) for size in sizes)


MOE_ROWS = tuple(
    Row(
        "4.3",
        "MoE layer",
        partial(transformers.moe_layer, 64, 16, 64, 16, 32, 16),
        m,
        experts,
        9,
        4,
    )
    for m in flat()
)

# --- 4.4 ---------------------------------------------------------------------------------------


def with_statistics(step: Step, row: Row) -> float:
    """Gradients and, for each norm, its statistics twice forward and twice backward."""
    stats = jax.tree.leaves(step.args[0]["stats"])
    return of_weights(step, row) + 2 * sum(row.all_reduce(4 * math.prod(x.shape)) for x in stats)


def conv_activations(_: Step, row: Row) -> float:
    """Three products with the input channels split: outputs of layers 2 and 4, gradient at 3."""
    # Layers halve the image of 16: 8, 4, 2, 1.
    outputs = [8 * side * side * 256 * 4 for side in (4, 1, 4)]
    return sum(row.all_reduce(size) for size in outputs)


CONV_ROWS = (
    *(Row("4.4", "conv data parallel", partial(models.conv_net, 3, 16, 16, 4), m, with_statistics,
          21, tolerance=0.05) for m in flat()),
    *(Row("4.4", "conv model parallel", partial(models.conv_net, 4, 8, 16, 256), m,
          conv_activations, 3) for m in flat()),
    *(Row("4.4", "depthwise conv model parallel", partial(models.depthwise, 4, 8, 256), m,
          activations(1, 4 * 8 * 8 * 256 * 4), 1) for m in flat()),
)  # fmt: skip

# --- 4.5 ---------------------------------------------------------------------------------------


def with_dropout() -> Step:
    return models.two_products(models.dropout, (32, 32), (16, 16), (16, 16))


def with_gather() -> Step:
    return models.two_products(lambda x, _: x[:, jnp.arange(16)], (256,), (32, 32), (16, 16))


def small(fn: Callable[..., Any], *args: Any, donate: tuple[int, ...] = ()) -> Callable[[], Step]:
    return partial(models.plain, fn, *args, donate=donate)


BASIC_ROWS = (
    Row("4.5", "dropout", with_dropout, (4, 1), of_weights, 2),
    Row("4.5", "gather and scatter", with_gather, (4, 1), of_weights, 2),
    Row("4.5", "donated argument", small(lambda x: x + 1, floats(128, 128), donate=(0,)), (4, 1),
        zero, 0, pins=[("x", "[x,-]")], same_space=True),
    Row("4.5", "argmax", small(lambda a: jnp.argmax(a, 0), floats(144, 144)), (4, 1), zero, 0,
        pins=[("a", "[-,x]")], same_space=True),
    Row("4.5", "reshape 144 to 8x18", small(lambda a: a.reshape(8, 18), floats(144)), (4, 1), zero,
        0, pins=[("a", "[x]")], same_space=True),
    Row("4.5", "matrix and vector", small(lambda a, b: a @ b, floats(128), floats(128, 256)),
        (4, 1), zero, 0, pins=[("b", "[-,x]")], same_space=True),
    Row("4.5", "sort", small(lambda a: jnp.argsort(a), ints(1024)), (4, 1), zero, 0,
        same_space=True),
    # Our step also returns the loss: one more, of a scalar.
    Row("4.5", "two micro-batches", partial(models.accumulated, 2, 256, 16, 2), (4, 1), of_weights,
        5),
)  # fmt: skip

# --- 4.7 ---------------------------------------------------------------------------------------

STEEP = Links(beta=(1.0, 0.01))
NO_GATHER = Links(gathers=False)
ONE = 128 * 128 * 4


def grid_linear(layers: int, batch: int, *, bias: bool = False) -> Expected:
    def expected(_: Step, row: Row) -> float:
        rows, columns = row.mesh
        weights = layers * row.all_reduce(ONE / columns, 0)
        if bias:
            weights += row.all_reduce(128 * 4, 0) + row.all_reduce(128 * 4 / columns, 0)
        return weights + (layers - 1) * row.all_reduce(batch * 128 * 4 / rows, 1)

    return expected


def linear_rows(layers: int) -> tuple[Row, ...]:
    name = f"linear-{layers}"
    tall, wide = (
        partial(models.linear, layers, 1024, 128),
        partial(models.linear, layers, 128, 1024),
    )
    hidden = activations(layers - 1, 128 * 1024 * 4)
    return (
        *(Row("4.7", f"{name} data parallel", tall, m, of_weights, layers) for m in flat()),
        *(Row("4.7", f"{name} model parallel", wide, m, hidden, layers - 1) for m in flat()),
        *(Row("4.7", f"{name} 2-D", tall, m, grid_linear(layers, 1024), 2 * layers - 1,
              links=STEEP) for m in flat((4, 8), (8, 4))),
        # Alpa has a batch of 1024 here, which three devices share unevenly; JAX does not.
        Row("4.7", f"{name} 2-D", partial(models.linear, layers, 1536, 128), (3, 4),
            grid_linear(layers, 1536), 2 * layers - 1, links=STEEP),
    )  # fmt: skip


def whole(rank: int, result: int = 0) -> Pins:
    return [(f"result {result}", f"[{','.join('-' * rank)}]")]


BIAS = partial(models.linear, 2, 1024, 128, bias=True)
ATTENTION = partial(models.forward_attention, 4, 128)
SOLVER_ROWS = (
    *linear_rows(2), *linear_rows(4), *linear_rows(12),
    Row("4.7", "linear-2 bias data parallel", BIAS, (4, 1), of_weights, 4),
    Row("4.7", "linear-2 bias model parallel", partial(models.linear, 2, 128, 1024, bias=True),
        (4, 1), activations(1, 128 * 1024 * 4), 1),
    *(Row("4.7", "linear-2 bias 2-D", BIAS, m, grid_linear(2, 1024, bias=True), 5, links=STEEP)
      for m in flat((4, 8), (8, 4))),
    Row("4.7", "linear-2 force data parallel", partial(models.linear, 2, 128, 1024), (4, 1),
        of_weights, 2, recipe="data-parallel", same_space=True),
    *(Row("4.7", "attention forward", partial(ATTENTION, 512, 16), m,
          activations(1, 4 * 128 * 512 * 4), 1, links=NO_GATHER, pins=whole(3), same_space=True)
      for m in flat()),
    Row("4.7", "attention forward 2-D", partial(ATTENTION, 2048, 16), (4, 4),
        lambda _, row: row.all_reduce(4 * 128 * 2048 * 4 / 4, 1), 1, links=NO_GATHER),
    *(Row("4.7", f"transposes ({n})", partial(models.transposes, n), (4, 1), activations(1, ONE),
          1, links=NO_GATHER, pins=whole(2), same_space=True) for n in (1, 3)),
    *(Row("4.7", f"reshapes ({n})", partial(models.reshapes, n), (4, 1), activations(1, ONE), 1,
          links=NO_GATHER, pins=whole(3), same_space=True) for n in (1, 2)),
    Row("4.7", "h1 + h2", models.sum_of_products, (1, 4), activations(2, ONE), 2, links=NO_GATHER,
        pins=whole(2)),
    Row("4.7", "reused sum", models.reused_sum, (1, 4), activations(3, ONE), 3, links=NO_GATHER,
        pins=whole(3, 6)),
)  # fmt: skip

ROWS = (*MLP_ROWS, *BERT_ROWS, *MOE_ROWS, *CONV_ROWS, *BASIC_ROWS, *SOLVER_ROWS)

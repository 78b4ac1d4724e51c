# pyright: basic
"""Functions of `custom_partitioning` are split as their sharding rules say, and equal."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning

from planner import PlanError, check_ops, plan
from tests.planner.programs import array, assert_split_and_equal, slow_machine

W, X = array(16, 32), array(64, 16, seed=1)
quick: Any = functools.partial(plan, cluster=slow_machine(8), baselines=False)


def sorted_rows(x: Any) -> Any:
    return jnp.sort(x, axis=-1)


def partitioned(function: Any, seen: list[Any] | None = None, **settings: Any) -> Any:
    """The function, which its `partition` runs on shards as it is."""

    def partition(*given: Any) -> Any:
        *static, mesh, operands, result = given
        if seen is not None:
            seen.extend(jax.tree.leaves(operands))
        asked = jax.tree.map(lambda a: a.sharding, (result, operands))
        return mesh, functools.partial(function, **dict(zip(["k"], static, strict=False))), *asked

    found = custom_partitioning(function, static_argnums=(1,) if "static" in settings else ())
    settings.pop("static", None)
    found.def_partition(partition=partition, **settings)
    return found


def strategies(found: Any) -> set[str]:
    """Roles of the mesh axes in the plan's registered ops."""
    ops = enumerate(found._lowered.flat.ops)
    numbers = [k for k, item in ops if item.node.op == "registered_op"]
    assert numbers
    return {role for k in numbers for role in found._lowered.strategies[k].roles}


def same(fn: Any, *args: Any) -> Any:
    found = quick(fn, *args)
    assert_split_and_equal(found, fn, *args)
    return found


RULES: dict[str, dict[str, Any]] = {
    "text": {"sharding_rule": "r c -> r c", "need_replication_factors": ("c",)},
    "leading dimensions": {"sharding_rule": "... c -> ... c", "need_replication_factors": ("c",)},
    "function": {
        "sharding_rule": lambda mesh, operands, results: (
            f"{'r c' if operands[0].shape[0] == len(X) else 'wrong'} -> r c",
            {"need_replication_factors": ("c",)},
        )
    },
}


@pytest.mark.parametrize("rule", RULES)
def test_it_is_split_as_its_rule_says(rule: str) -> None:
    seen: list[Any] = []
    op = partitioned(sorted_rows, seen, **RULES[rule])
    found = same(lambda w, x: op(jnp.sin(x @ w)), W, X)
    assert strategies(found) <= {"", "r", "batch0_0"}
    (operand,) = seen
    assert operand.sharding.spec[0] is not None
    assert operand.shape == (64, 32)


def test_results_and_operands_may_be_trees_with_static_arguments() -> None:
    def both(x: Any, k: int) -> Any:
        return {"sum": x["a"] + k * x["b"], "product": x["a"] * x["b"]}

    op = partitioned(both, static=True, sharding_rule="r c, r c -> r c, r c")
    assert strategies(same(lambda x: op({"a": x, "b": jnp.cos(x)}, 3), X)) & {"r", "c"}


def test_factors_of_one_dimension() -> None:
    op = partitioned(
        lambda x: x.reshape(len(x) // 4, 4, -1).transpose(1, 0, 2), sharding_rule="(a b) c -> b a c"
    )
    assert strategies(same(lambda w, x: op(x @ w), W, X)) <= {"", "a", "c"}


def test_it_may_stand_in_a_loop_with_derivatives_of_its_own() -> None:
    op = partitioned(lambda x: jnp.tanh(x), sharding_rule="r c -> r c")
    back = partitioned(lambda y, g: g * (1 - y * y), sharding_rule="r c, r c -> r c")
    smooth = jax.custom_vjp(lambda x: op(x))
    smooth.defvjp(lambda x: (y := op(x), y), lambda y, g: (back(y, g),))

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            def layer(h: Any, _: None) -> Any:
                return smooth(h @ w @ w.T), None

            return jnp.sum(jax.lax.scan(layer, x, None, length=3)[0])

        return w - 0.01 * jax.grad(loss)(w)

    found = same(step, W, X)
    assert strategies(found) & {"r", "c"}
    assert {check.factor for check in check_ops(step, W, X)} == {"r", "c"}


def test_what_its_partition_asks_for_must_be_what_its_rule_allows() -> None:
    op = custom_partitioning(sorted_rows)

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return mesh, sorted_rows, whole, (whole,)

    op.def_partition(partition=partition, sharding_rule="r c -> r c")
    found = quick(lambda w, x: op(x @ w), W, X)
    with pytest.raises(PlanError, match=r"op 'sorted_rows'.* its partition asks for"):
        found.compile()(W, X)


@pytest.mark.parametrize("rule", [None, "r c d -> r c d"], ids=["none", "of other shapes"])
def test_without_a_rule_that_fits_it_is_whole_and_named(rule: str | None) -> None:
    op = custom_partitioning(sorted_rows)
    op.def_partition(partition=lambda *_: None, sharding_rule=rule)
    found = quick(lambda x: op(x), X)
    assert any("'custom_partitioning'" in text for text in found.file.whole.warnings)
    np.testing.assert_allclose(found.compile()(X), np.sort(X, -1))

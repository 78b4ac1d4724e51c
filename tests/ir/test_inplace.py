# pyright: basic
"""Updates of objects among the arguments that a traced function does not return."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from ir import TraceError
from ir.trace import trace, watched


@jax.tree_util.register_pytree_with_keys_class
class Model:
    """A mutable model, as Flax NNX has them."""

    def __init__(self, weight: Any, count: Any) -> None:
        self.weight, self.count = weight, count

    def tree_flatten_with_keys(self) -> Any:
        keys = (jax.tree_util.GetAttrKey("weight"), jax.tree_util.GetAttrKey("count"))
        return tuple(zip(keys, (self.weight, self.count), strict=True)), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: Any) -> Model:
        return cls(*leaves)


MODEL, X = Model(jnp.ones((4, 4)), 0), jnp.ones((2, 4))


def forward(model: Model, x: Any) -> Any:
    return x @ model.weight


def counting(model: Model, x: Any) -> Any:
    model.count += 1
    return forward(model, x)


def training(model: Model, x: Any) -> Any:
    model.weight = model.weight - 0.1 * x.T @ counting(model, x)
    return x.sum()


def returning(model: Model, x: Any) -> Any:
    return training(model, x), model


def half(model: Model, x: Any) -> Any:
    return training(model, x), model.weight


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "jitted"])
@pytest.mark.parametrize(
    ("fn", "lost"),
    [(forward, ""), (counting, "1 array of an argument is updated in place (model/count)"),
     (training, "2 arrays of arguments are updated in place (model/weight, model/count)"),
     (returning, ""), (half, "1 array of an argument is updated in place (model/count)")],
)  # fmt: skip
def test_what_is_updated_and_not_returned_is_named(fn: Any, lost: str, wrapped: bool) -> None:
    found = trace(jax.jit(fn) if wrapped else fn, MODEL, X).warnings
    assert [line.split(":")[0] for line in found] == ([lost] if lost else [])
    assert int(MODEL.count) == 0


def test_a_dictionary_may_be_worked_with_in_place() -> None:
    def fn(batch: Any) -> Any:
        batch["x"] = batch["x"] * 2.0
        return batch.pop("x").sum()

    assert trace(fn, {"x": X}).warnings == ()


def test_a_function_is_traced_once_and_read_as_often_as_asked() -> None:
    calls: list[int] = []

    def fn(model: Model, x: Any) -> Any:
        calls.append(1)
        return counting(model, x)

    known = watched(fn, (MODEL, X))
    first, again = trace(known, MODEL, X), trace(known, MODEL, X, donate_argnums=1)
    assert len(calls) == 1
    assert again.graph.nodes == first.graph.nodes
    assert (first.donated, again.donated) == ((), (2,))
    assert [w.split(":")[0] for w in again.warnings] == [
        "1 array of an argument is updated in place (model/count)"
    ]


class Wrapper:
    """A function wrapped as other libraries do it: it has the methods of `jax.jit`."""

    def __init__(self, fn: Any) -> None:
        self.__wrapped__, self.__name__ = fn, fn.__name__

    def __call__(self, *args: Any) -> Any:
        return self.__wrapped__(*args)

    def lower(self, *args: Any) -> Any:
        raise AssertionError

    def trace(self, *args: Any) -> Any:
        raise AssertionError


def test_a_wrapper_of_another_library_is_refused() -> None:
    words = r"'training': is wrapped by .*test_inplace.Wrapper, .* plan the function inside it"
    with pytest.raises(TraceError, match=words):
        trace(Wrapper(training), MODEL, X)

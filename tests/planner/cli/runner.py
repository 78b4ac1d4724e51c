"""Tiny programs to plan, and what a run of the command line printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TARGETS = """
import functools
import os
import time

import jax
import jax.numpy as jnp
import optax

shaped = jax.ShapeDtypeStruct
params = {"w1": shaped((64, 128), "float32"), "w2": shaped((128, 64), "float32")}
batch = {"x": shaped((32, 64), "float32"), "y": shaped((32, 64), "float32")}
number = 3


def loss(params, batch):
    hidden = jax.nn.relu(batch["x"] @ params["w1"])
    return jnp.mean((hidden @ params["w2"] - batch["y"]) ** 2)


def train_step(params, batch):
    value, grads = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def sgd():
    return train_step, (params, batch)


def sized(batch=32, *, width: int = 64):
    if batch == 13:
        os.kill(os.getpid(), 9)
    if batch == 26:
        raise ValueError("26 is no batch")
    if batch == 31:
        time.sleep(60)
    x = shaped((batch, 64), "float32")
    weights = {"w1": shaped((64, width), "float32"), "w2": shaped((width, 64), "float32")}
    return train_step, (weights, {"x": x, "y": x})


def donated():
    return train_step, (params, batch), {"donate_argnums": (0,)}


def adam():
    return loss, (params, batch), {"optimizer": optax.adam(1e-3)}


def with_aux():
    def both(params, batch):
        return loss(params, batch), batch["y"]

    return both, (params, batch), {"optimizer": optax.sgd(1e-3), "has_aux": True}


class Holder:
    def target(self):
        return sgd()


holder = Holder()
bound = Holder().target
fixed = functools.partial(lambda size: sgd(), 8)


def noisy():
    print("a word from the target")
    return sgd()


def needs(a, *, b):
    return sgd()


def raises():
    raise ValueError("first line" + chr(10) + "second line")


def leaves():
    raise SystemExit("gone")


def a_dict():
    return {"fn": train_step}


def four():
    return train_step, (params, batch), {}, 1


def no_function():
    return 3, (params, batch)


def no_tuple():
    return train_step, params


def no_dict():
    return train_step, (params, batch), 7


def misspelt():
    return loss, (params, batch), {"optimzer": optax.sgd(0.1)}


def with_cluster():
    return train_step, (params, batch), {"cluster": "8xh100"}


def fails():
    return lambda params: params["absent"], (params,)


def text():
    return train_step, (params, "text")


def pinned():
    return train_step, (params, batch), {"pins": (("batch/x", "[-,-]"),), "mesh": (8,)}
"""


@dataclass(frozen=True)
class Ran:
    """What a run of the command line printed."""

    status: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        """The only line of standard output, as JSON."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def error(self) -> dict[str, str]:
        assert self.answer.keys() == {"error"}
        return self.answer["error"]


Run = Callable[..., Ran]

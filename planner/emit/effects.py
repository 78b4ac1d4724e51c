# pyright: basic
"""Effects of the user's program: callbacks and prints, once, in program order, on one device.

JAX keeps the order of effects on one device only, and inside `jax.shard_map` each device would
run them. So the first device of the mesh calls a function of ours, which calls the user's, and
hands a *token* on to the next effect. A callback that raises would leave the other devices
waiting in their next collective: its error is kept, later effects are skipped, and at the end of
the step every device raises it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from ir import Mesh, Node, TensorType, While
from ir.analysis import has_effects
from ir.evaluate_regions import while_loop
from ir.trace import Binding

from .steps import is_key

Array = Any
Arrays = Sequence[Array]

TOKEN = TensorType((), "int32")  # zero, or one after an effect that raised


@dataclass
class Effects:
    """The effects of one program, in the order in which they are emitted.

    mesh: the mesh of the surrounding `jax.shard_map`; None outside of one, where JAX itself runs
        a callback on the first device only.
    active: whether the program has effects; if not, nothing is emitted.
    token: of the last effect emitted.
    """

    mesh: Mesh | None
    active: bool
    token: Array = None
    errors: list[Exception] = field(default_factory=list[Exception])

    def __post_init__(self) -> None:
        if self.active:
            self.token = jnp.zeros(TOKEN.shape, TOKEN.dtype)

    # --- the token through loops and branches ----------------------------------------------

    def close(self, node: Node, arrays: Arrays) -> list[Array]:
        """Arrays that enter or leave a region, the token before them if effects are inside."""
        return [self.token, *arrays] if self.inside(node) else list(arrays)

    def open(self, node: Node, arrays: Arrays) -> Arrays:
        """The arrays without the token, which becomes that of the last effect."""
        if not self.inside(node):
            return arrays
        self.token = arrays[0]
        return arrays[1:]

    def inside(self, node: Node) -> bool:
        """Whether the bodies of a node have effects that are emitted."""
        return self.active and any(map(has_effects, node.bodies))

    def loop(
        self, node: Node, test: Callable[[Arrays], Array], step: Callable[[Arrays], Arrays],
        carry: Arrays,
    ) -> Arrays:  # fmt: skip
        """`carry = step(carry)` while `test(carry)`, of a `while` node.

        The test of a loop has nowhere to leave a token: one with effects runs before the loop and
        at the end of each iteration, and its answer is carried.
        """
        if not (self.active and has_effects(node.bodies[While.of(node).test])):
            closed = while_loop(
                lambda arrays: test(self.open(node, arrays)),
                lambda arrays: self.close(node, step(self.open(node, arrays))),
                self.close(node, carry),
            )
            return self.open(node, closed)

        def answered(arrays: Arrays) -> list[Array]:
            return [test(arrays), *self.close(node, arrays)]

        closed = while_loop(
            lambda arrays: arrays[0],
            lambda arrays: answered(step(self.open(node, arrays[1:]))),
            answered(carry),
        )
        return self.open(node, closed[1:])

    # --- one effect --------------------------------------------------------------------------

    def run(self, node: Node, binding: Binding, operands: Arrays) -> list[Array]:
        """Runs one effect after those before it.

        Returns:
            The results; inside `jax.shard_map` as partial sums, zero on all devices but the first.
        """
        impls = [jax.random.key_impl(x) if is_key(x) else None for x in operands]
        host = self._on_host(node, binding, impls)
        structs = (_struct(TOKEN), *map(_struct, node.outputs))

        def call(token: Array, *xs: Array) -> tuple[Array, ...]:
            return tuple(io_callback(host, structs, token, *xs))

        def skip(token: Array, *_: Array) -> tuple[Array, ...]:
            return token, *(_nothing(type_) for type_ in node.outputs)

        words = [jax.random.key_data(x) if is_key(x) else x for x in operands]
        if self.mesh is None:
            self.token, *results = call(self.token, *words)
        else:
            first = lax.axis_index(self.mesh.names) == 0
            self.token, *results = lax.cond(first, call, skip, self.token, *words)
        return results

    def _on_host(
        self, node: Node, binding: Binding, impls: Sequence[Any]
    ) -> Callable[..., tuple[Any, ...]]:
        """The function that the device calls: (token, operands) to (token, results).

        Args:
            node: the effect.
            binding: its primitive and parameters.
            impls: the generator of each operand that is keys, which come as words; None of others.
        """
        structs = tuple(map(_struct, node.outputs))

        def host(token: Any, *words: Any) -> tuple[Any, ...]:
            zeros = tuple(np.zeros(s.shape, s.dtype) for s in structs)
            if int(token):
                return np.int32(1), *zeros
            try:
                pairs = zip(words, impls, strict=True)
                xs = [jax.random.wrap_key_data(x, impl=k) if k else x for x, k in pairs]
                results = [np.asarray(x) for x in _call(binding, xs)]
                _check_results(node, results, structs)
            except Exception as error:  # the user's own; `finish` raises it
                self.errors.append(error)
                return np.int32(1), *zeros
            return np.int32(0), *results

        return host

    # --- the end of the step -----------------------------------------------------------------

    def finish(self, everywhere: Callable[[Array], Array]) -> None:
        """Raises on every device what a callback raised on the first.

        Args:
            everywhere: brings the first device's token to all of them.
        """
        if not self.active:
            return

        def fail(token: Array) -> None:
            io_callback(self._raise, None, token)

        lax.cond(everywhere(self.token) > 0, fail, lambda token: None, self.token)

    def _raise(self, token: Any) -> None:
        del token
        raise self.errors[-1]


def _call(binding: Binding, xs: Arrays) -> Arrays:
    """What the user's function returns; prints return nothing."""
    if binding.primitive.name == "io_callback":
        return binding.params["callback"](*xs)
    return binding.primitive.impl(*xs, **binding.params)


def _check_results(
    node: Node, results: Sequence[Any], structs: Sequence[jax.ShapeDtypeStruct]
) -> None:
    found = [(x.shape, x.dtype) for x in results]
    wanted = [(s.shape, s.dtype) for s in structs]
    if found != wanted:
        raise ValueError(
            f"the callback of {node.op} {node.source} returned {found}, expected {wanted}; return "
            "arrays of the shapes and types that were given as result_shape_dtypes"
        )


def _struct(type_: TensorType) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(type_.shape, jnp.dtype(type_.dtype))


def _nothing(type_: TensorType) -> Array:
    """What leaves a sum as it is: -0.0 of floats, since 0.0 would turn -0.0 into 0.0.

    XLA's sum over CPU devices begins at 0.0 and loses the sign all the same.
    """
    zeros = jnp.zeros(type_.shape, type_.dtype)
    return -zeros if jnp.issubdtype(zeros.dtype, jnp.inexact) else zeros

# pyright: basic
"""Kernels of GPU libraries on CPUs: their operations written out, so that a program runs anywhere.

JAX lowers them for GPUs alone, and asks for cuDNN while it traces. Importing this file adds a
lowering for CPUs, which computes the same numbers with the scores, or scaled operands, in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .errors import IRError
from .jax_compilers import lower_on_cpu
from .jax_internals import fused_attention_stablehlo as cudnn_attention
from .jax_internals import scaled_matmul_stablehlo as cudnn_products
from .jaxpr import tensor_type
from .ops.attention import is_written_out
from .ops.attention_math import backward, forward
from .ops.scaled import ROWS, scaled_up

Array = Any

# What JAX asks while it traces, answered as on a Hopper GPU with cuDNN 9.11, the first version that
# has all kernels of JAX 0.10 to 0.12.
_ANSWERS: Mapping[str, Callable[..., Any]] = {
    "check_cudnn_version": lambda: 91100,
    "check_compute_capability": lambda capability: float(capability) <= 9.0,
    "is_cuda_compute_capability_equal": lambda capability: float(capability) == 9.0,
}


@contextlib.contextmanager
def cudnn_assumed() -> Generator[None]:
    """Lets JAX trace kernels of cuDNN on a machine without GPUs, as on one with them."""
    if jax.default_backend() == "gpu":
        yield
        return
    before = {name: getattr(cudnn_attention, name) for name in _ANSWERS}
    for name, answer in _ANSWERS.items():
        setattr(cudnn_attention, name, answer)
    try:
        yield
    finally:
        for name, check in before.items():
            setattr(cudnn_attention, name, check)


@contextlib.contextmanager
def bias_gradients(wanted: bool) -> Generator[None]:
    """Has kernels that are traced meanwhile compute gradients of their biases, or not.

    From JAX 0.11 on JAX decides by the arguments: of every bias that is not a boolean mask.
    """
    if not hasattr(cudnn_attention, "should_export_dbias"):
        yield
        return
    before = cudnn_attention.should_export_dbias
    cudnn_attention.should_export_dbias = lambda *_: wanted
    try:
        yield
    finally:
        cudnn_attention.should_export_dbias = before


def _on_cpu(meaning: Callable[..., tuple[Array, ...]], name: str) -> Callable[..., list[Array]]:
    def run(*operands: Array, mask_type: Any, **params: Any) -> list[Array]:
        attrs = {"is_training": True} | params | {"mask_type": mask_type.name}
        if not is_written_out(tuple(map(tensor_type, operands)), attrs):
            raise IRError(
                f"{name} with dropout, packed segments, pages or slopes per head has no form for "
                "CPUs; run the program on GPUs, or without these"
            )
        return list(meaning(jnp, attrs, operands))

    return run


for _primitive, _meaning in (
    (cudnn_attention._dot_product_attention_fwd_p, forward),
    (cudnn_attention._dot_product_attention_bwd_p, backward),
):
    lower_on_cpu(_primitive, _on_cpu(_meaning, _primitive.name))


def _scaled_on_cpu(*operands: Array, preferred_element_type: Any) -> list[Array]:
    a, b = scaled_up(jnp, ROWS, *operands)
    return [jnp.einsum("bmk,bnk->bmn", a, b).astype(preferred_element_type)]


lower_on_cpu(cudnn_products._scaled_matmul_p, _scaled_on_cpu)

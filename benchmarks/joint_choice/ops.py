"""Ops of rules as nodes of a graph, so that they have strategies and prices like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ir import Attr, Attrs, Literal, Node, TensorType
from planner.sharding.rewrite.sharded_egraph import Work

from .egraph import Form
from .shapes import Value

Operands = tuple[int | Literal, ...]


def work_of(form: Form, types: Sequence[TensorType], result: TensorType) -> Work:
    """What runs for an op of a rule.

    Every op reads its operands and writes its result: chains of elementwise ops are not fused
    here. A slice reads what it gives, and what only repeats a value is left to its readers.
    """
    params = dict(form.params)
    op, attrs = _OPS[form.kind](params, result)
    given: Operands = tuple(range(len(types)))
    if form.kind == "relu":
        zero = Literal(0.0, TensorType((), types[0].dtype))
        given, types = (*given, zero), (*types, zero.type)
    node = Node(op, given, (result,), attrs)
    if form.kind in ("along", "expand"):
        return Work(node, tuple(types), (), (), 0)
    if form.kind == "slice":
        return Work(node, tuple(types), (), (0, 0), 1)
    reads = tuple(i for i, t in enumerate(types) if t.shape)
    return Work(node, tuple(types), reads, (0,), 1)


_Made = tuple[str, Attrs]
_Make = Callable[[Mapping[str, Value], TensorType], _Made]


def _plain(op: str) -> _Make:
    return lambda params, result: (op, ())


def _product(contract: Attr, batch: Attr) -> _Make:
    numbers = ("dimension_numbers", (contract, batch))
    return lambda params, result: (
        "dot_general", (numbers, ("precision", None), ("preferred_element_type", result.dtype))
    )  # fmt: skip


def _slice(params: Mapping[str, Value], result: TensorType) -> _Made:
    axis, start, stop = params["axis"], params["start"], params["stop"]
    assert isinstance(start, int)
    assert isinstance(stop, int)
    rank = range(len(result.shape))
    starts = tuple(start if i == axis else 0 for i in rank)
    limits = tuple(stop if i == axis else result.shape[i] for i in rank)
    strides = ("strides", (1,) * len(result.shape))
    return "slice", (("limit_indices", limits), ("start_indices", starts), strides)


def _broadcast(kept: Callable[[int, int], bool]) -> _Make:
    def make(params: Mapping[str, Value], result: TensorType) -> _Made:
        axis = params["axis"]
        assert isinstance(axis, int)
        dims = tuple(i for i in range(len(result.shape)) if kept(i, axis))
        return "broadcast_in_dim", (("broadcast_dimensions", dims), ("shape", result.shape))

    return make


def _gather(params: Mapping[str, Value], result: TensorType) -> _Made:
    numbers = (
        ("offset_dims", (1,)), ("collapsed_slice_dims", (0,)), ("start_index_map", (0,)),
        ("operand_batching_dims", ()), ("start_indices_batching_dims", ()),
    )  # fmt: skip
    return "gather", (
        ("dimension_numbers", numbers), ("fill_value", None), ("indices_are_sorted", False),
        ("mode", "CLIP"), ("slice_sizes", (1, result.shape[1])), ("unique_indices", False),
    )  # fmt: skip


def _reduce(op: str) -> _Make:
    return lambda params, result: (op, (("axes", (params["axis"],)),))


_OPS: Mapping[str, _Make] = {
    "add": _plain("add"),
    "sub": _plain("sub"),
    "mul": lambda params, result: ("mul", (("out_dtype", None),)),
    "scale": lambda params, result: ("mul", (("out_dtype", None),)),
    "div": _plain("div"),
    "neg": _plain("neg"),
    "relu": _plain("max"),
    "exp": _plain("exp"),
    "tanh": _plain("tanh"),
    "rsqrt": _plain("rsqrt"),
    "transpose": lambda params, result: ("transpose", (("permutation", (1, 0)),)),
    "matmul": _product(((1,), (0,)), ((), ())),
    "batch-matmul": _product(((2,), (1,)), ((0,), (0,))),
    "concat": lambda params, result: ("concatenate", (("dimension", params["axis"]),)),
    "slice": _slice,
    "sum": _reduce("reduce_sum"),
    "max": _reduce("reduce_max"),
    "along": _broadcast(lambda i, axis: i == axis),
    "expand": _broadcast(lambda i, axis: i != axis),
    "gather": _gather,
}

"""Convolutions, and the kernels that do what other ops do.

Convolutions are grouped where the input has more channels than the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np

from ir import Node, TensorType

from ..graph import Op, Ref
from ..numeric.arrays import Array, Numbers, need
from ..numeric.devices import Run, Tensor, on_each
from ..program.matcher import Env, Found, Matcher
from ..program.net import Source
from ..program.nodes import transposed
from ..program.views import Groups, Partial, unify
from ..program.writer import Built, NoFitError, Writer
from ..symbolic.expr import ONE, ZERO, Expr, as_expr, call, quotient, symbol
from ..symbolic.joints import Parts
from ..symbolic.meaning import Indices, Meaning, chunk_of, in_chunk, summed_over
from ..symbolic.normal import share
from ..symbolic.solve import FREE, UndecidedError
from ..symbolic.types import (
    SAME_WIDTH,
    UNGROUPED,
    Conv,
    Dim,
    Type,
    Typing,
    computed,
    fit_devices,
    fit_rank,
)
from ..symbolic.values import (
    Factor,
    Index,
    Value,
    constant,
    divided,
    product,
    pulled,
    scaled,
    summed,
    times,
)
from ..term import Term
from .elementwise import activated, compute_activated
from .record import Form, RuleOp
from .windows import AXES, kernel_sizes, same_padding, window_dims, window_of, windows_in

Ints = tuple[int, ...]
_DEVICES = "onc.., noc.. -> cno.."  # as `on_each` of `numeric.devices` has it
# Rows are written with stride 1 and padding that keeps the size; the same proof is made for all
# of these (tests/substitutions/test_rewrite_rules.py), and a program's convolution must be one.
STRIDES = (1, 2, 3)


def _conv_type(typing: Typing, op: Op, args: Sequence[Type], where: str) -> tuple[Type, ...]:
    x, w = args
    fit_rank(op, x, 4)
    fit_rank(op, w, 4)
    degrees = fit_devices(typing, _DEVICES, args)
    typing.convs[where] = _grouping(typing, x.dims[1].size, w.dims[0], w.dims[1].size)
    sizes = [dim.size for dim in w.dims[2:]]
    outs = Dim(w.dims[0].size, degrees["o"], w.dims[0].cut)
    return (computed(degrees["c"], (x.dims[0], outs, *window_dims(typing, op, x, sizes))),)


def _grouping(typing: Typing, channels: Expr, outputs: Dim, ins: Expr) -> Conv:
    """Solves channels = groups * ins and outs = groups * per_group, as products if free.

    Every device has all the groups, of its own channels and outputs.
    """
    solver, outs = typing.solver, outputs.size
    if UNGROUPED in typing.assume:
        solver.equal(channels, ins)
        return Conv(ONE, solver.resolve(outs), solver.resolve(ins))
    groups = solver.multiple(channels, ins)
    if SAME_WIDTH in typing.assume:
        per_group = solver.multiple(outs, groups)
        solver.equal(per_group, symbol("outputs per group"))
        return Conv(solver.resolve(groups), solver.resolve(per_group), solver.resolve(ins))
    outs, groups = solver.resolve(outs), solver.resolve(groups)
    solver.divides(solver.resolve(groups * outputs.degree), outs)
    found = quotient(outs, groups)
    return Conv(groups, call("div", outs, groups) if found is None else found, solver.resolve(ins))


def _kernel_type(typing: Typing, op: Op, args: Sequence[Type], where: str) -> tuple[Type, ...]:
    groups, ins = (symbol(f"{FREE}{where}.{what}") for what in ("groups", "ins"))
    return (Type(ONE, (Dim(groups * ins), Dim(ins), *map(Dim, kernel_sizes(op)))),)


def _conv_joints(m: Parts, op: Op, ref: Ref) -> list[list[Expr]]:
    x, w = (m.joints(r) for r in op.inputs)
    return [list(x[0]), list(w[0]), [], []]


def _conv(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    """The sum over channels and taps; kernels are 0 outside."""
    x, w = op.inputs
    n, o, *places = index
    grouping = m.parts.typing.convs[f"{m.parts.name}.{ref.op}"]
    resolve = m.parts.typing.solver.resolve
    groups, outs, ins = (resolve(e) for e in (grouping.groups, grouping.outputs, grouping.inputs))
    image, kernel = m.parts.type(x), m.parts.type(w)
    sizes = [dim.size for dim in kernel.dims[2:]]
    sources, own, window, taps = window_of(m, op, image, sizes, tuple(places))
    joints = [*m.parts.joints(w)[1]]
    if groups == ONE:
        joints += m.parts.joints(x)[1]
    elif joints:
        raise UndecidedError("a grouped convolution whose channels are concatenated")
    total: Value = ()
    for label, c in summed_over(m, joints, ins):
        channel = c
        if groups == ONE:
            pass
        elif image.dims[1].degree != ONE or kernel.dims[0].degree != ONE:
            channel = _local_channel(o, c, image.dims[1], kernel.dims)
        else:
            channel = _channel(m, o, c, outs, ins)
        left = m.at(x, chunk_of(o, kernel.dims[0]), (n, channel, *sources))
        right = m.at(w, chunk_of(n, image.dims[0]), (o, c, *own))
        inside = (*window, *in_chunk(c, kernel.dims[1], replica))
        total += summed(times(product(left, right), inside), (label, *taps))
    return activated(op, total)


def _channel(m: Meaning, o: Index, c: Index, outs: Expr, ins: Expr) -> Index:
    """The input channel that output o reads for c: floor(o / outs) * ins + c."""
    at = divided(o.at, outs, m.labels.sizes) * ins + c.at
    first, rest = pulled(o.start, outs)
    if o.length is None or rest.terms:
        return Index(at)
    count, rest = pulled(o.length, outs)
    return Index(at) if rest.terms else Index(at, first * ins, count * ins)


def _local_channel(o: Index, c: Index, channels: Dim, kernel: Sequence[Dim]) -> Index:
    """The same where channels are divided: each device has all groups, of its own channels.

    Which one that is depends on no more than these positions, sizes and degrees.
    """
    known = [e for d in (channels, *kernel[:2]) for e in (d.size, d.degree)]
    return Index(call("channel", o.at, c.at, *known))


def _own_channel(m: Meaning, ref: Ref, index: Indices) -> Factor:
    """1 on the input channel of the number that the output has in its group."""
    o, c, *_ = index
    ins = m.parts.type(ref).dims[1].size
    return Factor("eq", (c.at, ZERO if ins == ONE else call("mod", o.at, ins)))


def _identity_kernel(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    middle = (
        Factor("eq", (i.at, as_expr(op[f"kernel_{axis}"] // 2)))
        for i, axis in zip(index[2:], AXES, strict=True)
    )
    return times(constant(ONE), (_own_channel(m, ref, index), *middle))


def _mean_kernel(m: Meaning, op: Op, ref: Ref, replica: Expr, index: Indices) -> Value:
    own = times(constant(ONE), (_own_channel(m, ref, index),))
    return scaled(own, share(op["kernel_h"], op["kernel_w"]))


def _compute_conv(op: Op, args: Sequence[Tensor], run: Run) -> tuple[Tensor, ...]:
    x, w = args
    need(x.rank == w.rank == 4, "convolution of no images")
    data, degrees = on_each(op, _DEVICES, args, run, partial(_image, op, run))
    cuts = (None, x.cuts[1], w.cuts[1], None, None)
    return (Tensor(compute_activated(op, data, run), degrees, cuts),)


def _image(op: Op, run: Run, image: Array, kernel: Array) -> Array:
    """The convolution on one device, grouped where the image has more channels."""
    channels, outs, ins = image.shape[1], kernel.shape[0], kernel.shape[1]
    need(channels % ins == 0, f"{ins} inputs of {channels} channels")
    groups = channels // ins
    need(outs % groups == 0, f"{outs} outputs in {groups} groups")
    seen = windows_in(op, image, (kernel.shape[2], kernel.shape[3]), 0)
    parts: list[Array] = []
    for o in range(outs):
        group = o // (outs // groups)
        block = seen[:, group * ins : (group + 1) * ins]
        run.spend(block.size)
        both = run.numbers.mul(block, kernel[o][None, :, None, None])
        parts.append(run.numbers.total(both, (1, 4, 5)))
    return np.stack(parts, axis=1)


def _fill_identity(op: Op, shape: tuple[int, ...], numbers: Numbers) -> Array:
    data = np.zeros(shape)
    for o in range(shape[0]):
        data[o, o % shape[1], op["kernel_h"] // 2, op["kernel_w"] // 2] = 1
    return numbers.array(data)


def _fill_mean(op: Op, shape: tuple[int, ...], numbers: Numbers) -> Array:
    data = np.zeros(shape)
    for o in range(shape[0]):
        data[o, o % shape[1]] = 1
    return numbers.mul(numbers.array(data), numbers.share(op["kernel_h"] * op["kernel_w"]))


def _axes(node: Node, types: Sequence[TensorType]) -> tuple[Groups, Groups, Groups] | None:
    """Dimensions of input (sample, channel, height, width), kernel (out, in, ...) and result.

    None if the convolution is none of the rules': grouped, dilated, or padded in another way.
    """
    names = ("lhs_dilation", "rhs_dilation")
    dilated = any(set(cast("Ints", node.attr(name))) - {1} for name in names)
    grouped = node.attr("feature_group_count") != 1 or node.attr("batch_group_count") != 1
    if dilated or grouped or types[0].rank != 4:
        return None
    specs = dict(cast("tuple[tuple[str, Ints], ...]", node.attr("dimension_numbers")))
    lhs, rhs, out = specs["lhs_spec"], specs["rhs_spec"], specs["out_spec"]
    strides = cast("Ints", node.attr("window_strides"))
    if not set(strides) <= set(STRIDES):
        return None
    padding: list[tuple[Ints, Ints]] = []
    for k in range(2):
        length, window = types[0].shape[lhs[2 + k]], types[1].shape[rhs[2 + k]]
        padding.append((same_padding(length, window, strides[k]), (0, 0)))
    if node.attr("padding") not in [tuple(pair) for pair in zip(*padding, strict=True)]:
        return None
    found = [tuple((d,) for d in spec) for spec in (lhs, rhs, out)]
    return found[0], found[1], found[2]


def _read_conv(at: Matcher, term: Term, source: Source, known: Partial, env: Env) -> Found:
    item = at.maker(source, ("conv_general_dilated",))
    axes = _axes(item.node, [at.net.type_of(s) for s in item.inputs]) if item else None
    if item is not None and axes is not None and unify(known, axes[2]) is not None:
        operands = (item.inputs[0], axes[0]), (item.inputs[1], axes[1])
        yield from at.match_operands(term, operands, axes[2], env)


def _write_conv(at: Writer, term: Term) -> Built:
    x, w = map(at.write, term.args)
    item = at.sample("conv_general_dilated")
    node = item.node
    old = [at.net.type_of(s) for s in item.inputs]
    axes = _axes(node, old)
    if axes is None:
        raise NoFitError
    # dimension k of the axes is the single one axes[...][k]
    image, kernel, result = ([group[0] for group in groups] for groups in axes)
    sources = [
        transposed(
            at.net,
            built.source,
            [built.groups[k][0] for k in sorted(range(4), key=wanted.__getitem__)],
        )
        for built, wanted in ((x, image), (w, kernel))
    ]
    new = [at.net.type_of(source) for source in sources]
    if any(old[0].shape[d] != new[0].shape[d] for d in image[2:]):
        raise NoFitError
    if any(old[1].shape[d] != new[1].shape[d] for d in kernel[2:]):
        raise NoFitError
    shape = list(node.outputs[0].shape)
    shape[result[0]] = new[0].shape[image[0]]
    shape[result[1]] = new[1].shape[kernel[0]]
    type_ = TensorType(tuple(shape), node.outputs[0].dtype)
    source = at.net.make(node.op, sources, type_, node.attrs, item)
    return Built(source, axes[2], (x.cuts[0], w.cuts[0], (), ()))


_SIZES = ("kernel_h", "kernel_w")
CONVOLUTIONS = (
    RuleOp(
        name="conv", operands=(2, 2), params=("activation", "stride_h", "stride_w", "padding"),
        dims=4, sums=True, restrictions=(SAME_WIDTH, UNGROUPED), type=_conv_type,
        joints=_conv_joints, value=_conv, compute=_compute_conv,
        form=Form(("conv_general_dilated",), _read_conv, _write_conv),
    ),
    RuleOp(
        name="identity-kernel", operands=(0, 0), params=_SIZES, type=_kernel_type,
        value=_identity_kernel, fill=_fill_identity,
    ),
    RuleOp(
        name="mean-kernel", operands=(0, 0), params=_SIZES, fractions=True, type=_kernel_type,
        value=_mean_kernel, fill=_fill_mean,
    ),
)  # fmt: skip
